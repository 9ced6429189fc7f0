//! A worker: a thread with its runtime, its connections and its pool of upstream connections. Its tick drives the
//! coarse clock, time-outs of connections, and the end of a drain.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    convert::Infallible,
    ops::Deref,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use ingress_model::Settings;

use crate::{
    alt_svc::WorkerOffer,
    downstream::{
        conn::{Conn, Order},
        h2_slow_start::Pacer,
        progress::Due,
        refusal::Refusal,
        reserve::Reserve,
        warm::Warm,
    },
    l4::tcp::Pipes,
    observe::{access_log::WorkerLines, durations::Durations},
    request::{body_copy::CopiedBody, request_body::RequestBody},
    server::{
        clock,
        eviction::{self, Keeper},
        liveness::Liveness,
        load::PublishedLoad,
        memory::Pressure,
        options::Options,
        shared::Shared,
    },
    snapshot::Snapshot,
    upstream::{Pool, PoolOptions, h2, subrequest::Connections},
};

/// State shared by the connections of one worker. It belongs to one thread: cells and `Rc`, no locks.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
    pub(crate) pool: Pool,
    http2: h2::Http2Clients<RequestBody>,
    /// Connections for requests of the proxy itself.
    own_http2: h2::Http2Clients<CopiedBody>,
    pub(crate) durations: Arc<Durations>,
    pub(crate) pipes: Pipes,
    pub(crate) warm: Warm,
    pub(crate) reserve: Reserve,
    pub(crate) load: PublishedLoad,
    /// Buffer of the access log.
    pub(crate) lines: WorkerLines,
    pub(crate) liveness: Arc<Liveness>,
    now: Cell<Instant>,
    pub(crate) draining: Cell<bool>,
    view: RefCell<SnapshotView>,
    pub(crate) connections: RefCell<HashMap<u64, Rc<Conn>, foldhash::fast::RandomState>>,
    next_connection: Cell<u64>,
    /// Starts HTTP/2 requests beyond the windows of their connections.
    pub(crate) pacer: Pacer,
    /// Requests being mirrored now.
    pub(crate) mirrors: Cell<u32>,
    /// Offers of HTTP/3 to clients of TCP.
    pub(crate) http3: WorkerOffer,
    /// Connections of HTTP/3 that were cut off by the end of a drain.
    pub(crate) cut: Cell<usize>,
}

/// The worker's own handle on the current snapshot. Requests clone the `Rc`, so that the `Arc` shared by all workers is
/// touched once per worker and snapshot, not once per request.
struct SnapshotView {
    cache: arc_swap::Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    current: Rc<CurrentSnapshot>,
    /// The settings of `current`, held separately, so that keeping them does not keep a whole snapshot.
    settings: Rc<Settings>,
}

/// A snapshot that is kept for as long as this lives.
pub(crate) struct CurrentSnapshot(Arc<Snapshot>);

impl Deref for CurrentSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl Worker {
    /// Creates a worker; `number` identifies it among the workers of the process.
    pub(crate) fn new(shared: Arc<Shared>, number: usize, options: Options) -> Rc<Self> {
        let mut cache = arc_swap::Cache::new(Arc::clone(shared.cell()));
        let current = Rc::new(CurrentSnapshot(Arc::clone(cache.load())));
        let (liveness, durations) = (shared.liveness(), shared.note_durations());
        let load = PublishedLoad::begin(shared.worker_cell(number), shared.note_connections(number));
        let settings = Rc::new(current.settings.clone());
        let pool = Pool::new(pool_options(&settings, &options));
        let (http2, own_http2) = (h2::Http2Clients::new(pool.clone()), h2::Http2Clients::new(pool.clone()));
        Rc::new(Self {
            lines: WorkerLines::new(Arc::clone(&shared.sink)),
            shared,
            options,
            pool,
            http2,
            own_http2,
            durations,
            pipes: Pipes::default(),
            warm: Warm::default(),
            reserve: Reserve::new(),
            load,
            liveness,
            now: Cell::new(Instant::now()),
            draining: Cell::new(false),
            view: RefCell::new(SnapshotView { cache, current, settings }),
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            pacer: Pacer::default(),
            mirrors: Cell::new(0),
            http3: WorkerOffer::default(),
            cut: Cell::new(0),
        })
    }

    /// Returns the current snapshot, which stays alive for as long as the caller holds it.
    pub(crate) fn snapshot(&self) -> Rc<CurrentSnapshot> {
        let mut view = self.view.borrow_mut();
        let SnapshotView { cache, current, settings } = &mut *view;
        let latest = cache.load();
        if !Arc::ptr_eq(latest, &current.0) {
            *current = Rc::new(CurrentSnapshot(Arc::clone(latest)));
            if **settings != latest.settings {
                *settings = Rc::new(latest.settings.clone());
                self.pool.adjust(pool_options(settings, &self.options));
            }
        }
        Rc::clone(current)
    }

    /// Returns the settings of the current snapshot.
    pub(crate) fn settings(&self) -> Rc<Settings> {
        drop(self.snapshot());
        Rc::clone(&self.view.borrow().settings)
    }

    /// Returns the connections for requests of clients.
    pub(crate) fn connections(&self) -> Connections<'_, RequestBody> {
        Connections { pool: &self.pool, http2: &self.http2 }
    }

    /// Returns the connections for requests of the proxy itself.
    pub(crate) fn own_connections(&self) -> Connections<'_, CopiedBody> {
        Connections { pool: &self.pool, http2: &self.own_http2 }
    }

    /// Closes the idle connections to endpoints.
    pub(crate) fn close_idle(&self) {
        self.pool.clear();
        self.http2.clear();
        self.own_http2.clear();
    }

    /// Returns the coarse clock, exact to a tick: for time-outs of seconds.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Returns the exact clock that all workers share.
    pub(crate) fn clock(&self) -> Duration {
        clock::now()
    }

    /// Returns the same clock in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    /// Returns whether connections stay open after an answer.
    pub(crate) fn keeps_alive(&self) -> bool {
        !self.draining.get() && self.shared.pressure() < Pressure::Tight
    }

    /// Returns the reason for which no further connection is accepted now, if there is one.
    pub(crate) fn refuses(&self) -> Option<Refusal> {
        if self.shared.pressure() >= Pressure::Scarce {
            return Some(Refusal::Memory);
        }
        let max = self.settings().connections_max.filter(|max| self.connections.borrow().len() >= max.get() as usize);
        max.map(|_| Refusal::Connections)
    }

    /// Counts a connection until the guard is dropped, and makes it known to the worker.
    pub(crate) fn enter(self: &Rc<Self>, conn: &Rc<Conn>) -> RegisteredConn {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        let mut connections = self.connections.borrow_mut();
        connections.insert(id, Rc::clone(conn));
        self.load.hold(connections.len());
        self.shared.stats.connections.fetch_add(1, Relaxed);
        RegisteredConn { worker: Rc::clone(self), id }
    }

    /// Ends overdue connections, parks those that have been idle for long enough, and releases an old snapshot that no
    /// request has replaced.
    pub(crate) fn tick(&self) {
        self.liveness.beat();
        self.load.tick();
        let now = Instant::now();
        self.now.set(now);
        let (mut timed_out, mut slow) = (0, 0);
        for conn in self.connections.borrow().values() {
            timed_out += conn
                .stalled_frames()
                .map_or(0, |stalled_frames| stalled_frames.expire(now, conn.settings.stall_timeout));
            match conn.progress.due(now, &conn.settings) {
                Due::Nothing => {}
                // QUIC has these time-outs, and knows of the bytes that the client still takes.
                Due::Idle | Due::Stalled if conn.is_http3() => {}
                Due::Idle => {
                    conn.order(Order::Finish);
                }
                // Counted once, however long the connection takes to end: a handshake has a time-out of its own.
                Due::Stalled => timed_out += u64::from(conn.order(Order::Close)),
                Due::Slow => slow += u64::from(conn.order(Order::Close)),
            }
        }
        self.shared.stats.timed_out.fetch_add(timed_out, Relaxed);
        self.shared.stats.slow_reads.fetch_add(slow, Relaxed);
        self.warm.expire(now, self.options.park_after);
        self.pipes.ask_again();
        self.relieve();
        self.shared.authz_failures.prune(self.clock());
        self.shared.authz_undecided.prune(self.clock());
        self.pool.prune(now);
        self.http2.prune(now);
        self.own_http2.prune(now);
        drop(self.snapshot());
    }

    /// Frees the memory that can be had without failing a request.
    fn relieve(&self) {
        let pressure = self.shared.pressure();
        if pressure >= Pressure::Tight {
            self.order_all(Order::Finish, |conn| conn.is_begun_http2() || conn.is_http3());
        }
        if pressure >= Pressure::Critical {
            self.order_all(Order::Finish, |conn| conn.progress.is_idle());
            self.close_idle();
            self.pipes.clear();
        }
    }

    /// Evicts the connections and streams that buffer most for their clients, in rounds while memory is scarce.
    pub(crate) async fn evict_in_time(&self) -> Infallible {
        loop {
            tokio::time::sleep(eviction::PERIOD).await;
            let pressure = self.shared.pressure();
            if pressure >= Pressure::Tight || self.shared.is_filling() {
                self.evict(pressure);
            }
        }
    }

    fn evict(&self, pressure: Pressure) {
        let (connections, now) = (self.connections.borrow(), Instant::now());
        let mut keepers = Vec::with_capacity(connections.len());
        for conn in connections.values() {
            conn.weigh(now, &mut keepers);
        }
        let stats = &self.shared.stats;
        for keeper in eviction::evict(pressure, keepers.into_iter()) {
            match keeper {
                Keeper::Connection(conn) => stats.evicted.fetch_add(u64::from(conn.order(Order::Close)), Relaxed),
                Keeper::Stream(stream) => {
                    // The stream is reset when its task ends.
                    stream.abort();
                    stats.evicted_streams.fetch_add(1, Relaxed)
                }
            };
        }
    }

    pub(crate) fn order_all(&self, order: Order, which: impl Fn(&Conn) -> bool) {
        for conn in self.connections.borrow().values().filter(|conn| which(conn)) {
            conn.order(order);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }
}

#[cfg(test)]
impl Worker {
    /// Creates the only worker of a process, which counts all hosts as one.
    pub(crate) fn alone() -> Rc<Self> {
        Self::alone_with(Options::default())
    }

    pub(crate) fn alone_with(options: Options) -> Rc<Self> {
        let cells = Box::leak(Box::new([ingress_common::HostL7Cell::default()]));
        Self::new(Arc::new(Shared::new(cells, None).expect("shared state")), 0, options)
    }
}

/// A connection known to its worker.
pub(crate) struct RegisteredConn {
    worker: Rc<Worker>,
    id: u64,
}

impl Drop for RegisteredConn {
    fn drop(&mut self) {
        let mut connections = self.worker.connections.borrow_mut();
        connections.remove(&self.id);
        self.worker.load.hold(connections.len());
        self.worker.shared.stats.connections.fetch_sub(1, Relaxed);
    }
}

fn pool_options(settings: &Settings, options: &Options) -> PoolOptions {
    PoolOptions {
        idle_per_endpoint: settings.upstream_idle_per_endpoint,
        idle_total: options.upstream_idle_total,
        idle_timeout: settings.upstream_idle_timeout,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use ingress_common::HostL7Cell;
    use tokio::{
        runtime::{Builder, LocalOptions},
        sync::watch,
    };

    use super::*;
    use crate::server::{port_changes, run::run, signal::Signal};

    #[test]
    fn pipes_are_retried_at_the_next_tick_after_a_refusal() {
        let worker = Worker::alone();
        worker.pipes.is_refused().set(true);
        worker.tick();
        assert!(!worker.pipes.is_refused().get());
    }

    #[test]
    fn a_worker_that_shuts_its_runtime_down_needs_no_liveness() {
        let cells = Box::leak(Box::new([HostL7Cell::default()]));
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let (done, is_done) = mpsc::channel();
        let (finish, finished) = mpsc::channel::<()>();
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let worker = Worker::new(shared, 0, Options::default());
                let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
                let runtime = runtime.expect("a runtime");
                // The hash of a password runs in the same way.
                drop(runtime.spawn_blocking(move || {
                    done.send(()).expect("somebody waits for it");
                    finished.recv()
                }));
                let (_changes, changed) = port_changes::changes();
                let signal = watch::Sender::new(Signal::Serve);
                let stop = signal.subscribe();
                signal.send_replace(Signal::Stop);
                run(runtime, &worker, Vec::new(), None, changed, stop)
            }
        });
        is_done.recv().expect("it is under way");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Longer than the silence that counts as none.
            thread::sleep(Duration::from_millis(20));
            if shared.thread_liveness()[0].silence().is_zero() {
                break;
            }
            assert!(Instant::now() < deadline, "a sign is expected of a worker that can give none");
        }
        assert!(!thread.is_finished());
        drop(finish);
        assert_eq!(thread.join().expect("no panic"), 0);
    }
}
