//! State that a worker's driver shares with its connections, their requests, and the caller's [`Handle`].

use std::{
    any::Any,
    cell::{Cell, OnceCell, RefCell},
    collections::{HashMap, VecDeque, hash_map::Entry},
    fmt,
    net::{IpAddr, SocketAddr},
    rc::{Rc, Weak},
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    admit::Share,
    config::{self, ConfigError, Limits},
    conn::Conn,
    connection::State,
    keys::Keys,
    options::Opened,
    socket::Datagram,
};

/// Datagrams from siblings that wait for the driver; more are dropped, as a full socket would drop them.
const INJECTED_MAX: usize = 1024;

/// Counts of a worker since its start. Each number only grows, except for [`Counters::open`] and
/// [`Counters::half_open`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections, including those that are closing.
    pub open: Cell<u64>,
    /// Connections whose handshake is not complete.
    pub half_open: Cell<u64>,
    /// Handshakes that were begun.
    pub accepted: Cell<u64>,
    /// Handshakes that were completed.
    pub connected: Cell<u64>,
    /// First packets that were answered with Retry.
    pub retried: Cell<u64>,
    /// First packets that began no handshake: answered with CONNECTION_REFUSED, of no served host, or not valid.
    pub refused: Cell<u64>,
    /// Datagrams that were dropped because too many waited, or because they were too long to wait: first packets, the rest of
    /// a handshake, and packets of other versions. Clients send them again.
    pub dropped: Cell<u64>,
    /// Requests that the service was given.
    pub requests: Cell<u64>,
    /// Requests that the client cancelled before the end of the response.
    pub cancelled: Cell<u64>,
    /// Times that a connection had a new address of its client.
    pub migrated: Cell<u64>,
    /// Datagrams for other workers or processes.
    pub foreign: Cell<u64>,
    /// Panics that cost a request or a connection.
    pub panics: Cell<u64>,
}

/// The client of a connection.
pub struct Peer {
    /// The client's address at the handshake. A token or the handshake itself has proven it. Use it for logs, limits
    /// and forwarded addresses.
    pub remote: SocketAddr,
    /// The address that the client used for us, if known.
    pub local: Option<IpAddr>,
    pub(crate) current: Cell<SocketAddr>,
    pub(crate) server_name: OnceCell<String>,
    pub(crate) context: RefCell<Option<Rc<dyn Any>>>,
    pub(crate) ordered: Cell<PeerOrder>,
    conn: OnceCell<Weak<Conn>>,
}

/// The bytes of responses that a connection holds for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// An upper bound; 0 if nothing waits for the client.
    pub bytes: usize,
    /// Whether the client has taken nothing since the last look, although something waits for it.
    pub is_stuck: bool,
}

/// The order of a connection's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerOrder {
    Serve,
    Finish,
    Close,
}

/// The state of a worker.
pub(crate) struct Shared {
    /// The limits of new connections.
    pub(crate) limits: RefCell<Rc<Limits>>,
    pub(crate) opened: Opened,
    pub(crate) moved: Box<dyn Fn(&Peer)>,
    pub(crate) counters: Counters,
    pub(crate) keys: Keys,
    /// Keys of connections that need a turn.
    pub(crate) dirty: RefCell<Vec<usize>>,
    pub(crate) waker: RefCell<Option<Waker>>,
    /// Whether the driver runs. It sees changes before it ends.
    pub(crate) is_driving: Cell<bool>,
    pub(crate) drain: Cell<Option<Drain>>,
    /// Connections whose handshake is not complete, by share. Clients choose their addresses, so the hash is keyed.
    pub(crate) handshakes: RefCell<HashMap<Share, usize>>,
    pub(crate) injected: RefCell<VecDeque<Datagram>>,
    /// A configuration that the driver has not taken over.
    pub(crate) replaced: RefCell<Option<Arc<quinn_proto::ServerConfig>>>,
}

/// The end of a worker's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) begun: Instant,
    /// When connections with requests in flight are closed.
    pub(crate) deadline: Instant,
}

/// The caller's access to a running driver, on the same thread.
#[derive(Clone)]
pub struct Handle(pub(crate) Rc<Shared>);

/// Adds one.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

// === impl Handle ===

impl Handle {
    /// Begins the end: clients are told by GOAWAY, requests in flight go on, idle connections are closed. After
    /// `within`, the other connections are closed as well. The driver ends when the last connection is gone. A second
    /// call may only shorten the time.
    pub fn drain(&self, within: Duration) {
        let now = Instant::now();
        let deadline = now + within;
        self.0.drain.set(Some(match self.0.drain.get() {
            Some(drain) => Drain { deadline: drain.deadline.min(deadline), ..drain },
            None => Drain { begun: now, deadline },
        }));
        self.0.wake();
    }

    /// Replaces the TLS configuration and the limits of new connections.
    ///
    /// # Errors
    /// If QUIC cannot use `tls`.
    pub fn configure(&self, tls: rustls::ServerConfig, limits: Limits) -> Result<(), ConfigError> {
        let config = config::server(tls, &self.0.keys, &limits)?;
        self.0.limits.replace(Rc::new(limits));
        self.0.replaced.replace(Some(config));
        self.0.wake();
        Ok(())
    }

    /// Gives the driver a datagram that a sibling received.
    pub fn inject(&self, datagram: Datagram) {
        let mut injected = self.0.injected.borrow_mut();
        if injected.len() < INJECTED_MAX {
            injected.push_back(datagram);
            drop(injected);
            self.0.wake();
        }
    }

    /// The worker's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }
}

// === impl Peer ===

impl Peer {
    pub(crate) fn new(remote: SocketAddr, local: Option<IpAddr>) -> Self {
        Self {
            remote,
            local,
            current: Cell::new(remote),
            server_name: OnceCell::new(),
            context: RefCell::default(),
            ordered: Cell::new(PeerOrder::Serve),
            conn: OnceCell::new(),
        }
    }

    /// Tells the peer of its connection.
    pub(crate) fn belongs_to(&self, conn: &Rc<Conn>) {
        // It has one.
        let _known = self.conn.set(Rc::downgrade(conn));
    }

    fn conn(&self) -> Option<Rc<Conn>> {
        self.conn.get()?.upgrade().filter(|conn| !conn.is_broken())
    }

    /// Returns the value of [`Options::opened`](crate::Options::opened), while the connection is open.
    #[must_use]
    pub fn context<T: 'static>(&self) -> Option<Rc<T>> {
        Rc::clone(self.context.borrow().as_ref()?).downcast().ok()
    }

    /// Ends the connection as [`Handle::drain`] ends all: by GOAWAY, after the requests in flight.
    pub fn finish(&self) {
        self.order(PeerOrder::Finish);
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.order(PeerOrder::Close);
    }

    fn order(&self, order: PeerOrder) {
        if order > self.ordered.get() {
            self.ordered.set(order);
            if let Some(conn) = self.conn() {
                conn.mark_dirty();
            }
        }
    }

    /// Returns the bytes that the connection holds. It is called in regular intervals.
    #[must_use]
    pub fn look(&self) -> Held {
        self.conn().map_or(Held { bytes: 0, is_stuck: false }, |conn| conn.with(State::look))
    }

    /// Returns for how long the client has taken nothing of the responses that wait for it; `None` if none does.
    #[must_use]
    pub fn blocked(&self) -> Option<Duration> {
        self.conn()?.peek(|state| state.blocked())?
    }

    /// The address that the client's latest packets came from. Nothing has proven it if it differs from
    /// [`Peer::remote`]: the client may have forged it. Use it only to refuse requests.
    #[must_use]
    pub fn current(&self) -> SocketAddr {
        self.current.get()
    }

    /// The server name of the handshake, if the client sent one.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.get().map(String::as_str)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (current, server_name) = (self.current(), self.server_name());
        f.debug_struct("Peer")
            .field("remote", &self.remote)
            .field("local", &self.local)
            .field("current", &current)
            .field("server_name", &server_name)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn limits(&self) -> Rc<Limits> {
        Rc::clone(&self.limits.borrow())
    }

    /// Returns the number of half-open connections of a share.
    pub(crate) fn half_open_of(&self, share: Share) -> usize {
        self.handshakes.borrow().get(&share).copied().unwrap_or_default()
    }

    pub(crate) fn begin_handshake(&self, share: Share) {
        count(&self.counters.half_open);
        *self.handshakes.borrow_mut().entry(share).or_default() += 1;
    }

    pub(crate) fn end_handshake(&self, share: Share) {
        let half_open = &self.counters.half_open;
        half_open.set(half_open.get().saturating_sub(1));
        if let Entry::Occupied(mut entry) = self.handshakes.borrow_mut().entry(share) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    pub(crate) fn wake(&self) {
        if self.is_driving.get() {
            return;
        }
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}
