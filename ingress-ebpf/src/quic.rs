//! Chooses the socket of a QUIC packet: that of the worker which issued its connection ID, or one of the owner's for the
//! first packets of a connection (ADR 0060).
//!
//! Only the parts of a packet that all versions of QUIC share are read (RFC 8999), and the type of versions 1 and 2, to
//! recognise a first packet.

mod admission;

use crate::{choose::choose, node_facts::Node};
use ingress_common::{
    FlowKey, Handoff, PortRule,
    flow::PROTO_UDP,
    quic::{self, ConnectionId, Issuer, SealKey},
    steer::{CHOSEN_FOR_QUIC, HANDOFF_FRESH_NS, PORT_QUIC, fresh},
};

pub use admission::Datagram;
use admission::{LongType, long_type};

/// Bytes of a packet that the choice reads: first byte, version, and length and bytes of the destination ID.
/// Shorter datagrams have no ID that matters here: at most a stateless reset has 21 bytes (RFC 9000, section 10.3).
pub const HEAD_LENGTH: usize = 22;

/// Most significant bit of the first byte: a long header.
const LONG: u8 = 0x80;
/// Shortest ID with which a client begins a connection (RFC 9000, 7.2).
const FIRST_ID_MIN: u8 = 8;
/// Longest connection ID (RFC 9000, 17.2).
const ID_MAX: u8 = 20;

/// State of QUIC on this node.
pub trait QuicNode {
    /// Returns the key of this number, below [`quic::KEYS`]; zero for none.
    fn key(&self, number: usize) -> SealKey;
    /// Returns the epoch of the process with sockets in this group, below 8; 0 for none.
    fn epoch(&self, group: usize) -> u32;
    /// Returns `true` if each ID that a process with sockets has issued opens.
    fn has_all_keys(&self) -> bool;
    /// Returns the noted choice for the connection that begins with these packets; its time is 0
    /// for none.
    fn note(&self, first: &FlowKey) -> Handoff;
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The socket of the worker that issued the packet's ID, in a process with sockets.
    Issued(u32),
    /// The ID was issued by a process that has no sockets: the owner's worker at hand.
    Gone,
    /// The first packets of a connection for which this socket was noted.
    Noted(u32),
    /// The first packet of a connection: one of the owner's workers, see [`begin`].
    First,
    /// Any other packet: the owner's worker at hand.
    Other,
}

/// Choice of a worker for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketChoice {
    /// Index of the worker's load and of its socket.
    pub worker: u32,
    /// The note for further packets without an ID of this node.
    pub handoff: Handoff,
}

/// Returns the destination of the packet that begins with `head`, which is zero beyond its end.
#[inline(always)]
pub fn destination(node: &impl Node, quic: &impl QuicNode, head: &[u8; HEAD_LENGTH]) -> Destination {
    let is_long = head[0] & LONG != 0;
    let length = head[5];
    if !is_long || length == quic::ID_LENGTH as u8 {
        let id = if is_long { long_id(head) } else { short_id(head) };
        if let Some(issuer) = issuer(quic, &id) {
            let lives = issuer.is_of(quic.epoch(issuer.group()));
            return if lives { Destination::Issued(issuer.socket()) } else { Destination::Gone };
        }
    }
    if !is_long || !is_first(head) || !(FIRST_ID_MIN..=ID_MAX).contains(&length) {
        return Destination::Other;
    }
    let Handoff { slot, chosen_by, time_ns } = quic.note(&first_key(head));
    if chosen_by == CHOSEN_FOR_QUIC && fresh(node.now_ns(), time_ns, HANDOFF_FRESH_NS) {
        Destination::Noted(slot)
    } else {
        Destination::First
    }
}

/// Chooses one of the owner's workers for a new connection; `None` if no process owns the port.
#[inline(always)]
pub fn begin(node: &impl Node, rule: &PortRule) -> Option<SocketChoice> {
    let preferred = preferred_worker(node, rule)?;
    let worker = rule.first_worker.wrapping_add(choose(node, rule, preferred));
    Some(SocketChoice { worker, handoff: Handoff { slot: worker, chosen_by: CHOSEN_FOR_QUIC, time_ns: node.now_ns() } })
}

/// Returns the socket of the owner's worker for this CPU; `None` if no process owns the port.
#[inline(always)]
pub fn preferred(node: &impl Node, rule: &PortRule) -> Option<u32> {
    Some(rule.first_worker.wrapping_add(preferred_worker(node, rule)?))
}

#[inline(always)]
fn preferred_worker(node: &impl Node, rule: &PortRule) -> Option<u32> {
    if rule.flags & PORT_QUIC == 0 || rule.workers == 0 {
        return None;
    }
    Some(node.cpu() % rule.workers)
}

#[inline(always)]
fn issuer(quic: &impl QuicNode, id: &ConnectionId) -> Option<Issuer> {
    quic::open(&quic.key(quic::key_number(id)?), id)
}

/// Returns `true` for a long header of the types Initial and 0-RTT. Both carry the ID that the client chose.
#[inline(always)]
const fn is_first(head: &[u8; HEAD_LENGTH]) -> bool {
    let [first, a, b, c, d, ..] = *head;
    matches!(long_type(u32::from_le_bytes([a, b, c, d]), first), Some(LongType::Initial | LongType::ZeroRtt))
}

#[inline(always)]
fn short_id(head: &[u8; HEAD_LENGTH]) -> ConnectionId {
    let [_, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = *head;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

#[inline(always)]
fn long_id(head: &[u8; HEAD_LENGTH]) -> ConnectionId {
    let [_, _, _, _, _, _, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *head;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// Returns the key of the note for a first packet: the first 16 bytes of the ID in place of the client's address. The
/// address itself may change, and an ID is random (RFC 9000, 7.2).
#[must_use]
#[inline(always)]
pub fn first_key(head: &[u8; HEAD_LENGTH]) -> FlowKey {
    let (length, [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]) = (head[5], long_id(head));
    // Words of 64 bits, because the kernel's target shifts no longer ones.
    let high = u64::from_le_bytes([i, j, k, l, m, n, o, p]);
    let kept = match u32::from(length.saturating_sub(FIRST_ID_MIN)) {
        0 => 0,
        bytes @ 1..8 => high & ((1 << (8 * bytes)) - 1),
        _ => high,
    };
    let [i, j, k, l, m, n, o, p] = kept.to_le_bytes();
    let remote_addr = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
    FlowKey {
        remote_addr,
        local_addr: [0; 16],
        remote_port_be: 0,
        local_port_be: 0,
        proto: PROTO_UDP,
        pad: 0,
        pad_end: 0,
    }
}

#[cfg(test)]
mod tests;
