//! Payloads of floods of QUIC: first packets of clients, and packets of no connection.

use std::net::UdpSocket;

use anyhow::Context as _;
use ingress_lab::{client::block_on, credentials::Authority};

use crate::{http3, kernel::node::TLS_HOST};

/// Bytes of a packet of no connection: a short header, a connection ID and some encrypted bytes.
const SHORT: usize = 60;

/// Returns the first packet of a client. Servers take it as that of another client for each address.
///
/// # Errors
/// Fails if no client can be created.
pub(super) fn first() -> anyhow::Result<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("no socket for a first packet")?;
    let server = socket.local_addr().context("a socket without an address")?;
    let trust = Authority::generate()?.trust()?;
    block_on(http3::begin(server, TLS_HOST, &trust))?;
    socket.set_nonblocking(true).context("a socket that blocks")?;
    let mut packet = vec![0; 1500];
    let length = socket.recv(&mut packet).context("no first packet came")?;
    packet.truncate(length);
    Ok(packet)
}

/// Returns a packet with a connection ID that no node has issued, another one for each number.
pub(super) fn unknown(number: u32) -> [u8; SHORT] {
    let mut packet = [0; SHORT];
    packet[0] = 0x40;
    // The steps of a linear congruential generator (Knuth, TAOCP 2, 3.3.4, line 26).
    let mut state = number;
    for byte in &mut packet[1..] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    packet
}
