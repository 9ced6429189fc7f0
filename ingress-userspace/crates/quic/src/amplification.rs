//! Limit on what a client gets whose address is not proven: three bytes for each one that came from there (RFC 9000, 8.1).
//! quinn-proto lets the last datagram exceed the limit. So it is asked only for datagrams that fit whole.

use quinn_proto::FrameStats;

/// Bytes that may be sent for each received one.
const FACTOR: usize = 3;

/// A client whose address is not proven, in a handshake.
#[derive(Debug)]
pub(crate) struct Unproven {
    /// Bytes of the client's datagrams.
    received: usize,
    /// Bytes sent to the client.
    sent: usize,
}

/// A datagram of a connection, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Length of the payload of UDP.
    pub(crate) bytes: usize,
    /// Whether the datagram is one Handshake packet and nothing else, by its header. If the packet is genuine, the client
    /// has seen an answer.
    pub(crate) is_handshake: bool,
}

impl Unproven {
    /// Returns the state after the first datagram.
    pub(crate) const fn new(first: Arrival) -> Self {
        Self { received: first.bytes, sent: 0 }
    }

    pub(crate) const fn receive(&mut self, arrival: Arrival) {
        self.received = self.received.saturating_add(arrival.bytes);
    }

    pub(crate) const fn send(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Returns the number of datagrams of this length that may be sent.
    pub(crate) fn datagrams(&self, length: u16) -> usize {
        let rest = self.received.saturating_mul(FACTOR).saturating_sub(self.sent);
        rest / usize::from(length).max(1)
    }
}

impl Arrival {
    /// Reads the headers of a datagram.
    pub(crate) fn of(datagram: &[u8]) -> Self {
        Self { bytes: datagram.len(), is_handshake: handshake_length(datagram) == Some(datagram.len()) }
    }
}

/// Returns the number of frames that clients send in Handshake packets.
pub(crate) const fn frames(received: &FrameStats) -> u64 {
    received.acks + received.crypto + received.ping
}

/// Returns the length of the Handshake packet of version 1 at the beginning; `None` if there is none (RFC 9000, 17.2.4).
fn handshake_length(datagram: &[u8]) -> Option<usize> {
    const KIND: u8 = 0xb0;
    const HANDSHAKE: u8 = 0xa0;
    const VERSION: [u8; 4] = [0, 0, 0, 1];
    let (first, rest) = datagram.split_first()?;
    let (version, rest) = rest.split_first_chunk()?;
    if first & KIND != HANDSHAKE || *version != VERSION {
        return None;
    }
    let rest = after_id(after_id(rest)?)?;
    let (first, _) = rest.split_first()?;
    let bytes = 1 << (first >> 6);
    let (length, rest) = rest.split_at_checked(bytes)?;
    let length = length.iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
    let length = usize::try_from(length & (u64::MAX >> (66 - 8 * bytes))).ok()?;
    (datagram.len() - rest.len()).checked_add(length)
}

/// Returns the bytes after a connection ID.
fn after_id(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first()?;
    rest.get(usize::from(*length)..)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pair::{Begun, Pair, Timers};

    /// Names that make a certificate of about 16 KiB: more than three times any first packets.
    const NAMES: usize = 600;
    /// Lengths of first packets.
    const LENGTHS: [u16; 4] = [1200, 1280, 1357, 1452];

    #[test]
    fn a_silent_address_gets_three_times_its_bytes() {
        for length in LENGTHS {
            let mut pair = Pair::begun(&Begun { names: NAMES, length });
            let mut sent = 0;
            for _ in 0..400 {
                pair.turn(Timers::OfState);
                sent += pair.server_sends().iter().map(Vec::len).sum::<usize>();
                pair.now += Duration::from_millis(20);
            }
            let received = pair.received;
            assert!(sent <= FACTOR * received, "{length}: {sent} bytes for {received}");
            assert!(sent + usize::from(length) > FACTOR * received, "{length}: {sent} bytes for {received}");
        }
    }

    #[test]
    fn a_long_certificate_arrives_at_a_client_that_answers() {
        for length in LENGTHS {
            let mut pair = Pair::begun(&Begun { names: NAMES, length });
            for _ in 0..60 {
                pair.exchange();
            }
            assert!(!pair.client.2.is_handshaking(), "{length}");
        }
    }

    #[test]
    fn only_a_handshake_packet_alone_can_prove_an_address() {
        let packet = |first: u8, version: u32, length: &[u8], payload: usize| {
            [&[first][..], &version.to_be_bytes(), &[2, 1, 2, 1, 3], length, &vec![9; payload]].concat()
        };
        let cases = [
            (packet(0xe0, 1, &[30], 30), true),
            // Without the fixed bit.
            (packet(0xa3, 1, &[30], 30), true),
            (packet(0xe0, 1, &[0x40, 30], 30), true),
            (packet(0xe0, 1, &[0x41, 0], 256), true),
            (packet(0xe0, 1, &[30], 31), false),
            (packet(0xe0, 1, &[31], 30), false),
            (packet(0xe0, 2, &[30], 30), false),
            (packet(0xc0, 1, &[30], 30), false),
            (packet(0xf0, 1, &[30], 30), false),
            (packet(0x60, 1, &[30], 30), false),
            (packet(0xe0, 1, &[], 0), false),
            (Vec::new(), false),
        ];
        for (datagram, expected) in cases {
            assert_eq!(Arrival::of(&datagram).is_handshake, expected, "{datagram:?}");
        }
    }
}
