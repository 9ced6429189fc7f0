//! Connections to an API server: few connections for many watches, and a liveness check for each. This module does not
//! know the requests' content.
//!
//! A server that speaks HTTP/2, as API servers do over TLS, gets [`STREAMS`] requests on each connection; any other
//! gets a connection for each request in progress. A first connection without a request finds out which protocol the
//! server speaks, so that many concurrent requests do not each open one to see. The protocol is determined again after
//! every failure, because a different server may answer then. While none answers, one connection is tried at a time.
//!
//! A server that crashes, is stopped, or is cut off sends nothing, not even the end of the connection. Over HTTP/2 the
//! client sends a ping; otherwise its kernel sends TCP keepalive probes. Only an HTTP/1.1 server that stops while its
//! kernel continues is found later: after the longest duration of a watch, 295 s.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connection, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::Body;
use tokio::{
    net::TcpStream,
    time::{error::Elapsed, timeout},
};
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

/// Opens connections, TLS included.
pub(super) type KubeConnector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// Maximum number of requests on one HTTP/2 connection. Go's servers allow 100 and more, and proxies in front of them
/// at least as many. A request over the server's limit would wait for a watch to end.
const STREAMS: usize = 64;

/// How long a server may take to begin a response. An API server gives up on requests other than watches after 60 s,
/// and begins the response to a watch at once.
const MAX_HEAD: Duration = Duration::from_secs(75);

/// Limits after which a connection counts as dead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Idle time after which the server is asked for a sign of life.
    pub(super) silence: Duration,
    /// How long the sign of life may take. Together with `silence`, it is also how long sent data may stay
    /// unacknowledged.
    pub(super) answer: Duration,
}

/// The same limits as client-go's.
pub(super) const PATIENCE: Patience = Patience { silence: Duration::from_secs(30), answer: Duration::from_secs(15) };

/// Number of TCP probes within [`Patience::answer`].
const PROBES: u32 = 3;

/// All connections to one server. Clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<SharedConnections>);

struct SharedConnections {
    server: Uri,
    connector: KubeConnector,
    patience: Patience,
    /// The server's protocol, once it is known. The lock makes sure that only one task determines it at a time.
    protocol: tokio::sync::Mutex<Option<HttpProtocol>>,
    /// HTTP/2 clients, each with one connection.
    lanes: Mutex<Vec<ConnectionLane>>,
    http1: Client<KubeConnector, Body>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpProtocol {
    Http1,
    Http2,
}

#[derive(Clone)]
struct ConnectionLane {
    client: Client<KubeConnector, Body>,
    /// The reference count is the number of requests in progress plus one.
    streams: Arc<()>,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("cannot connect to `{server}`")]
    Connect { server: Uri, source: BoxError },
    #[error("no answer within {MAX_HEAD:?}")]
    Timeout { source: Elapsed },
}

// === impl Patience ===

impl Patience {
    /// Lets the kernel check connections, independent of the protocol on them.
    pub(super) fn apply<R>(self, connector: &mut HttpConnector<R>) {
        let Self { silence, answer } = self;
        connector.set_keepalive(Some(silence));
        connector.set_keepalive_interval(Some(answer / PROBES));
        connector.set_keepalive_retries(Some(PROBES));
        // Elsewhere, as on macOS, connections with unacknowledged data last as long as the system retransmits.
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(silence + answer));
    }
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(server: Uri, connector: KubeConnector, patience: Patience) -> Self {
        let http1 = Client::builder(TokioExecutor::new()).build(connector.clone());
        let (protocol, lanes) = (tokio::sync::Mutex::default(), Mutex::default());
        Self(Arc::new(SharedConnections { server, connector, patience, protocol, lanes, http1 }))
    }
}

impl Service<Request<Body>> for Connections {
    type Response = Response<UnsyncBoxBody<bytes::Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self(shared) = self.clone();
        Box::pin(async move { shared.send(request).await })
    }
}

// === impl SharedConnections ===

impl SharedConnections {
    async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<<Connections as Service<Request<Body>>>::Response, BoxError> {
        let ConnectionLane { client, streams } = match self.protocol().await? {
            HttpProtocol::Http1 => ConnectionLane { client: self.http1.clone(), streams: Arc::default() },
            HttpProtocol::Http2 => self.lane(),
        };
        let response =
            timeout(MAX_HEAD, client.request(request)).await.map_err(|source| ConnectionError::Timeout { source })?;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                *self.protocol.lock().await = None;
                return Err(error.into());
            }
        };
        Ok(response.map(|body| {
            let body = body.map_frame(move |frame| {
                // The request counts as in progress until the response body has ended.
                let _taken = &streams;
                frame
            });
            body.map_err(BoxError::from).boxed_unsync()
        }))
    }

    async fn protocol(&self) -> Result<HttpProtocol, ConnectionError> {
        let mut known = self.protocol.lock().await;
        if let Some(protocol) = *known {
            return Ok(protocol);
        }
        let server = self.server.clone();
        let stream = self.connector.clone().oneshot(server.clone()).await;
        let stream = stream.map_err(|source| ConnectionError::Connect { server, source })?;
        let is_http2 = stream.connected().is_negotiated_h2();
        Ok(*known.insert(if is_http2 { HttpProtocol::Http2 } else { HttpProtocol::Http1 }))
    }

    /// Returns a connection with a free stream, or a new one if all are full.
    fn lane(&self) -> ConnectionLane {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.iter().find(|lane| Arc::strong_count(&lane.streams) <= STREAMS) {
            return lane.clone();
        }
        let Patience { silence, answer } = self.patience;
        // Without `http2_only`, each of many concurrent requests would open a connection.
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(silence)
            .http2_keep_alive_timeout(answer)
            .http2_keep_alive_while_idle(true)
            .build(self.connector.clone());
        let lane = ConnectionLane { client, streams: Arc::default() };
        lanes.push(lane.clone());
        lane
    }
}
