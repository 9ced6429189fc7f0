//! Turns a SYN into the SYN-ACK of a SYN cookie, in place. Uses no maps and no helpers.
//!
//! A node that sends cookies keeps no state, so the stack reads the options of a connection from the timestamp that the
//! client sends back: window scale, SACK and ECN are in its lowest bits (`cookie_init_timestamp` in the kernel). Without
//! timestamps there is only the MSS, which is in the cookie. A SYN-ACK has no option that the SYN had not, so it fits in
//! the frame of the SYN.

use core::hint::black_box;

use ingress_common::flow::unmapped;

use crate::{
    announce::FrameMut,
    parse::{IPV4, IPV6, link},
};

/// Room for the options of a TCP header, of which 40 bytes are used. A power of two, so that places in it are bounded by
/// a mask.
pub const OPTIONS_ROOM: usize = 64;
/// Value of [`Offer::window_scale`] for none, in a timestamp as well (`TS_OPT_WSCALE_MASK`).
pub const NO_SCALE: u8 = 0x0f;
/// Smallest MSS of IPv4 and IPv6 (RFC 9293, 3.7.1).
pub const MSS_DEFAULT: [u16; 2] = [536, 1220];
/// Bytes of a TCP header without options.
pub const TCP_HEADER: usize = 20;

/// Bits of a timestamp that hold options (`TSBITS`).
const OPTION_BITS: u32 = 6;
const SACK_BIT: u32 = 1 << 4;
/// Options that are read of a SYN. Real SYNs have at most eight.
const STEPS: usize = 16;
/// Window of the SYN-ACK: twenty segments, less than the stack gives at least to the connection.
const WINDOW: u16 = 29_200;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK: u8 = 4;
const TIMESTAMPS: u8 = 8;

/// The options of a SYN. In the order of C, because a map has them as a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Largest segment that the client takes; 0 if it does not say.
    pub mss: u16,
    /// Window scale of the client, or [`NO_SCALE`].
    pub window_scale: u8,
    pub has_sack: bool,
    pub has_timestamp: bool,
    /// The client's timestamp, as in the packet.
    pub timestamp_be: u32,
}

/// Parts of a SYN-ACK that do not come from the SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynAck {
    /// Sequence number.
    pub cookie: u32,
    /// Options of the SYN that are accepted.
    pub offer: Offer,
    /// Largest segment that this node takes.
    pub mss: u16,
    /// Window scale of this node.
    pub window_scale: u8,
    /// Timestamp, by [`timestamp`].
    pub timestamp: u32,
    /// Port from which the client expects the answer, in network byte order.
    pub port_be: u16,
}

impl Offer {
    /// No option.
    pub const NONE: Self =
        Self { mss: 0, window_scale: NO_SCALE, has_sack: false, has_timestamp: false, timestamp_be: 0 };

    /// Returns the options that the stack finds again in the ACK of a cookie. `in_timestamps`: it reads timestamps.
    #[must_use]
    #[inline(always)]
    pub const fn kept(self, in_timestamps: bool) -> Self {
        if in_timestamps && self.has_timestamp {
            return self;
        }
        Self { mss: self.mss, ..Self::NONE }
    }
}

/// Options that are being read.
#[repr(C)]
pub struct Reading {
    /// The options, of which the first `length` bytes count.
    pub options: [u8; OPTIONS_ROOM],
    pub length: usize,
    place: usize,
    offer: Offer,
}

impl Reading {
    /// Reads the options. Stops at an option that is malformed.
    ///
    /// In a program, `self` has to be in a map. The verifier then knows no value in it, so that it walks a step once, and
    /// not once for each option that may be before it.
    #[must_use]
    #[inline(always)]
    pub fn offer(&mut self) -> Offer {
        self.place = 0;
        self.offer = Offer::NONE;
        for _ in 0..STEPS {
            if !black_box(&mut *self).step() {
                break;
            }
        }
        black_box(self).offer
    }

    /// Reads one option. Returns `false` after the last one.
    #[inline(always)]
    fn step(&mut self) -> bool {
        const SCALE_MAX: u8 = 14;
        let Self { options, length, place, offer } = self;
        let at = |more: usize| options[(*place + more) & (OPTIONS_ROOM - 1)];
        if *place >= *length {
            return false;
        }
        let kind = at(0);
        if kind == END {
            return false;
        }
        if kind == NOP {
            *place += 1;
            return true;
        }
        let size = usize::from(at(1));
        if size < 2 || *place + size > *length {
            return false;
        }
        match (kind, size) {
            (MSS, 4) => offer.mss = u16::from_be_bytes([at(2), at(3)]),
            // RFC 7323, 2.3: a larger scale counts as 14.
            (SCALE, 3) => offer.window_scale = at(2).min(SCALE_MAX),
            (SACK, 2) => offer.has_sack = true,
            (TIMESTAMPS, 10) => {
                offer.timestamp_be = u32::from_ne_bytes([at(2), at(3), at(4), at(5)]);
                offer.has_timestamp = true;
            }
            _ => {}
        }
        *place += size;
        true
    }
}

/// Returns the timestamp that holds the options, at most as late as the stack's clock of milliseconds.
#[must_use]
#[inline(always)]
pub const fn timestamp(offer: &Offer, now_ns: u64) -> u32 {
    let now = (now_ns / 1_000_000) as u32;
    let options = offer.window_scale as u32 | if offer.has_sack { SACK_BIT } else { 0 };
    let later = now >> OPTION_BITS << OPTION_BITS | options;
    if later > now { later.wrapping_sub(1 << OPTION_BITS) } else { later }
}

/// Returns the offset of the TCP header of a frame without options of IPv4 and extension headers of IPv6.
#[inline(always)]
pub fn plain(frame: &impl FrameMut) -> Option<usize> {
    let (ethertype, offset) = link(frame).ok()?;
    let start: &[u8; 7] = frame.bytes(offset)?;
    match (ethertype, start[0], start[6]) {
        (IPV4, 0x45, _) => Some(offset + 20),
        (IPV6, version, 6) if version >> 4 == 6 => Some(offset + 40),
        _ => None,
    }
}

/// Returns `true` for a frame that the stack would drop: to a group of Ethernet addresses, of which `destination` is the
/// first byte (RFC 1122, 3.3.6), or from an address that no host has. Answers to these would have the group as their
/// sender, or go to many hosts.
///
/// Has no branches, because the verifier would walk the rest of the program once for each.
#[must_use]
#[inline(always)]
pub fn is_unanswerable(destination: u8, client: &[u8; 16]) -> bool {
    const GROUP: u8 = 1;
    let [.., first, b, c, d] = *client;
    // Of this network, loopback, groups, and broadcast. The stack accepts clients of the reserved 240/4, and some clouds
    // give these addresses to pods.
    let is_broadcast = u32::from_ne_bytes([first, b, c, d]) == u32::MAX;
    let is_of_no_host = (first == 0) | (first == 127) | (first & 0xf0 == 224) | is_broadcast;
    let is_v4 = unmapped(client).is_some();
    (destination & GROUP != 0) | (is_v4 & is_of_no_host) | (client[0] == 0xff)
}

const PROTO_TCP: u32 = 6;
/// Hops that an answer may take.
const HOPS: u32 = 64;

/// Turns a SYN for which [`plain`] returns an offset into the SYN-ACK, and returns the length of the frame. `None` if the
/// frame is too short; some of it may then be changed.
///
/// Writes word by word, because the stack of a program has little room.
#[inline(always)]
pub fn write(frame: &mut impl FrameMut, answer: &SynAck) -> Option<usize> {
    const SYN_ACK: u32 = 0x12;
    const LENGTH_SHIFT: u32 = 28;
    let (ethertype, offset) = link(frame).ok()?;
    let &SynAck { cookie, offer, mss, window_scale, timestamp, port_be } = answer;
    let has_scale = offer.window_scale != NO_SCALE;
    let of_mss = if offer.mss == 0 { 0 } else { 4 };
    let of_timestamp = if offer.has_timestamp { 12 } else { 0 };
    let of_scale = if has_scale { 4 } else { 0 };
    let length = TCP_HEADER + of_mss + of_timestamp + of_scale;
    let (tcp, pseudo) = match ethertype {
        IPV4 => (offset + 20, ipv4(frame, offset, length)?),
        IPV6 => (offset + 40, ipv6(frame, offset, length)?),
        _ => return None,
    };
    let mut writer = Writer { frame, sum: pseudo };
    // The client's port, which moves from the first half of the word to the second.
    let client = u32::from_be(writer.read(tcp)?) >> 16;
    let acknowledged = u32::from_be(writer.read(tcp + 4)?).wrapping_add(1);
    writer.put(tcp, u32::from(u16::from_be(port_be)) << 16 | client)?;
    writer.put(tcp + 4, cookie)?;
    writer.put(tcp + 8, acknowledged)?;
    writer.put(tcp + 12, (length as u32 / 4) << LENGTH_SHIFT | SYN_ACK << 16 | u32::from(WINDOW))?;
    let mut place = tcp + TCP_HEADER;
    if offer.mss != 0 {
        writer.put(place, u32::from_be_bytes([MSS, 4, 0, 0]) | u32::from(mss))?;
        place += 4;
    }
    if offer.has_timestamp {
        let first = if offer.has_sack { [SACK, 2] } else { [NOP, NOP] };
        writer.put(place, u32::from_be_bytes([first[0], first[1], TIMESTAMPS, 10]))?;
        writer.put(place + 4, timestamp)?;
        writer.put(place + 8, u32::from_be(offer.timestamp_be))?;
        place += 12;
    }
    if has_scale {
        writer.put(place, u32::from_be_bytes([NOP, SCALE, 3, window_scale]))?;
    }
    let checksum = folded(writer.sum);
    writer.put(tcp + 16, u32::from(checksum) << 16)?;
    let [first, second, third] = [writer.read(0)?, writer.read(4)?, writer.read(8)?].map(u32::from_be);
    // Both Ethernet addresses change places.
    writer.put(0, second << 16 | third >> 16)?;
    writer.put(4, third << 16 | first >> 16)?;
    writer.put(8, first << 16 | second >> 16)?;
    Some(tcp + length)
}

/// Writes words into a frame, and sums them for the checksum (RFC 1071).
struct Writer<'a, F> {
    frame: &'a mut F,
    /// Sum of fewer than 2³¹ halves of words.
    sum: u64,
}

impl<F: FrameMut> Writer<'_, F> {
    #[inline(always)]
    fn read(&self, offset: usize) -> Option<u32> {
        read(self.frame, offset)
    }

    #[inline(always)]
    fn put(&mut self, offset: usize, word: u32) -> Option<()> {
        self.sum += u64::from(word);
        self.frame.write(offset, &word.to_be_bytes()).then_some(())
    }
}

/// Returns the word at this offset, in the byte order of the packet.
#[inline(always)]
fn read(frame: &impl FrameMut, offset: usize) -> Option<u32> {
    frame.bytes(offset).map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Writes the header of IPv4, and returns the sum of the pseudo header (RFC 9293, 3.1).
#[inline(always)]
fn ipv4(frame: &mut impl FrameMut, offset: usize, length: usize) -> Option<u64> {
    const VERSION_AND_LENGTH: u32 = 0x4500_0000;
    const DONT_FRAGMENT: u32 = 0x4000;
    let (client, node) = (u32::from_be(read(frame, offset + 12)?), u32::from_be(read(frame, offset + 16)?));
    let mut writer = Writer { frame, sum: 0 };
    writer.put(offset, VERSION_AND_LENGTH | (20 + length as u32))?;
    writer.put(offset + 4, DONT_FRAGMENT)?;
    writer.put(offset + 12, node)?;
    writer.put(offset + 16, client)?;
    let rest = HOPS << 24 | PROTO_TCP << 16;
    let checksum = folded(writer.sum + u64::from(rest));
    writer.put(offset + 8, rest | u32::from(checksum))?;
    let sum = u64::from(client) + u64::from(node) + u64::from(PROTO_TCP) + length as u64;
    Some(sum)
}

/// Writes the header of IPv6, and returns the sum of the pseudo header (RFC 8200, 8.1).
#[inline(always)]
fn ipv6(frame: &mut impl FrameMut, offset: usize, length: usize) -> Option<u64> {
    const VERSION: u32 = 0x6000_0000;
    let mut writer = Writer { frame, sum: 0 };
    let mut at = offset + 8;
    while at < offset + 24 {
        let (client, node) = (u32::from_be(writer.read(at)?), u32::from_be(writer.read(at + 16)?));
        writer.put(at, node)?;
        writer.put(at + 16, client)?;
        at += 4;
    }
    let sum = writer.sum + u64::from(PROTO_TCP) + length as u64;
    writer.put(offset, VERSION)?;
    writer.put(offset + 4, (length as u32) << 16 | PROTO_TCP << 8 | HOPS)?;
    Some(sum)
}

/// Folds a sum of words into a checksum: the halves of a word count alike (RFC 1071, 2).
#[inline(always)]
const fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests;
