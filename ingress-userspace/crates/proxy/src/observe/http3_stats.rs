//! Counters of HTTP/3: each worker publishes its own, and users see the sum of all workers.

use std::{
    ops::AddAssign,
    sync::{Mutex, PoisonError},
};

use ingress_quic::Counters;

/// The counters of one worker, as of its last tick.
#[derive(Debug, Default)]
pub(crate) struct Http3Counters(Mutex<Http3StatsView>);

/// Counters of HTTP/3 of all workers since their start; zero without HTTP/3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http3StatsView {
    /// Connections open now, including those that are closing.
    pub open: u64,
    /// Those of them whose handshake is not complete.
    pub half_open: u64,
    /// Handshakes that were begun.
    pub accepted: u64,
    /// Handshakes that were completed.
    pub connected: u64,
    /// First packets that were answered with Retry, because the client must prove its address.
    pub retried: u64,
    /// First packets that were answered with CONNECTION_REFUSED.
    pub refused: u64,
    /// Datagrams that were dropped because too many waited or because they were too long to wait.
    pub dropped: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that their clients cancelled before the end of the response.
    pub cancelled: u64,
    /// Times that a connection had a new address of its client.
    pub migrated: u64,
    /// Datagrams that were received by another worker or process than that of their connection.
    pub foreign: u64,
    /// Panics that cost a request or a connection.
    pub panics: u64,
}

impl Http3Counters {
    /// Publishes the values of `counters`.
    pub(crate) fn publish(&self, counters: &Counters) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters.into();
    }

    /// Returns the published values.
    pub(crate) fn view(&self) -> Http3StatsView {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Counters> for Http3StatsView {
    fn from(counters: &Counters) -> Self {
        Self {
            open: counters.open.get(),
            half_open: counters.half_open.get(),
            accepted: counters.accepted.get(),
            connected: counters.connected.get(),
            retried: counters.retried.get(),
            refused: counters.refused.get(),
            dropped: counters.dropped.get(),
            requests: counters.requests.get(),
            cancelled: counters.cancelled.get(),
            migrated: counters.migrated.get(),
            foreign: counters.foreign.get(),
            panics: counters.panics.get(),
        }
    }
}

impl AddAssign for Http3StatsView {
    fn add_assign(&mut self, other: Self) {
        self.open += other.open;
        self.half_open += other.half_open;
        self.accepted += other.accepted;
        self.connected += other.connected;
        self.retried += other.retried;
        self.refused += other.refused;
        self.dropped += other.dropped;
        self.requests += other.requests;
        self.cancelled += other.cancelled;
        self.migrated += other.migrated;
        self.foreign += other.foreign;
        self.panics += other.panics;
    }
}
