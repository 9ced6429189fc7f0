//! Counters of HTTP/3: each worker publishes its own, and users see the sum of all workers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ingress_quic::Counters;

/// The counters of one worker, as of its last tick.
#[derive(Debug, Default)]
pub(crate) struct Http3Counters([AtomicU64; COUNT]);

const COUNT: usize = 11;

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
        let Counters {
            open,
            half_open,
            accepted,
            connected,
            retried,
            refused,
            requests,
            cancelled,
            migrated,
            foreign,
            panics,
        } = counters;
        let values =
            [open, half_open, accepted, connected, retried, refused, requests, cancelled, migrated, foreign, panics];
        for (published, value) in self.0.iter().zip(values) {
            published.store(value.get(), Relaxed);
        }
    }

    /// Adds the values to `view`.
    pub(crate) fn add_to(&self, view: &mut Http3StatsView) {
        let Http3StatsView {
            open,
            half_open,
            accepted,
            connected,
            retried,
            refused,
            requests,
            cancelled,
            migrated,
            foreign,
            panics,
        } = view;
        let sums =
            [open, half_open, accepted, connected, retried, refused, requests, cancelled, migrated, foreign, panics];
        for (sum, value) in sums.into_iter().zip(&self.0) {
            *sum += value.load(Relaxed);
        }
    }
}
