//! Counters of datagrams, summed over all workers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The reason why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// A new session was needed, but their number was at the limit, or memory or descriptors were exhausted.
    Sessions,
    /// The service had no endpoint, or no reachable one.
    NoEndpoint,
    /// The socket to the endpoint refused the datagram: its queue was full, or the datagram exceeded the path MTU.
    Pod,
    /// The datagram could not be sent to its client, or the client's address could not be determined.
    Client,
}

impl Dropped {
    pub const ALL: [Self; 4] = [Self::Sessions, Self::NoEndpoint, Self::Pod, Self::Client];

    /// Returns the value of the metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::NoEndpoint => "no_endpoint",
            Self::Pod => "pod",
            Self::Client => "client",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct DatagramStats {
    pub(super) sessions: AtomicUsize,
    pub(super) to_pods: AtomicU64,
    pub(super) to_clients: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramStatsView {
    /// Sessions open now.
    pub sessions: usize,
    /// Datagrams forwarded from clients to pods.
    pub to_pods: u64,
    /// Datagrams forwarded from pods to clients.
    pub to_clients: u64,
    /// Dropped datagrams, in the order of [`Dropped::ALL`].
    pub dropped: [u64; Dropped::ALL.len()],
}

impl DatagramStats {
    pub(super) fn drop(&self, why: Dropped) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn load(&self) -> DatagramStatsView {
        let Self { sessions, to_pods, to_clients, dropped } = self;
        DatagramStatsView {
            sessions: sessions.load(Relaxed),
            to_pods: to_pods.load(Relaxed),
            to_clients: to_clients.load(Relaxed),
            dropped: dropped.each_ref().map(|count| count.load(Relaxed)),
        }
    }
}
