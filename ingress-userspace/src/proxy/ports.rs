//! Keeps the ports of TCP and UDP services open as the configuration has them: binds a socket for each worker, which is
//! the worker's from then on. It accepts and receives nothing.
//!
//! ```text
//! main thread   snapshot ─▶ bind ─▶ Change::Open { socket, held } ─▶ worker
//!               Open ◀────── `held` is dropped behind the socket ─────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::{pending, poll_fn},
    io,
    net::{TcpListener, UdpSocket},
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{datagrams, listen, server::Server, shared::Stats, snapshot::Snapshot};
use crate::model::{StreamPort, Transport};

/// How often a port is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);
/// Changes that wait for a worker; whoever has more waits for it.
const WAITING: usize = 16;

/// What is to become of a port on a worker.
#[derive(Debug)]
pub(super) enum Change<S> {
    Open {
        port: u16,
        socket: S,
        /// Kept with the socket and dropped after it, by which whoever wants the change knows that it is closed.
        held: oneshot::Sender<Infallible>,
    },
    Close {
        port: u16,
    },
}

/// Where changes for one worker go.
#[derive(Debug)]
pub(super) struct Changes {
    tcp: mpsc::Sender<Change<TcpListener>>,
    udp: mpsc::Sender<Change<UdpSocket>>,
}

/// Where they come out.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) tcp: mpsc::Receiver<Change<TcpListener>>,
    pub(super) udp: mpsc::Receiver<Change<UdpSocket>>,
}

/// A way for changes to one worker.
pub(super) fn changes() -> (Changes, Changed) {
    let ((tcp, tcp_changed), (udp, udp_changed)) = (mpsc::channel(WAITING), mpsc::channel(WAITING));
    (Changes { tcp, udp }, Changed { tcp: tcp_changed, udp: udp_changed })
}

/// What a worker has of a port.
pub(super) trait Bound: Sized {
    const TRANSPORT: Transport;

    /// Where changes of it go.
    fn changes(changes: &Changes) -> &mpsc::Sender<Change<Self>>;

    /// Where its ports are counted.
    fn stats(stats: &Stats) -> &PortStats;
}

/// How many ports of one transport there are.
#[derive(Debug, Default)]
pub(super) struct PortStats {
    open: AtomicUsize,
    closed: AtomicUsize,
}

/// How many bound ports of one transport there are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatsView {
    /// Those that are open.
    pub open: usize,
    /// Those that cannot be opened now; the log says why.
    pub closed: usize,
}

/// Keeps the ports of TCP services open on all workers of `server`, for as long as it is polled. To be used where
/// nothing steers those ports to the workers. One that cannot be opened is told of in the log, and tried again every 5
/// s.
///
/// A port that any other process has is an error: the two would share the connections.
pub async fn keep_stream_ports_open(server: &Server) -> Infallible {
    keep_open(server, |port| listen::bind_port(port, server.workers())).await
}

/// Keeps the ports of UDP services open likewise.
///
/// `has_company` says whether another process like this one is on the node, which may have the same ports open.
/// Otherwise a port that any process has is an error: the two would share the datagrams.
pub async fn keep_datagram_ports_open(server: &Server, has_company: impl Fn() -> bool) -> Infallible {
    keep_open(server, |port| datagrams::bind_port(port, server.workers(), has_company())).await
}

/// `bind` makes a socket of a port for each worker.
async fn keep_open<S: Bound>(server: &Server, bind: impl Fn(u16) -> io::Result<Vec<S>>) -> Infallible {
    let transport = S::TRANSPORT;
    let (shared, mut published) = (server.shared(), server.shared().published());
    let mut open: BTreeMap<u16, Open> = BTreeMap::new();
    // With what the log has said of it.
    let mut closed: BTreeMap<u16, String> = BTreeMap::new();
    loop {
        published.mark_unchanged();
        let wanted = wanted(transport, &shared.snapshot());
        for (port, gone) in open.extract_if(.., |port, _| !wanted.contains(port)) {
            gone.close::<S>(port, server).await;
            tracing::info!(port, "{transport} port closed");
        }
        closed.retain(|port, _| wanted.contains(port));
        for port in wanted {
            if open.contains_key(&port) {
                continue;
            }
            match bind(port) {
                Ok(sockets) => {
                    open.insert(port, Open::give(port, sockets, server).await);
                    closed.remove(&port);
                    tracing::info!(port, "{transport} port open");
                }
                Err(error) => {
                    let text = trouble(StreamPort { transport, number: port }, &error);
                    if closed.get(&port) != Some(&text) {
                        tracing::warn!(port, "{text}");
                    }
                    closed.insert(port, text);
                }
            }
        }
        loop {
            S::stats(&shared.stats).set(open.len(), closed.len());
            tokio::select! {
                changed = published.changed() => {
                    if changed.is_err() {
                        pending::<()>().await;
                    }
                    break;
                }
                () = sleep(RETRY), if !closed.is_empty() => break,
                port = poll_fn(|cx| poll_lost(&mut open, cx)) => {
                    let text = format!("no worker could take {transport} port {port}; trying again");
                    tracing::warn!(port, "{text}");
                    closed.insert(port, text);
                }
            }
        }
    }
}

/// The ports of `transport` that `snapshot` has.
fn wanted(transport: Transport, snapshot: &Snapshot) -> BTreeSet<u16> {
    snapshot.streams.keys().filter(|port| port.transport == transport).map(|port| port.number).collect()
}

/// A port that has been taken out of `open` because all workers have lost it.
fn poll_lost(open: &mut BTreeMap<u16, Open>, cx: &mut Context<'_>) -> Poll<u16> {
    let mut lost = open.extract_if(.., |_, open| open.poll_closed(cx).is_ready());
    lost.next().map_or(Poll::Pending, |(port, _)| Poll::Ready(port))
}

/// Why `port` cannot be opened, and what to do about it.
fn trouble(port: StreamPort, error: &io::Error) -> String {
    let StreamPort { transport, number } = port;
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process has it, or it on one address of the node; stop that, or take another port".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            let overlay = match transport {
                Transport::Tcp => "deploy/bind",
                Transport::Udp => "deploy/udp",
            };
            format!(
                "ports below `net.ipv4.ip_unprivileged_port_start` need CAP_NET_BIND_SERVICE; add it to the container (`{overlay}`), or take a higher port"
            )
        }
        _ => error.to_string(),
    };
    format!("cannot open {transport} port {number}: {why}")
}

/// A port whose sockets the workers have. Each worker that has one no more has dropped its end of a channel.
struct Open(Vec<oneshot::Receiver<Infallible>>);

// === impl Open ===

impl Open {
    /// Gives each worker its socket.
    async fn give<S: Bound>(port: u16, sockets: Vec<S>, server: &Server) -> Self {
        let (held, open): (Vec<_>, Vec<_>) = sockets.iter().map(|_| oneshot::channel()).unzip();
        let changes = sockets.into_iter().zip(held).map(|(socket, held)| Change::Open { port, socket, held });
        server.change(changes).await;
        Self(open)
    }

    /// Has the workers close it, and returns when they have: until then nobody else could open it, nor could we.
    async fn close<S: Bound>(mut self, port: u16, server: &Server) {
        server.change((0..server.workers()).map(|_| Change::<S>::Close { port })).await;
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Ready when no worker has a socket of it.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|held| Pin::new(held).poll(cx).is_pending());
        if self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

// === impl Bound ===

impl Bound for TcpListener {
    const TRANSPORT: Transport = Transport::Tcp;

    fn changes(changes: &Changes) -> &mpsc::Sender<Change<Self>> {
        &changes.tcp
    }

    fn stats(stats: &Stats) -> &PortStats {
        &stats.tcp_ports
    }
}

impl Bound for UdpSocket {
    const TRANSPORT: Transport = Transport::Udp;

    fn changes(changes: &Changes) -> &mpsc::Sender<Change<Self>> {
        &changes.udp
    }

    fn stats(stats: &Stats) -> &PortStats {
        &stats.udp_ports
    }
}

// === impl PortStats ===

impl PortStats {
    fn set(&self, open: usize, closed: usize) {
        self.open.store(open, Relaxed);
        self.closed.store(closed, Relaxed);
    }

    pub(super) fn load(&self) -> PortStatsView {
        let Self { open, closed } = self;
        PortStatsView { open: open.load(Relaxed), closed: closed.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn whoever_cannot_have_a_port_is_told_what_to_do() {
        let (tcp, udp) = (Transport::Tcp, Transport::Udp);
        for (transport, code, begin, advice) in [
            (tcp, libc::EADDRINUSE, "cannot open TCP port 53: another process has it", "take another port"),
            (udp, libc::EADDRINUSE, "cannot open UDP port 53: another process has it", "take another port"),
            (tcp, libc::EACCES, "cannot open TCP port 53: ports below", "(`deploy/bind`), or take a higher port"),
            (udp, libc::EACCES, "cannot open UDP port 53: ports below", "(`deploy/udp`), or take a higher port"),
            (tcp, libc::EMFILE, "cannot open TCP port 53: ", "(os error 24)"),
        ] {
            let text = trouble(StreamPort { transport, number: 53 }, &io::Error::from_raw_os_error(code));
            assert!(text.starts_with(begin) && text.ends_with(advice), "{text}");
        }
    }

    #[test]
    fn a_port_is_lost_when_the_last_worker_has_dropped_it() {
        let (held, open): (Vec<_>, Vec<_>) = (0..2).map(|_| oneshot::channel::<Infallible>()).unzip();
        let mut ports = BTreeMap::from([(53, Open(open)), (54, Open(vec![oneshot::channel().1]))]);
        let mut held = held.into_iter();
        let mut lost = || poll_lost(&mut ports, &mut Context::from_waker(Waker::noop()));
        assert_eq!(lost(), Poll::Ready(54), "nobody has ever had it");
        drop(held.next());
        assert_eq!(lost(), Poll::Pending);
        drop(held.next());
        assert_eq!(lost(), Poll::Ready(53));
        assert_eq!(lost(), Poll::Pending);
    }
}
