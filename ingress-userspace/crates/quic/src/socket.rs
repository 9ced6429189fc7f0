//! The UDP socket of a worker: batches of datagrams with GRO into one arena, and transmission with GSO. On a socket for
//! both families, IPv4 clients have mapped addresses; they are IPv4 on this side, because quinn-proto keeps its knowledge
//! of a path across a NAT's new port only where it sees IPv4.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket as StdSocket},
    task::{Context, Poll},
};

use bytes::BytesMut;
use quinn_proto::EcnCodepoint;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket};

/// Longest datagram, and longest sequence of datagrams that the kernel merges.
const SLICE: usize = 64 * 1024;

/// A received datagram.
#[derive(Debug)]
pub struct Datagram {
    /// The sender.
    pub remote: SocketAddr,
    /// The address that the sender used for us, if known.
    pub local: Option<IpAddr>,
    /// The congestion mark, two bits of the IP header.
    pub ecn: Option<EcnCodepoint>,
    /// The payload.
    pub data: BytesMut,
}

/// A datagram in the arena.
pub(crate) struct View<'a> {
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    pub(crate) data: &'a [u8],
}

impl View<'_> {
    /// Copies the payload.
    pub(crate) fn into_owned(self) -> Datagram {
        let Self { remote, local, ecn, data } = self;
        Datagram { remote, local, ecn, data: BytesMut::from(data) }
    }
}

/// The socket, and the arena for received datagrams.
pub(crate) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    is_v6: bool,
    arena: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Socket {
    /// Takes over a bound socket, and sets the options that QUIC needs.
    ///
    /// # Errors
    /// If the kernel refuses an option, or outside of a runtime.
    pub(crate) fn new(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let arena = vec![0; SLICE * BATCH_SIZE].into_boxed_slice();
        let metas = [RecvMeta::default(); BATCH_SIZE];
        Ok(Self { socket: UdpSocket::from_std(socket)?, state, is_v6, arena, metas })
    }

    /// Returns whether no router or host splits our datagrams, so that the path's limit can be found.
    pub(crate) fn finds_mtu(&self) -> bool {
        !self.state.may_fragment()
    }

    /// Greatest number of datagrams in one transmission.
    pub(crate) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Waits until the socket may have datagrams.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_recv_ready(cx)
    }

    /// Waits until the socket may take datagrams.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_send_ready(cx)
    }

    /// Receives one batch, and calls `take` for each datagram.
    ///
    /// # Errors
    /// Those of `recvmmsg`, except for an empty socket.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(View<'_>)) -> io::Result<()> {
        let Self { socket, state, arena, metas, .. } = self;
        let mut slices = arena.chunks_exact_mut(SLICE).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| slices.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let mut count = 0;
        // The kernel ends a batch early only if the socket is empty, or has failed, which the next call reports. So the
        // next datagram wakes the task, and another call now would only return that there is none.
        let received = socket.try_io(Interest::READABLE, || {
            count = state.recv((&*socket).into(), &mut slices, metas)?;
            if count < BATCH_SIZE { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if let Err(error) = received
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Err(error);
        }
        for (meta, slice) in metas.iter().zip(&slices).take(count) {
            let remote = canonical(meta.addr);
            let local = meta.dst_ip.map(|ip| ip.to_canonical());
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            for data in slice[..meta.len].chunks(meta.stride.max(1)) {
                take(View { remote, local, ecn, data });
            }
        }
        Ok(())
    }

    /// Sends `contents` as `transmit` describes. Returns `false` if the socket takes nothing now. Other errors are the
    /// loss of a packet, which QUIC repairs.
    pub(crate) fn send(&self, transmit: &quinn_proto::Transmit, contents: &[u8]) -> bool {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) if self.is_v6 => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        };
        let to = transmit.destination;
        let transmit = Transmit {
            destination: if self.is_v6 && to.is_ipv4() { SocketAddr::new(mapped(to.ip()), to.port()) } else { to },
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip.map(mapped),
        };
        let sent = self.socket.try_io(Interest::WRITABLE, || self.state.send((&self.socket).into(), &transmit));
        !sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // With its scope, which link-local addresses need.
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::Ipv4Addr};

    use super::*;

    /// Receives until `count` datagrams have come.
    async fn receive(socket: &mut Socket, count: usize) -> Vec<Datagram> {
        let mut received = Vec::new();
        while received.len() < count {
            poll_fn(|cx| socket.poll_readable(cx)).await.expect("readable");
            socket.receive(|datagram| received.push(datagram.into_owned())).expect("received");
        }
        received
    }

    #[tokio::test]
    async fn segments_arrive_one_by_one_and_ipv4_stays_ipv4_on_both_kinds_of_sockets() {
        for address in ["[::]:0", "127.0.0.1:0"] {
            let server = StdSocket::bind(address).expect("bound");
            let port = server.local_addr().expect("an address").port();
            let mut server = Socket::new(server).expect("a socket");
            let mut client = Socket::new(StdSocket::bind("127.0.0.1:0").expect("bound")).expect("a socket");
            let mut transmit = quinn_proto::Transmit {
                destination: (Ipv4Addr::LOCALHOST, port).into(),
                ecn: Some(EcnCodepoint::Ect0),
                size: 2_500,
                segment_size: Some(1_000),
                src_ip: None,
            };
            let contents: Vec<u8> = (0..2_500_u32).map(|at| (at % 251) as u8).collect();
            // A kernel without GSO takes the segments one by one.
            let segments =
                if client.segments_max() > 1 { vec![&contents[..]] } else { contents.chunks(1_000).collect() };
            for segment in segments {
                poll_fn(|cx| client.poll_writable(cx)).await.expect("writable");
                assert!(client.send(&transmit, segment));
            }
            let received = receive(&mut server, 3).await;
            let lengths: Vec<_> = received.iter().map(|datagram| datagram.data.len()).collect();
            assert_eq!(lengths, [1_000, 1_000, 500], "{address}");
            let joined: Vec<u8> = received.iter().flat_map(|datagram| datagram.data.to_vec()).collect();
            assert_eq!(joined, contents, "{address}");
            for datagram in &received {
                assert_eq!(datagram.remote.ip(), Ipv4Addr::LOCALHOST, "{address}");
                assert_eq!(datagram.local, Some(Ipv4Addr::LOCALHOST.into()), "{address}");
                assert_eq!(datagram.ecn, Some(EcnCodepoint::Ect0), "{address}");
            }
            // The answer leaves from the address that the client knows.
            transmit.destination = received[0].remote;
            transmit.src_ip = received[0].local;
            transmit.segment_size = None;
            assert!(server.send(&transmit, b"answer"));
            let answers = receive(&mut client, 1).await;
            assert_eq!(answers[0].data, &b"answer"[..], "{address}");
            assert_eq!(answers[0].remote, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), "{address}");
        }
    }

    #[tokio::test]
    async fn a_batch_that_is_not_full_ends_the_reading_until_the_next_datagram() {
        let server = StdSocket::bind("127.0.0.1:0").expect("bound");
        let address = server.local_addr().expect("an address");
        let mut server = Socket::new(server).expect("a socket");
        let client = StdSocket::bind("127.0.0.1:0").expect("bound");
        for _ in 0..2 {
            client.send_to(b"datagram", address).expect("sent");
            assert_eq!(receive(&mut server, 1).await.len(), 1);
            let is_readable = poll_fn(|cx| Poll::Ready(server.poll_readable(cx).is_ready())).await;
            assert!(!is_readable);
        }
    }
}
