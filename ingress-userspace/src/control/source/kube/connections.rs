//! Connections to an API server: few for many watches, and none that is dead without being noticed. It knows nothing of
//! what is asked.
//!
//! A server that speaks HTTP/2, as API servers do over TLS, gets [`STREAMS`] requests on each connection; any other
//! gets a connection for each request that is under way. Which of the two it is, a first connection without a request
//! finds out, so that many requests at once do not each open one to see. It finds out anew after every failure: what
//! comes back may be another server, and while none is there, one connection is tried at a time.
//!
//! A server that crashes, is stopped, or is cut off sends nothing, not even the end of the connection. Over HTTP/2 it
//! is asked for a sign of life (a ping); otherwise its kernel is (TCP keepalive). Only a server of HTTP/1.1 that stops
//! while its kernel goes on is found later: when the time is over that a watch lasts at most, 295 s.

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
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// Requests on one connection of HTTP/2. Go's servers allow 100 and more, and proxies before them at least as many; a
/// request over the limit would wait for a watch to end.
const STREAMS: usize = 64;

/// How long a server may take to begin an answer. An API server gives up on what is no watch after 60 s, and answers at
/// once to a watch.
const MAX_HEAD: Duration = Duration::from_secs(75);

/// When a connection counts as dead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long nothing may come before a sign of life is asked for.
    pub(super) silence: Duration,
    /// How long that may take; and how long what was sent may stay unacknowledged, together with `silence`.
    pub(super) answer: Duration,
}

/// As long as client-go's.
pub(super) const PATIENCE: Patience = Patience { silence: Duration::from_secs(30), answer: Duration::from_secs(15) };

/// Probes of TCP within [`Patience::answer`].
const PROBES: u32 = 3;

/// All connections to one server. Clones share them.
#[derive(Clone)]
pub(super) struct Connections(Arc<Shared>);

struct Shared {
    server: Uri,
    connector: Connector,
    patience: Patience,
    /// What the server speaks, once it has been asked, which is done once at a time.
    protocol: tokio::sync::Mutex<Option<Protocol>>,
    /// Clients of HTTP/2, each with one connection.
    lanes: Mutex<Vec<Lane>>,
    http1: Client<Connector, Body>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

#[derive(Clone)]
struct Lane {
    client: Client<Connector, Body>,
    /// As many as there are requests under way, and one.
    places: Arc<()>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot connect to `{server}`")]
    Connect { server: Uri, source: BoxError },
    #[error("no answer within {MAX_HEAD:?}")]
    Timeout { source: Elapsed },
}

// === impl Patience ===

impl Patience {
    /// Has the kernel look after connections, whatever they carry.
    pub(super) fn apply<R>(self, connector: &mut HttpConnector<R>) {
        let Self { silence, answer } = self;
        connector.set_keepalive(Some(silence));
        connector.set_keepalive_interval(Some(answer / PROBES));
        connector.set_keepalive_retries(Some(PROBES));
        connector.set_tcp_user_timeout(Some(silence + answer));
    }
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(server: Uri, connector: Connector, patience: Patience) -> Self {
        let http1 = Client::builder(TokioExecutor::new()).build(connector.clone());
        let (protocol, lanes) = (tokio::sync::Mutex::default(), Mutex::default());
        Self(Arc::new(Shared { server, connector, patience, protocol, lanes, http1 }))
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

// === impl Shared ===

impl Shared {
    async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<<Connections as Service<Request<Body>>>::Response, BoxError> {
        let Lane { client, places: place } = match self.protocol().await? {
            Protocol::Http1 => Lane { client: self.http1.clone(), places: Arc::default() },
            Protocol::Http2 => self.lane(),
        };
        let response = timeout(MAX_HEAD, client.request(request)).await.map_err(|source| Error::Timeout { source })?;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                *self.protocol.lock().await = None;
                return Err(error.into());
            }
        };
        Ok(response.map(|body| {
            let body = body.map_frame(move |frame| {
                // The place is taken until the answer has ended.
                let _taken = &place;
                frame
            });
            body.map_err(BoxError::from).boxed_unsync()
        }))
    }

    async fn protocol(&self) -> Result<Protocol, Error> {
        let mut known = self.protocol.lock().await;
        if let Some(protocol) = *known {
            return Ok(protocol);
        }
        let server = self.server.clone();
        let stream = self.connector.clone().oneshot(server.clone()).await;
        let stream = stream.map_err(|source| Error::Connect { server, source })?;
        let is_http2 = stream.connected().is_negotiated_h2();
        Ok(*known.insert(if is_http2 { Protocol::Http2 } else { Protocol::Http1 }))
    }

    /// A place on a connection; on a new one where all are full.
    fn lane(&self) -> Lane {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.iter().find(|lane| Arc::strong_count(&lane.places) <= STREAMS) {
            return lane.clone();
        }
        let Patience { silence, answer } = self.patience;
        // Without `http2_only`, each of many requests at once would open a connection.
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(silence)
            .http2_keep_alive_timeout(answer)
            .http2_keep_alive_while_idle(true)
            .build(self.connector.clone());
        let lane = Lane { client, places: Arc::default() };
        lanes.push(lane.clone());
        lane
    }
}
