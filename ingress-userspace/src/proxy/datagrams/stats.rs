//! What is counted of datagrams, by all workers together.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Why a datagram went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its client had no session, and there were as many as there may be, or memory or descriptors were scarce.
    Sessions,
    /// Its service had no endpoint, or none that could be reached.
    NoEndpoint,
    /// The endpoint's socket did not take it: its queue was full, or it was too long for the way there.
    Pod,
    /// It could not be sent to its client, or not be told who that is.
    Client,
}

impl Dropped {
    pub const ALL: [Self; 4] = [Self::Sessions, Self::NoEndpoint, Self::Pod, Self::Client];

    /// The value of the metric's label.
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
pub(in crate::proxy) struct DatagramStats {
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
    /// Datagrams of clients that went to pods.
    pub to_pods: u64,
    /// Datagrams of pods that went to clients.
    pub to_clients: u64,
    /// In the order of [`Dropped::ALL`].
    pub dropped: [u64; Dropped::ALL.len()],
}

impl DatagramStats {
    pub(super) fn drop(&self, why: Dropped) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    pub(in crate::proxy) fn load(&self) -> DatagramStatsView {
        let Self { sessions, to_pods, to_clients, dropped } = self;
        DatagramStatsView {
            sessions: sessions.load(Relaxed),
            to_pods: to_pods.load(Relaxed),
            to_clients: to_clients.load(Relaxed),
            dropped: dropped.each_ref().map(|count| count.load(Relaxed)),
        }
    }
}
