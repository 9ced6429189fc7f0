//! The API for remote clients, over TLS. A client authenticates by a certificate of an authority that the operator
//! names, or by a bearer token with the right to `get` [`GRANTED_PATH`](tokens::GRANTED_PATH).
//!
//! It runs on a thread of its own, so that handshakes of strangers delay neither the main thread nor requests.

mod certificates;
mod tokens;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::Context as _;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use ingress_control::{KubernetesConfig, access_review::AccessReviews};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

pub(crate) use self::certificates::CertificateFiles;
use self::{
    certificates::Certificates,
    tokens::{Tokens, Verdict},
};
use super::{Answers, CONNECTIONS_MAX, HEAD_TIMEOUT, RETRY, Reach, answers, bind, body::AdminBody};
use crate::daemon::privileges;

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the head of a request; a token has at most half of it.
const HEAD_MAX: usize = 16 * 1024;
/// Time limit of a connection, so that idle ones do not keep others out.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(10);

/// Settings of the remote API.
#[derive(Debug)]
pub(crate) struct RemoteSettings {
    pub(crate) address: SocketAddr,
    pub(crate) files: CertificateFiles,
    /// API server that reviews tokens; `None` accepts no tokens.
    pub(crate) reviews: Option<KubernetesConfig>,
}

/// The thread of the remote API. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct RemoteApi {
    _stop: oneshot::Sender<Infallible>,
}

/// State that connections share.
#[derive(Debug)]
struct Remote {
    answers: Arc<Answers>,
    tokens: Option<Tokens>,
}

impl RemoteApi {
    /// Starts the thread. The address is bound while `wanted` is true, as that of the admin address is.
    ///
    /// # Errors
    /// Fails if a file of `settings` cannot be used, there is no API server to ask, or the thread cannot be started.
    pub(crate) fn start(
        settings: RemoteSettings,
        answers: Arc<Answers>,
        wanted: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        let RemoteSettings { address, files, reviews } = settings;
        let certificates = Certificates::open(files).context("cannot serve the API on --api-addr")?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let (stop, stopped) = oneshot::channel();
        let (started, is_started) = std::sync::mpsc::sync_channel(1);
        let serve = async move {
            let tokens = match reviews {
                Some(config) => match AccessReviews::connect(&config).await {
                    Ok(reviews) => Some(Tokens::new(reviews)),
                    Err(error) => return started.send(Err(error)).unwrap_or_default(),
                },
                None => None,
            };
            // The receiver waits below.
            started.send(Ok(())).unwrap_or_default();
            serve(address, certificates, Arc::new(Remote { answers, tokens }), wanted).await;
        };
        let run = move || {
            privileges::keep_for_api();
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _dropped = stopped => {}
                }
            });
        };
        thread::Builder::new().name("api".into()).spawn(run).context("cannot start the thread of the API")?;
        is_started.recv().context("the thread of the API ended")?.context("cannot review tokens for --api-addr")?;
        Ok(Self { _stop: stop })
    }
}

async fn serve(
    address: SocketAddr,
    mut certificates: Certificates,
    remote: Arc<Remote>,
    mut wanted: watch::Receiver<bool>,
) {
    // An error means that the sender is gone and the value cannot change any more.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            _never = open(address, &mut certificates, &remote) => {}
            _left = wanted.wait_for(|wanted| !*wanted) => info!(%address, "address of the API left to the successor"),
        }
    }
}

async fn open(address: SocketAddr, certificates: &mut Certificates, remote: &Arc<Remote>) -> Infallible {
    let listener = bind(address, "--api-addr").await;
    info!(%address, "API open to authenticated clients");
    accept(&listener, certificates, remote).await
}

async fn accept(listener: &TcpListener, certificates: &mut Certificates, remote: &Arc<Remote>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let acceptor = TlsAcceptor::from(certificates.config(Instant::now().into_std()));
                let remote = Arc::clone(remote);
                connections.spawn(async move {
                    if timeout(CONNECTION_TIMEOUT, converse(stream, acceptor, remote)).await.is_err() {
                        debug!("a connection to the API has reached its time limit");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection to the API");
                sleep(RETRY).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, remote: Arc<Remote>) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "handshake of the API failed"),
        Err(_elapsed) => return debug!("handshake of the API took too long"),
    };
    // rustls has checked a certificate that is presented against the authorities.
    let is_known = stream.get_ref().1.peer_certificates().is_some();
    let service = service_fn(move |request| {
        let remote = Arc::clone(&remote);
        async move { Ok::<_, Infallible>(remote.respond(request, is_known).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "connection to the API ended");
    }
}

impl Remote {
    async fn respond<B>(&self, request: Request<B>, is_known: bool) -> Response<AdminBody> {
        let refusal = match (is_known, &self.tokens) {
            (true, _) => None,
            (false, None) => Some(Refusal::NoCertificate),
            (false, Some(tokens)) => match bearer(&request) {
                Some(token) => Refusal::of(tokens.check(token).await),
                None => Some(Refusal::NoToken),
            },
        };
        match refusal {
            None => Arc::clone(&self.answers).respond(request, Reach::Authenticated).await,
            Some(refusal) => refusal.into_response(),
        }
    }
}

/// Returns the token of `Authorization: Bearer` (RFC 6750, 2.1).
fn bearer<B>(request: &Request<B>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Reason why a request is not answered.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("present a client certificate of the authority in --api-client-ca-file")]
    NoCertificate,
    #[error("present a token as `Authorization: Bearer …`, or a client certificate")]
    NoToken,
    #[error("the API server does not know this token; it may have expired")]
    UnknownToken,
    #[error("`{0}` may not read this API; grant `get` on the nonResourceURL `{path}`", path = tokens::GRANTED_PATH)]
    Forbidden(Arc<str>),
    #[error("too many unknown tokens come in; try again in a second")]
    TooMany,
    #[error("the API server did not review the token; try again, and look at the log of this pod")]
    Unavailable,
}

impl Refusal {
    fn of(verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Allowed => None,
            Verdict::Forbidden(user) => Some(Self::Forbidden(user)),
            Verdict::Unauthenticated => Some(Self::UnknownToken),
            Verdict::TooMany => Some(Self::TooMany),
            Verdict::Unavailable => Some(Self::Unavailable),
        }
    }

    fn into_response(self) -> Response<AdminBody> {
        let status = match self {
            Self::NoCertificate | Self::NoToken | Self::UnknownToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        let body = serde_json::json!({ "error": self.to_string() }).to_string();
        let mut response = answers::typed(status, "application/json", body);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Strangers must not hold the places of others with requests that are refused.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests;
