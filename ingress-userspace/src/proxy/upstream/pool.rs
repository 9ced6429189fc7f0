//! Idle connections of one worker, by endpoint. It opens connections but neither chooses endpoints nor retries.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, time::timeout};

use super::{ConnectError, Connection};

/// Idle connections of one worker thread; clones share them.
#[derive(Clone)]
pub struct Pool(Rc<Shared>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Idle connections kept per endpoint; 32. One more closes the oldest.
    pub idle_per_endpoint: usize,
    /// Idle connections kept in all; 1024. One more closes the oldest. Each costs a file descriptor here and one in the pod.
    pub idle_total: usize,
    /// How long one is kept; 60 s, to the second in which [`Pool::prune`] is called. Should be below what the pods' servers
    /// keep, or requests meet connections that are being closed.
    pub idle_timeout: Duration,
    /// Longest wait for a connection to be established; 5 s.
    pub connect_timeout: Duration,
}

struct Shared {
    options: PoolOptions,
    idle: RefCell<Idle>,
    /// Time of the last [`Pool::prune`]: a clock that costs nothing on the request path.
    now: Cell<Instant>,
}

#[derive(Default)]
struct Idle {
    /// Per endpoint the oldest first.
    endpoints: HashMap<SocketAddr, VecDeque<Entry>, Seed>,
    total: usize,
}

struct Entry {
    connection: Connection,
    since: Instant,
}

/// Begins each hash with a secret of the pool, because tenants may choose the addresses of their endpoints.
struct Seed(u64);

/// Folds an address in a few multiplications: the standard hasher costs several hundred instructions per request.
struct AddressHasher(u64);

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            idle_per_endpoint: 32,
            idle_total: 1024,
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

// === impl Pool ===

impl Pool {
    #[must_use]
    pub fn new(options: PoolOptions) -> Self {
        Self(Rc::new(Shared { options, idle: RefCell::default(), now: Cell::new(Instant::now()) }))
    }

    /// The idle connection to `address` that was used last, if one is still open and silent. One that has something to read
    /// was closed or speaks unasked, and is dropped.
    #[must_use]
    pub fn idle(&self, address: SocketAddr) -> Option<Connection> {
        loop {
            let connection = self.0.idle.borrow_mut().take(address)?;
            if connection.is_silent() {
                return Some(connection);
            }
        }
    }

    /// Opens a connection, with `TCP_NODELAY`.
    ///
    /// # Errors
    /// If it is refused, takes longer than [`PoolOptions::connect_timeout`], or fails otherwise.
    pub async fn connect(&self, address: SocketAddr) -> Result<Connection, ConnectError> {
        let after = self.0.options.connect_timeout;
        let connected = match timeout(after, TcpStream::connect(address)).await {
            Ok(connected) => connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream)),
            Err(_elapsed) => return Err(ConnectError::Timeout { address, after }),
        };
        match connected {
            Ok(stream) => Ok(Connection::new(stream, address, self.clone())),
            Err(error) => Err(self.unconnected(address, error)),
        }
    }

    /// Descriptors that idle connections hold are worth more to the connections that are wanted.
    pub(super) fn unconnected(&self, address: SocketAddr, error: io::Error) -> ConnectError {
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.clear();
        }
        ConnectError::new(address, self.0.options.connect_timeout, error)
    }

    /// Drops what has been idle for too long or was closed. To be called once a second: it is also the pool's clock.
    pub fn prune(&self, now: Instant) {
        let Shared { options, idle, now: clock } = &*self.0;
        clock.set(now);
        let mut idle = idle.borrow_mut();
        let Idle { endpoints, total } = &mut *idle;
        endpoints.retain(|_, entries| {
            let before = entries.len();
            entries.retain(|entry| {
                now.saturating_duration_since(entry.since) < options.idle_timeout && entry.connection.is_silent()
            });
            *total -= before - entries.len();
            !entries.is_empty()
        });
    }

    /// Closes what is idle: its descriptors are needed for something else.
    pub fn clear(&self) {
        let idle = self.0.idle.take();
        tracing::debug!(connections = idle.total, "closed the idle connections to endpoints");
    }

    /// Number of idle connections.
    #[must_use]
    pub fn idle_total(&self) -> usize {
        self.0.idle.borrow().total
    }

    pub(super) fn keep(&self, connection: Connection) {
        let Shared { options, idle, now } = &*self.0;
        let mut idle = idle.borrow_mut();
        let address = connection.address();
        idle.put(Entry { connection, since: now.get() });
        if idle.endpoints.get(&address).is_some_and(|entries| entries.len() > options.idle_per_endpoint) {
            idle.drop_oldest(address);
        }
        if idle.total > options.idle_total {
            // Looks at each endpoint, but only when the pool is full and grows, not when a connection is used again.
            let fronts =
                idle.endpoints.iter().filter_map(|(address, entries)| Some((entries.front()?.since, *address)));
            if let Some((_, oldest)) = fronts.min_by_key(|(since, _)| *since) {
                idle.drop_oldest(oldest);
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("options", &self.0.options).field("idle", &self.idle_total()).finish()
    }
}

// === impl Idle ===

impl Idle {
    fn put(&mut self, entry: Entry) {
        self.endpoints.entry(entry.connection.address()).or_default().push_back(entry);
        self.total += 1;
    }

    /// The newest. An endpoint without connections stays in the map until the next [`Pool::prune`], because it is likely to get
    /// this one back.
    fn take(&mut self, address: SocketAddr) -> Option<Connection> {
        let entry = self.endpoints.get_mut(&address)?.pop_back()?;
        self.total -= 1;
        Some(entry.connection)
    }

    fn drop_oldest(&mut self, address: SocketAddr) {
        let oldest = self.endpoints.get_mut(&address).and_then(VecDeque::pop_front);
        self.total -= usize::from(oldest.is_some());
    }
}

// === impl Seed ===

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(()))
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
        // The high half of the product depends on all bits, and is brought down to where the map looks.
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

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
