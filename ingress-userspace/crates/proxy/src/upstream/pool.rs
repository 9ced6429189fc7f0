//! Idle connections of one worker, by endpoint. It opens connections but neither chooses endpoints nor retries.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    fmt,
    hash::{BuildHasher, Hasher},
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use super::{
    ConnectError, ConnectTarget, Connection, UpstreamTransport, connection::PoolKey, stream::TransportStream,
    tls::Connector,
};
use crate::downstream::proxy_protocol::ProxyHeader;

/// Idle connections of one worker thread; clones share them.
#[derive(Clone)]
pub struct Pool(Rc<PoolShared>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Idle connections kept per endpoint; 32. One more closes the oldest.
    pub idle_per_endpoint: usize,
    /// Idle connections kept in total; 1024. One more closes the oldest. Each costs a file descriptor here and one in
    /// the pod.
    pub idle_total: usize,
    /// Idle timeout; 60 s, checked by [`Pool::prune`] once a second. Should be shorter than that of the pods' servers,
    /// or requests will hit connections that are being closed.
    pub idle_timeout: Duration,
}

struct PoolShared {
    options: Cell<PoolOptions>,
    idle: RefCell<Idle>,
    /// Time of the last [`Pool::prune`]: a clock that costs nothing on the request path.
    now: Cell<Instant>,
}

#[derive(Default)]
struct Idle {
    /// The entries of each lane, oldest first.
    lanes: HashMap<PoolKey, VecDeque<IdleEntry>, Seed>,
    total: usize,
}

struct IdleEntry {
    connection: Connection,
    since: Instant,
}

/// Seeds each hash with a secret of the pool, because tenants may choose the addresses of their endpoints.
struct Seed(u64);

/// Hashes an address with a few multiplications: the standard hasher costs several hundred instructions per request.
struct AddressHasher(u64);

impl Default for PoolOptions {
    fn default() -> Self {
        Self { idle_per_endpoint: 32, idle_total: 1024, idle_timeout: Duration::from_secs(60) }
    }
}

// === impl Pool ===

impl Pool {
    #[must_use]
    pub fn new(options: PoolOptions) -> Self {
        Self(Rc::new(PoolShared {
            options: Cell::new(options),
            idle: RefCell::default(),
            now: Cell::new(Instant::now()),
        }))
    }

    /// Changes the options. They apply to existing idle connections from the next [`Pool::prune`] on.
    pub fn adjust(&self, options: PoolOptions) {
        self.0.options.set(options);
    }

    pub(super) fn options(&self) -> PoolOptions {
        self.0.options.get()
    }

    /// Returns the most recently used idle connection to `target` that is still open and silent. A connection with
    /// something to read was closed or sent unexpected bytes, and is dropped. A target with a PROXY protocol header has
    /// no idle connections.
    #[must_use]
    pub fn idle(&self, target: ConnectTarget<'_>) -> Option<Connection> {
        if target.proxy_header.is_some() {
            return None;
        }
        let lane = target.lane();
        loop {
            let mut connection = self.0.idle.borrow_mut().take(lane)?;
            if connection.is_silent() {
                return Some(connection);
            }
        }
    }

    /// Opens a connection, with `TCP_NODELAY`, unless it takes longer than `after`.
    ///
    /// # Errors
    /// If the connection is refused, is not established within that time, or fails otherwise.
    pub async fn connect(&self, target: ConnectTarget<'_>, after: Duration) -> Result<Connection, ConnectError> {
        let opened = timeout(after, self.open(target)).await;
        let stream = opened.map_err(|_elapsed| ConnectError::Timeout { address: target.address })??;
        Ok(Connection::new(stream, target, self.clone()))
    }

    pub(super) async fn open(&self, target: ConnectTarget<'_>) -> Result<TransportStream, ConnectError> {
        let ConnectTarget { address, transport, proxy_header } = target;
        match transport {
            UpstreamTransport::Plain => self.tcp(address, proxy_header).await.map(TransportStream::Plain),
            // Boxed, because the state of a handshake is large and plain connections need none.
            UpstreamTransport::Tls(connector) => Box::pin(self.tls(address, connector, proxy_header)).await,
        }
    }

    /// Opens a TCP connection, with `TCP_NODELAY`, that is never pooled and begins with `proxy_header`.
    ///
    /// # Errors
    /// If the connection is refused, or fails otherwise. The caller sets a time limit.
    pub async fn tcp(
        &self,
        address: SocketAddr,
        proxy_header: Option<&ProxyHeader>,
    ) -> Result<TcpStream, ConnectError> {
        let connected = TcpStream::connect(address).await;
        let mut tcp = connected
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|error| self.unconnected(address, error))?;
        if let Some(proxy_header) = proxy_header {
            let bytes = proxy_header.bytes();
            tcp.write_all(&bytes).await.map_err(|source| ConnectError::Io { address, source })?;
        }
        Ok(tcp)
    }

    async fn tls(
        &self,
        address: SocketAddr,
        connector: &Connector,
        proxy_header: Option<&ProxyHeader>,
    ) -> Result<TransportStream, ConnectError> {
        let tcp = self.tcp(address, proxy_header).await?;
        match connector.connect(tcp, address).await {
            Ok(tls) => Ok(TransportStream::Tls(Box::new(tls))),
            Err(error) => Err(ConnectError::Tls { address, source: error.into() }),
        }
    }

    /// Classifies a connect error. When descriptors are exhausted, closes idle connections, because new ones need them
    /// more.
    pub(super) fn unconnected(&self, address: SocketAddr, error: io::Error) -> ConnectError {
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.clear();
        }
        ConnectError::new(address, error)
    }

    /// Drops connections that are closed or have been idle for too long. To be called once a second: this is also the
    /// pool's clock.
    pub fn prune(&self, now: Instant) {
        let PoolShared { options, idle, now: clock } = &*self.0;
        clock.set(now);
        let limit = options.get().idle_timeout;
        let mut idle = idle.borrow_mut();
        let Idle { lanes, total } = &mut *idle;
        lanes.retain(|_, entries| {
            let before = entries.len();
            entries
                .retain_mut(|entry| now.saturating_duration_since(entry.since) < limit && entry.connection.is_silent());
            *total -= before - entries.len();
            !entries.is_empty()
        });
    }

    /// Closes all idle connections, because their descriptors are needed elsewhere.
    pub fn clear(&self) {
        let idle = self.0.idle.take();
        tracing::debug!(connections = idle.total, "closed the idle connections to endpoints");
    }

    /// Returns the number of idle connections.
    #[must_use]
    pub fn idle_total(&self) -> usize {
        self.0.idle.borrow().total
    }

    pub(super) fn keep(&self, connection: Connection) {
        let PoolShared { options, idle, now } = &*self.0;
        let PoolOptions { idle_per_endpoint, idle_total, .. } = options.get();
        let mut idle = idle.borrow_mut();
        let lane = connection.lane();
        if idle.put(IdleEntry { connection, since: now.get() }) > idle_per_endpoint {
            idle.drop_oldest(lane);
        }
        if idle.total > idle_total {
            // Compares all endpoints, but only when the full pool gets a new connection, not when a connection is
            // reused.
            let fronts = idle.lanes.values().filter_map(VecDeque::front);
            let oldest = fronts.min_by_key(|entry| entry.since).map(|entry| entry.connection.lane());
            if let Some(oldest) = oldest {
                idle.drop_oldest(oldest);
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("options", &self.options()).field("idle", &self.idle_total()).finish()
    }
}

// === impl Idle ===

impl Idle {
    /// Adds a connection. Returns the resulting number of connections in its lane.
    fn put(&mut self, entry: IdleEntry) -> usize {
        self.total += 1;
        let entries = self.lanes.entry(entry.connection.lane()).or_default();
        entries.push_back(entry);
        entries.len()
    }

    /// Takes the newest connection. A lane without connections stays in the map until the next [`Pool::prune`], because
    /// the connection is likely to come back.
    fn take(&mut self, lane: PoolKey) -> Option<Connection> {
        let entry = self.lanes.get_mut(&lane)?.pop_back()?;
        self.total -= 1;
        Some(entry.connection)
    }

    fn drop_oldest(&mut self, lane: PoolKey) {
        let oldest = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
        self.total -= usize::from(oldest.is_some());
    }
}

// === impl Seed ===

impl Default for Seed {
    fn default() -> Self {
        Self(crate::random::random())
    }
}

impl BuildHasher for Seed {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(self.0)
    }
}

// === impl AddressHasher ===

impl AddressHasher {
    fn fold(&mut self, word: u64) {
        // The high half of the product depends on all bits, and is mixed into the bits that the map uses.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = ((product >> 64) as u64 ^ product as u64).rotate_left(23);
    }
}

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }

    fn write_u16(&mut self, value: u16) {
        self.fold(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.fold(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
