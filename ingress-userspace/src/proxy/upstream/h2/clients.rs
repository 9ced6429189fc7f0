//! The HTTP/2 connections of one worker, by endpoint: few, each with many streams. It chooses no endpoint and sends
//! nothing.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, uri::Scheme};
use http_body::Body;
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http2::SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{sync::Mutex, time::timeout};

use super::upload::{Tasks, Upload};
use crate::proxy::upstream::{BoxError, ConnectError, Pool, Target, Transport, connection::Lane};

/// Bytes of a response that an endpoint may send before the client takes any.
const WINDOW: u32 = 64 * 1024;
/// The same for all streams of a connection: clients that take nothing must not use up what others need.
const STREAMS_WINDOW: u32 = WINDOW * STREAMS_MAX as u32;
/// Streams that were given up and of which frames may still be under way. What comes for others is an error, and h2
/// ends a connection after a number of those, as a peer's attack; but these are the clients' doing, and the peer is a
/// pod.
const RESETS_REMEMBERED: usize = 1024;
/// Connections to one endpoint; streams beyond what they hold go to the one that has the fewest.
const CONNECTIONS_MAX: usize = 8;
/// Streams on one connection before another is opened, where the endpoint allows as many. More streams share one
/// window and one socket, and lose together.
const STREAMS_MAX: usize = 100;
/// Streams before the endpoint has said how many it allows; more might be refused, and wait.
const STREAMS_FIRST: usize = 1;
/// Largest list of response fields, as `Limits` has it for the heads of HTTP/1.1 by default.
const HEAD_MAX: u32 = 64 * 1024;
/// While streams are open, an endpoint that was silent for this long is asked for a sign of life…
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// …and has this long to give it.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of one worker thread; clones share them. Connecting, and how long idle ones are kept, is as the
/// [`Pool`]'s options say.
pub struct Clients<B>(Rc<Shared<B>>);

struct Shared<B> {
    pool: Pool,
    endpoints: RefCell<HashMap<Lane, Endpoint<B>>>,
    /// Time of the last [`Clients::prune`].
    now: Cell<Instant>,
}

struct Endpoint<B> {
    clients: Vec<Client<B>>,
    /// Held by who connects; the others wait and then share the connection.
    gate: Rc<Mutex<()>>,
}

struct Client<B> {
    sender: SendRequest<Upload<B>>,
    scheme: Scheme,
    usage: Rc<Usage>,
    tasks: Tasks,
}

struct Usage {
    streams: Cell<usize>,
    /// How many the endpoint allows, as far as known.
    allowed: Cell<usize>,
    /// A stream has ended: the connection is no longer new.
    used: Cell<bool>,
    /// Since when there is no stream, by the coarse clock.
    idle_since: Cell<Instant>,
}

/// The right to one stream.
pub struct Lease<B> {
    sender: SendRequest<Upload<B>>,
    scheme: Scheme,
    usage: Rc<Usage>,
    tasks: Tasks,
    shared: Rc<Shared<B>>,
}

// === impl Clients ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + 'static> Clients<B> {
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self(Rc::new(Shared { pool, endpoints: RefCell::default(), now: Cell::new(Instant::now()) }))
    }

    /// A stream on a connection to `target`, opened if there is none that has room; one of its own, if it begins with
    /// an introduction.
    ///
    /// # Errors
    /// If that takes longer than `after`, or as connecting fails.
    pub async fn lease(&self, target: Target<'_>, after: Duration) -> Result<Lease<B>, ConnectError> {
        if target.introduction.is_some() {
            let connecting = Box::pin(self.handshake(target));
            let connected = timeout(after, connecting).await;
            let client = connected.map_err(|_elapsed| ConnectError::Timeout { address: target.address })??;
            // It ends with the lease, which alone can send on it.
            return Ok(self.take(&client));
        }
        if let Some(lease) = self.open(target.lane()) {
            return Ok(lease);
        }
        // Boxed: streams on open connections need no room for this.
        let connecting = Box::pin(self.connect(target));
        timeout(after, connecting).await.map_err(|_elapsed| ConnectError::Timeout { address: target.address })?
    }

    /// Drops what is closed or was idle for too long. To be called once a second: it is also the clock.
    pub fn prune(&self, now: Instant) {
        self.0.now.set(now);
        let limit = self.0.pool.options().idle_timeout;
        self.retain(|usage| usage.streams.get() > 0 || now.saturating_duration_since(usage.idle_since.get()) < limit);
    }

    /// Closes what is idle.
    pub fn clear(&self) {
        self.retain(|usage| usage.streams.get() > 0);
    }

    fn retain(&self, keep: impl Fn(&Usage) -> bool) {
        self.0.endpoints.borrow_mut().retain(|_, Endpoint { clients, gate }| {
            clients.retain(|client| !client.sender.is_closed() && keep(&client.usage));
            !clients.is_empty() || Rc::strong_count(gate) > 1
        });
    }

    /// A stream on the connection that has the fewest, if that has room or there may be no other.
    fn open(&self, lane: Lane) -> Option<Lease<B>> {
        let mut endpoints = self.0.endpoints.borrow_mut();
        let Endpoint { clients, gate: _ } = endpoints.get_mut(&lane)?;
        clients.retain(|client| !client.sender.is_closed());
        let full = clients.len() >= CONNECTIONS_MAX;
        let client = clients.iter().min_by_key(|client| client.usage.streams.get())?;
        (full || client.usage.has_room()).then(|| self.take(client))
    }

    fn take(&self, client: &Client<B>) -> Lease<B> {
        let Client { sender, scheme, usage, tasks } = client;
        usage.streams.set(usage.streams.get() + 1);
        let (usage, shared) = (Rc::clone(usage), Rc::clone(&self.0));
        Lease { sender: sender.clone(), scheme: scheme.clone(), usage, tasks: tasks.clone(), shared }
    }

    async fn connect(&self, target: Target<'_>) -> Result<Lease<B>, ConnectError> {
        let lane = target.lane();
        let gate = {
            let mut endpoints = self.0.endpoints.borrow_mut();
            let endpoint = endpoints.entry(lane).or_insert_with(|| Endpoint { clients: vec![], gate: Rc::default() });
            Rc::clone(&endpoint.gate)
        };
        let _turn = gate.lock().await;
        if let Some(lease) = self.open(lane) {
            return Ok(lease);
        }
        let client = self.handshake(target).await?;
        let lease = self.take(&client);
        let mut endpoints = self.0.endpoints.borrow_mut();
        let endpoint = endpoints.entry(lane).or_insert_with(|| Endpoint { clients: vec![], gate: Rc::clone(&gate) });
        endpoint.clients.push(client);
        Ok(lease)
    }

    async fn handshake(&self, target: Target<'_>) -> Result<Client<B>, ConnectError> {
        let address = target.address;
        let scheme = match target.transport {
            Transport::Plain => Scheme::HTTP,
            Transport::Tls(_) => Scheme::HTTPS,
        };
        let stream = self.0.pool.open(target).await?;
        let tasks = Tasks::default();
        let mut builder = hyper::client::conn::http2::Builder::new(Local(tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .initial_max_send_streams(STREAMS_FIRST)
            .max_header_list_size(HEAD_MAX)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(STREAMS_WINDOW)
            .max_concurrent_reset_streams(RESETS_REMEMBERED)
            .max_local_error_reset_streams(None)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let handshake = builder.handshake::<_, Upload<B>>(TokioIo::new(stream)).await;
        let (sender, mut connection) =
            handshake.map_err(|error| ConnectError::Io { address, source: std::io::Error::other(error) })?;
        let usage = Rc::new(Usage {
            streams: Cell::new(0),
            allowed: Cell::new(STREAMS_MAX),
            used: Cell::new(false),
            idle_since: Cell::new(self.0.now.get()),
        });
        let seen = Rc::clone(&usage);
        // The worker's runtime owns it; it ends with the last sender or with the connection.
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                let allowed = connection.current_max_send_streams();
                // Until the endpoint has said, the number is our own; one that has answered has said.
                if allowed != STREAMS_FIRST || seen.used.get() {
                    seen.allowed.set(allowed);
                }
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%address, error = &error as &dyn std::error::Error, "http/2 connection ended");
            }
        });
        Ok(Client { sender, scheme, usage, tasks })
    }
}

impl<B> Clone for Clients<B> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<B> fmt::Debug for Clients<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("endpoints", &self.0.endpoints.borrow().len()).finish_non_exhaustive()
    }
}

// === impl Usage ===

impl Usage {
    fn has_room(&self) -> bool {
        self.streams.get() < self.allowed.get().min(STREAMS_MAX)
    }
}

// === impl Lease ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + 'static> Lease<B> {
    pub(super) fn send(
        &mut self,
        request: Request<Upload<B>>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload<B>>>>> + use<B> {
        self.sender.try_send_request(request)
    }
}

impl<B> Lease<B> {
    pub(super) fn scheme(&self) -> Scheme {
        self.scheme.clone()
    }

    pub(super) fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// Whether the connection has served a request before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.usage.used.get()
    }
}

impl<B> Drop for Lease<B> {
    fn drop(&mut self) {
        let Self { sender: _, scheme: _, usage, tasks: _, shared } = self;
        usage.streams.set(usage.streams.get() - 1);
        usage.used.set(true);
        usage.idle_since.set(shared.now.get());
    }
}

/// Runs hyper's tasks on the worker they belong to.
#[derive(Clone)]
struct Local(Tasks);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        self.0.begun(tokio::task::spawn_local(future).abort_handle());
    }
}
