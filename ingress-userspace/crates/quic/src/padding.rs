//! Cuts off the padding of received packets before quinn-proto reads their frames. quinn-proto 0.11.19 decodes each byte
//! of PADDING as a frame of its own, in more than a hundred instructions. Clients pad their first datagrams to 1,200 bytes,
//! and probes of the MTU to more (RFC 9000, 14.1 and 14.4). A connection for one request spent almost 30 % of its
//! instructions on them (`cargo xtask profile --case h3close --functions`).
//!
//! The file can go once quinn-proto skips padding: nothing else knows it, and packets mean the same with it.

use std::{any::Any, sync::Arc};

use bytes::BytesMut;
use quinn_proto::{
    ConnectionId, Side, TransportError,
    crypto::{
        CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
        UnsupportedVersion, rustls::QuicServerConfig,
    },
    transport_parameters::TransportParameters,
};

/// Fewest bytes of padding that are cut off. What is left is copied, so that a frame holds no longer buffer than quinn-proto
/// counts for it.
const WORTHWHILE: usize = 64;

/// A configuration of TLS, and the sessions and keys of it, whose received packets lose their padding.
pub(crate) struct Unpadded<T>(pub(crate) T);

// === impl ServerConfig ===

impl ServerConfig for Unpadded<Arc<QuicServerConfig>> {
    /// Returns the keys of a client's first packet, which keeps its padding: its length bounds the answers.
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.0.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        Box::new(Unpadded(Arc::clone(&self.0).start_session(version, params)))
    }
}

// === impl Session ===

impl Session for Unpadded<Box<dyn Session>> {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        unpadded(self.0.initial_keys(dst_cid, side))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.0.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(buf).map(unpadded)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.0.next_1rtt_keys().map(unpadded_pair)
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(output, label, context)
    }
}

fn unpadded(keys: Keys) -> Keys {
    Keys { header: keys.header, packet: unpadded_pair(keys.packet) }
}

fn unpadded_pair(pair: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
    KeyPair { local: pair.local, remote: Box::new(Unpadded(pair.remote)) }
}

// === impl PacketKey ===

impl PacketKey for Unpadded<Box<dyn PacketKey>> {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.0.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.0.decrypt(packet, header, payload)?;
        if let Some(frames) = before_padding(payload) {
            *payload = BytesMut::from(frames);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

/// Returns the frames before the padding at the end of a packet; `None` if there is little of it, or a frame of another
/// type than those in padded packets.
fn before_padding(payload: &[u8]) -> Option<&[u8]> {
    // Most packets have data at their end, and pay for this comparison alone.
    payload.last_chunk::<WORTHWHILE>().filter(|end| **end == [0; WORTHWHILE])?;
    let mut rest = payload;
    while !rest.is_empty() {
        let at = padding(rest);
        if at == rest.len() {
            // A packet without frames is an error of the client, one with padding alone is none (RFC 9000, 12.4).
            let length = (payload.len() - rest.len()).max(1);
            return payload.get(..length).filter(|frames| payload.len() - frames.len() >= WORTHWHILE);
        }
        rest = after_frame(rest.get(at..)?)?;
    }
    None
}

/// Returns the length of the padding at the beginning, which is often that of a whole packet: it is compared in chunks.
fn padding(bytes: &[u8]) -> usize {
    let (chunks, _) = bytes.as_chunks::<32>();
    let whole = chunks.iter().take_while(|chunk| **chunk == [0; 32]).count() * 32;
    whole + bytes.iter().skip(whole).take_while(|byte| **byte == 0).count()
}

/// Returns the bytes after a frame; `None` if it is cut short, has no end of its own, or is of a type that clients do not pad
/// (RFC 9000, 19).
fn after_frame(bytes: &[u8]) -> Option<&[u8]> {
    const PING: u8 = 0x01;
    /// A frame without content (draft-ietf-quic-ack-frequency), which quinn's clients send with probes of the MTU.
    const IMMEDIATE_ACK: u8 = 0x1f;
    const ACK: u8 = 0x02;
    const ACK_ECN: u8 = 0x03;
    const RESET_STREAM: u8 = 0x04;
    const STOP_SENDING: u8 = 0x05;
    const CRYPTO: u8 = 0x06;
    const STREAM: u8 = 0x08;
    const STREAM_LAST: u8 = 0x0f;
    const STREAM_LEN: u8 = 0x02;
    const STREAM_OFF: u8 = 0x04;
    const MAX_STREAM_DATA: u8 = 0x11;
    const STREAM_DATA_BLOCKED: u8 = 0x15;
    const MAX_DATA: u8 = 0x10;
    const STREAMS_BLOCKED_UNI: u8 = 0x17;
    const NEW_CONNECTION_ID: u8 = 0x18;
    const RETIRE_CONNECTION_ID: u8 = 0x19;
    const PATH_CHALLENGE: u8 = 0x1a;
    const PATH_RESPONSE: u8 = 0x1b;
    const RESET_TOKEN: usize = 16;
    let (kind, mut rest) = bytes.split_first()?;
    match *kind {
        PING | IMMEDIATE_ACK => Some(rest),
        ACK | ACK_ECN => {
            let (_largest, _delay) = (varint(&mut rest)?, varint(&mut rest)?);
            let ranges = varint(&mut rest)?;
            varint(&mut rest)?;
            for _ in 0..ranges {
                let (_gap, _length) = (varint(&mut rest)?, varint(&mut rest)?);
            }
            after_varints(rest, if *kind == ACK_ECN { 3 } else { 0 })
        }
        CRYPTO => after_data(after_varints(rest, 1)?),
        STREAM..=STREAM_LAST if kind & STREAM_LEN != 0 => {
            after_data(after_varints(rest, if kind & STREAM_OFF != 0 { 2 } else { 1 })?)
        }
        RESET_STREAM => after_varints(rest, 3),
        STOP_SENDING | MAX_STREAM_DATA | STREAM_DATA_BLOCKED => after_varints(rest, 2),
        MAX_DATA..=STREAMS_BLOCKED_UNI | RETIRE_CONNECTION_ID => after_varints(rest, 1),
        NEW_CONNECTION_ID => after_data(after_varints(rest, 2)?)?.get(RESET_TOKEN..),
        PATH_CHALLENGE | PATH_RESPONSE => rest.get(8..),
        _ => None,
    }
}

/// Returns the bytes after as many integers.
fn after_varints(mut bytes: &[u8], count: usize) -> Option<&[u8]> {
    for _ in 0..count {
        varint(&mut bytes)?;
    }
    Some(bytes)
}

/// Returns the bytes after a length and as much data.
fn after_data(mut bytes: &[u8]) -> Option<&[u8]> {
    let length = varint(&mut bytes)?;
    bytes.get(usize::try_from(length).ok()?..)
}

/// Takes an integer of variable length (RFC 9000, 16).
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    Some(number.iter().skip(1).fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// Frames of padded packets, each with zeros at its end where it can have them.
    const FRAMES: [&[u8]; 19] = [
        &[1],
        &[0x1f],
        &[4, 4, 7, 0],
        &[5, 4, 0],
        &[0x0a, 4, 3, 9, 0, 0],
        &[0x0f, 4, 0x40, 0, 3, 9, 0, 0],
        &[0x10, 0x80, 0, 0, 0],
        &[0x11, 4, 0],
        &[0x13, 0],
        &[0x15, 4, 0],
        &[0x18, 1, 0, 2, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0],
        &[0x19, 0],
        &[2, 0, 0, 0, 0],
        &[2, 0x40, 9, 0, 2, 1, 0, 1, 0, 0],
        &[3, 9, 0, 0, 0, 5, 0, 0],
        &[6, 0, 0x40, 4, 7, 0, 0, 0],
        &[6, 0x80, 0, 0, 1, 0],
        &[0x1a, 1, 2, 3, 4, 5, 6, 0, 0],
        &[0x1b, 0, 0, 0, 0, 0, 0, 0, 0],
    ];

    fn padded(frames: &[u8], padding: usize) -> Vec<u8> {
        [frames, &vec![0; padding]].concat()
    }

    #[test]
    fn padding_is_cut_off_behind_each_frame() {
        for frame in FRAMES {
            for before in [&[][..], &[0; 100]] {
                for other in FRAMES {
                    let frames = [other, before, frame].concat();
                    for padding in (WORTHWHILE..WORTHWHILE + 40).chain([1_000]) {
                        assert_eq!(
                            before_padding(&padded(&frames, padding)),
                            Some(&frames[..]),
                            "{frames:?} {padding}"
                        );
                    }
                    assert_eq!(before_padding(&frames), None, "{frames:?}");
                }
            }
        }
    }

    #[test]
    fn a_packet_of_padding_alone_keeps_a_byte() {
        assert_eq!(before_padding(&[0; 1_200]), Some(&[0][..]));
    }

    #[test]
    fn all_packets_of_a_session_lose_their_padding_and_a_first_packet_keeps_it() {
        let client = ConnectionId::new(&[7; 8]);
        let config = config::tests::server_of_tls_1_3();
        let parameters = TransportParameters::read(Side::Server, &mut &[][..]).expect("defaults");
        let session = Arc::clone(&config.crypto).start_session(1, &parameters);
        let first = config.crypto.initial_keys(1, &client).unwrap_or_else(|_| panic!("version 1 has keys"));
        let later = session.initial_keys(&client, Side::Server);
        let frames = [6, 0, 3, 7, 8, 9];
        for (keys, expected) in [(first, frames.len() + 1_000), (later, frames.len())] {
            let sender = session.initial_keys(&client, Side::Client).packet.local;
            let mut packet = padded(&frames, 1_000 + sender.tag_len());
            sender.encrypt(1, &mut packet, 0);
            let mut payload = BytesMut::from(&packet[..]);
            assert!(keys.packet.remote.decrypt(1, &[], &mut payload).is_ok());
            assert_eq!(payload.len(), expected);
            assert!(payload.starts_with(&frames));
            // What quinn-proto keeps of a frame must not hold the padding's memory.
            assert!(expected > frames.len() || payload.capacity() < 100, "{}", payload.capacity());
        }
    }

    #[test]
    fn little_padding_stays() {
        assert_eq!(before_padding(&padded(&[1], WORTHWHILE - 1)), None);
        assert_eq!(before_padding(&[0; WORTHWHILE]), None);
        assert_eq!(before_padding(&[]), None);
    }

    #[test]
    fn data_of_zeros_stays() {
        // CRYPTO with 200 zeros, STREAM without a length, and a frame that is cut short.
        for frames in [&[6, 0, 0x40, 200][..], &[8, 4], &[2, 0, 0, 0x7f, 0xff], &[6, 0, 0x7f, 0xff]] {
            assert_eq!(before_padding(&padded(frames, 200)), None, "{frames:?}");
        }
        let frames = padded(&[6, 0, 0x40, 200], 200);
        assert_eq!(before_padding(&padded(&frames, 200)), Some(&frames[..]));
    }
}
