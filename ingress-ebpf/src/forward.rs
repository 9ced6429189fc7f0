//! Decides whether a packet for an address that moved to this node belongs to a connection of the node that announced
//! the address before. Such a packet is sent on to that node, which holds the address, too, and answers by itself.
//!
//! Only the announcer forwards, and never to the machine that sent it the frame. Nodes that disagree for a moment may
//! still form a circle, so each step takes one from the TTL or hop limit, as a router does.

use crate::{
    announce::FrameMut,
    checksum::replaced,
    node_facts::Node,
    parse::{IPV4, IPV6, RST, Segment, link},
};
use ingress_common::{
    FlowKey, Move,
    flow::PROTO_TCP,
    steer::{ADDR_ANNOUNCED, ADDR_MOVED, HEARTBEAT_STALE_NS, MOVE_NS, fresh},
};

/// Bytes of the two addresses at the beginning of an Ethernet frame.
pub const ETHERNET_ADDRESSES: usize = 12;

/// Flags of an address with packets that may be forwarded.
const FORWARDS: u32 = ADDR_ANNOUNCED | ADDR_MOVED;

/// Time after the begin of a move in which a socket in the state TIME_WAIT may be older than the move. The kernel keeps such
/// sockets for 60 s (`TCP_TIMEWAIT_LEN`), and its timers are up to an eighth late.
const OLD_TIME_WAIT_NS: u64 = 75 * 1_000_000_000;

/// A packet and the state of the node that only packets for moved addresses ask for. Queried lazily, cheapest question
/// first.
pub trait Forwarder {
    /// Returns the entry of an address that moved here, for the interface of the packet.
    fn moved(&self, addr: &[u8; 16]) -> Option<Move>;
    /// Returns the Ethernet address of that interface.
    fn own_mac(&self) -> Option<[u8; 6]>;
    /// Returns destination and source address of the frame.
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]>;
    /// Returns `true` if a socket of this node has the connection, or a listener sent the SYN cookie that the packet
    /// confirms. A socket in the state TIME_WAIT has it if `counts_ended` is set.
    fn is_known(&self, flow: &FlowKey, counts_ended: bool) -> bool;
}

/// Returns the Ethernet addresses with which a packet is sent on; `None` if it stays here. `flags` are those of its local
/// address. Requests stay, so that new connections are this node's.
#[inline(always)]
pub fn forwarded(
    node: &impl Node,
    forwarder: &impl Forwarder,
    flags: u32,
    segment: &Segment,
) -> Option<[u8; ETHERNET_ADDRESSES]> {
    let Segment { flow, tcp_flags, offset: _ } = segment;
    if flags & FORWARDS != FORWARDS || flow.proto != PROTO_TCP || segment.is_request() {
        return None;
    }
    let Move { mac, pad: _, until_ns } = forwarder.moved(&flow.local_addr)?;
    let now = node.now_ns();
    // A process that hangs does not notice the end of the other node.
    if now >= until_ns || !fresh(now, node.heartbeat_ns(), HEARTBEAT_STALE_NS) {
        return None;
    }
    let own = forwarder.own_mac()?;
    let [a, b, c, d, e, f, source @ ..] = forwarder.ethernet()?;
    // A switch may flood frames for other machines. A frame from the other node was forwarded by it, or came back.
    if word(&[a, b, c, d, e, f]) != word(&own) || word(&source) == word(&mac) || word(&own) == word(&mac) {
        return None;
    }
    // A client may open a connection to the other node with the port of one that ended here before the move. TIME_WAIT would
    // answer its segments with the numbers of the old one, and last as long as they come. Resets do not prolong it, and one
    // that ends it makes room for a new connection.
    let counts_ended = tcp_flags & RST != 0 || until_ns - now <= MOVE_NS - OLD_TIME_WAIT_NS;
    if forwarder.is_known(flow, counts_ended) {
        return None;
    }
    let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (mac, own);
    Some([a, b, c, d, e, f, g, h, i, j, k, l])
}

/// Makes a frame one that this node sends on: takes one from its TTL or hop limit (RFC 1812, 5.3.1; RFC 8200, 3), and
/// writes its Ethernet addresses. Returns `false` for a frame with none to take, which stays as it is.
///
/// Finds the header again: with an offset from before the lookup of the socket, the verifier would know no bounds.
#[inline(always)]
pub fn send_on(frame: &mut impl FrameMut, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool {
    /// Offsets in the header of IPv4 (TTL, protocol, checksum) and of IPv6 (hop limit).
    const TTL: usize = 8;
    const HOP_LIMIT: usize = 7;
    let Ok((ethertype, offset)) = link(frame) else { return false };
    let is_counted = match ethertype {
        IPV4 => {
            let Some(&[ttl, proto, a, b]) = frame.bytes(offset + TTL) else { return false };
            if ttl <= 1 {
                return false;
            }
            let left = ttl - 1;
            let words = [[a, b], [ttl, proto], [left, proto]].map(u16::from_ne_bytes);
            let [a, b] = replaced(words[0], words[1], words[2]).to_ne_bytes();
            frame.write(offset + TTL, &[left, proto, a, b])
        }
        IPV6 => {
            let Some(&[hops]) = frame.bytes(offset + HOP_LIMIT) else { return false };
            hops > 1 && frame.write(offset + HOP_LIMIT, &[hops - 1])
        }
        _ => false,
    };
    is_counted && frame.write(0, addresses)
}

/// Returns an Ethernet address as a number: the compiler emits a call for a comparison of six bytes.
#[inline(always)]
const fn word(mac: &[u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = *mac;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

#[cfg(test)]
mod tests;
