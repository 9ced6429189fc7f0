//! Limits of QUIC and HTTP/3, and the configurations of quinn-proto made of them. Each default of quinn-proto that does
//! not suit a server on the open internet is replaced here, with the reason.

use std::{sync::Arc, time::Duration};

use quinn_proto::{
    EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt,
    crypto::rustls::{NoInitialCipherSuite, QuicServerConfig},
};
use rustls::quic;

use crate::{
    ids::{Generator, Ids},
    keys::Keys,
    padding::Unpadded,
};

/// QUIC version 1 (RFC 9000). Drafts are history, and quinn-proto has no version 2.
const VERSION: u32 = 1;

/// Number of unidirectional streams that a client may have open. HTTP/3 needs three; the others are for streams of
/// unknown types, which a server must tolerate (RFC 9114, 6.2). quinn-proto would permit 100.
const UNI_STREAMS: u32 = 8;

/// Datagrams of one client that are kept before its first packet is admitted. Admission is immediate, so few come.
/// quinn-proto would keep 10 MiB.
const INCOMING_BUFFER: u64 = 16 * 1024;

/// The same as [`INCOMING_BUFFER`], for all clients. quinn-proto would keep 100 MiB.
const INCOMING_BUFFERS: u64 = 4 * 1024 * 1024;

/// Minimum time between two stateless resets. quinn-proto's 20 ms would leave most clients of a crashed process waiting
/// for their own timeout; a reset is smaller than the packet that caused it.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Largest UDP payload that is tried and taken: Ethernet's 1,500 bytes without the headers of IPv6 and UDP.
const MTU_MAX: u16 = 1452;

/// Limits of a worker and of each of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that a client may have open on a connection; 128 by default.
    pub streams_max: u32,
    /// Bytes of a request's body that a client may send ahead of the service; 1 MiB by default, as for HTTP/2.
    pub stream_window: u32,
    /// The same as `stream_window`, for all requests of a connection; 1 MiB by default. quinn-proto sets no limit.
    pub connection_window: u32,
    /// Bytes of responses that a connection keeps until they are acknowledged; 2 MiB by default. A client that reads
    /// slowly costs at most this.
    pub send_window: u64,
    /// Time without any packet after which a connection is dropped; 75 s by default, the keep-alive of HTTP/1.
    pub idle_timeout: Duration,
    /// Time without a request after which a connection is closed, even if the client sends packets; 75 s by default.
    pub keep_alive: Duration,
    /// Time for the handshake; 20 s by default, and half of it until the client has proven its address. Losses cost much
    /// time before a round trip is measured: packets are repeated after 1 s, and then after twice the time before (RFC
    /// 9002, 6.2).
    pub handshake_timeout: Duration,
    /// Time for the head of a request; 10 s by default.
    pub head_timeout: Duration,
    /// Time that a response waits for a client that takes none of its bytes; 60 s by default.
    pub send_timeout: Duration,
    /// Largest head of a request, and largest trailers, as RFC 9114, 4.2.2 counts; 16 KiB by default.
    pub section_max: usize,
    /// Connections of a worker whose handshake is not complete; 1,024 by default. From a quarter on, new clients must
    /// prove their address.
    pub half_open_max: usize,
    /// Time after the announcement of a drain in which requests are still taken; 1 s by default. A request that crosses
    /// the announcement is served.
    pub drain_grace: Duration,
    /// Time without a request after which a draining connection is closed; 5 s by default. During a drain, a client that
    /// is silent for so long is asked whether it lives, and is given up after the same time again. Each of the two is at
    /// least four round trips with delayed ACKs, some 100 ms on a short path.
    pub drain_idle: Duration,
    /// Whether clients may open WebSockets by extended CONNECT (RFC 9220); `false` by default.
    pub connect_protocol: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_max: 128,
            stream_window: 1024 * 1024,
            connection_window: 1024 * 1024,
            send_window: 2 * 1024 * 1024,
            idle_timeout: Duration::from_secs(75),
            keep_alive: Duration::from_secs(75),
            handshake_timeout: Duration::from_secs(20),
            head_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(60),
            section_max: 16 * 1024,
            half_open_max: 1024,
            drain_grace: Duration::from_secs(1),
            drain_idle: Duration::from_secs(5),
            connect_protocol: false,
        }
    }
}

/// A configuration of TLS or limits that QUIC cannot use.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The provider of cryptography has no cipher for Initial packets.
    #[error("the provider of cryptography lacks TLS13_AES_128_GCM_SHA256, which QUIC needs")]
    Cipher(#[source] NoInitialCipherSuite),
    /// TLS 1.3 is missing, for example.
    #[error("QUIC cannot use the TLS configuration")]
    Tls(#[source] rustls::Error),
}

/// Returns the configuration of new connections. `tls` is taken without its application protocols and early data: HTTP/3
/// is the only protocol, and early data can be replayed.
///
/// # Errors
/// If QUIC cannot use `tls`.
pub(crate) fn server(
    mut tls: rustls::ServerConfig,
    keys: &Keys,
    limits: &Limits,
) -> Result<Arc<ServerConfig>, ConfigError> {
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.max_early_data_size = 0;
    let tls = Arc::new(tls);
    // quinn-proto does this for each connection, and panics if it fails.
    quic::ServerConnection::new(Arc::clone(&tls), quic::Version::V1, Vec::new()).map_err(ConfigError::Tls)?;
    let crypto = QuicServerConfig::try_from(tls).map_err(ConfigError::Cipher)?;
    let crypto = Unpadded(Arc::new(crypto));
    let mut config = ServerConfig::new(Arc::new(crypto), keys.token());
    config
        .transport_config(Arc::new(transport(limits)))
        // NAT gives clients new ports, and phones change networks; the connection ID leads to the right worker.
        .migration(true)
        .max_incoming(limits.half_open_max)
        .incoming_buffer_size(INCOMING_BUFFER)
        .incoming_buffer_size_total(INCOMING_BUFFERS);
    Ok(Arc::new(config))
}

fn transport(limits: &Limits) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(MTU_MAX);
    let mut transport = TransportConfig::default();
    // The default congestion control is cubic, as of TCP.
    transport
        .max_concurrent_bidi_streams(limits.streams_max.into())
        .max_concurrent_uni_streams(UNI_STREAMS.into())
        .stream_receive_window(limits.stream_window.into())
        .receive_window(limits.connection_window.into())
        .send_window(limits.send_window)
        .max_idle_timeout(Some(idle(limits.idle_timeout)))
        // HTTP/3 needs no datagrams, whose buffer would be 1.25 MB a connection.
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(Some(mtu));
    transport
}

/// A timeout above that of the wire is as good as the longest one.
fn idle(timeout: Duration) -> IdleTimeout {
    let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    IdleTimeout::from(VarInt::from_u32(millis))
}

/// Returns the configuration of a worker's endpoint.
pub(crate) fn endpoint(keys: &Keys, ids: Arc<dyn Ids>) -> Arc<EndpointConfig> {
    let mut config = EndpointConfig::new(keys.reset());
    config
        .cid_generator(move || Box::new(Generator(Arc::clone(&ids))))
        .supported_versions(vec![VERSION])
        .min_reset_interval(RESET_INTERVAL);
    // It refuses values below 1,200 alone.
    if config.max_udp_payload_size(MTU_MAX).is_err() {
        tracing::warn!("the largest UDP payload keeps quinn-proto's default");
    }
    Arc::new(config)
}

#[cfg(test)]
pub(crate) mod tests {
    use rustls::{
        crypto::aws_lc_rs,
        server::ResolvesServerCertUsingSni,
        version::{TLS12, TLS13},
    };

    use super::*;

    fn tls(versions: &[&'static rustls::SupportedProtocolVersion]) -> rustls::ServerConfig {
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .expect("a provider with these versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()))
    }

    /// Returns a configuration without certificates.
    pub(crate) fn server_of_tls_1_3() -> Arc<ServerConfig> {
        let keys = Keys::random().expect("keys");
        server(tls(&[&TLS13]), &keys, &Limits::default()).expect("a configuration")
    }

    #[test]
    fn tls_without_version_1_3_is_refused() {
        let keys = Keys::random().expect("keys");
        let limits = Limits::default();
        assert!(server(tls(&[&TLS13]), &keys, &limits).is_ok());
        assert!(server(tls(&[&TLS12, &TLS13]), &keys, &limits).is_ok());
        let refused = server(tls(&[&TLS12]), &keys, &limits).expect_err("TLS 1.2 alone");
        assert!(matches!(refused, ConfigError::Tls(_)), "{refused}");
    }

    #[test]
    fn long_timeouts_are_those_of_the_wire() {
        assert_eq!(idle(Duration::from_secs(75)), IdleTimeout::from(VarInt::from_u32(75_000)));
        assert_eq!(idle(Duration::MAX), IdleTimeout::from(VarInt::from_u32(u32::MAX)));
    }
}
