//! Health, metrics and counters over HTTP, on the admin address and on the probe socket. Reads only; knows no secret
//! and shows none.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the main thread and every worker make progress, else 503 with the one that does not |
//! | `/startz` | 200 once the kernel part and the listeners are there; it waits for no API server |
//! | `/readyz` | 200 while this process serves the node's new connections; 503 before, while draining and for a successor's sake |
//! | `/metrics` | Prometheus (OpenMetrics text), see [`metrics`]; 404 if turned off |
//! | `/hosts` | JSON: counters of every host |
//! | `/totals` | JSON: packets and bytes by reason |
//! | `/interfaces` | JSON: packets and bytes by interface, and how the programs are attached to it |
//! | `/denied` | JSON: packets and bytes by rule of the deny list, and how many networks it has no room for |
//!
//! The admin address belongs to the owner of the node, the socket to this process alone ([`socket`]).

mod answers;
mod metrics;
mod socket;

use std::{convert::Infallible, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use ingress_common::{HostL7, HostNet, NicNet, Traffic};
use ingress_userspace::{
    control::status::Results,
    proxy::{DurationsView, StatsView, UpstreamView},
    route::MeterView,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinSet,
};
use tracing::{debug, info, warn};

pub(crate) use self::{answers::Answers, socket::Socket};

/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a taken address is tried again: the predecessor of an update leaves it when it finds that it is one.
const RETRY: Duration = Duration::from_millis(200);
/// Connections served at one time; a scraper and a few people. More wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// What is shown; implemented where all parts are known.
pub(crate) trait Source: fmt::Debug + Send + Sync + 'static {
    /// # Errors
    /// What makes no progress, in one line.
    fn live(&self) -> Result<(), String>;
    /// # Errors
    /// Why this process should get no new connections, in one line.
    fn ready(&self) -> Result<(), String>;
    /// Every host with counters, host 0 first.
    fn hosts(&self) -> Vec<HostCounters>;
    /// Packets and bytes by reason; empty without the kernel part.
    fn totals(&self) -> Vec<(&'static str, Traffic)>;
    /// `None` without the kernel part.
    fn denied(&self) -> Option<DenyState>;
    /// Interfaces with programs, and what was counted for others; empty without the kernel part.
    fn interfaces(&self) -> Vec<InterfaceCounters>;
    fn control(&self) -> ControlState;
    /// `None` if nothing is ever written to an API server.
    fn status(&self) -> Option<StatusState>;
    fn proxy(&self) -> StatsView;
    /// Those that anything is to be said of.
    fn upstreams(&self) -> Vec<UpstreamView>;
    /// Rules whose requests are counted for themselves.
    fn meters(&self) -> Vec<MeterView>;
}

/// How much `/metrics` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metrics {
    /// The path does not exist.
    Off,
    /// Without the series that have a host for a label: as many as there are hosts.
    WithoutHosts,
    All,
}

/// Counters of one host.
#[derive(Debug)]
pub(crate) struct HostCounters {
    pub(crate) host: String,
    pub(crate) id: u32,
    pub(crate) l7: HostL7,
    pub(crate) durations: DurationsView,
    pub(crate) net: HostNet,
}

/// What the deny list has dropped.
#[derive(Debug, Default)]
pub(crate) struct DenyState {
    /// The prefix of each rule, and what comes of it.
    pub(crate) rules: Vec<(String, Traffic)>,
    /// Networks that the kernel has no room for.
    pub(crate) left_out: usize,
    /// How many denials stand, by who asked for them.
    pub(crate) denials: Vec<(&'static str, usize)>,
}

/// Counters of one interface.
#[derive(Debug)]
pub(crate) struct InterfaceCounters {
    pub(crate) name: String,
    pub(crate) receives: Attached,
    pub(crate) transmits: Attached,
    pub(crate) net: NicNet,
}

/// Whether a program is attached to one side of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    /// Where it is attached, or else why it is not; of a closed list.
    pub(crate) how: &'static str,
    pub(crate) is_there: bool,
}

/// Where the control path stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlState {
    pub(crate) generation: u64,
    pub(crate) hosts: usize,
    pub(crate) upstreams: usize,
    pub(crate) warnings: usize,
    pub(crate) hosts_over_capacity: usize,
    /// Since the API server last confirmed the configuration; `None` without one.
    pub(crate) age: Option<Duration>,
    /// Whether the saved configuration is served.
    pub(crate) serves_saved: bool,
}

/// What became of what was written to the API server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatusState {
    pub(crate) is_leader: bool,
    pub(crate) status_writes: Results,
    pub(crate) events: Results,
}

/// Gives `answers` at `address` while `wanted` holds; a taken address is tried again until it is free.
pub(crate) async fn serve(address: SocketAddr, answers: Arc<Answers>, mut wanted: watch::Receiver<bool>) {
    // An error says that nobody can want anything any more.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            _never = open(address, &answers) => {}
            _left = wanted.wait_for(|wanted| !*wanted) => info!(%address, "admin address left to the successor"),
        }
    }
}

async fn open(address: SocketAddr, answers: &Arc<Answers>) -> Infallible {
    let listener = bind(address).await;
    info!(%address, "admin address open");
    accept(&Listener::Tcp(listener), answers).await
}

async fn bind(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !told {
                    warn!(%address, %error, "cannot bind the admin address; trying on (another process holds it, or choose one with --admin-addr)");
                    told = true;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Where connections come from.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Waits for a connection and lets it be answered.
    async fn take(&self, connections: &mut JoinSet<()>, answers: &Arc<Answers>) -> io::Result<()> {
        let answers = Arc::clone(answers);
        match self {
            Self::Tcp(listener) => connections.spawn(converse(listener.accept().await?.0, answers)),
            Self::Unix(listener) => connections.spawn(converse(listener.accept().await?.0, answers)),
        };
        Ok(())
    }
}

async fn accept(listener: &Listener, answers: &Arc<Answers>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        if let Err(error) = listener.take(&mut connections, answers).await {
            warn!(%error, ?listener, "cannot accept a connection for health and metrics");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, answers: Arc<Answers>) {
    let service = service_fn(move |request| {
        let response = answers.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "admin connection ended");
    }
}
