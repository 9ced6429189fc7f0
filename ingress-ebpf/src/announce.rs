//! Questions for the link-layer address of an address, in ARP and neighbour discovery, and the answers to them.
//!
//! The answers replace parts of the frame that asks, so that its VLAN tags stay and its length does not change. Bytes
//! behind the answer are padding. Messages with link-layer addresses that are not Ethernet's are no questions here, nor
//! are announcements of others.

use ingress_common::{Total, flow::v4_mapped};

use crate::parse::{Frame, ICMPV6, IPV6, link};

/// Bytes of an ARP packet for IPv4 on Ethernet (RFC 826).
const ARP: usize = 28;
/// Bytes of a neighbour solicitation or advertisement without options (RFC 4861, 4.3 and 4.4).
const MESSAGE: usize = 24;
/// Bytes of an option with an Ethernet address (RFC 4861, 4.6.1).
const OPTION: usize = 8;

/// Offset of the message from the IPv6 header on.
const MESSAGE_AT: usize = 40;
/// Offset of its first option from the IPv6 header on.
const OPTION_AT: usize = MESSAGE_AT + MESSAGE;

const ARP_TYPE: u16 = 0x0806;
const SOLICITATION: u8 = 135;
/// Hop limit that no router lets through (RFC 4861, 7.1.1).
const ON_LINK: u8 = 255;

/// A question for the link-layer address of a network address.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address that is asked for; IPv4 as v4-mapped. Aligned because the verifier demands it on the stack.
    pub target: [u8; 16],
    pub kind: Kind,
    /// Offset of the ARP packet or the IPv6 header in the frame.
    pub offset: usize,
}

/// Protocol of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Arp,
    /// A neighbour solicitation, and whether it has room for an option behind the target.
    Ndp {
        has_option: bool,
    },
}

/// A frame that can be changed.
pub trait FrameMut: Frame {
    /// Writes these bytes at `offset`; `false` if the frame ends before them. What [`Frame::bytes`] returned before may
    /// no longer be read.
    fn write<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool;
}

/// Returns the question that a frame asks. `verdict` is the parser's: the rest of the frame is read only if it can be a
/// question, and the verifier has fewer paths to walk.
#[inline(always)]
pub fn question(frame: &impl Frame, verdict: Total) -> Option<Question> {
    let (ethertype, offset) = link(frame).ok()?;
    match verdict {
        Total::NotIp if ethertype == ARP_TYPE => arp_question(frame, offset),
        Total::OtherProtocol if ethertype == IPV6 => solicitation(frame, offset),
        _ => None,
    }
}

/// Returns `false` if the beginning of a frame shows that it is no question: the rest need not be read.
#[inline(always)]
pub fn may_be_question(frame: &impl Frame, verdict: Total) -> bool {
    let Ok((ethertype, offset)) = link(frame) else { return false };
    match verdict {
        Total::NotIp => ethertype == ARP_TYPE,
        Total::OtherProtocol => ethertype == IPV6 && frame.bytes::<7>(offset).is_some_and(|start| start[6] == ICMPV6),
        _ => false,
    }
}

/// Reads a request of RFC 826. A request for the sender's own address announces it (RFC 5227, 3).
#[inline(always)]
fn arp_question(frame: &impl Frame, offset: usize) -> Option<Question> {
    /// Ethernet and IPv4, with the lengths of their addresses; a request.
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let packet: &[u8; ARP] = frame.bytes(offset)?;
    let (sender, target) =
        ([packet[14], packet[15], packet[16], packet[17]], [packet[24], packet[25], packet[26], packet[27]]);
    let asks = packet[..8] == REQUEST && sender != target;
    asks.then_some(Question { target: v4_mapped(target), kind: Kind::Arp, offset })
}

/// Reads a solicitation of RFC 4861, 4.3.
#[inline(always)]
fn solicitation(frame: &impl Frame, offset: usize) -> Option<Question> {
    let start: &[u8; 8] = frame.bytes(offset)?;
    if start[6] != ICMPV6 {
        return None;
    }
    let message: &[u8; MESSAGE] = frame.bytes(offset + MESSAGE_AT)?;
    if message[0] != SOLICITATION || message[1] != 0 || start[7] != ON_LINK {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([start[4], start[5]]));
    let has_option = length >= MESSAGE + OPTION && frame.bytes::<OPTION>(offset + OPTION_AT).is_some();
    let target: &[u8; 16] = frame.bytes(offset + MESSAGE_AT + 8)?;
    Some(Question { target: *target, kind: Kind::Ndp { has_option }, offset })
}

/// Turns a frame that asks into the answer, with the Ethernet address of this node. Returns `false` if the frame is too
/// short, in which case some of it may be changed.
///
/// Small pieces are written, because the stack of a program has little room.
#[inline(always)]
pub fn answer(frame: &mut impl FrameMut, question: &Question, mac: &[u8; 6]) -> bool {
    let Question { target, kind, offset } = question;
    let Some(&asker) = frame.bytes::<6>(6) else { return false };
    let is_answered = match kind {
        Kind::Arp => arp_answer(frame, *offset, mac),
        Kind::Ndp { has_option } => {
            let Some(&sender) = frame.bytes::<16>(offset + 8) else { return false };
            if sender == [0; 16] {
                const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
                return advertise(frame, *offset, target, mac, &ALL_NODES, *has_option, OVERRIDE)
                    && frame.write(6, mac)
                    && frame.write(0, &ALL_NODES_MAC);
            }
            advertise(frame, *offset, target, mac, &sender, *has_option, SOLICITED | OVERRIDE)
        }
    };
    is_answered && frame.write(6, mac) && frame.write(0, &asker)
}

/// Answers an ARP request: sender and target change places, and the Ethernet address is filled in.
#[inline(always)]
fn arp_answer(frame: &mut impl FrameMut, offset: usize, mac: &[u8; 6]) -> bool {
    const REPLY: [u8; 2] = [0, 2];
    let (Some(&asker), Some(&target)) = (frame.bytes::<10>(offset + 8), frame.bytes::<4>(offset + 24)) else {
        return false;
    };
    frame.write(offset + 6, &REPLY)
        && frame.write(offset + 8, mac)
        && frame.write(offset + 14, &target)
        && frame.write(offset + 18, &asker)
}

const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// A sender without an address asks whether it may have this one; all nodes get the answer (RFC 4861, 7.2.4).
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Makes an advertisement of a solicitation; the target stays in its place.
#[inline(always)]
fn advertise(
    frame: &mut impl FrameMut,
    offset: usize,
    target: &[u8; 16],
    mac: &[u8; 6],
    receiver: &[u8; 16],
    has_option: bool,
    flags: u8,
) -> bool {
    let option = option(mac);
    let (length, of_option) = if has_option { (MESSAGE + OPTION, words(&option)) } else { (MESSAGE, 0) };
    // The pseudo header (RFC 8200, 8.1) has the same addresses, length and protocol; the target occurs twice.
    let sum = 2 * words(target) + words(receiver) + of_option;
    let sum = sum + length as u32 + u32::from(ICMPV6) + (u32::from(ADVERTISED) << 8) + (u32::from(flags) << 8);
    let [high, low] = folded(sum).to_be_bytes();
    frame.write(offset + 4, &[0, length as u8, ICMPV6, ON_LINK])
        && frame.write(offset + 8, target)
        && frame.write(offset + 24, receiver)
        && frame.write(offset + MESSAGE_AT, &[ADVERTISED, 0, high, low, flags, 0, 0, 0])
        && (!has_option || frame.write(offset + OPTION_AT, &option))
}

const ADVERTISED: u8 = 136;

/// Returns the option with the link-layer address of the target.
#[inline(always)]
const fn option(mac: &[u8; 6]) -> [u8; OPTION] {
    const TARGET: u8 = 2;
    // In units of 8 bytes.
    const UNITS: u8 = 1;
    [TARGET, UNITS, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]]
}

/// Returns the sum of 16-bit words for a checksum (RFC 1071).
#[inline(always)]
fn words<const N: usize>(bytes: &[u8; N]) -> u32 {
    let mut sum = 0;
    let mut at = 0;
    while at + 1 < N {
        sum += u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        at += 2;
    }
    sum
}

/// Folds a sum of fewer than 2¹⁶ words into a checksum.
#[inline(always)]
const fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests;
