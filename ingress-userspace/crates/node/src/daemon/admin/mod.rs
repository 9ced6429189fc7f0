//! Health, metrics and counters over HTTP, on the admin address and on the probe socket. Access is read-only, and
//! responses contain no secrets.
//!
//! | path | response |
//! |---|---|
//! | `/healthz` | 200 while the main thread and every worker make progress, else 503 with the thread that hangs |
//! | `/startz` | 200 once the kernel part and the listeners are ready; independent of the API server |
//! | `/readyz` | 200 while this process gets the node's new connections; 503 before, while draining, and after a takeover |
//! | `/metrics` | Prometheus (OpenMetrics text), see [`metrics`]; 404 if turned off |
//! | `/hosts` | JSON: counters of every host |
//! | `/totals` | JSON: packets and bytes by reason |
//! | `/interfaces` | JSON: packets and bytes by interface, and the attachment of its programs |
//! | `/denied` | JSON: packets and bytes by rule of the deny list, and the number of networks that did not fit |
//! | `/api/v1` | JSON about the configuration and the node, see [`api`]; on loopback and on the socket only |
//! | `/dashboard` | pages for people, see [`dashboard`]; reached as the API is; 404 if turned off |
//!
//! The admin address belongs to the owner of the node, the socket to this process alone ([`socket`]). The API is also
//! served over TLS to authenticated clients ([`remote`]).

mod answers;
mod api;
mod body;
mod dashboard;
mod metrics;
mod query;
mod remote;
mod selection;
mod socket;
mod stream;
#[cfg(test)]
mod testing;
mod text_stream;

use std::{convert::Infallible, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use ingress_cli::counters::UNATTRIBUTED;
use ingress_common::{HostL7, HostNet, NicNet, RawHostId, Traffic};
use ingress_control::{Outcome, Translation, status::Results};
use ingress_datapath::{ClientLimits, LimitedClient};
use ingress_model::{Tree, route::MeterView};
use ingress_proxy::{DurationsView, StatsView, UpstreamView};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::watch,
    task::JoinSet,
};
use tracing::{debug, info, warn};

pub(crate) use self::{
    answers::Answers,
    remote::{CertificateFiles, RemoteApi, RemoteSettings},
    socket::ProbeSocket,
};
use super::{change_log::ChangeRecord, publish::ApplyDurations};

/// Time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of attempts to bind a taken address. During an update, the predecessor releases it once it notices its
/// successor.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum concurrent connections, enough for a scraper and a few people. Further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// Time after which the kernel closes a connection if its client leaves a response unread.
const STALLED_MAX: Duration = Duration::from_secs(60);

/// Source of all shown values, implemented where all parts are known.
pub(crate) trait AdminSource: fmt::Debug + Send + Sync + 'static {
    /// # Errors
    /// Names the part that makes no progress, in one line.
    fn live(&self) -> Result<(), String>;
    /// # Errors
    /// Gives the reason why this process should get no new connections, in one line.
    fn ready(&self) -> Result<(), String>;
    /// Returns the names of all hosts with a number of their own, with the number.
    fn host_names(&self) -> Tree<Arc<str>, RawHostId>;
    /// Returns the requests of the host with this number.
    fn host_l7(&self, id: RawHostId) -> HostL7;
    /// Returns the durations of the requests of the host with this number.
    fn host_durations(&self, id: RawHostId) -> DurationsView;
    /// Returns the durations of the requests of all hosts.
    fn total_durations(&self) -> DurationsView;
    /// Returns the packets of the host with this number; zero without the kernel part.
    fn host_net(&self, id: RawHostId) -> HostNet;
    /// Returns the packets of all hosts by number, which is cheaper than one after the other; empty without the kernel
    /// part.
    fn all_host_net(&self) -> Vec<HostNet>;
    /// Returns packets and bytes by reason; empty without the kernel part.
    fn totals(&self) -> Vec<(&'static str, Traffic)>;
    /// Returns `None` without the kernel part.
    fn denied(&self) -> Option<DenyState>;
    /// Returns interfaces with programs, and counters of other interfaces; empty without the kernel part.
    fn interfaces(&self) -> Vec<InterfaceCounters>;
    fn control(&self) -> ControlState;
    /// Returns `None` if nothing is ever written to an API server.
    fn status(&self) -> Option<StatusState>;
    fn proxy(&self) -> StatsView;
    /// Returns whether HTTP/3 works; `None` if it is not wanted.
    fn http3(&self) -> Option<Http3State>;
    /// Returns the SYN cookies of XDP; `None` if they are not wanted.
    fn syn_cookies(&self) -> Option<SynCookiesView>;
    /// Returns the datagrams about Gateway addresses that did not count, by reason; empty without a pool of addresses.
    fn refused_gateway_datagrams(&self) -> Vec<(&'static str, u64)>;
    /// Returns upstreams with health or traffic to report.
    fn upstreams(&self) -> Vec<UpstreamView>;
    /// Returns one upstream by its key as text, whether or not it has anything to report.
    fn upstream(&self, key: &str) -> Option<UpstreamView>;
    /// Returns the meters of metered rules.
    fn meters(&self) -> Vec<MeterView>;
    /// Returns the configuration that is served.
    fn translation(&self) -> Translation;
    /// Returns every problem, with the Unix time in seconds since when it is known.
    fn problems(&self) -> Tree<Arc<Outcome>, i64>;
    /// Returns the last changes of the configuration, newest first.
    fn changes(&self) -> Vec<ChangeRecord>;
    /// Returns the threads that serve.
    fn workers(&self) -> Vec<WorkerState>;
    /// Returns the limits of clients, and the clients above them; `None` without the kernel part.
    fn limited_clients(&self) -> Option<(ClientLimits, Vec<LimitedClient>)>;
    /// Returns the number of each worker, with that of its open connections.
    fn worker_connections(&self) -> Vec<(usize, usize)>;
    fn certificates(&self) -> CertificateState;
    /// Returns the fill levels of maps that are cheap to count; empty without the kernel part.
    fn fills(&self) -> Vec<MapFill>;

    /// Returns every host with all counters, host 0 first. With many hosts, this takes milliseconds.
    fn hosts(&self) -> Vec<HostCounters> {
        let (names, net) = (self.host_names(), self.all_host_net());
        let counters = |(host, id): (&str, RawHostId)| HostCounters {
            host: host.into(),
            id,
            l7: self.host_l7(id),
            durations: self.host_durations(id),
            net: net.get(id as usize).copied().unwrap_or_default(),
        };
        numbered(&names).map(counters).collect()
    }

    /// Returns the host `name` with all counters; `None` if it has no number.
    fn host(&self, name: &str) -> Option<HostCounters> {
        let id = match name {
            UNATTRIBUTED => 0,
            name => *self.host_names().get(name)?,
        };
        let (l7, durations, net) = (self.host_l7(id), self.host_durations(id), self.host_net(id));
        Some(HostCounters { host: name.into(), id, l7, durations, net })
    }
}

/// Returns the names of hosts in order, each with its number, and host 0 first.
fn numbered(names: &Tree<Arc<str>, RawHostId>) -> impl Iterator<Item = (&str, RawHostId)> {
    [(UNATTRIBUTED, 0)].into_iter().chain(names.iter().map(|(name, id)| (&**name, *id)))
}

/// Extent of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metrics {
    /// The path does not exist.
    Off,
    /// Omits the series labelled by host, of which there are as many as hosts.
    WithoutHosts,
    All,
}

/// Counters of one host.
#[derive(Debug)]
pub(crate) struct HostCounters {
    pub(crate) host: Arc<str>,
    pub(crate) id: RawHostId,
    pub(crate) l7: HostL7,
    pub(crate) durations: DurationsView,
    pub(crate) net: HostNet,
}

/// State and counters of the deny list.
#[derive(Debug, Default)]
pub(crate) struct DenyState {
    /// The prefix of each rule, and its dropped traffic.
    pub(crate) rules: Vec<(String, Traffic)>,
    /// Number of networks that did not fit in the kernel map.
    pub(crate) left_out: usize,
    /// Number of active denials by origin.
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

/// Attachment of a program to one side of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    /// Hook of the program, or else the reason why it is not attached; from a closed list.
    pub(crate) how: &'static str,
    pub(crate) is_there: bool,
}

/// State of the control path.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlState {
    pub(crate) generation: u64,
    pub(crate) hosts: usize,
    pub(crate) upstreams: usize,
    pub(crate) warnings: usize,
    pub(crate) hosts_over_capacity: usize,
    /// Time since the API server last confirmed the configuration; `None` without one.
    pub(crate) age: Option<Duration>,
    /// Whether the saved configuration is served.
    pub(crate) serves_saved: bool,
    pub(crate) applied: ApplyDurations,
}

/// Certificates in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct CertificateState {
    /// End of validity of each usable certificate, as time since 1970, by its Secret (`namespace/name`).
    pub(crate) ends: Vec<(Arc<str>, Duration)>,
    /// Number of names that get the fallback certificate.
    pub(crate) names_on_fallback: usize,
}

/// Fill level of a kernel map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapFill {
    pub(crate) map: &'static str,
    pub(crate) entries: usize,
    pub(crate) capacity: usize,
}

/// A thread that serves connections.
#[derive(Clone, Debug)]
pub(crate) struct WorkerState {
    pub(crate) name: String,
    /// Time since its last sign of life.
    pub(crate) silence: Duration,
    /// Open connections; `None` for a thread that accepts none.
    pub(crate) connections: Option<usize>,
}

/// Way by which a connection reaches this process. The API trusts some ways more than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The socket of this process: only its own user and root reach it.
    Socket,
    /// Loopback: every process in the network namespace, and `kubectl port-forward`.
    Loopback,
    /// A connection over TLS whose client has shown that it may read the API.
    Authenticated,
    Network,
}

/// Whether HTTP/3 works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http3State {
    /// Whether all workers serve it, and its port answers.
    pub(crate) is_ready: bool,
    /// Number of workers that serve it.
    pub(crate) workers: usize,
    /// Packets that the kernel has dropped, because the buffer of a socket was full.
    pub(crate) receive_drops: u64,
}

/// SYN cookies of XDP, and floods of SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SynCookiesView {
    /// Whether XDP can answer SYNs, or else the reason why not; from a closed list.
    pub(crate) state: &'static str,
    pub(crate) is_flood: bool,
    /// SYNs per second.
    pub(crate) rate: u32,
    /// SYNs per second from which on there is a flood; 0 while cookies are off.
    pub(crate) threshold: u32,
}

/// Results of writes to the API server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatusState {
    pub(crate) is_leader: bool,
    pub(crate) status_writes: Results,
    pub(crate) events: Results,
}

/// Serves `answers` at `address` while `wanted` is true. Binding is retried while the address is taken.
pub(crate) async fn serve(address: SocketAddr, answers: Arc<Answers>, mut wanted: watch::Receiver<bool>) {
    // An error means that the sender is gone and the value cannot change any more.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            _never = open(address, &answers) => {}
            _left = wanted.wait_for(|wanted| !*wanted) => info!(%address, "admin address left to the successor"),
        }
    }
}

async fn open(address: SocketAddr, answers: &Arc<Answers>) -> Infallible {
    let listener = bind(address, "--admin-addr").await;
    info!(%address, "admin address open");
    accept(&Listener::Tcp(listener), answers).await
}

/// Binds the address of `option`, however long it is taken.
async fn bind(address: SocketAddr, option: &'static str) -> TcpListener {
    let mut is_warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !is_warned {
                    warn!(%address, %error, "cannot bind the address of {option}; trying on (another process holds it, or choose another one)");
                    is_warned = true;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Source of connections.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Accepts a connection and spawns its handler.
    async fn take(&self, connections: &mut JoinSet<()>, answers: &Arc<Answers>) -> io::Result<()> {
        let answers = Arc::clone(answers);
        match self {
            Self::Tcp(listener) => {
                let stream = listener.accept().await?.0;
                socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STALLED_MAX))?;
                let reach = Reach::of(&stream);
                connections.spawn(converse(stream, reach, answers))
            }
            Self::Unix(listener) => connections.spawn(converse(listener.accept().await?.0, Reach::Socket, answers)),
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

impl Reach {
    /// Returns the way of a TCP connection. Both ends must be on loopback, because a packet from elsewhere can carry
    /// one address of loopback at most.
    fn of(stream: &TcpStream) -> Self {
        let is_loopback =
            |address: io::Result<SocketAddr>| address.is_ok_and(|at| at.ip().to_canonical().is_loopback());
        if is_loopback(stream.local_addr()) && is_loopback(stream.peer_addr()) { Self::Loopback } else { Self::Network }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, reach: Reach, answers: Arc<Answers>) {
    let service = service_fn(move |request| {
        let answers = Arc::clone(&answers);
        async move { Ok::<_, Infallible>(answers.respond(request, reach).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "admin connection ended");
    }
}
