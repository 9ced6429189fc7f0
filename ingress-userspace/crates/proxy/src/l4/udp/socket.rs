//! A UDP socket that reports the node's address that each datagram was sent to, and sends responses from that address.
//! It knows no sessions.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use nix::{
    cmsg_space,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
        sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo},
    },
};
use socket2::{Domain, Protocol, SockAddr, Socket as Made, Type};
use tokio::io::Interest;

use crate::server::listen;

/// Size of the socket's receive buffer in bytes; the kernel caps it at `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Whether other sockets may be bound to the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketSharing {
    Alone,
    /// Sockets of the same user that also set `SO_REUSEPORT` may share the port.
    ReusePort,
}

/// The source and destination of a datagram. Datagrams belong to the same session only if both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DatagramAddresses {
    /// The address as the socket reports it: IPv4 addresses are v4-mapped unless the node has no IPv6.
    pub(super) address: SocketAddr,
    local: LocalAddress,
}

impl DatagramAddresses {
    /// Returns the address of the node that the client sent to.
    pub(super) fn local(&self) -> IpAddr {
        match self.local {
            LocalAddress::V4(address) => address.into(),
            LocalAddress::V6(address, _) => address.to_canonical(),
        }
    }
}

/// An address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LocalAddress {
    V4(Ipv4Addr),
    /// Also holds IPv4 addresses, v4-mapped. The interface index is zero unless the address is link-local.
    V6(Ipv6Addr, u32),
}

/// The socket of one worker for one port.
#[derive(Debug)]
pub(super) struct PortSocket(tokio::net::UdpSocket);

/// Binds one socket for each of `workers` to `port` on all addresses of the node. Fails if another process has the
/// port, unless `has_company` allows another process to share it.
pub(crate) fn bind_port(port: u16, workers: usize, has_company: bool) -> io::Result<Vec<UdpSocket>> {
    let address = SocketAddr::new(listen::unspecified(), port);
    if !has_company {
        // SO_REUSEPORT would silently join the sockets of another process. A trial bind without it fails in that case.
        drop(bind(address, SocketSharing::Alone)?);
    }
    (0..workers).map(|_| bind(address, SocketSharing::ReusePort)).collect()
}

/// Binds a socket to `address`, which is unspecified; an IPv6 socket accepts IPv4 as well.
fn bind(address: SocketAddr, sharing: SocketSharing) -> io::Result<UdpSocket> {
    let socket = Made::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    // SO_REUSEADDR is not set: with it, the last process to bind the port with that option would get all datagrams
    // (udp(7), socket(7)). UDP has no TIME_WAIT, so the option is not needed.
    if sharing == SocketSharing::ReusePort {
        socket.set_reuse_port(true)?;
    }
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => {
            socket.set_only_v6(false)?;
            // Answers may leave from addresses that only a local route has (`ipv6_chk_addr`), such as those of Gateways.
            socket.set_freebind_v6(true)?;
            // For IPv4 datagrams, it reports the v4-mapped address (Linux, `ip6_datagram_recv_common_ctl`).
            setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
        }
    }
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

// === impl PortSocket ===

impl PortSocket {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self(tokio::net::UdpSocket::from_std(socket)?))
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// Receives a datagram into `buffer` and returns its length and its client. The client is `None` if the datagram
    /// cannot be answered.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<DatagramAddresses>)> {
        let mut control = cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
        self.0.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = recvmsg::<SockaddrStorage>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
            let local = message.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    Some(LocalAddress::V4(Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr))))
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    Some(LocalAddress::V6(address, if address.is_unicast_link_local() { info.ipi6_ifindex } else { 0 }))
                }
                _ => None,
            });
            let address = message.address.as_ref().and_then(address);
            let client = address.filter(|address| address.port() != 0).zip(local);
            Ok((message.bytes, client.map(|(address, local)| DatagramAddresses { address, local })))
        })
    }

    /// Sends `datagram` to `client` from the address that the client sent to, if the socket is writable now.
    pub(super) fn try_send(&self, client: &DatagramAddresses, datagram: &[u8]) -> io::Result<()> {
        self.0.try_io(Interest::WRITABLE, || send(&self.0, client, datagram))
    }

    /// Like [`try_send`](Self::try_send), but waits until the socket is writable.
    pub(super) async fn send(&self, client: &DatagramAddresses, datagram: &[u8]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, || send(&self.0, client, datagram)).await
    }
}

fn send(socket: &tokio::net::UdpSocket, client: &DatagramAddresses, datagram: &[u8]) -> io::Result<()> {
    let DatagramAddresses { address, local } = client;
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let (parts, to) = ([IoSlice::new(datagram)], SockaddrStorage::from(*address));
    match *local {
        LocalAddress::V4(local) => {
            let any = libc::in_addr { s_addr: 0 };
            let ipi_spec_dst = libc::in_addr { s_addr: local.to_bits().to_be() };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr: any };
            sendmsg(fd, &parts, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&to))?;
        }
        LocalAddress::V6(local, interface) => {
            let ipi6_addr = libc::in6_addr { s6_addr: local.octets() };
            let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: interface };
            sendmsg(fd, &parts, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&to))?;
        }
    }
    Ok(())
}

fn address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

// === impl DatagramAddresses ===

impl DatagramAddresses {
    /// Returns the key that the endpoint is chosen by, which is the same on every node and worker.
    pub(super) fn key(&self) -> [u8; 18] {
        let mut key = [0; 18];
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        key[..16].copy_from_slice(&ip.octets());
        key[16..].copy_from_slice(&self.address.port().to_be_bytes());
        key
    }
}
