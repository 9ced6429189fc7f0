//! The driver of a worker: a batch of datagrams goes to the endpoint and its connections, those that have changed get a
//! turn, new requests get a task, and packets go out together. Then the tasks run, until the socket, a
//! timer or a task wakes the driver.
//!
//! ```text
//!  socket ─▶ Endpoint::handle ─▶ connections ─▶ dirty ─▶ turn ─▶ tasks of requests ─▶ dirty ─┐
//!    ▲                                          timers ─▶ ▲ │                                 │
//!    └──────────────────────── poll_transmit ◀────────────┼─┴─────────────────────────────────┘
//! ```

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    error::Error,
    future::poll_fn,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use quinn_proto::{ConnectionHandle, Endpoint, EndpointEvent, Transmit};
use tokio::{
    task::spawn_local,
    time::{Sleep, sleep_until},
};

use crate::{
    admit::{FirstPacket, Pressure},
    body::RequestBody,
    config,
    conn::Conn,
    connection::State,
    firsts::Firsts,
    ids::Ids,
    options::{DriverError, Options},
    respond::respond,
    shared::{Counters, Drain, Handle, Peer, Shared, count},
    socket::{Datagram, Socket},
    timers::Timers,
};

mod intake;

use intake::ServersAt;

/// Batches that are received before connections get their turn, so that a flood does not keep them from sending.
const BATCHES: usize = 4;

/// Datagrams likewise: the kernel merges up to 64 in one.
const DATAGRAMS: usize = 1024;

/// Transmissions of a connection in one turn, so that one fast client does not delay the others.
const TRANSMITS: usize = 8;

/// Datagrams in one transmission; the kernel takes 64, in 64 KiB.
const SEGMENTS: usize = 32;

/// Serves the QUIC connections of one worker. Run it as a task of a `LocalSet`: a panic outside of a task ends a process
/// that uses `ingress_panics`.
pub struct Driver<S> {
    endpoint: Endpoint,
    socket: Socket,
    ids: Arc<dyn Ids>,
    service: Rc<S>,
    shared: Rc<Shared>,
    /// Connections by their handle.
    conns: Vec<Option<Rc<Conn>>>,
    timers: Timers,
    sleep: Pin<Box<Sleep>>,
    /// The drain that connections were told about.
    drain: Option<Drain>,
    /// Datagrams of one batch.
    received: Vec<Datagram>,
    /// Contents of the transmission in work.
    buffer: Vec<u8>,
    /// A transmission that the socket did not take; its contents stay in `buffer`.
    blocked: Option<Transmit>,
    /// Connections that could not send because of `blocked`.
    waiting: Vec<usize>,
    /// Contents of packets that belong to no connection.
    reply: Vec<u8>,
    pressure: Box<dyn Fn(&FirstPacket) -> Pressure>,
    servers_at: ServersAt,
    /// First packets that wait for their turn.
    firsts: Firsts,
    forward: Box<dyn FnMut(u8, Datagram)>,
}

impl<S, F, B> Driver<S>
where
    S: Fn(Request<RequestBody>, Rc<Peer>) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data: Into<Bytes>, Error: Into<Box<dyn Error>>> + 'static,
{
    /// Creates the driver of a worker. `service` answers each request; it has its client's [`Peer`]. Errors of the bodies
    /// are logged.
    ///
    /// # Errors
    /// If the socket or the TLS configuration does not suit QUIC.
    pub fn new(options: Options, service: S) -> Result<(Self, Handle), DriverError> {
        let Options { socket, tls, keys, ids, limits, pressure, tls_at, tls_of, opened, moved, forward } = options;
        let socket = Socket::new(socket).map_err(DriverError::Socket)?;
        let server = config::server(tls, &keys, &limits)?;
        let endpoint = Endpoint::new(config::endpoint(&keys, Arc::clone(&ids)), Some(server), socket.finds_mtu(), None);
        let shared = Rc::new(Shared {
            limits: RefCell::new(Rc::new(limits)),
            opened,
            moved,
            counters: Counters::default(),
            keys,
            dirty: RefCell::default(),
            waker: RefCell::default(),
            is_driving: Cell::default(),
            drain: Cell::default(),
            handshakes: RefCell::default(),
            injected: RefCell::new(VecDeque::new()),
            replaced: RefCell::default(),
        });
        let driver = Self {
            endpoint,
            socket,
            ids,
            service: Rc::new(service),
            shared: Rc::clone(&shared),
            conns: Vec::new(),
            timers: Timers::default(),
            sleep: Box::pin(sleep_until(tokio::time::Instant::now())),
            drain: None,
            received: Vec::new(),
            buffer: Vec::new(),
            blocked: None,
            waiting: Vec::new(),
            reply: Vec::new(),
            pressure,
            servers_at: ServersAt { at: tls_at, tls_of, made: HashMap::new() },
            firsts: Firsts::new(Instant::now()),
            forward,
        };
        Ok((driver, Handle(shared)))
    }

    /// Serves until [`Handle::drain`] was called and the last connection is gone.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn run(mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.is_driving.set(true);
        let polled = self.drive(cx);
        self.shared.is_driving.set(false);
        polled
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        let now = Instant::now();
        if let Some(server) = self.shared.replaced.take() {
            self.endpoint.set_server_config(Some(server));
            self.servers_at.made.clear();
        }
        let mut has_more = self.receive(cx, now)?;
        self.take_injected(now);
        while let Some(key) = self.timers.pop(now) {
            if let Some(Some(conn)) = self.conns.get(key) {
                conn.mark_dirty();
            }
        }
        self.retry(cx)?;
        let drain = self.shared.drain.get();
        if drain != self.drain {
            self.drain = drain;
            self.conns.iter().flatten().for_each(|conn| conn.mark_dirty());
        }
        let mut dirty = self.shared.dirty.take();
        dirty.drain(..).for_each(|key| self.turn(key, now));
        // Open connections come first. New ones send in this turn, too.
        if self.take_firsts(now) {
            dirty.append(&mut self.shared.dirty.borrow_mut());
            dirty.drain(..).for_each(|key| self.turn(key, now));
        }
        if self.blocked.is_some() {
            self.retry(cx)?;
        }
        {
            let mut next = self.shared.dirty.borrow_mut();
            has_more |= !next.is_empty();
            // Keeps the larger buffer.
            dirty.append(&mut next);
            *next = dirty;
        }
        if drain.is_some() && self.shared.counters.open.get() == 0 {
            return Poll::Ready(Ok(()));
        }
        // First packets have taken some time of the turn.
        let at = if self.firsts.is_empty() { now } else { Instant::now() };
        let first = self.firsts.due(at);
        has_more |= first.is_some_and(|due| due <= at);
        if has_more {
            cx.waker().wake_by_ref();
        } else if let Some(next) = self.timers.next().into_iter().chain(first).min() {
            self.sleep.as_mut().reset(next.into());
            if self.sleep.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Gives a connection its turn. A panic costs that connection.
    fn turn(&mut self, key: usize, now: Instant) {
        let Some(Some(conn)) = self.conns.get(key).map(Option::as_ref) else { return };
        let conn = Rc::clone(conn);
        conn.begin_turn();
        let lives = catch_unwind(AssertUnwindSafe(|| !conn.is_broken() && self.advance(&conn, now)));
        match lives {
            Ok(true) => {}
            Ok(false) if !conn.is_broken() => self.forget(&conn),
            Ok(false) => self.drop_broken(&conn),
            Err(_panic) => {
                count(&self.shared.counters.panics);
                self.drop_broken(&conn);
            }
        }
    }

    /// Returns whether the connection still exists.
    fn advance(&mut self, conn: &Rc<Conn>, now: Instant) -> bool {
        let begun = conn.with(|state| {
            state.turn(conn, now);
            std::mem::take(&mut state.begun)
        });
        for (id, request) in begun {
            let task = spawn_local(respond(Rc::clone(conn), id, request, Rc::clone(&self.service)));
            conn.set_task(id, task.abort_handle());
        }
        let handle = ConnectionHandle(conn.key);
        while let Some(event) = conn.with(|state| state.quic.poll_endpoint_events()) {
            let is_last = event.is_drained();
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                conn.with(|state| state.quic.handle_event(event));
            }
            if is_last {
                return false;
            }
        }
        self.transmit(conn, now);
        let deadline = conn.with(State::deadline);
        self.timers.set(conn.key, deadline);
        true
    }

    fn transmit(&mut self, conn: &Conn, now: Instant) {
        let segments = self.socket.segments_max().min(SEGMENTS);
        for _ in 0..TRANSMITS {
            if self.blocked.is_some() {
                return self.waiting.push(conn.key);
            }
            self.buffer.clear();
            let Some(transmit) = conn.with(|state| state.poll_transmit(now, segments, &mut self.buffer)) else {
                return;
            };
            if !self.socket.send(&transmit, &self.buffer[..transmit.size]) {
                self.blocked = Some(transmit);
            }
        }
        conn.mark_dirty();
    }

    /// Sends the transmission that the socket did not take, once it takes something again.
    fn retry(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(transmit) = self.blocked.take() {
            let Poll::Ready(ready) = self.socket.poll_writable(cx) else {
                self.blocked = Some(transmit);
                return Ok(());
            };
            ready?;
            if !self.socket.send(&transmit, &self.buffer[..transmit.size]) {
                self.blocked = Some(transmit);
            }
        }
        for key in std::mem::take(&mut self.waiting) {
            if let Some(Some(conn)) = self.conns.get(key) {
                conn.mark_dirty();
            }
        }
        Ok(())
    }

    /// Removes a connection that may be half changed, without any use of its state.
    fn drop_broken(&mut self, conn: &Rc<Conn>) {
        tracing::error!(remote = %conn.peer.remote, "a panic ends a QUIC connection");
        let removed = catch_unwind(AssertUnwindSafe(|| {
            self.endpoint.handle_event(ConnectionHandle(conn.key), EndpointEvent::drained());
            conn.end();
        }));
        if removed.is_err() {
            count(&self.shared.counters.panics);
        }
        self.forget(conn);
    }

    /// Removes a connection that has ended.
    fn forget(&mut self, conn: &Conn) {
        let open = &self.shared.counters.open;
        open.set(open.get().saturating_sub(1));
        self.timers.forget(conn.key);
        self.conns[conn.key] = None;
    }
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        // Tasks of requests own their connection; without the driver they would wait forever.
        self.conns.iter().flatten().for_each(|conn| conn.end());
    }
}
