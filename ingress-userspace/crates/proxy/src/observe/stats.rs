//! Counters of the node that belong to no host, and their values at one moment.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::{
    downstream::refusal::{Refusal, Refusals},
    l4::udp::{DatagramStats, DatagramStatsView},
    limits::{LimitStats, violations::ViolationStats},
    observe::{
        http3_stats::Http3StatsView,
        port_stats::{PortStats, PortStatsView},
        traces::SpanOutcome,
    },
    server::memory::Pressure,
};

/// Totals of all workers.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) connections: AtomicUsize,
    pub(crate) parked: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    pub(crate) accepted: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) handshake_errors: AtomicU64,
    pub(crate) refused_framing: AtomicU64,
    pub(crate) flooded: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) evicted_streams: AtomicU64,
    pub(crate) request_bodies_cut: AtomicU64,
    pub(crate) slow_bodies: AtomicU64,
    pub(crate) slow_reads: AtomicU64,
    pub(crate) mirrors_cut: AtomicU64,
    pub(crate) costly_paths: AtomicU64,
    pub(crate) checks_delayed: AtomicU64,
    pub(crate) refused: Refusals,
    pub(crate) datagrams: DatagramStats,
    /// Ports of TCP services, where those are bound.
    pub(crate) tcp_ports: PortStats,
    pub(crate) udp_ports: PortStats,
}

/// The totals of all workers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsView {
    /// Client connections open now, handshakes included.
    pub connections: usize,
    /// Parked ones among them: they wait for their first or next request with little more than a socket.
    pub parked: usize,
    /// HTTP/2 requests that wait for their turn on their connections.
    pub waiting: usize,
    /// Client connections accepted.
    pub accepted: u64,
    /// Connections lost at accept, among them those shed for lack of file descriptors.
    pub accept_errors: u64,
    /// TLS handshakes that failed or took too long.
    pub handshake_errors: u64,
    /// HTTP/1 connections closed for ambiguous framing, which two parsers could read differently, and HTTP/2
    /// connections with an invalid start.
    pub refused_framing: u64,
    /// HTTP/2 connections closed for a flood of frames without payload.
    pub flooded: u64,
    /// Connections and HTTP/2 streams closed because a head, a body or a response made no progress.
    pub timed_out: u64,
    /// Connections closed because memory was scarce and their clients left much of it queued.
    pub evicted: u64,
    /// HTTP/2 streams reset for the same reason, on connections that their clients read.
    pub evicted_streams: u64,
    /// Request bodies cut off after the response, because their remainder was too long or arrived too slowly.
    pub request_bodies_cut: u64,
    /// Requests with bodies below the minimum rate.
    pub slow_bodies: u64,
    /// Connections with clients that read responses below the minimum rate.
    pub slow_reads: u64,
    /// Mirrored requests that were cut off or not sent at all.
    pub mirrors_cut: u64,
    /// Requests refused for paths that are too costly to match.
    pub costly_paths: u64,
    /// Health checks that ran later than configured, because the total rate is bounded.
    pub checks_delayed: u64,
    /// Access log lines dropped because the sink was too slow or failed.
    pub log_lines_dropped: u64,
    /// Trace spans, in the order of [`SpanOutcome::ALL`].
    pub spans: [u64; SpanOutcome::ALL.len()],
    /// Passwords hashed because the cache had no entry for them.
    pub passwords_hashed: u64,
    /// Tokens verified because the cache had no entry for them.
    pub tokens_verified: u64,
    /// Connections closed before their first request, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    pub datagrams: DatagramStatsView,
    /// Ports of TCP services, on nodes without kernel steering for them.
    pub tcp_ports: PortStatsView,
    /// Ports of UDP services.
    pub udp_ports: PortStatsView,
    pub http3: Http3StatsView,
    pub limits: LimitStats,
    pub violations: ViolationStats,
    /// Memory pressure.
    pub pressure: Pressure,
    /// Buffered bytes of request bodies that pods have not received yet.
    pub kept: usize,
}
