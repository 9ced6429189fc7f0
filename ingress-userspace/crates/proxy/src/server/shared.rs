//! State shared by all workers of the node: the snapshot, the counters, the TLS configuration. Node-wide limits belong
//! here too, in shards so that workers seldom contend.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use tokio::sync::watch;

use ingress_common::{HostL7Cell, WorkerCell};
use ingress_model::{
    HostId,
    route::{Meter, MeterView},
};

use crate::{
    alt_svc::{Reach, ReachCell},
    auth::{authz_cache::AuthzCache, failure_log::FailureLog, jwt::token_cache::Tokens, passwords::Passwords},
    limits::{
        Limiter,
        buffer_space::BufferSpace,
        violations::{Escalated, Violations, Violator},
    },
    observe::{
        access_log::Sink,
        counters::Counters,
        durations::{Durations, DurationsView},
        http3_stats::{Http3Counters, Http3StatsView},
        stats::{Stats, StatsView},
        traces::Spans,
    },
    server::{
        clock,
        flow_table::FlowTable,
        liveness::Liveness,
        memory::{Pressure, Usage},
    },
    snapshot::Snapshot,
    tls::{ServerConfigs, TlsError},
    upstream::balance::UpstreamView,
};

/// State shared by all workers.
pub struct Shared {
    snapshot: Arc<ArcSwap<Snapshot>>,
    /// The generation of `snapshot`.
    published: watch::Sender<u64>,
    pub(crate) counters: Counters,
    pub(crate) flows: Option<Box<dyn FlowTable>>,
    /// Holds the node-wide ticket keys.
    pub(crate) tls: ServerConfigs,
    pub(crate) passwords: Arc<Passwords>,
    pub(crate) authz_cache: AuthzCache,
    pub(crate) authz_failures: FailureLog,
    /// Services whose answers neither admit nor reject.
    pub(crate) authz_undecided: FailureLog,
    pub(crate) tokens: Tokens,
    pub(crate) limiter: Limiter,
    pub(crate) violations: Violations,
    /// A [`Pressure`].
    pressure: AtomicU8,
    /// Whether connections that buffer more than they may are evicted; see [`crate::server::memory`].
    filling: AtomicBool,
    /// The buffered bytes of request bodies that pods have not received yet.
    pub(crate) buffer_space: BufferSpace,
    pub(crate) stats: Stats,
    pub(crate) spans: Arc<Spans>,
    /// Cells in which workers publish their load, by worker number, if that is used.
    worker_cells: OnceLock<&'static [WorkerCell]>,
    /// Destination of the access log, if any.
    pub(crate) sink: Arc<OnceLock<Sink>>,
    thread_liveness: Mutex<Vec<Arc<Liveness>>>,
    /// Entries by worker.
    durations: Mutex<Vec<Arc<Durations>>>,
    /// Durations counted for earlier holders of a host number, by number, to be subtracted; workers alone write the
    /// counters.
    forgotten: Mutex<HashMap<HostId, DurationsView>>,
    /// Numbers of open connections, by number of the worker.
    worker_connections: Mutex<BTreeMap<usize, Arc<AtomicUsize>>>,
    /// Counters of the workers that serve HTTP/3.
    http3: Mutex<Vec<Arc<Http3Counters>>>,
    /// Number of workers that serve HTTP/3.
    pub(crate) http3_workers: AtomicUsize,
    /// Whether HTTP/3 answers at its port.
    pub(crate) http3_reach: ReachCell,
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
    /// Creates the state of a node without configuration: every request gets 503 until the first [`Shared::publish`].
    ///
    /// `counters` is indexed by host id; ids beyond its end count for host 0. In the daemon it is the memory of a BPF
    /// map.
    ///
    /// # Errors
    /// Fails if `counters` is empty, the system has no randomness, or TLS cannot be set up.
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
            authz_cache: AuthzCache::new(crate::auth::authz_cache::CACHED_MAX)
                .map_err(|_unspecified| SharedError::Random)?,
            authz_failures: FailureLog::default(),
            authz_undecided: FailureLog::default(),
            tokens: Tokens::new().map_err(|_unspecified| SharedError::Random)?,
            limiter: Limiter::new(),
            violations: Violations::new(),
            pressure: AtomicU8::new(Pressure::None as u8),
            filling: AtomicBool::new(false),
            buffer_space: BufferSpace::new(),
            stats: Stats::default(),
            spans: Spans::new(),
            worker_cells: OnceLock::new(),
            sink: Arc::default(),
            thread_liveness: Mutex::default(),
            durations: Mutex::default(),
            forgotten: Mutex::default(),
            worker_connections: Mutex::default(),
            http3: Mutex::default(),
            http3_workers: AtomicUsize::new(0),
            http3_reach: ReachCell::default(),
        })
    }

    /// Sets the sink of the access log, for configurations that enable it. Only the first call counts.
    pub fn log_to(&self, sink: Sink) {
        drop(self.sink.set(sink));
    }

    /// Sets the cells in which workers started from now on publish their load, by worker number. Only the first call
    /// counts. In the daemon the cells are the memory of a BPF map.
    pub fn publish_load_to(&self, cells: &'static [WorkerCell]) {
        let _were_said = self.worker_cells.set(cells).is_err();
    }

    pub(crate) fn worker_cell(&self, number: usize) -> Option<&'static WorkerCell> {
        self.worker_cells.get().and_then(|cells| cells.get(number))
    }

    /// Makes `snapshot` the one that every new request and handshake uses.
    pub fn publish(&self, snapshot: Snapshot) {
        let generation = snapshot.generation;
        self.snapshot.store(Arc::new(snapshot));
        self.published.send_replace(generation);
    }

    /// Returns a channel with the generation of each snapshot published from now on.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// Returns the current snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Returns health and traffic of each upstream. Healthy upstreams without counters are omitted.
    #[must_use]
    pub fn upstreams(&self) -> Vec<UpstreamView> {
        let now_ms = clock::now_ms();
        self.snapshot().upstreams().map(|upstream| upstream.view(now_ms)).filter(UpstreamView::is_notable).collect()
    }

    /// Returns the health and the counters of one upstream, by its key as text.
    #[must_use]
    pub fn upstream(&self, key: &str) -> Option<UpstreamView> {
        let snapshot = self.snapshot();
        Some(snapshot.upstream(snapshot.upstream_id(key)?)?.view(clock::now_ms()))
    }

    #[must_use]
    pub fn stats(&self) -> StatsView {
        let Stats {
            connections,
            parked,
            waiting,
            accepted,
            accept_errors,
            handshake_errors,
            refused_framing,
            flooded,
            timed_out,
            evicted,
            evicted_streams,
            request_bodies_cut,
            slow_bodies,
            slow_reads,
            mirrors_cut,
            costly_paths,
            checks_delayed,
            refused,
            datagrams,
            tcp_ports,
            udp_ports,
        } = &self.stats;
        StatsView {
            connections: connections.load(Relaxed),
            parked: parked.load(Relaxed),
            waiting: waiting.load(Relaxed),
            accepted: accepted.load(Relaxed),
            accept_errors: accept_errors.load(Relaxed),
            handshake_errors: handshake_errors.load(Relaxed),
            refused_framing: refused_framing.load(Relaxed),
            flooded: flooded.load(Relaxed),
            timed_out: timed_out.load(Relaxed),
            evicted: evicted.load(Relaxed),
            evicted_streams: evicted_streams.load(Relaxed),
            request_bodies_cut: request_bodies_cut.load(Relaxed),
            slow_bodies: slow_bodies.load(Relaxed),
            slow_reads: slow_reads.load(Relaxed),
            mirrors_cut: mirrors_cut.load(Relaxed),
            costly_paths: costly_paths.load(Relaxed),
            checks_delayed: checks_delayed.load(Relaxed),
            log_lines_dropped: self.sink.get().map_or(0, Sink::dropped),
            spans: self.spans.counts(),
            passwords_hashed: self.passwords.computed(),
            tokens_verified: self.tokens.verified(),
            refused: refused.load(),
            datagrams: datagrams.load(),
            tcp_ports: tcp_ports.load(),
            udp_ports: udp_ports.load(),
            http3: self.http3(),
            limits: self.limiter.stats(),
            violations: self.violations.stats(),
            pressure: self.pressure(),
            kept: self.buffer_space.total(),
        }
    }

    /// Returns the clients that were refused too often since the last call. It has one caller, which has their packets
    /// dropped and reports the result of each by [`Shared::escalated`].
    #[must_use]
    pub fn take_violators(&self) -> Vec<Violator> {
        self.violations.take()
    }

    /// Counts the result of escalating a violator.
    pub fn escalated(&self, what: Escalated) {
        self.violations.escalated(what);
    }

    /// Resets the violation count of the client with `network`.
    pub fn forgive(&self, network: IpNet) {
        self.violations.forgive(network);
    }

    /// Updates the memory pressure, which workers act on from now on. It has one caller, which calls it periodically.
    pub fn weigh(&self, usage: Usage) -> Pressure {
        let pressure = self.pressure().next(usage);
        self.pressure.store(pressure as u8, Relaxed);
        self.filling.store(usage.is_filling(self.is_filling()), Relaxed);
        self.buffer_space.limit(usage.limit);
        pressure
    }

    /// Returns whether memory use is at the first threshold; see [`crate::server::memory`].
    pub(crate) fn is_filling(&self) -> bool {
        self.filling.load(Relaxed)
    }

    pub(crate) fn pressure(&self) -> Pressure {
        Pressure::of_level(self.pressure.load(Relaxed))
    }

    /// Returns the pulses of all workers that were started. Each gives a sign at least every second, until it has
    /// ended.
    #[must_use]
    pub fn thread_liveness(&self) -> Vec<Arc<Liveness>> {
        self.thread_liveness.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the meters of rules, for Ingresses that enable them.
    #[must_use]
    pub fn meters(&self) -> Vec<MeterView> {
        let snapshot = self.snapshot();
        snapshot.routes.meters().chain(snapshot.listeners.meters()).map(Meter::view).collect()
    }

    /// Returns the durations of requests for `host`, since it was assigned this number.
    #[must_use]
    pub fn durations(&self, host: HostId) -> DurationsView {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).get(&host).copied();
        self.all_durations(host).since(forgotten.unwrap_or_default())
    }

    /// Returns the durations of the requests of all hosts, removed ones included.
    #[must_use]
    pub fn total_durations(&self) -> DurationsView {
        let mut view = DurationsView::default();
        let workers = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().for_each(|worker| worker.add_all_to(&mut view));
        view
    }

    /// Resets the durations of the number `host`, which is no longer assigned to the same host.
    pub fn forget_durations(&self, host: HostId) {
        let all = self.all_durations(host);
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).insert(host, all);
    }

    fn all_durations(&self, host: HostId) -> DurationsView {
        let mut view = DurationsView::default();
        let workers = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().for_each(|worker| worker.add_to(host, &mut view));
        view
    }

    /// Creates the histogram in which the calling worker records durations.
    pub(crate) fn note_durations(&self) -> Arc<Durations> {
        let durations = Arc::new(Durations::new(self.counters.capacity()));
        self.durations.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&durations));
        durations
    }

    /// Returns each worker that was started, with its number of open connections.
    #[must_use]
    pub fn worker_connections(&self) -> Vec<(usize, usize)> {
        let workers = self.worker_connections.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(|(number, connections)| (*number, connections.load(Relaxed))).collect()
    }

    /// Creates the number of open connections of the calling worker.
    pub(crate) fn note_connections(&self, worker: usize) -> Arc<AtomicUsize> {
        let mut workers = self.worker_connections.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(workers.entry(worker).or_default())
    }

    /// Returns how many workers serve HTTP/3.
    #[must_use]
    pub fn http3_workers(&self) -> usize {
        self.http3_workers.load(Relaxed)
    }

    /// Returns whether HTTP/3 answers, as [`Self::set_http3_answers`] was told last.
    #[must_use]
    pub fn http3_answers(&self) -> bool {
        self.http3_reach.get() == Reach::Answers
    }

    /// Sets whether HTTP/3 answers at its port. Responses over TLS offer it only while it does; after an end they tell
    /// for a day that it is gone.
    pub fn set_http3_answers(&self, answers: bool) {
        self.http3_reach.set(answers, clock::now());
    }

    fn http3(&self) -> Http3StatsView {
        let mut view = Http3StatsView::default();
        let workers = self.http3.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().for_each(|worker| view += worker.view());
        view
    }

    /// Creates the counters of HTTP/3 of the calling worker.
    pub(crate) fn note_http3(&self) -> Arc<Http3Counters> {
        let counters = Arc::default();
        self.http3.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }

    /// Creates the liveness for the calling worker.
    pub(crate) fn liveness(&self) -> Arc<Liveness> {
        let liveness = Arc::new(Liveness::of_this_thread());
        self.thread_liveness.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&liveness));
        liveness
    }

    pub(crate) fn cell(&self) -> &Arc<ArcSwap<Snapshot>> {
        &self.snapshot
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
