//! Wires the parts together: the only file, with its modules, that sees control, proxy and datapath at once.
//!
//! ```text
//! main thread     signals, heartbeat, node addresses, admin      (one tokio runtime)
//! control thread  source → Cluster → translate → publish         (one tokio runtime)
//! worker threads  accept → … → forward                           (one tokio runtime each)
//! ```
//!
//! Startup order: bind the probe socket, load or adopt the kernel part, open listeners, drop privileges, read the
//! configuration, publish the first snapshot, open the sockets of HTTP/3, start workers. The listener slots are claimed
//! last, so that a predecessor serves until this process can. Shutdown order: report not ready, offer the node to another
//! process, accept no new connections, drain, exit. Pins and counters stay for the next start.

pub(crate) mod admin;
mod change_log;
mod changed_hosts;
mod control_thread;
mod http3;
mod http3_probe;
mod kernel;
pub(crate) mod netfilter_check;
mod numbers;
pub(crate) mod port_rewrite;
pub(crate) mod privileges;
mod publish;
mod signals;
pub(crate) mod telemetry;
mod udp_drops;
mod view;

use std::{
    convert::Infallible,
    net::{Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use ingress_common::HostL7Cell;
use ingress_panics::vital;
use ingress_proxy::{Drained, ListenMode, ListenOptions, Liveness, Memory, Options, Pressure, Server, Shared, Sink};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{debug, info, warn};

use self::{
    control_thread::Control,
    http3::Http3,
    kernel::{Kernel, LEAVING},
    numbers::HostNumbers,
    port_rewrite::PortRewrite,
    publish::{PublishProgress, Publisher},
    signals::ExitSignals,
    view::{ProcessStage, View},
};
use crate::config::settings::RunSettings;

/// Interval at which the main thread beats while it only waits.
const SIGN: Duration = Duration::from_secs(1);
/// Interval of memory checks; clients can cause large allocations within a second.
const WEIGHED: Duration = Duration::from_millis(250);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Fails if a part cannot start, or the configuration can no longer be followed.
pub(crate) fn run(settings: RunSettings) -> anyhow::Result<()> {
    // The kernel ignores a signal without a handler for PID 1, which this process is in a pod. A blocked one waits.
    ExitSignals::set().thread_block().context("cannot block signals until their handlers are installed")?;
    seed_early();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(serve(settings))
}

/// Initialises AWS-LC's entropy source while the kernel verifies the programs. The first random number otherwise waits
/// some 20 ms for it, which prolongs an outage after a process has died.
fn seed_early() {
    // If the thread or the entropy is missing, the first real use reports it.
    let _unseeded = thread::Builder::new()
        .name("entropy".to_owned())
        .spawn(|| {
            let _unseeded = aws_lc_rs::rand::fill(&mut [0]).is_err();
        })
        .is_err();
}

async fn serve(settings: RunSettings) -> anyhow::Result<()> {
    let RunSettings {
        source,
        options: control_options,
        kernel,
        http_port,
        https_port,
        http3,
        workers,
        seccomp,
        needs_seccomp,
        drain_timeout,
        shutdown_grace,
        admin_addr,
        probe_socket,
        remote_api,
        metrics,
        dashboard,
        upstream_latency,
        host_capacity,
        ..
    } = settings;
    let mut signals = ExitSignals::new()?;
    let probe_socket = probe_socket.map(|path| admin::ProbeSocket::bind(&path)).transpose()?;
    let port_rewrite = kernel.as_ref().and_then(|kernel| kernel.port_rewrite.as_ref());
    let rewrite_offset = port_rewrite.map(PortRewrite::offset);
    let mut kernel = match kernel {
        Some(settings) => Some(Kernel::open(settings, [http_port, https_port], workers, host_capacity).await?),
        None => None,
    };
    let cells = kernel.as_ref().map_or_else(|| heap_cells(host_capacity), Kernel::host_cells);
    let flows = kernel.as_ref().map(Kernel::flow_table);
    let datapath = kernel.as_ref().map(Kernel::datapath);
    let shared = Arc::new(Shared::new(cells, flows).context("cannot set up the proxy")?);
    let mode = match &kernel {
        Some(kernel) if kernel.steers() => ListenMode::Slots,
        _ => ListenMode::Bind { address: Ipv6Addr::UNSPECIFIED.into(), http_port, https_port },
    };
    let listeners = ingress_proxy::bind(ListenOptions { mode, workers: workers as usize, reuse: false })?;
    if let Some(kernel) = &mut kernel {
        kernel.hold(&listeners)?;
        shared.publish_load_to(kernel.worker_cells());
    }

    let progress = Arc::new(PublishProgress::default());
    let contact = control_options.contact.clone();
    let status = control_options.status.as_ref().map(|status| Arc::clone(&status.handle));
    let http3 = http3.map(|settings| Arc::new(Http3::new(settings)));
    let (opens, publishes) = (http3.clone(), Arc::clone(&progress));
    let mut view = View::new(Arc::clone(&shared), cells, datapath.clone(), publishes, contact, status, opens);
    view.refusals = kernel.as_ref().and_then(Kernel::refusals);
    let view = Arc::new(view);
    let (wanted, admin_wanted) = watch::channel(true);
    let mut answers = admin::Answers::new(Arc::clone(&view) as Arc<dyn admin::AdminSource>, metrics);
    answers.has_dashboard = dashboard;
    let answers = Arc::new(answers);
    let remote_answers = Arc::clone(&answers);
    let api_wanted = admin_wanted.clone();
    let admin = Admin::start(admin_addr, probe_socket, answers, admin_wanted);
    let works = || datapath.as_ref().is_none_or(|datapath| datapath.totals().is_ok());
    let numbers = datapath
        .clone()
        .map_or_else(|| HostNumbers::memory(cells), |datapath| HostNumbers::kernel(datapath, Instant::now()));
    let publishes = Arc::clone(&progress);
    let publisher = Arc::new(Mutex::new(Publisher::new(Arc::clone(&shared), numbers, publishes, view.status.clone())));
    let mut control = Control::start(source, control_options, publisher)?;
    // After the control thread, which inherits the current privileges and needs different ones.
    privileges::keep_for_main();
    let _api = remote_api.map(|settings| admin::RemoteApi::start(settings, remote_answers, api_wanted)).transpose()?;

    let mut watches = JoinSet::new();
    watches.spawn(vital(watch_memory(Arc::clone(&shared))));

    let mut server = None;
    // Flushes the access log on drop.
    let mut log_guard = None;
    let times_upstreams = upstream_latency;
    let options = Options {
        http_port,
        https_port,
        rewrite_offset,
        seccomp,
        times_upstreams,
        needs_seccomp,
        ..Options::default()
    };
    let work = async {
        // Meanwhile, connections to bound ports wait in the backlog, and slots belong to a predecessor or are empty.
        signs(&view.liveness, control.first_snapshot()).await?;
        let (mut listeners, mut options) = (listeners, options);
        if let Some(http3) = &http3 {
            let table = progress.table();
            options.http3_advertise_port = http3.open(https_port, &mut listeners, kernel.as_mut(), &table);
        }
        let started = privileges::without(works, || {
            let (sink, guard) = Sink::new(std::io::stdout()).context("cannot start the thread of the access log")?;
            log_guard = Some(guard);
            shared.log_to(sink);
            Server::start(Arc::clone(&shared), listeners, &options).context("cannot start the workers")
        })?;
        let server = server.insert(started?);
        let has_company = || datapath.as_ref().is_some_and(|datapath| datapath.has_company().unwrap_or(true));
        tokio::select! {
            result = operate(&mut control, kernel.as_mut(), &shared, &view, &wanted) => result,
            never = offer_http3(http3.as_deref(), &shared, &view) => match never {},
            never = ingress_proxy::keep_datagram_ports_open(server, has_company) => match never {},
            // In other modes, connections to any port arrive at the same listeners.
            never = ingress_proxy::keep_stream_ports_open(server), if mode != ListenMode::Slots => match never {},
        }
    };
    let (result, mut timeout) = until_asked_to_end(work, &view, &mut signals, shutdown_grace).await;

    view.enter(ProcessStage::Ending);
    if let Some(status) = &view.status {
        // From now on, another process writes statuses, or they are cleared, while connections drain.
        status.leave();
    }
    if let Some(kernel) = &mut kernel {
        signs(&view.liveness, kernel.offer()).await;
        if kernel.leave() && timeout.is_none() {
            info!(seconds = LEAVING.as_secs(), "other nodes take the addresses over; serving on until neighbours know");
            tokio::select! {
                () = sleep(LEAVING) => {}
                () = signals.next() => timeout = Some(Duration::ZERO),
                _never = attend(Some(kernel), &view, &wanted) => {}
            }
        }
        // Otherwise, the kernel would keep queueing connections for closed acceptors.
        kernel.release();
    }
    let mut has_drained = false;
    if let Some(server) = server {
        let had_connections = server.connections() > 0;
        let attend = attend(kernel.as_mut(), &view, &wanted);
        tokio::select! {
            is_whole = drain(server, timeout.unwrap_or(drain_timeout), &mut signals) => {
                has_drained = had_connections && is_whole && timeout != Some(Duration::ZERO);
            }
            _never = attend => {}
        }
    }
    if let Some(http3) = &http3 {
        http3.closed();
    }
    if let Some(kernel) = &mut kernel {
        kernel.close_quic();
    }
    if has_drained && kernel.as_mut().is_some_and(Kernel::is_reached) {
        // The kernel may yet have to send the last bytes of closed connections, and needs their addresses for that.
        tokio::select! {
            () = sleep(LEAVING) => {}
            () = signals.next() => {}
            _never = attend(kernel.as_mut(), &view, &wanted) => {}
        }
    }
    if let Some(kernel) = &mut kernel {
        kernel.let_go().await;
    }
    control.stop().await;
    admin.stop().await;
    result
}

/// Runs `work` until a signal arrives, and for `grace` after it while reported as not ready, or until it ends by
/// itself. Also returns the time left for the drain if that differs from the setting: a second signal leaves none.
async fn until_asked_to_end(
    work: impl Future<Output = anyhow::Result<()>>,
    view: &View,
    signals: &mut ExitSignals,
    grace: Duration,
) -> (anyhow::Result<()>, Option<Duration>) {
    let mut work = pin!(work);
    tokio::select! {
        result = &mut work => return (result, None),
        () = signals.next() => {}
    }
    let served = view.enter(ProcessStage::Ending) == ProcessStage::Serving;
    if !served || grace.is_zero() {
        return (Ok(()), None);
    }
    info!(seconds = grace.as_secs(), "stopping: reported as not ready, still serving for the grace period");
    tokio::select! {
        result = work => (result, None),
        () = sleep(grace) => (Ok(()), None),
        () = signals.next() => (Ok(()), Some(Duration::ZERO)),
    }
}

/// Takes the node over, then maintains the kernel part until an event ends it.
async fn operate(
    control: &mut Control,
    kernel: Option<&mut Kernel>,
    shared: &Shared,
    view: &View,
    wanted: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    let Some(kernel) = kernel else {
        view.enter(ProcessStage::Serving);
        info!(kernel = "off", "ready");
        return signs(&view.liveness, control.ended()).await;
    };
    kernel.take_over(shared)?;
    view.enter(ProcessStage::Serving);
    info!(kernel = "on", epoch = kernel.epoch(), "ready");
    tokio::select! {
        result = control.ended() => result,
        result = kernel.look_after(wanted, &view.liveness, shared) => result,
    }
}

/// Lets workers offer HTTP/3 while its port answers, once this process has the node.
async fn offer_http3(http3: Option<&Http3>, shared: &Shared, view: &View) -> Infallible {
    let Some(http3) = http3 else { return std::future::pending().await };
    view.serving().await;
    http3.watch(shared).await
}

/// Waits for `work` while the main thread keeps beating.
async fn signs<T>(liveness: &Liveness, work: impl Future<Output = T>) -> T {
    let (mut work, mut timer) = (pin!(work), interval(SIGN));
    loop {
        tokio::select! {
            biased;
            result = &mut work => return result,
            _ = timer.tick() => liveness.beat(),
        }
    }
}

/// Drains connections; a second signal closes them at once. Returns `true` without such a signal.
async fn drain(mut server: Server, timeout: Duration, signals: &mut ExitSignals) -> bool {
    info!(seconds = timeout.as_secs(), connections = server.connections(), "draining; a second signal ends it at once");
    let (Drained { cut }, is_whole) = tokio::select! {
        drained = server.drain(timeout) => (drained, true),
        () = signals.next() => (server.stop().await, false),
    };
    info!(cut, "drained");
    is_whole
}

/// Reports memory pressure to the workers, measured in the process's cgroup.
async fn watch_memory(shared: Arc<Shared>) {
    let Some(memory) = Memory::of_this_process() else {
        return info!("no cgroup reports memory usage; memory pressure is not handled");
    };
    let (mut before, mut timer) = (Pressure::None, interval(WEIGHED));
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let usage = match memory.read() {
            Ok(usage) => usage,
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, "cannot read the memory usage");
                continue;
            }
        };
        let pressure = shared.weigh(usage);
        if pressure != before {
            let (used, limit) = (usage.used, usage.limit.unwrap_or_default());
            warn!(?before, now = ?pressure, used, limit, "memory pressure changed");
        }
        before = pressure;
    }
}

/// Maintains the kernel part, if any, while the process drains.
async fn attend(kernel: Option<&mut Kernel>, view: &View, wanted: &watch::Sender<bool>) -> Infallible {
    match kernel {
        Some(kernel) => kernel.attend(wanted, &view.liveness).await,
        None => signs(&view.liveness, std::future::pending()).await,
    }
}

/// Tasks that serve the admin address and the probe socket.
struct Admin(JoinSet<()>);

impl Admin {
    fn start(
        address: SocketAddr,
        probe_socket: Option<admin::ProbeSocket>,
        answers: Arc<admin::Answers>,
        wanted: watch::Receiver<bool>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        if let Some(socket) = probe_socket {
            let answers = Arc::clone(&answers);
            tasks.spawn(vital(async move {
                let _never = socket.serve(answers).await;
            }));
        }
        tasks.spawn(vital(admin::serve(address, answers, wanted)));
        Self(tasks)
    }

    /// Closes both; the socket's file is removed before the function returns.
    async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Allocates counters in ordinary memory, for a process without the kernel part. Workers use them until the process
/// ends.
fn heap_cells(capacity: u32) -> &'static [HostL7Cell] {
    Box::leak((0..capacity).map(|_| HostL7Cell::default()).collect())
}
