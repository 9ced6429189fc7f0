//! Clients that violate QUIC: what they send is changed before it is sealed, so the server takes it for theirs. Each
//! violation ends the connection with its code (RFC 9000, 20.1; RFC 9001, 4.8), and the worker goes on.

use std::{any::Any, sync::Arc};

use bytes::BytesMut;
use ingress_quic::Limits;
use quinn::{
    ConnectionError,
    crypto::{
        ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
        rustls::QuicClientConfig,
    },
};
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, transport_parameters::TransportParameters};
use rustls::{crypto::aws_lc_rs, pki_types::CertificateDer};

use crate::{
    errors::{good, headers},
    support::{Server, client_tls, connect, get, pattern, run, start},
};

const FLOW_CONTROL: u64 = 0x3;
const STREAM_LIMIT: u64 = 0x4;
const STREAM_STATE: u64 = 0x5;
const FINAL_SIZE: u64 = 0x6;
const FRAME_ENCODING: u64 = 0x7;
const TRANSPORT_PARAMETER: u64 = 0x8;
const PROTOCOL_VIOLATION: u64 = 0xa;
const CRYPTO_BUFFER_EXCEEDED: u64 = 0xd;
// TLS' alerts (RFC 8446, 6).
const UNEXPECTED_MESSAGE: u64 = 0x100 + 10;
const MISSING_EXTENSION: u64 = 0x100 + 109;
const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Initial,
    Handshake,
    Data,
}

/// A change of the client's packets.
#[derive(Clone, Debug)]
enum Change {
    None,
    /// Frames instead of the client's own, in packets that have room for them. Padding follows.
    Frames(Level, Vec<u8>),
    /// Bits that are set in the first byte.
    Bits(Level, u8),
    /// Bytes of the ClientHello, and others instead.
    Hello(Vec<u8>, Vec<u8>),
}

impl Change {
    /// Changes a packet; `packet` ends with its payload.
    fn apply(&self, at: Level, packet: &mut [u8], header_length: usize) {
        let (header, payload) = packet.split_at_mut(header_length);
        match self {
            Self::Frames(level, frames) if *level == at && payload.len() >= frames.len() => {
                payload.fill(0);
                payload[..frames.len()].copy_from_slice(frames);
            }
            Self::Bits(level, bits) if *level == at => header[0] |= bits,
            Self::Hello(from, to) if at == Level::Initial => {
                if let Some(found) = payload.windows(from.len()).position(|window| window == from) {
                    payload[found..found + to.len()].copy_from_slice(to);
                }
            }
            _ => {}
        }
    }
}

// === quinn's cryptography, with the change before it ===

struct Forger {
    inner: Arc<QuicClientConfig>,
    change: Change,
}

struct ForgerSession {
    inner: Box<dyn Session>,
    change: Change,
    /// The level of the next keys.
    next: Level,
}

struct ForgerKey {
    inner: Box<dyn PacketKey>,
    change: Change,
    level: Level,
}

impl ClientConfig for Forger {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = Arc::clone(&self.inner).start_session(version, server_name, params)?;
        Ok(Box::new(ForgerSession { inner, change: self.change.clone(), next: Level::Handshake }))
    }
}

impl ForgerSession {
    fn wrap(&self, keys: Keys, level: Level) -> Keys {
        let Keys { header, packet: KeyPair { local, remote } } = keys;
        let local = Box::new(ForgerKey { inner: local, change: self.change.clone(), level });
        Keys { header, packet: KeyPair { local, remote } }
    }
}

impl Session for ForgerSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.wrap(self.inner.initial_keys(dst_cid, side), Level::Initial)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let keys = self.inner.write_handshake(buf)?;
        let level = std::mem::replace(&mut self.next, Level::Data);
        Some(self.wrap(keys, level))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

impl PacketKey for ForgerKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let end = buf.len() - self.tag_len();
        self.change.apply(self.level, &mut buf[..end], header_len);
        self.inner.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}

// === clients ===

fn forger(certificate: &CertificateDer<'static>, change: Change, protocol: &[u8]) -> quinn::ClientConfig {
    let mut provider = aws_lc_rs::default_provider();
    // A ClientHello of one packet.
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    let mut tls = client_tls(certificate, provider);
    tls.alpn_protocols = vec![protocol.to_vec()];
    let inner = Arc::new(QuicClientConfig::try_from(tls).expect("a configuration"));
    quinn::ClientConfig::new(Arc::new(Forger { inner, change }))
}

/// Connects, sends a request, and returns the code by which the server closes the connection.
async fn closed(server: &Server, change: Change, protocol: &[u8]) -> Result<u64, ConnectionError> {
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
    let config = forger(&server.certificate, change, protocol);
    let error = match endpoint.connect_with(config, server.address, "localhost").expect("an address").await {
        Err(error) => error,
        Ok(quic) => {
            // It stays open until the connection is closed.
            let mut open = quic.open_bi().await;
            if let Ok((sender, _receiver)) = &mut open {
                // Long enough for all frames below.
                let long = "x".repeat(100);
                let _closed = sender.write_all(&headers(&[&good("/hang/")[..], &[("x", &*long)]].concat())).await;
            }
            quic.closed().await
        }
    };
    match error {
        ConnectionError::ConnectionClosed(close) => Ok(close.error_code.into()),
        other => Err(other),
    }
}

#[test]
fn violations_of_quic_end_the_connection() {
    let data = |frames: &[u8]| Change::Frames(Level::Data, frames.to_vec());
    let handshake = |frames: &[u8]| Change::Frames(Level::Handshake, frames.to_vec());
    // The client's own value is 1,472.
    let parameter = |to: [u8; 4]| Change::Hello(vec![0x03, 2, 0x45, 0xc0], to.to_vec());
    // The ID of the client's address is as long as others may be.
    let source = |id: u8| Change::Hello(vec![0x0f, 8], vec![id, 8]);
    let new_id = |sequence: u8, retired: u8, length: u8| {
        let id = vec![7; length.into()];
        data(&[&[0x18, sequence, retired, length][..], &id, &[9; 16]].concat())
    };
    const KEY_UPDATE: [u8; 8] = [0x06, 0, 5, 24, 0, 0, 1, 0];
    let cases = [
        // Frames.
        ("a stream beyond its window", data(&[0x0e, 0, 0x85, 0xf5, 0xe1, 0, 1, b'x']), FLOW_CONTROL),
        ("a stream beyond the limit", data(&[0x0a, 0xbb, 0x9a, 0xca, 0, 1, b'x']), STREAM_LIMIT),
        ("another final size", data(&[0x0b, 0, 1, b'x', 0x0e, 0, 5, 1, b'x']), FINAL_SIZE),
        ("an unknown frame", data(&[0x20]), FRAME_ENCODING),
        ("RESET_STREAM of our stream", data(&[0x04, 3, 0, 0]), STREAM_STATE),
        ("STOP_SENDING of no stream", data(&[0x05, 1, 0]), STREAM_STATE),
        ("STOP_SENDING of the client's own stream", data(&[0x05, 2, 0]), STREAM_STATE),
        ("NEW_TOKEN", data(&[0x07, 1, 0]), PROTOCOL_VIOLATION),
        ("STREAM of our stream that does not exist", data(&[0x0a, 1, 1, 0]), STREAM_STATE),
        ("STREAM of our stream", data(&[0x0a, 3, 1, 0]), STREAM_STATE),
        ("MAX_STREAM_DATA of no stream", data(&[0x11, 1, 1]), STREAM_STATE),
        ("MAX_STREAM_DATA of the client's own stream", data(&[0x11, 2, 1]), STREAM_STATE),
        ("MAX_STREAMS above 2^60", data(&[0x12, 0xd0, 0, 0, 0, 0, 0, 0, 1]), FRAME_ENCODING),
        ("STREAMS_BLOCKED above 2^60", data(&[0x16, 0xd0, 0, 0, 0, 0, 0, 0, 1]), FRAME_ENCODING),
        ("a new ID that retires later ones", new_id(1, 2, 8), FRAME_ENCODING),
        ("a new ID without bytes", new_id(1, 0, 0), FRAME_ENCODING),
        ("a new ID of 21 bytes", new_id(1, 0, 21), FRAME_ENCODING),
        ("RETIRE_CONNECTION_ID of no ID", data(&[0x19, 0x3f]), PROTOCOL_VIOLATION),
        ("HANDSHAKE_DONE", data(&[0x1e]), PROTOCOL_VIOLATION),
        ("ACK of no packet", data(&[0x02, 0x80, 1, 0, 0, 0, 0, 0]), PROTOCOL_VIOLATION),
        ("CRYPTO far ahead", data(&[0x06, 0x80, 0x0f, 0x42, 0x40, 1, 0]), CRYPTO_BUFFER_EXCEEDED),
        ("PATH_CHALLENGE in a handshake", handshake(&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8]), PROTOCOL_VIOLATION),
        ("STREAM in a handshake", handshake(&[0x0a, 0, 1, b'x']), PROTOCOL_VIOLATION),
        // Headers.
        ("reserved bits in a handshake", Change::Bits(Level::Handshake, 0x0c), PROTOCOL_VIOLATION),
        ("reserved bits in a short header", Change::Bits(Level::Data, 0x18), PROTOCOL_VIOLATION),
        // Transport parameters.
        ("no ID of the client", source(0x3f), TRANSPORT_PARAMETER),
        ("original_destination_connection_id", source(0x00), TRANSPORT_PARAMETER),
        ("stateless_reset_token", source(0x02), TRANSPORT_PARAMETER),
        ("preferred_address", source(0x0d), TRANSPORT_PARAMETER),
        ("retry_source_connection_id", source(0x10), TRANSPORT_PARAMETER),
        ("max_udp_payload_size of 1,199", parameter([0x03, 2, 0x44, 0xaf]), TRANSPORT_PARAMETER),
        ("ack_delay_exponent of 21", parameter([0x0a, 2, 0x40, 21]), TRANSPORT_PARAMETER),
        ("active_connection_id_limit of 1", Change::Hello(vec![0x0e, 1, 5], vec![0x0e, 1, 1]), TRANSPORT_PARAMETER),
        ("a parameter twice", parameter([0x0e, 2, 0x40, 5]), TRANSPORT_PARAMETER),
        ("a parameter of a wrong length", parameter([0x0b, 2, 0x80, 0]), TRANSPORT_PARAMETER),
        // TLS.
        ("KeyUpdate in a handshake", handshake(&KEY_UPDATE), UNEXPECTED_MESSAGE),
        ("KeyUpdate", data(&KEY_UPDATE), UNEXPECTED_MESSAGE),
        ("EndOfEarlyData", handshake(&[0x06, 0, 4, 5, 0, 0, 0]), UNEXPECTED_MESSAGE),
        ("no transport parameters", Change::Hello(vec![0, 0x39, 0], vec![0x3a, 0x3a, 0]), MISSING_EXTENSION),
    ];
    run(async {
        let server = start(Limits::default());
        let mut wrong = Vec::new();
        for (name, change, expected) in cases {
            let patience = std::time::Duration::from_secs(5);
            let found = tokio::time::timeout(patience, closed(&server, change, b"h3")).await;
            match found {
                Ok(Ok(code)) if code == expected => {}
                other => wrong.push(format!("{name}: {other:x?} instead of {expected:x}")),
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        let found = closed(&server, Change::None, b"dummy").await;
        assert_eq!(found.ok(), Some(NO_APPLICATION_PROTOCOL), "another protocol");
        let client = connect(&server).await;
        assert_eq!(get(&client, "/size/3").await.expect("a response").body, pattern(3), "the worker goes on");
        assert_eq!(server.handle.counters().panics.get(), 0);
    });
}
