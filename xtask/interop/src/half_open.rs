//! Handshakes that clients begin and do not go on with. From a certain number on, the product asks clients for proof of
//! their address, by Retry.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use ingress_lab::until;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Connection, Endpoint, EndpointConfig};
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;

use crate::stage::{NAME, Stage};

/// Addresses of clients, which the kernel distributes among the workers.
const ADDRESSES: u8 = 64;
/// Connections of each address: fewer than the product takes from one, and in all more than it takes without proof.
const EACH: u8 = 30;
/// Addresses that send before the product has counted: fewer packets than wait in the rooms of both workers.
const AT_ONCE: usize = 8;
/// Time between the packets of two addresses.
const PAUSE: Duration = Duration::from_millis(5);
/// Share of packets that get Retry once both workers send it, in eighths. Some do not: half-open connections end
/// meanwhile, and others take their places.
const ENOUGH: u64 = 7;

/// Handshakes that have begun. They end when this is dropped, so that the product need not wait for their rest.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    server: SocketAddr,
    sockets: Vec<(UdpSocket, Vec<Begun>)>,
}

/// A handshake that has begun.
#[derive(Debug)]
struct Begun {
    /// The client's connection ID.
    id: Vec<u8>,
    connection: Connection,
}

impl Drop for HalfOpen {
    /// Sends a last packet for each but those that got Retry: the product knows nothing of them. A packet that cannot be
    /// sent only makes the product wait.
    fn drop(&mut self) {
        for (socket, connections) in &mut self.sockets {
            let (mut retried_ids, mut buffer) = (HashSet::new(), [0; 1_500]);
            if socket.set_nonblocking(true).is_ok() {
                while let Ok(length) = socket.recv(&mut buffer) {
                    retried_ids.extend(retried(&buffer[..length]).map(<[u8]>::to_vec));
                }
            }
            for Begun { connection, .. } in connections.iter_mut().filter(|begun| !retried_ids.contains(&begun.id)) {
                let (now, mut datagram) = (Instant::now(), Vec::new());
                connection.close(now, 0_u32.into(), Bytes::new());
                if let Some(last) = connection.poll_transmit(now, 1, &mut datagram) {
                    let _sent = socket.send_to(&datagram[..last.size], self.server);
                }
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Begins handshakes, and returns them when the product sends Retry to most, or all have begun.
pub(crate) fn fill(stage: &Stage) -> Result<HalfOpen> {
    let config = config()?;
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let mut half_open = HalfOpen { server: stage.address(), sockets: Vec::new() };
    let (mut sent, mut retries) = (stage.firsts()?, stage.retries()?);
    for number in 0..ADDRESSES {
        // Not that of the clients: an address with too many half-open connections is refused.
        let address = Ipv4Addr::new(127, 0, 0, 2 + number);
        let socket = UdpSocket::bind((address, 0)).context("no socket for a client")?;
        let mut connections = Vec::new();
        for _ in 0..EACH {
            let now = Instant::now();
            let (_, mut connection) =
                endpoint.connect(now, config.clone(), stage.address(), NAME).context("cannot begin a handshake")?;
            let mut datagram = Vec::new();
            let first = connection.poll_transmit(now, 1, &mut datagram).context("a handshake without a packet")?;
            socket.send_to(&datagram[..first.size], stage.address()).context("cannot send a first packet")?;
            let id = ids(&datagram).context("a first packet without connection IDs")?.1.to_vec();
            connections.push(Begun { id, connection });
        }
        half_open.sockets.push((socket, connections));
        sent += u64::from(EACH);
        // Without rights, the buffers of the product's sockets are small.
        thread::sleep(PAUSE);
        if half_open.sockets.len().is_multiple_of(AT_ONCE) {
            // All of them are counted, so that further ones are those of others.
            until("the first packets", || (stage.firsts().ok()? >= sent).then_some(()))?;
            // More would take a slow machine so long that the first ones end.
            let before = std::mem::replace(&mut retries, stage.retries()?);
            if (retries - before) * 8 >= ENOUGH * AT_ONCE as u64 * u64::from(EACH) {
                return Ok(half_open);
            }
        }
    }
    // The client may still get a Retry, which is what counts.
    Ok(half_open)
}

/// Returns the connection IDs of the destination and of the source in a long header (RFC 9000, 17.2).
fn ids(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = datagram.get(5..)?.split_first()?;
    let (destination, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first()?;
    Some((destination, rest.get(..usize::from(*length))?))
}

/// Returns the connection ID of the destination of a Retry packet.
fn retried(datagram: &[u8]) -> Option<&[u8]> {
    const RETRY: u8 = 0xf0;
    (datagram.first()? & RETRY == RETRY).then(|| ids(datagram)).flatten().map(|(destination, _)| destination)
}

/// Returns a configuration whose first flight is one packet.
fn config() -> Result<ClientConfig> {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_retry_names_the_connection_that_it_retries() {
        let retry = [0xf5, 0, 0, 0, 1, 2, 7, 8, 1, 9, 1, 1];
        assert_eq!(ids(&retry), Some((&[7, 8][..], &[9][..])));
        assert_eq!(retried(&retry), Some(&[7, 8][..]));
        assert_eq!(retried(&[0xe5, 0, 0, 0, 1, 2, 7, 8, 1, 9, 1, 1]), None);
        assert_eq!(retried(&retry[..7]), None);
    }
}
