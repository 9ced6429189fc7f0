//! Puts the parts together: the only file, with its modules, that sees control, proxy and datapath at once.
//!
//! ```text
//! main thread     signals, heartbeat, node addresses, admin      (one tokio runtime)
//! control thread  source → Cluster → translate → publish         (one tokio runtime)
//! worker threads  accept → … → forward                           (one tokio runtime each)
//! ```
//!
//! Order of a start: the probe socket, load or adopt the kernel part, open listeners, give up privileges, read the
//! configuration, publish the first snapshot, start workers, and only then take the listener slots over, so that a
//! predecessor serves until this process can. Order of an end: not ready, offer the node to another process, no new
//! connections, let the open ones end, go. Pins and counters stay for the next start.

mod kernel;
mod publish;
mod view;

use std::{
    convert::Infallible,
    net::{Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use ingress_common::HostL7Cell;
use ingress_userspace::{
    control::{self, status::FAREWELL},
    panics::vital,
    proxy::{self, Drained, ListenMode, ListenOptions, Memory, Options, Pressure, Pulse, Server, Shared, Sink},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{debug, error, info, warn};

use self::{
    kernel::Kernel,
    publish::{HostNumbers, Progress, Publisher},
    view::{Stage, View},
};
use crate::{admin, config::settings::Settings, privileges, rewriting::Rewriting};

/// How often the main thread gives a sign of life while it only waits.
const SIGN: Duration = Duration::from_secs(1);
/// How often memory is looked at: clients can have much of it taken within a second.
const WEIGHED: Duration = Duration::from_millis(250);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If a part cannot start, or the configuration can no longer be followed.
pub(crate) fn run(settings: Settings) -> anyhow::Result<()> {
    seed_early();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(serve(settings))
}

/// Has AWS-LC look at its source of entropy while the kernel looks at the programs: whoever wants the first random number
/// waits for that, some 20 ms, which a node whose process has died need not.
fn seed_early() {
    // Without a thread, or without entropy, whoever needs it finds out.
    let _unseeded = thread::Builder::new()
        .name("entropy".to_owned())
        .spawn(|| {
            let _unseeded = aws_lc_rs::rand::fill(&mut [0]).is_err();
        })
        .is_err();
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let Settings {
        source,
        options: control_options,
        kernel,
        http_port,
        https_port,
        workers,
        drain_timeout,
        shutdown_grace,
        admin_addr,
        probe_socket,
        metrics,
        host_capacity,
        ..
    } = settings;
    let mut signals = Signals::new()?;
    let probe_socket = probe_socket.map(|path| admin::Socket::bind(&path)).transpose()?;
    let rewriting = kernel.as_ref().and_then(|kernel| kernel.rewriting.as_ref());
    let rewrite_offset = rewriting.map(Rewriting::offset);
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
    let listeners = proxy::bind(ListenOptions { mode, workers: workers as usize, reuse: false })?;
    if let Some(kernel) = &mut kernel {
        kernel.hold(&listeners)?;
        shared.tell_load_to(kernel.worker_cells());
    }

    let progress = Arc::new(Progress::default());
    let contact = control_options.contact.clone();
    let status = control_options.status.as_ref().map(|status| Arc::clone(&status.handle));
    let view = View::new(Arc::clone(&shared), cells, datapath.clone(), Arc::clone(&progress), contact, status);
    let view = Arc::new(view);
    let (wanted, admin_wanted) = watch::channel(true);
    let answers = admin::Answers { source: Arc::clone(&view) as Arc<dyn admin::Source>, metrics };
    let admin = Admin::start(admin_addr, probe_socket, answers, admin_wanted);
    let works = || datapath.as_ref().is_none_or(|datapath| datapath.totals().is_ok());
    let numbers = datapath.clone().map_or_else(|| HostNumbers::memory(host_capacity), HostNumbers::Kernel);
    let mut control = Control::start(source, control_options, Publisher::new(Arc::clone(&shared), numbers, progress))?;
    // After the control thread, which starts with what this one has and needs other things.
    privileges::keep_for_main();

    let mut watches = JoinSet::new();
    watches.spawn(vital(watch_memory(Arc::clone(&shared))));

    let mut server = None;
    // Writes what is left of the access log when it is dropped.
    let mut log_guard = None;
    let options = Options { http_port, https_port, rewrite_offset, ..Options::default() };
    let work = async {
        // Connections to bound ports wait in the backlog meanwhile, and slots are still a predecessor's or empty.
        signs(&view.pulse, control.first_snapshot()).await?;
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
            never = proxy::keep_datagram_ports_open(server, has_company) => match never {},
            // Elsewhere connections to any port come to the same listeners.
            never = proxy::keep_stream_ports_open(server), if mode != ListenMode::Slots => match never {},
        }
    };
    let (result, timeout) = until_asked_to_end(work, &view, &mut signals, shutdown_grace).await;

    view.enter(Stage::Ending);
    if let Some(status) = &view.status {
        // Another writes statuses from now on, or they are cleared, while connections drain.
        status.leave();
    }
    if let Some(kernel) = &mut kernel {
        signs(&view.pulse, kernel.offer()).await;
        // Or the kernel would go on to queue connections that nobody accepts.
        kernel.release();
    }
    if let Some(server) = server {
        let attend = attend(kernel.as_ref(), &view, &wanted);
        tokio::select! {
            () = drain(server, timeout.unwrap_or(drain_timeout), &mut signals) => {}
            _never = attend => {}
        }
    }
    control.stop().await;
    admin.stop().await;
    result
}

/// Does `work` until a signal comes, and for `grace` after it, unready; or until it ends by itself. Also says how long
/// the drain may take, if not as long as it is set to: a second signal leaves it no time.
async fn until_asked_to_end(
    work: impl Future<Output = anyhow::Result<()>>,
    view: &View,
    signals: &mut Signals,
    grace: Duration,
) -> (anyhow::Result<()>, Option<Duration>) {
    let mut work = pin!(work);
    tokio::select! {
        result = &mut work => return (result, None),
        () = signals.next() => {}
    }
    let served = view.enter(Stage::Ending) == Stage::Serving;
    if !served || grace.is_zero() {
        return (Ok(()), None);
    }
    info!(seconds = grace.as_secs(), "asked to end; not ready, and serving on for the grace period");
    tokio::select! {
        result = work => (result, None),
        () = sleep(grace) => (Ok(()), None),
        () = signals.next() => (Ok(()), Some(Duration::ZERO)),
    }
}

/// Takes the node over and then looks after the kernel part until something ends it.
async fn operate(
    control: &mut Control,
    kernel: Option<&mut Kernel>,
    shared: &Shared,
    view: &View,
    wanted: &watch::Sender<bool>,
) -> anyhow::Result<()> {
    let Some(kernel) = kernel else {
        view.enter(Stage::Serving);
        info!(kernel = "off", "ready");
        return signs(&view.pulse, control.ended()).await;
    };
    kernel.take_over(shared)?;
    view.enter(Stage::Serving);
    info!(kernel = "on", epoch = kernel.epoch(), "ready");
    tokio::select! {
        result = control.ended() => result,
        result = kernel.look_after(wanted, &view.pulse, shared) => result,
    }
}

/// Waits for `work`, and shows meanwhile that the main thread gets its turns.
async fn signs<T>(pulse: &Pulse, work: impl Future<Output = T>) -> T {
    let (mut work, mut timer) = (pin!(work), interval(SIGN));
    loop {
        tokio::select! {
            biased;
            result = &mut work => return result,
            _ = timer.tick() => pulse.beat(),
        }
    }
}

/// Lets connections end; a second signal ends it at once.
async fn drain(mut server: Server, timeout: Duration, signals: &mut Signals) {
    info!(seconds = timeout.as_secs(), connections = server.connections(), "draining; a second signal ends it at once");
    let Drained { cut } = tokio::select! {
        drained = server.drain(timeout) => drained,
        () = signals.next() => server.stop().await,
    };
    info!(cut, "drained");
}

/// Tells the workers how scarce memory is, from what the process's cgroup says of it.
async fn watch_memory(shared: Arc<Shared>) {
    let Some(memory) = Memory::of_this_process() else {
        return info!("no cgroup says how much memory there is; nothing is done about its limit");
    };
    let (mut before, mut timer) = (Pressure::None, interval(WEIGHED));
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let usage = match memory.read() {
            Ok(usage) => usage,
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, "cannot read how much memory is used");
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

/// What goes on while the process drains.
async fn attend(kernel: Option<&Kernel>, view: &View, wanted: &watch::Sender<bool>) -> Infallible {
    match kernel {
        Some(kernel) => kernel.attend(wanted, &view.pulse).await,
        None => signs(&view.pulse, std::future::pending()).await,
    }
}

/// What asks the process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Resolves at the next signal of either kind.
    async fn next(&mut self) {
        let Self { terminate, interrupt } = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// The tasks that answer on the admin address and the probe socket.
struct Admin(JoinSet<()>);

impl Admin {
    fn start(
        address: SocketAddr,
        probe_socket: Option<admin::Socket>,
        answers: admin::Answers,
        wanted: watch::Receiver<bool>,
    ) -> Self {
        let (answers, mut tasks) = (Arc::new(answers), JoinSet::new());
        if let Some(socket) = probe_socket {
            let answers = Arc::clone(&answers);
            tasks.spawn(vital(async move {
                let _never = socket.serve(answers).await;
            }));
        }
        tasks.spawn(vital(admin::serve(address, answers, wanted)));
        Self(tasks)
    }

    /// Closes both; the socket's file is gone when it returns.
    async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Counters in ordinary memory, for a process without the kernel part. They live as long as the process, as the workers
/// do.
fn heap_cells(capacity: u32) -> &'static [HostL7Cell] {
    Box::leak((0..capacity).map(|_| HostL7Cell::default()).collect())
}

/// The control thread.
struct Control {
    first: oneshot::Receiver<()>,
    ended: oneshot::Receiver<Result<(), control::Error>>,
    shutdown: oneshot::Sender<()>,
}

impl Control {
    fn start(
        source: control::SourceConfig,
        options: control::Options,
        mut publisher: Publisher,
    ) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let (first_sender, first) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let (shutdown, shutdown_receiver) = oneshot::channel::<()>();
        let mut first_sender = Some(first_sender);
        let publish = move |translation| {
            publisher.publish(translation);
            if let Some(sender) = first_sender.take() {
                // The receiver is gone only when the process is ending.
                let _gone = sender.send(()).is_err();
            }
        };
        let shutdown_signal = async {
            // Dropped or sent: either way it is time to stop.
            let _dropped = shutdown_receiver.await.is_err();
        };
        thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                privileges::keep_for_control();
                let result = runtime.block_on(control::run(source, &options, publish, shutdown_signal));
                let _gone = ended_sender.send(result).is_err();
            })
            .context("cannot start the control thread")?;
        Ok(Self { first, ended, shutdown })
    }

    /// Resolves once a snapshot is published. For once.
    async fn first_snapshot(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            Ok(()) = &mut self.first => Ok(()),
            result = &mut self.ended => Err(Self::why(result)),
        }
    }

    /// Resolves when the control path cannot go on; what is published stays published meanwhile.
    async fn ended(&mut self) -> anyhow::Result<()> {
        let error = Self::why((&mut self.ended).await);
        error!("{error:#}");
        Err(error)
    }

    fn why(result: Result<Result<(), control::Error>, oneshot::error::RecvError>) -> anyhow::Error {
        match result {
            Ok(Err(error)) => anyhow::Error::new(error).context("cannot follow the configuration"),
            Ok(Ok(())) => anyhow::anyhow!("the source of the configuration ended"),
            Err(_) => anyhow::anyhow!("the control thread ended; its panic message is above"),
        }
    }

    /// Ends the control path and lets it give back what it holds in the cluster, which it does in bounded time.
    async fn stop(self) {
        let Self { first: _, ended, shutdown } = self;
        drop(shutdown);
        if !ended.is_terminated() {
            // Whatever it ended with, the process ends.
            let _ended = timeout(FAREWELL + Duration::from_secs(2), ended).await.is_ok();
        }
    }
}
