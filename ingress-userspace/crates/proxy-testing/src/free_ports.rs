//! Ports for tests that must name one before it is bound.

use std::{
    net::{Ipv6Addr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

/// Returns a port that is free for TCP and UDP and both families, and reserved for this process among tests until it
/// ends. Sockets get it only by number (`net.ipv4.ip_local_port_range`).
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_240;
    const COUNT: u16 = 20_000;
    let begin = u16::try_from(std::process::id() % u32::from(COUNT)).expect("small");
    (0..COUNT).map(|n| FIRST + (begin + n) % COUNT).find(|port| claim(*port)).expect("a free port")
}

/// Tries to reserve the port for this process. A socket on the port would block the test's own bind. The reservation is
/// therefore a Unix socket of the port's name, which belongs to one process and is free again when that ends.
fn claim(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("xdp-ingress-test-port-{port}")).expect("a valid name");
    let Ok(claim) = UnixListener::bind_addr(&name) else { return false };
    let address = (Ipv6Addr::UNSPECIFIED, port);
    let is_free = TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok();
    if is_free {
        std::mem::forget(claim);
    }
    is_free
}
