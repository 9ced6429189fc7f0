//! Health, metrics and counters over HTTP on the admin address. Reads only; knows no secret and shows none.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the process runs |
//! | `/readyz` | 200 once a snapshot is served, 503 before and while draining |
//! | `/metrics` | Prometheus (OpenMetrics text), see [`metrics`] |
//! | `/hosts` | JSON: counters of every host |
//! | `/totals` | JSON: packets and bytes by reason |

mod metrics;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use ingress_common::{HostL7, HostNet, StatusClass, Traffic};
use ingress_userspace::proxy::StatsView;
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tracing::{debug, info, warn};

/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a taken address is tried again: the predecessor of an update holds it until it has drained.
const RETRY: Duration = Duration::from_secs(1);
/// Connections served at one time; a scraper and a few people. More wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// What the admin address shows; implemented where all parts are known.
pub(crate) trait Source: std::fmt::Debug + Send + Sync + 'static {
    fn ready(&self) -> bool;
    /// Every host with counters, host 0 first.
    fn hosts(&self) -> Vec<HostCounters>;
    /// Packets and bytes by reason; empty without the kernel part.
    fn totals(&self) -> Vec<(&'static str, Traffic)>;
    fn control(&self) -> ControlState;
    fn proxy(&self) -> StatsView;
}

/// Counters of one host.
#[derive(Debug)]
pub(crate) struct HostCounters {
    pub(crate) host: String,
    pub(crate) id: u32,
    pub(crate) l7: HostL7,
    pub(crate) net: HostNet,
}

/// Where the control path stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlState {
    pub(crate) generation: u64,
    pub(crate) hosts: usize,
    pub(crate) upstreams: usize,
    pub(crate) warnings: usize,
    pub(crate) hosts_over_capacity: usize,
}

/// Serves `source` at `address` while `wanted` holds; a taken address is tried again until it is free.
pub(crate) async fn serve(address: SocketAddr, source: Arc<dyn Source>, mut wanted: watch::Receiver<bool>) {
    // An error says that nobody can want anything any more.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            _never = accept(address, &source) => {}
            _left = wanted.wait_for(|wanted| !*wanted) => info!(%address, "admin address left to the successor"),
        }
    }
}

async fn accept(address: SocketAddr, source: &Arc<dyn Source>) -> Infallible {
    let listener = bind(address).await;
    info!(%address, "admin address open");
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(source);
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let response = answer(&request, source.as_ref());
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let served = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .serve_connection(TokioIo::new(stream), service);
                    if let Err(error) = served.await {
                        debug!(%error, "admin connection ended");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept on the admin address");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn bind(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !told {
                    warn!(%address, %error, "cannot bind the admin address; trying on (another process holds it, or choose one with --admin-addr)");
                    told = true;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn answer(request: &Request<Incoming>, source: &dyn Source) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "the admin address answers GET and HEAD only\n".into());
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" if source.ready() => text(StatusCode::OK, "ready\n".into()),
        "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n".into()),
        "/metrics" => match metrics::encode(source) {
            Ok(body) => typed(StatusCode::OK, metrics::CONTENT_TYPE, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        "/hosts" => typed(StatusCode::OK, "application/json", hosts(source).to_string()),
        "/totals" => typed(StatusCode::OK, "application/json", totals(source).to_string()),
        _ => text(StatusCode::NOT_FOUND, "try /healthz, /readyz, /metrics, /hosts or /totals\n".into()),
    }
}

fn hosts(source: &dyn Source) -> Value {
    source
        .hosts()
        .into_iter()
        .map(|HostCounters { host, id, l7, net }| {
            let HostL7 { requests, bytes_in, bytes_out, active } = l7;
            let HostNet { rx_packets, rx_bytes, tx_packets, tx_bytes } = net;
            let requests: Map<String, Value> = StatusClass::NAMES
                .iter()
                .zip(requests.to_array())
                .map(|(&name, count)| (name.to_owned(), count.into()))
                .collect();
            json!({
                "host": host, "id": id, "requests": requests, "bytes_in": bytes_in, "bytes_out": bytes_out,
                "active": active, "rx_packets": rx_packets, "rx_bytes": rx_bytes, "tx_packets": tx_packets,
                "tx_bytes": tx_bytes,
            })
        })
        .collect()
}

fn totals(source: &dyn Source) -> Value {
    let totals = source
        .totals()
        .into_iter()
        .map(|(name, Traffic { packets, bytes })| (name.to_owned(), json!({ "packets": packets, "bytes": bytes })));
    Value::Object(totals.collect())
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
