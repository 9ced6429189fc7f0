//! Handshakes that clients begin and do not go on with. From a certain number on, the product asks clients for proof of
//! their address, by Retry.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ingress_lab::until;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};
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

/// Begins handshakes, and returns their sockets when the product sends Retry to most, or all have begun.
pub(crate) fn fill(stage: &Stage) -> Result<Vec<UdpSocket>> {
    let config = config()?;
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let (mut sockets, mut sent, mut retries) = (Vec::new(), stage.firsts()?, stage.retries()?);
    for number in 0..ADDRESSES {
        // Not that of the clients: an address with too many half-open connections is refused.
        let address = Ipv4Addr::new(127, 0, 0, 2 + number);
        let socket = UdpSocket::bind((address, 0)).context("no socket for a client")?;
        for _ in 0..EACH {
            let now = Instant::now();
            let (_, mut connection) =
                endpoint.connect(now, config.clone(), stage.address(), NAME).context("cannot begin a handshake")?;
            let mut datagram = Vec::new();
            let first = connection.poll_transmit(now, 1, &mut datagram).context("a handshake without a packet")?;
            socket.send_to(&datagram[..first.size], stage.address()).context("cannot send a first packet")?;
        }
        sockets.push(socket);
        sent += u64::from(EACH);
        // Without rights, the buffers of the product's sockets are small.
        thread::sleep(PAUSE);
        if sockets.len().is_multiple_of(AT_ONCE) {
            // All of them are counted, so that further ones are those of others.
            until("the first packets", || (stage.firsts().ok()? >= sent).then_some(()))?;
            // More would take a slow machine so long that the first ones end.
            let before = std::mem::replace(&mut retries, stage.retries()?);
            if (retries - before) * 8 >= ENOUGH * AT_ONCE as u64 * u64::from(EACH) {
                return Ok(sockets);
            }
        }
    }
    // The client may still get a Retry, which is what counts.
    Ok(sockets)
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
