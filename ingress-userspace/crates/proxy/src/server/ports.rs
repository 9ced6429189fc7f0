//! Keeps the ports of TCP and UDP services open according to the configuration: binds one socket per worker and hands
//! it over. It neither accepts nor receives. The main thread binds, because workers have no capability for it.
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
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use ingress_model::{StreamPort, Transport};

use crate::{
    l4::udp,
    observe::{port_stats::PortStats, stats::Stats},
    server::{
        Server, listen,
        port_changes::{Changes, PortChange},
    },
    snapshot::Snapshot,
};

/// Interval between attempts to open a port.
const RETRY: Duration = Duration::from_secs(5);

/// A worker's socket for a port.
pub(crate) trait Bound: Sized {
    const TRANSPORT: Transport;

    /// Returns the channel for changes of this kind of socket.
    fn changes(changes: &Changes) -> &mpsc::Sender<PortChange<Self>>;

    /// Returns the counters of this kind of port.
    fn stats(stats: &Stats) -> &PortStats;
}

/// Keeps the ports of TCP services open on all workers of `server`, for as long as it is polled. It is meant for nodes
/// without kernel steering to the workers. A port that cannot be opened is logged and retried every 5 s.
///
/// A port in use by any other process is an error: the two would share the connections.
pub async fn keep_stream_ports_open(server: &Server) -> Infallible {
    keep_open(server, |port| listen::bind_port(port, server.workers())).await
}

/// Keeps the ports of UDP services open in the same way.
///
/// `has_company` says whether another process like this one runs on the node and may have the same ports open.
/// Otherwise a port in use by any other process is an error: the two would share the datagrams.
pub async fn keep_datagram_ports_open(server: &Server, has_company: impl Fn() -> bool) -> Infallible {
    keep_open(server, |port| udp::bind_port(port, server.workers(), has_company())).await
}

/// Keeps ports open; `bind` creates one socket per worker for a port.
async fn keep_open<S: Bound>(server: &Server, bind: impl Fn(u16) -> io::Result<Vec<S>>) -> Infallible {
    let transport = S::TRANSPORT;
    let (shared, mut published) = (server.shared(), server.shared().published());
    let mut open: BTreeMap<u16, OpenPort> = BTreeMap::new();
    // The value is the logged reason.
    let mut closed: BTreeMap<u16, String> = BTreeMap::new();
    loop {
        published.mark_unchanged();
        let wanted = wanted(transport, &shared.snapshot(), server.http_ports());
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
                    open.insert(port, OpenPort::give(port, sockets, server).await);
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

/// Returns the ports of `transport` in `snapshot`, without those of HTTP and HTTPS, which are always open.
fn wanted(transport: Transport, snapshot: &Snapshot, http_ports: [u16; 2]) -> BTreeSet<u16> {
    let ports = snapshot.ports().into_iter().filter(|port| port.transport == transport).map(|port| port.number);
    ports.filter(|port| transport == Transport::Udp || !http_ports.contains(port)).collect()
}

/// Removes and returns a port that all workers have lost.
fn poll_lost(open: &mut BTreeMap<u16, OpenPort>, cx: &mut Context<'_>) -> Poll<u16> {
    let mut lost = open.extract_if(.., |_, open| open.poll_closed(cx).is_ready());
    lost.next().map_or(Poll::Pending, |(port, _)| Poll::Ready(port))
}

/// Explains why `port` cannot be opened and how to fix that.
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

/// A port that is open on the workers. A worker without its socket has dropped its end of the channel.
struct OpenPort(Vec<oneshot::Receiver<Infallible>>);

// === impl OpenPort ===

impl OpenPort {
    /// Hands each worker its socket.
    async fn give<S: Bound>(port: u16, sockets: Vec<S>, server: &Server) -> Self {
        let (held, open): (Vec<_>, Vec<_>) = sockets.iter().map(|_| oneshot::channel()).unzip();
        let changes = sockets.into_iter().zip(held).map(|(socket, held)| PortChange::Open { port, socket, held });
        server.change(changes).await;
        Self(open)
    }

    /// Makes the workers close the port, and returns when they have. Until then no process could open it again.
    async fn close<S: Bound>(mut self, port: u16, server: &Server) {
        server.change((0..server.workers()).map(|_| PortChange::<S>::Close { port })).await;
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Ready when no worker has a socket of the port.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|held| Pin::new(held).poll(cx).is_pending());
        if self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

// === impl Bound ===

impl Bound for TcpListener {
    const TRANSPORT: Transport = Transport::Tcp;

    fn changes(changes: &Changes) -> &mpsc::Sender<PortChange<Self>> {
        &changes.tcp
    }

    fn stats(stats: &Stats) -> &PortStats {
        &stats.tcp_ports
    }
}

impl Bound for UdpSocket {
    const TRANSPORT: Transport = Transport::Udp;

    fn changes(changes: &Changes) -> &mpsc::Sender<PortChange<Self>> {
        &changes.udp
    }

    fn stats(stats: &Stats) -> &PortStats {
        &stats.udp_ports
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn bind_errors_name_the_remedy() {
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
    fn a_port_is_lost_when_the_last_worker_drops_it() {
        let (held, open): (Vec<_>, Vec<_>) = (0..2).map(|_| oneshot::channel::<Infallible>()).unzip();
        let mut ports = BTreeMap::from([(53, OpenPort(open)), (54, OpenPort(vec![oneshot::channel().1]))]);
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
