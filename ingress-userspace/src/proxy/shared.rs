//! What all workers of the node share: the snapshot, the counters, the TLS state. Node-wide limits belong here too,
//! kept in shards so that workers seldom meet.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use ingress_common::{HostL7Cell, WorkerCell};
use ipnet::IpNet;
use tokio::sync::watch;

use crate::{
    model::HostId,
    route::{Meter, MeterView},
};

use super::{
    access_log::Sink,
    clock,
    counters::Counters,
    datagrams::{DatagramStats, DatagramStatsView},
    durations::{Durations, DurationsView},
    external::{self, Opinions},
    limit::{LimitStats, Limiter},
    memory::{Pressure, Usage},
    offence::{Escalated, OffenceStats, Offences, Offender},
    passwords::Passwords,
    pick::UpstreamView,
    ports::{PortStats, PortStatsView},
    pulse::Pulse,
    refusal::{Refusal, Refusals},
    snapshot::Snapshot,
    tls::{ServerConfigs, TlsError},
    tokens::Tokens,
    traces::{SpanFate, Spans},
};

/// Where connections are entered under their host, so that the kernel's per-packet counters know it.
///
/// Called once per connection in the common case, and again whenever the host changes. Addresses are as the sockets
/// have them, v4-mapped ones already turned into IPv4.
pub trait FlowTable: Send + Sync {
    fn insert(&self, remote: SocketAddr, local: SocketAddr, host: HostId);
    /// The connection is closed. Only called after an `insert`.
    fn remove(&self, remote: SocketAddr, local: SocketAddr);
}

/// Shared by every worker.
pub struct Shared {
    snapshot: Arc<ArcSwap<Snapshot>>,
    /// Its generation.
    published: watch::Sender<u64>,
    pub(super) counters: Counters,
    pub(super) flows: Option<Box<dyn FlowTable>>,
    /// Holds the node-wide ticket keys.
    pub(super) tls: ServerConfigs,
    pub(super) passwords: Arc<Passwords>,
    pub(super) opinions: Opinions,
    pub(super) tokens: Tokens,
    pub(super) limiter: Limiter,
    pub(super) offences: Offences,
    /// A [`Pressure`].
    pressure: AtomicU8,
    pub(super) stats: Stats,
    pub(super) spans: Arc<Spans>,
    /// Where workers tell how busy they are, by their numbers, if anybody is to know.
    worker_cells: OnceLock<&'static [WorkerCell]>,
    /// Where the access log goes, if anywhere.
    pub(super) sink: OnceLock<Sink>,
    pulses: Mutex<Vec<Arc<Pulse>>>,
    /// One of each worker.
    durations: Mutex<Vec<Arc<Durations>>>,
}

/// Totals of all workers.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) connections: AtomicUsize,
    pub(super) parked: AtomicUsize,
    pub(super) accepted: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) handshake_errors: AtomicU64,
    pub(super) refused_framing: AtomicU64,
    pub(super) flooded: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) mirrors_cut: AtomicU64,
    pub(super) refused: Refusals,
    pub(super) datagrams: DatagramStats,
    /// Of TCP services, where those are bound.
    pub(super) tcp_ports: PortStats,
    pub(super) udp_ports: PortStats,
}

/// The totals of all workers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsView {
    /// Client connections open now, handshakes included.
    pub connections: usize,
    /// Those among them that are parked: they wait for their first or next request with little more than a socket.
    pub parked: usize,
    /// Client connections accepted.
    pub accepted: u64,
    /// Connections lost at accept, among them those shed for lack of file descriptors.
    pub accept_errors: u64,
    /// TLS handshakes that failed or took too long.
    pub handshake_errors: u64,
    /// HTTP/1 connections ended for bytes that two parsers could read differently, and HTTP/2 connections that began
    /// with others than they must.
    pub refused_framing: u64,
    /// HTTP/2 connections ended for a flood of frames that carry nothing.
    pub flooded: u64,
    /// Connections and HTTP/2 streams ended for a head, a body or a response that made no progress.
    pub timed_out: u64,
    /// Connections ended because memory was scarce and their clients left much of it waiting.
    pub evicted: u64,
    /// Requests that were not mirrored as they should be: cut off, or not sent at all.
    pub mirrors_cut: u64,
    /// Lines of the access log that nobody took in time, or that could not be written.
    pub log_lines_dropped: u64,
    /// Spans of traces, in the order of [`SpanFate::ALL`].
    pub spans: [u64; SpanFate::ALL.len()],
    /// Passwords whose hash was computed, because they were not remembered as right.
    pub passwords_hashed: u64,
    /// Tokens whose signature was verified, because they were not remembered as right.
    pub tokens_verified: u64,
    /// Connections closed before their first request, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    pub datagrams: DatagramStatsView,
    /// Ports of TCP services, where nothing steers those.
    pub tcp_ports: PortStatsView,
    /// Ports of UDP services.
    pub udp_ports: PortStatsView,
    pub limits: LimitStats,
    pub offences: OffenceStats,
    /// How scarce memory is.
    pub pressure: Pressure,
}

#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    #[error("there are no counters; give at least the cell of host 0")]
    NoCounters,
    #[error("there is no randomness")]
    Random,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Shared {
    /// The state of a node that serves nothing yet: every request gets 503 until the first [`Shared::publish`].
    ///
    /// `counters` is indexed by host id; ids beyond its end count for host 0. In the daemon it is the memory of a BPF
    /// map.
    ///
    /// # Errors
    /// If `counters` is empty, there is no randomness, or TLS cannot be set up.
    pub fn new(counters: &'static [HostL7Cell], flows: Option<Box<dyn FlowTable>>) -> Result<Self, SharedError> {
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let tls = ServerConfigs::new(Arc::clone(&snapshot))?;
        let counters = Counters::new(counters).ok_or(SharedError::NoCounters)?;
        let passwords = Passwords::new().map(Arc::new).map_err(|_unspecified| SharedError::Random)?;
        Ok(Self {
            snapshot,
            published: watch::Sender::new(0),
            counters,
            flows,
            tls,
            passwords,
            opinions: Opinions::new(external::REMEMBERED_MAX).map_err(|_unspecified| SharedError::Random)?,
            tokens: Tokens::new().map_err(|_unspecified| SharedError::Random)?,
            limiter: Limiter::new(),
            offences: Offences::new(),
            pressure: AtomicU8::new(Pressure::None as u8),
            stats: Stats::default(),
            spans: Spans::new(),
            worker_cells: OnceLock::new(),
            sink: OnceLock::new(),
            pulses: Mutex::default(),
            durations: Mutex::default(),
        })
    }

    /// Where the access log goes, if the configuration wants one. Said once.
    pub fn log_to(&self, sink: Sink) {
        drop(self.sink.set(sink));
    }

    /// Where the workers that are started from now on tell how busy they are, by their numbers. Said once. In the
    /// daemon it is the memory of a BPF map.
    pub fn tell_load_to(&self, cells: &'static [WorkerCell]) {
        let _were_said = self.worker_cells.set(cells).is_err();
    }

    pub(super) fn worker_cell(&self, number: usize) -> Option<&'static WorkerCell> {
        self.worker_cells.get().and_then(|cells| cells.get(number))
    }

    /// Makes `snapshot` the one that every new request and handshake uses.
    pub fn publish(&self, snapshot: Snapshot) {
        let generation = snapshot.generation;
        self.snapshot.store(Arc::new(snapshot));
        self.published.send_replace(generation);
    }

    /// Tells of each snapshot that is published from now on, by its generation.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// The current snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How the endpoints of upstreams are, and what has happened to their requests: of those that anything is to be
    /// said of.
    #[must_use]
    pub fn upstreams(&self) -> Vec<UpstreamView> {
        let now_ms = clock::now_ms();
        self.snapshot().upstreams().map(|upstream| upstream.view(now_ms)).filter(UpstreamView::is_telling).collect()
    }

    #[must_use]
    pub fn stats(&self) -> StatsView {
        let Stats {
            connections,
            parked,
            accepted,
            accept_errors,
            handshake_errors,
            refused_framing,
            flooded,
            timed_out,
            evicted,
            mirrors_cut,
            refused,
            datagrams,
            tcp_ports,
            udp_ports,
        } = &self.stats;
        StatsView {
            connections: connections.load(Relaxed),
            parked: parked.load(Relaxed),
            accepted: accepted.load(Relaxed),
            accept_errors: accept_errors.load(Relaxed),
            handshake_errors: handshake_errors.load(Relaxed),
            refused_framing: refused_framing.load(Relaxed),
            flooded: flooded.load(Relaxed),
            timed_out: timed_out.load(Relaxed),
            evicted: evicted.load(Relaxed),
            mirrors_cut: mirrors_cut.load(Relaxed),
            log_lines_dropped: self.sink.get().map_or(0, Sink::dropped),
            spans: self.spans.counts(),
            passwords_hashed: self.passwords.computed(),
            tokens_verified: self.tokens.verified(),
            refused: refused.load(),
            datagrams: datagrams.load(),
            tcp_ports: tcp_ports.load(),
            udp_ports: udp_ports.load(),
            limits: self.limiter.stats(),
            offences: self.offences.stats(),
            pressure: self.pressure(),
        }
    }

    /// The clients that were refused too often since the last call. For one caller, who has their packets dropped, and
    /// says by [`Shared::escalated`] what became of each.
    #[must_use]
    pub fn take_offenders(&self) -> Vec<Offender> {
        self.offences.take()
    }

    /// Counts what became of an offender.
    pub fn escalated(&self, what: Escalated) {
        self.offences.escalated(what);
    }

    /// Begins to count anew for the client that has `network`.
    pub fn forgive(&self, network: IpNet) {
        self.offences.forgive(network);
    }

    /// Takes in how much memory is used, which workers act on from now on. For one caller, now and then.
    pub fn weigh(&self, usage: Usage) -> Pressure {
        let pressure = self.pressure().next(usage);
        self.pressure.store(pressure as u8, Relaxed);
        pressure
    }

    pub(super) fn pressure(&self) -> Pressure {
        Pressure::of_level(self.pressure.load(Relaxed))
    }

    /// The pulses of all workers that were started. Each gives a sign at least every second, until it has ended.
    #[must_use]
    pub fn pulses(&self) -> Vec<Arc<Pulse>> {
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is counted of rules whose Ingress asks for that.
    #[must_use]
    pub fn meters(&self) -> Vec<MeterView> {
        self.snapshot().routes.meters().map(Meter::view).collect()
    }

    /// How long requests for `host` took.
    #[must_use]
    pub fn durations(&self, host: HostId) -> DurationsView {
        let mut view = DurationsView::default();
        let workers = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().for_each(|worker| worker.add_to(host, &mut view));
        view
    }

    /// What the calling worker notes durations in.
    pub(super) fn note_durations(&self) -> Arc<Durations> {
        let durations = Arc::new(Durations::new(self.counters.capacity()));
        self.durations.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&durations));
        durations
    }

    /// A pulse for the calling worker.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::of_this_thread());
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pulse));
        pulse
    }

    pub(super) fn cell(&self) -> &Arc<ArcSwap<Snapshot>> {
        &self.snapshot
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
