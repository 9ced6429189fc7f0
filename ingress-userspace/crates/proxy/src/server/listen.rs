//! Creates the listening sockets of all workers. Other code accepts connections.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::listen_quic::QuicListener;

/// Length of the accept queue of each listener; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The way in which connections reach the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenMode {
    /// Through `sk_lookup`: each listener is bound to a port of its own on the loopback address, and the caller puts it
    /// into a slot. Accepted connections have the node's address and the steered port as their local address.
    Slots,
    /// Ordinary listeners on these ports, shared by the workers through `SO_REUSEPORT`. The unspecified IPv6 address
    /// accepts IPv4 as well, and stands for 0.0.0.0 on a node without IPv6. Port 0 selects any free one.
    Bind { address: IpAddr, http_port: u16, https_port: u16 },
}

#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    pub mode: ListenMode,
    /// Number of workers, at least 1.
    pub workers: usize,
    /// With [`ListenMode::Bind`]: whether a predecessor on the same node may still listen on the ports. Otherwise that
    /// is an error, because the two would share the connections.
    pub reuse: bool,
}

/// The listeners of one worker. The scheme is a property of the listener, because the port does not determine it.
#[derive(Debug)]
pub struct WorkerListeners {
    pub http: TcpListener,
    pub https: TcpListener,
    /// The listener for the ports of all TCP services; accepted connections have the port as part of their local
    /// address. Only with [`ListenMode::Slots`]; otherwise each port gets listeners of its own while the workers run.
    pub streams: Option<TcpListener>,
    /// The part in QUIC, at the port of HTTPS; `None` without HTTP/3. [`bind`] leaves it to the caller.
    pub quic: Option<QuicListener>,
}

/// The protocol on the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    Http,
    Https,
    /// Any protocol.
    Streams,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on `{address}`: another process does (stop it, or choose other ports)")]
    InUse { address: SocketAddr },
    #[error(
        "cannot listen on `{address}`: ports below `net.ipv4.ip_unprivileged_port_start` need CAP_NET_BIND_SERVICE"
    )]
    Denied { address: SocketAddr },
    #[error("cannot listen on `{address}`")]
    Io { address: SocketAddr, source: io::Error },
}

/// Creates the listeners of every worker, in the order of the workers.
///
/// # Errors
/// If one cannot be created; those created already are closed.
pub fn bind(options: ListenOptions) -> Result<Vec<WorkerListeners>, ListenError> {
    let ListenOptions { mode, workers, reuse } = options;
    let family = family();
    match mode {
        ListenMode::Slots => {
            let address = SocketAddr::new(family.loopback(), 0);
            let listener = || listen(address, PortSharing::Alone).map_err(|source| ListenError::of(address, source));
            let all = || {
                Ok(WorkerListeners { http: listener()?, https: listener()?, streams: Some(listener()?), quic: None })
            };
            (0..workers.max(1)).map(|_| all()).collect()
        }
        ListenMode::Bind { address, http_port, https_port } => {
            let address = if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) { family.unspecified() } else { address };
            let listeners = |port| {
                let address = SocketAddr::new(address, port);
                listen_shared(address, workers.max(1), reuse).map_err(|source| ListenError::of(address, source))
            };
            let pairs = listeners(http_port)?.into_iter().zip(listeners(https_port)?);
            Ok(pairs.map(|(http, https)| WorkerListeners { http, https, streams: None, quic: None }).collect())
        }
    }
}

/// Binds one listener for each of `workers` to `port` on all addresses of the node. Fails if any process has the port.
pub(crate) fn bind_port(port: u16, workers: usize) -> io::Result<Vec<TcpListener>> {
    listen_shared(SocketAddr::new(unspecified(), port), workers, false)
}

/// Returns the unspecified address, which accepts both families if the node has both.
pub(crate) fn unspecified() -> IpAddr {
    family().unspecified()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortSharing {
    Alone,
    ReusePort,
}

#[derive(Clone, Copy)]
enum Family {
    /// IPv4 as well, as v4-mapped addresses.
    DualStack,
    V4,
}

/// Detects the families. A node may have IPv6 compiled out or disabled (`ipv6.disable=1`,
/// `net.ipv6.conf.lo.disable_ipv6`).
fn family() -> Family {
    match listen(SocketAddr::new(Family::DualStack.loopback(), 0), PortSharing::Alone) {
        Ok(_) => Family::DualStack,
        Err(_) => Family::V4,
    }
}

impl Family {
    /// Binding to `::1` would make the socket IPv6-only, regardless of `IPV6_V6ONLY`; binding to a v4-mapped address
    /// does not (Linux, `__inet6_bind`), and `sk_lookup` can then assign it connections of both families.
    fn loopback(self) -> IpAddr {
        match self {
            Self::DualStack => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn unspecified(self) -> IpAddr {
        match self {
            Self::DualStack => Ipv6Addr::UNSPECIFIED.into(),
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

impl ListenError {
    pub(super) fn of(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            io::ErrorKind::PermissionDenied => Self::Denied { address },
            _ => Self::Io { address, source },
        }
    }
}

/// Returns `count` listeners, at least 1, on one address and port. Fails if any process has the port, unless `reuse` is
/// set.
fn listen_shared(address: SocketAddr, count: usize, reuse: bool) -> io::Result<Vec<TcpListener>> {
    if !reuse {
        // SO_REUSEPORT would silently join the group of another process. A trial bind without it fails in that case.
        drop(listen(address, PortSharing::Alone)?);
    }
    let first = listen(address, PortSharing::ReusePort)?;
    let address = first.local_addr()?;
    let rest = (1..count).map(|_| listen(address, PortSharing::ReusePort));
    std::iter::once(Ok(first)).chain(rest).collect()
}

fn listen(address: SocketAddr, sharing: PortSharing) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Allows listening again after a restart despite connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if sharing == PortSharing::ReusePort {
        socket.set_reuse_port(true)?;
    }
    // Accepted sockets inherit it, which saves a system call per connection.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_loopback(http_port: u16, reuse: bool) -> Result<Vec<WorkerListeners>, ListenError> {
        let mode = ListenMode::Bind { address: Ipv4Addr::LOCALHOST.into(), http_port, https_port: 0 };
        bind(ListenOptions { mode, workers: 2, reuse })
    }

    #[test]
    fn workers_share_the_ports() {
        let listeners = bind_loopback(0, false).expect("bound");
        let ports = |of: fn(&WorkerListeners) -> &TcpListener| {
            listeners.iter().map(|l| of(l).local_addr().expect("address").port()).collect::<Vec<_>>()
        };
        let (http, https) = (ports(|l| &l.http), ports(|l| &l.https));
        assert_eq!((http.len(), http[0], https[0]), (2, http[1], https[1]));
        assert_ne!(http[0], https[0]);
    }

    #[test]
    fn a_port_in_use_is_an_error_unless_a_predecessor_has_it() {
        let first = bind_loopback(0, false).expect("bound");
        let port = first[0].http.local_addr().expect("address").port();
        assert!(matches!(bind_loopback(port, false), Err(ListenError::InUse { .. })));
        assert!(bind_loopback(port, true).is_ok());
    }

    #[test]
    fn each_slot_has_its_own_loopback_port() {
        let listeners = bind(ListenOptions { mode: ListenMode::Slots, workers: 3, reuse: false }).expect("bound");
        let mut addresses: Vec<_> = listeners
            .iter()
            .flat_map(|l| [&l.http, &l.https].into_iter().chain(&l.streams))
            .map(|l| l.local_addr().expect("address"))
            .collect();
        assert!(addresses.iter().all(|address| address.ip().to_canonical().is_loopback()));
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 9);
    }
}
