//! The HTTP/2 connections of one worker, by endpoint: few connections with many streams each. It chooses no endpoint
//! and sends nothing.
//!
//! When the streams of all connections to an endpoint are in use, another connection is opened. A client that does not
//! read its responses therefore occupies streams, but not those of other clients.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    task::Waker,
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
use tokio::{
    sync::{Mutex, Notify},
    time::timeout,
};

use super::upload::{Http2Upload, Tasks};
use crate::upstream::{BoxError, ConnectError, ConnectTarget, Pool, UpstreamTransport, connection::PoolKey};

/// Flow-control window of a stream: bytes of a response that an endpoint may send before the client reads any. Every
/// stream whose client reads nothing holds that much memory: with 64 KiB, 2,048 of them exceeded 256 MiB in all. A
/// response gets at most a window per round trip, so 32 MB/s with one of a millisecond.
const WINDOW: u32 = 32 * 1024;
/// The same for all streams of a connection, so that clients that do not read cannot use up the window of others.
const STREAMS_WINDOW: u32 = WINDOW * STREAMS_MAX as u32;
/// Number of reset streams that h2 remembers, because frames for them may still be in flight. Frames for unknown
/// streams are errors, and h2 closes a connection after several of those as an attack by its peer. Here the resets are
/// caused by clients, and the peer is a pod.
const RESETS_REMEMBERED: usize = 1024;
/// Most connections to one endpoint. Every request passes over all of them, so an endpoint that allows few streams each
/// could otherwise make requests costly. When all are full, further streams go to the one with the fewest, and wait.
const CONNECTIONS_MAX: usize = 256;
/// Streams on one connection before another is opened, if the endpoint allows as many. More streams would share one
/// window and one socket, and fail together.
const STREAMS_MAX: usize = 100;
/// The first value of hyper's limit of concurrent streams. It differs from every limit that an endpoint announces, so
/// that a changed value shows that its SETTINGS have arrived; until then, a connection has one stream.
const UNANNOUNCED: usize = u32::MAX as usize - 1;
/// Largest header list of a response, the same as the default of `Limits` for HTTP/1.1.
const HEAD_MAX: u32 = 64 * 1024;
/// While streams are open, an endpoint that has been silent for this long is sent a PING…
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// …and must acknowledge it within this time.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of one worker thread; clones share them. The [`Pool`]'s options apply to connecting and to idle
/// connections.
pub struct Http2Clients<B>(Rc<Http2Shared<B>>);

struct Http2Shared<B> {
    pool: Pool,
    endpoints: RefCell<HashMap<PoolKey, Http2Endpoint<B>>>,
    /// Time of the last [`Http2Clients::prune`].
    now: Cell<Instant>,
}

struct Http2Endpoint<B> {
    clients: Vec<Http2Client<B>>,
    /// Locked while connecting; others wait and then share the connection.
    gate: Rc<Mutex<()>>,
}

struct Http2Client<B> {
    sender: SendRequest<Http2Upload<B>>,
    scheme: Scheme,
    usage: Rc<ConnectionUsage>,
    tasks: Tasks,
}

struct ConnectionUsage {
    streams: Cell<usize>,
    /// The endpoint's limit of concurrent streams; `None` until its SETTINGS have arrived (RFC 9113, section 3.4).
    allowed: Cell<Option<usize>>,
    /// Notified when `allowed` is known, and when the connection has ended.
    announced: Notify,
    /// The task that reads `allowed` from hyper, until it is known.
    reader: RefCell<Option<Waker>>,
    /// Whether a stream has ended, so that the connection is no longer new.
    used: Cell<bool>,
    /// Start of the time without streams, by the coarse clock.
    idle_since: Cell<Instant>,
}

/// The right to open one stream.
pub struct Lease<B> {
    sender: SendRequest<Http2Upload<B>>,
    scheme: Scheme,
    usage: Rc<ConnectionUsage>,
    tasks: Tasks,
    shared: Rc<Http2Shared<B>>,
}

// === impl Http2Clients ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + 'static> Http2Clients<B> {
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self(Rc::new(Http2Shared { pool, endpoints: RefCell::default(), now: Cell::new(Instant::now()) }))
    }

    /// Returns a stream on a connection to `target`. Opens a connection if none has room, or if the connection must
    /// begin with a PROXY protocol header.
    ///
    /// # Errors
    /// If that takes longer than `after`, or if connecting fails.
    pub async fn lease(&self, target: ConnectTarget<'_>, after: Duration) -> Result<Lease<B>, ConnectError> {
        if target.proxy_header.is_some() {
            let connecting = Box::pin(self.handshake(target));
            let connected = timeout(after, connecting).await;
            let client = connected.map_err(|_elapsed| ConnectError::Timeout { address: target.address })??;
            // The connection ends with this lease, which holds its only sender.
            return Ok(self.take(&client));
        }
        if let Some(lease) = self.open(target.lane()) {
            return Ok(lease);
        }
        // Boxed so that streams on open connections do not carry its size.
        let connecting = Box::pin(self.connect(target));
        timeout(after, connecting).await.map_err(|_elapsed| ConnectError::Timeout { address: target.address })?
    }

    /// Drops connections that are closed or have been idle for too long. To be called once a second: this is also the
    /// clock.
    pub fn prune(&self, now: Instant) {
        self.0.now.set(now);
        let limit = self.0.pool.options().idle_timeout;
        self.retain(|usage| usage.streams.get() > 0 || now.saturating_duration_since(usage.idle_since.get()) < limit);
    }

    /// Closes idle connections.
    pub fn clear(&self) {
        self.retain(|usage| usage.streams.get() > 0);
    }

    fn retain(&self, keep: impl Fn(&ConnectionUsage) -> bool) {
        self.0.endpoints.borrow_mut().retain(|_, Http2Endpoint { clients, gate }| {
            clients.retain(|client| !client.sender.is_closed() && keep(&client.usage));
            !clients.is_empty() || Rc::strong_count(gate) > 1
        });
    }

    /// Returns a stream on the connection with the fewest, if that has room or if no further connection may be opened.
    fn open(&self, lane: PoolKey) -> Option<Lease<B>> {
        let mut endpoints = self.0.endpoints.borrow_mut();
        let Http2Endpoint { clients, gate: _ } = endpoints.get_mut(&lane)?;
        clients.retain(|client| !client.sender.is_closed());
        let is_full = clients.len() >= CONNECTIONS_MAX;
        let usable = clients.iter().filter(|client| is_full || client.usage.has_room());
        usable.min_by_key(|client| client.usage.streams.get()).map(|client| self.take(client))
    }

    /// Returns a connection whose endpoint has not announced its limit of concurrent streams.
    fn unannounced(&self, lane: PoolKey) -> Option<Rc<ConnectionUsage>> {
        let endpoints = self.0.endpoints.borrow();
        let usages = endpoints.get(&lane)?.clients.iter().map(|client| &client.usage);
        usages.filter(|usage| usage.allowed.get().is_none()).map(Rc::clone).next()
    }

    fn take(&self, client: &Http2Client<B>) -> Lease<B> {
        let Http2Client { sender, scheme, usage, tasks } = client;
        usage.streams.set(usage.streams.get() + 1);
        let (usage, shared) = (Rc::clone(usage), Rc::clone(&self.0));
        Lease { sender: sender.clone(), scheme: scheme.clone(), usage, tasks: tasks.clone(), shared }
    }

    async fn connect(&self, target: ConnectTarget<'_>) -> Result<Lease<B>, ConnectError> {
        let lane = target.lane();
        let gate = {
            let mut endpoints = self.0.endpoints.borrow_mut();
            let endpoint =
                endpoints.entry(lane).or_insert_with(|| Http2Endpoint { clients: vec![], gate: Rc::default() });
            Rc::clone(&endpoint.gate)
        };
        let _turn = gate.lock().await;
        loop {
            if let Some(lease) = self.open(lane) {
                return Ok(lease);
            }
            match self.unannounced(lane) {
                Some(usage) => usage.announced.notified().await,
                None => break,
            }
        }
        let client = self.handshake(target).await?;
        let lease = self.take(&client);
        let mut endpoints = self.0.endpoints.borrow_mut();
        let endpoint =
            endpoints.entry(lane).or_insert_with(|| Http2Endpoint { clients: vec![], gate: Rc::clone(&gate) });
        endpoint.clients.push(client);
        Ok(lease)
    }

    async fn handshake(&self, target: ConnectTarget<'_>) -> Result<Http2Client<B>, ConnectError> {
        let address = target.address;
        let scheme = match target.transport {
            UpstreamTransport::Plain => Scheme::HTTP,
            UpstreamTransport::Tls(_) => Scheme::HTTPS,
        };
        let stream = self.0.pool.open(target).await?;
        let tasks = Tasks::default();
        let usage = Rc::new(ConnectionUsage {
            streams: Cell::new(0),
            allowed: Cell::new(None),
            announced: Notify::new(),
            reader: RefCell::new(None),
            used: Cell::new(false),
            idle_since: Cell::new(self.0.now.get()),
        });
        let executor = WorkerExecutor { tasks: tasks.clone(), usage: Rc::clone(&usage) };
        let mut builder = hyper::client::conn::http2::Builder::new(executor);
        builder
            .timer(TokioTimer::new())
            .initial_max_send_streams(UNANNOUNCED)
            .max_header_list_size(HEAD_MAX)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(STREAMS_WINDOW)
            .max_concurrent_reset_streams(RESETS_REMEMBERED)
            .max_local_error_reset_streams(None)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let handshake = builder.handshake::<_, Http2Upload<B>>(TokioIo::new(stream)).await;
        let (sender, mut connection) =
            handshake.map_err(|error| ConnectError::Io { address, source: std::io::Error::other(error) })?;
        let seen = Rc::clone(&usage);
        // The task is owned by the worker's runtime. It ends with the last sender or with the connection.
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                match connection.current_max_send_streams() {
                    UNANNOUNCED => *seen.reader.borrow_mut() = Some(cx.waker().clone()),
                    allowed if seen.allowed.replace(Some(allowed)).is_none() => seen.announced.notify_one(),
                    _ => {}
                }
                ended
            });
            let ended = ended.await;
            seen.announced.notify_one();
            if let Err(error) = ended {
                tracing::debug!(%address, error = &error as &dyn std::error::Error, "http/2 connection ended");
            }
        });
        Ok(Http2Client { sender, scheme, usage, tasks })
    }
}

impl<B> Clone for Http2Clients<B> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<B> fmt::Debug for Http2Clients<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("endpoints", &self.0.endpoints.borrow().len()).finish_non_exhaustive()
    }
}

// === impl ConnectionUsage ===

impl ConnectionUsage {
    fn has_room(&self) -> bool {
        // A stream of an endpoint that allows none waits until it does. A further connection would not help.
        self.streams.get() < self.allowed.get().map_or(1, |allowed| allowed.clamp(1, STREAMS_MAX))
    }
}

// === impl Lease ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + 'static> Lease<B> {
    pub(super) fn send(
        &mut self,
        request: Request<Http2Upload<B>>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Http2Upload<B>>>>> + use<B> {
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

    /// Returns whether the connection has served a request before.
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

/// Runs hyper's tasks on the worker that owns the connection.
#[derive(Clone)]
struct WorkerExecutor {
    tasks: Tasks,
    usage: Rc<ConnectionUsage>,
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for WorkerExecutor {
    fn execute(&self, future: F) {
        let usage = Rc::clone(&self.usage);
        let task = async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let ended = future.as_mut().poll(cx);
                // SETTINGS arrive in one of these tasks, and hyper tells nobody.
                if let Some(reader) = usage.reader.take() {
                    reader.wake();
                }
                ended
            })
            .await;
        };
        self.tasks.begun(tokio::task::spawn_local(task).abort_handle());
    }
}
