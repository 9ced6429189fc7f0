//! Binds the UDP sockets of QUIC, one for each worker. Other code gives them their keys and steers packets to them.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use ingress_quic::{Ids, Keys};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::listen::{ListenError, unspecified};

/// Receive buffer of each socket, in bytes, unless the kernel permits less. QUIC has no window below it: packets that do
/// not fit are lost.
pub const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Send buffer of each socket, likewise. Packets to addresses on the node's links that do not answer stay in it for seconds.
/// With the kernel's default, those of a few such addresses would keep a worker from sending to anyone.
const SEND_BUFFER: usize = 4 * 1024 * 1024;

/// The part of a worker in QUIC.
pub struct QuicListener {
    /// Bound to the port of HTTPS on all addresses, in one group with the sockets of the other workers and processes.
    /// Clients of IPv4 have v4-mapped addresses if the node has IPv6.
    pub socket: UdpSocket,
    /// The connection IDs of this worker.
    pub ids: Arc<dyn Ids>,
    /// The keys of the node.
    pub keys: Keys,
}

impl fmt::Debug for QuicListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, ids, keys: _ } = self;
        f.debug_struct("QuicListener").field("socket", socket).field("ids", ids).finish_non_exhaustive()
    }
}

/// Binds one UDP socket for each of `workers` to `port`, on all addresses of the node. Port 0 selects any free one.
///
/// The sockets share the port through `SO_REUSEPORT`. With `joins`, they may join those of a predecessor, which runs as
/// the same user; otherwise it is an error if any process has the port.
///
/// # Errors
/// If one cannot be bound; those bound already are closed.
pub fn bind_quic(port: u16, workers: usize, joins: bool) -> Result<Vec<UdpSocket>, ListenError> {
    let address = SocketAddr::new(unspecified(), port);
    bind_group(address, workers.max(1), joins).map_err(|source| ListenError::of(address, source))
}

fn bind_group(address: SocketAddr, count: usize, joins: bool) -> io::Result<Vec<UdpSocket>> {
    if !joins {
        // As for TCP: SO_REUSEPORT would silently join the group of another process.
        drop(bind_one(address, false)?);
    }
    let first = bind_one(address, true)?;
    let address = first.local_addr()?;
    let rest = (1..count).map(|_| bind_one(address, true));
    std::iter::once(Ok(first)).chain(rest).collect()
}

fn bind_one(address: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
        // Answers may leave from addresses that only a local route has (`ipv6_chk_addr`), such as those of Gateways.
        socket.set_freebind_v6(true)?;
    }
    if shares {
        socket.set_reuse_port(true)?;
    }
    enlarge(&socket)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Sets both buffers, beyond `net.core.rmem_max` and `wmem_max` if this thread has CAP_NET_ADMIN.
fn enlarge(socket: &Socket) -> io::Result<()> {
    match rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => socket.set_send_buffer_size(SEND_BUFFER)?,
        forced => forced?,
    }
    match rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => socket.set_recv_buffer_size(RECEIVE_BUFFER),
        forced => forced,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        time::{Duration, Instant},
    };

    use super::*;

    fn port(socket: &UdpSocket) -> u16 {
        socket.local_addr().expect("an address").port()
    }

    #[test]
    fn workers_share_the_port_and_a_successor_joins_it() {
        let first = bind_quic(0, 2, false).expect("bound");
        let shared = port(&first[0]);
        assert_eq!(first.iter().map(port).collect::<Vec<_>>(), [shared, shared]);
        assert!(matches!(bind_quic(shared, 1, false), Err(ListenError::InUse { .. })));
        let second = bind_quic(shared, 3, true).expect("joined");
        assert_eq!(second.iter().map(port).collect::<Vec<_>>(), [shared; 3]);
        drop((first, second));
        assert!(bind_quic(shared, 1, false).is_ok(), "free again");
    }

    #[test]
    fn a_port_of_another_kind_of_socket_is_in_use_even_for_a_successor() {
        let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        for joins in [false, true] {
            assert!(matches!(bind_quic(port(&other), 1, joins), Err(ListenError::InUse { .. })), "{joins}");
        }
    }

    #[test]
    fn clients_of_both_families_reach_the_sockets() {
        let sockets = bind_quic(0, 1, false).expect("bound");
        let port = port(&sockets[0]);
        let mut clients = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
        if sockets[0].local_addr().expect("an address").is_ipv6() {
            clients.push(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
        }
        for local in clients {
            let client = UdpSocket::bind(local).expect("a client");
            client.send_to(b"hello", SocketAddr::new(local.ip(), port)).expect("sent");
            let end = Instant::now() + Duration::from_secs(20);
            let (mut buffer, from) = ([0; 8], client.local_addr().expect("an address"));
            let (length, sender) = loop {
                match sockets[0].recv_from(&mut buffer) {
                    Ok(received) => break received,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                assert!(Instant::now() < end, "nothing from {local}");
                std::thread::yield_now();
            };
            assert_eq!((&buffer[..length], sender.ip().to_canonical()), (&b"hello"[..], from.ip()));
        }
    }

    #[test]
    fn buffers_are_as_large_as_the_kernel_permits() {
        let sockets = bind_quic(0, 1, false).expect("bound");
        let size = socket2::SockRef::from(&sockets[0]).recv_buffer_size().expect("a size");
        let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").expect("readable");
        let most: usize = most.trim().parse().expect("a number");
        // The kernel doubles the value for its own overhead (socket(7)).
        assert!(size == 2 * RECEIVE_BUFFER || size >= 2 * most.min(RECEIVE_BUFFER), "{size}");
        let size = socket2::SockRef::from(&sockets[0]).send_buffer_size().expect("a size");
        let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").expect("readable");
        let most: usize = most.trim().parse().expect("a number");
        assert!(size == 2 * SEND_BUFFER || size >= 2 * most.min(SEND_BUFFER), "{size}");
    }
}
