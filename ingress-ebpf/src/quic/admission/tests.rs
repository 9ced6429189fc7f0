//! Reasons to drop a datagram for a port of QUIC.

use ingress_common::{
    FlowKey, Handoff,
    quic::{self, ConnectionId, Issuer, SealKey},
};

use super::*;

const KEY: SealKey = [1, 2];
const FOREIGN: [u8; 20] = [6; 20];

/// A node with one key, number 1.
struct Here;

impl QuicNode for Here {
    fn key(&self, number: usize) -> SealKey {
        if number == 1 { KEY } else { [0; 2] }
    }
    fn epoch(&self, _: usize) -> u32 {
        unreachable!("also a dead process may have its packets: the owner resets them")
    }
    fn has_all_keys(&self) -> bool {
        unreachable!("the caller asks")
    }
    fn note(&self, _: &FlowKey) -> Handoff {
        unreachable!("no worker is chosen here")
    }
}

fn own() -> ConnectionId {
    quic::issue(1, &KEY, [5; 7], Issuer::new(9, 1))
}

/// Returns the datagram of this payload length that begins with these bytes; `0xbb` follows.
fn datagram(length: u16, bytes: &[&[u8]]) -> Datagram {
    let mut payload = bytes.concat();
    payload.resize(payload.len().max(Datagram::HEAD), 0xbb);
    let word = |at: usize| u64::from_le_bytes(*payload[at..].first_chunk().expect("longer"));
    Datagram { length, words: [word(0), word(8), word(14)] }
}

fn short(first: u8, id: &[u8]) -> Option<Total> {
    datagram(60, &[&[first], id]).refused(&Here)
}

fn long(first: u8, version: u32, id: &[u8], length: u16) -> Option<Total> {
    let of_id = u8::try_from(id.len()).expect("short");
    datagram(length, &[&[first], &version.to_be_bytes(), &[of_id], id]).refused(&Here)
}

const V1: u32 = 1;
const V2: u32 = 0x6b33_43cf;
const UNKNOWN: Option<Total> = Some(Total::QuicUnknown);
const SHORT: Option<Total> = Some(Total::QuicShort);

#[test]
fn a_datagram_with_an_id_of_this_node_passes() {
    for first in [0x40, 0x41, 0x7f, 0x00] {
        assert_eq!(short(first, &own()), None, "{first:#x}");
    }
    for version in [V1, V2, 0, 9] {
        for first in [0xc0, 0xd0, 0xe0, 0xf0, 0x80] {
            assert_eq!(long(first, version, &own(), 100), None, "{first:#x} {version:#x}");
        }
    }
}

#[test]
fn each_bit_of_an_id_counts() {
    for bit in 0..128 {
        let mut id = own();
        id[bit / 8] ^= 1 << (bit % 8);
        // The lower 16 bits of the seal are the index of a worker, which decides itself.
        let expect = if (64..80).contains(&bit) { None } else { UNKNOWN };
        assert_eq!(short(0x40, &id), expect, "{bit}");
        assert_eq!(long(0xe0, V1, &id, 1200), expect, "{bit}");
    }
}

#[test]
fn a_short_header_without_an_id_of_this_node_is_unknown() {
    let unkeyed = quic::issue(2, &[0; 2], [0; 7], Issuer::new(9, 1));
    for id in [&FOREIGN[..], &unkeyed, &[0; 16], &[0xff; 16]] {
        assert_eq!(short(0x40, id), UNKNOWN, "{id:?}");
    }
}

#[test]
fn a_first_packet_of_a_connection_needs_1200_bytes() {
    for (first, version) in [(0xc0, V1), (0xc3, V1), (0x80, V1), (0xd0, V2), (0xc0, 9), (0xf0, 0x0a0a_0a0a)] {
        for id in [&FOREIGN[..8], &FOREIGN[..16], &FOREIGN] {
            assert_eq!(long(first, version, id, 1199), SHORT, "{first:#x} {version:#x}");
            assert_eq!(long(first, version, id, 1200), None, "{first:#x} {version:#x}");
        }
    }
}

#[test]
fn early_data_passes_whatever_its_length() {
    for (first, version) in [(0xd0, V1), (0xe0, V2)] {
        assert_eq!(long(first, version, &FOREIGN[..8], 60), None, "{version:#x}");
    }
}

#[test]
fn later_packets_need_an_id_of_this_node() {
    // Handshake, Retry, and version negotiation.
    let cases = [(0xe0, V1), (0xf0, V1), (0xf0, V2), (0xc0, V2), (0xc0, 0), (0x80, 0)];
    for (first, version) in cases {
        for id in [&FOREIGN[..8], &FOREIGN[..16]] {
            assert_eq!(long(first, version, id, 1200), UNKNOWN, "{first:#x} {version:#x}");
        }
    }
}

#[test]
fn words_open_as_ids_do() {
    let mut id = own();
    for step in 0..=u8::MAX {
        id[8] = step;
        let opened = quic::open(&KEY, &id).is_some();
        assert_eq!(short(0x40, &id).is_none(), opened);
        let [_, a, b, c, d, e, f, g, seal @ ..] = id;
        let nonce = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
        assert_eq!(quic::open_words(&KEY, nonce, u64::from_le_bytes(seal)), quic::open(&KEY, &id));
    }
}
