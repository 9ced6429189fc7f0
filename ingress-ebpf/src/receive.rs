//! Handles a packet that an interface receives, for every program that sees one. Counts it once, for its host if it is
//! for a steered port, and chooses the worker of a new connection.
//!
//! Dropped are packets that the deny list denies, packets above a client's limits, packets that hide their port from
//! those limits, requests for a rewritten port, packets of QUIC that no process of the node can have asked for, and
//! questions for held addresses that another node announces; all others pass, but for the questions that this node
//! answers, and for segments of connections that another node has. Packets are changed only to rewrite ports, to answer,
//! and to send them to another node.
//!
//! The deny list applies always. Limits and the choice of workers apply only while the proxy's heartbeat is at most 3 s
//! old. Senders with a pass entry in the deny list are not limited (ADR 0024).

use aya_ebpf::EbpfContext;
use aya_log_ebpf::debug;
use ingress_common::{
    ClientKey, PortRule, RawHostId, Total,
    flow::{PROTO_TCP, UNATTRIBUTED},
    steer::{ADDR_MOVED, PORT_QUIC_CHECKS},
};
use ingress_ebpf::{
    announce::Question,
    decide::{Decision, WorkerChoice, decide, decide_hidden, ours, rewritten, steers},
    forward::ETHERNET_ADDRESSES,
    parse::{Ends, FieldOffsets, Quoted, Segment},
};

use crate::{
    client_limits, count, handoffs, neighbours,
    node::{Maps, count_choice, known_host},
    rewrite,
    sockets::{self, TcpHeader},
};

/// A received packet, in the form of a program's context.
pub(crate) trait Received: EbpfContext {
    /// Returns the index of the interface that receives the packet.
    fn nic(&self) -> u32;
    /// Returns its length including the link header.
    fn bytes(&self) -> u64;
    /// Parses the packet. Returns the verdict for one that is neither TCP nor UDP.
    fn segment(&self) -> Result<Segment, Total>;
    /// Returns its source and destination address.
    fn ends(&self) -> Option<Ends>;
    /// Returns the segment that an ICMP error quotes; `None` for other packets.
    fn quoted(&self) -> Option<Quoted>;
    /// Returns the question for a link-layer address in a packet with this verdict; `None` for other packets.
    fn question(&self, verdict: Total) -> Option<Question>;
    /// Turns the packet into the answer, with this address of the interface. Returns `false` if it cannot be sent; the
    /// packet may then be changed.
    fn answer(&self, question: &Question, mac: &[u8; 6]) -> bool;
    /// Returns destination and source address of its Ethernet header.
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]>;
    /// Copies the TCP header at this offset, without options. Returns `false` on kernels that cannot copy it.
    fn read_tcp_header(&self, offset: usize, header: &mut TcpHeader) -> bool;
    /// Counts and refuses a datagram of QUIC that no process of the node can have asked for; `offset` is that of its header
    /// of UDP. Returns `false` for others.
    fn is_refused_by_quic(&self, offset: usize, bytes: u64) -> bool;
    /// Sends the packet with these addresses in its Ethernet header and one hop less, on the interface that received it.
    /// Returns `false` if that is not possible, or no hop is left.
    fn send_to(&self, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool;
    /// Returns `true` if ports are rewritten in packets from this interface.
    #[inline(always)]
    fn is_rewritten(&self) -> bool {
        rewrite::is_on(self.nic())
    }
    /// Replaces the port at this place, and updates the checksum.
    fn rewrite(&self, place: FieldOffsets, from_be: u16, to_be: u16);
}

/// Action of the kernel on a packet.
#[derive(Clone, Copy)]
pub(crate) enum PacketAction {
    Pass,
    /// The deny list denies the sender, or the packet is above a limit, hides its port, requests a port that clients may
    /// not use, belongs to no connection of QUIC, or asks for an address that another node announces.
    Drop,
    /// The packet is now an answer, or has the address of another node: send it on the interface that received it.
    Transmit,
}

/// Decides about a packet and carries the decision out, except for the returned action.
///
/// `in_flood` decides about a segment of TCP for a steered port during a flood of SYNs, and returns `None` without one.
#[inline(always)]
pub(crate) fn receive(
    packet: &impl Received,
    in_flood: impl FnOnce(&Segment, &PortRule, u64) -> Option<PacketAction>,
) -> PacketAction {
    let bytes = packet.bytes();
    match packet.segment() {
        Ok(segment) => act(packet, &segment, bytes, in_flood),
        Err(Total::HiddenPort) => act_hidden(packet, bytes),
        Err(verdict) => {
            if matches!(verdict, Total::NotIp | Total::OtherProtocol)
                && let Some(action) = neighbours::asked(packet, verdict, bytes)
            {
                return action;
            }
            if verdict == Total::OtherProtocol && packet.is_rewritten() {
                rewrite_quoted(packet);
            }
            leave(verdict, bytes)
        }
    }
}

/// Corrects an ICMP error about a segment that had its source port rewritten on the way out: the error then names the
/// port that the stack knows.
#[inline(always)]
fn rewrite_quoted(packet: &impl Received) {
    if let Some(quoted) = packet.quoted()
        && let Some(port_be) = rewritten(&Maps, &quoted)
    {
        packet.rewrite(quoted.place, quoted.port_be, port_be);
    }
}

/// Carries out the decision on a TCP or UDP packet.
#[inline(always)]
fn act(
    packet: &impl Received,
    segment: &Segment,
    bytes: u64,
    in_flood: impl FnOnce(&Segment, &PortRule, u64) -> Option<PacketAction>,
) -> PacketAction {
    let Segment { flow, tcp_flags: _, offset: _ } = segment;
    let (rule, flags) = match ours(&Maps, flow) {
        Ok(ours) => ours,
        Err(verdict) => return leave(verdict, bytes),
    };
    // Before the deny list and the limits, which the other node applies.
    if flags & ADDR_MOVED != 0 && sockets::forward(packet, rule.rewritten(), flags, segment, bytes) {
        return PacketAction::Transmit;
    }
    // Connections of a moved address may be at the other node, which confirms their cookies itself.
    if flags & ADDR_MOVED == 0
        && flow.proto == PROTO_TCP
        && steers(&rule)
        && let Some(action) = in_flood(segment, &rule, bytes)
    {
        return action;
    }
    // Rewritten here, although the packet may yet be dropped. After the loop over workers the verifier would walk that
    // loop once for every possible length of the headers, which exceeds the limit of Linux 6.1.
    if let Some(port_be) = rule.rewritten()
        && packet.is_rewritten()
    {
        packet.rewrite(segment.destination_port(), flow.local_port_be, port_be);
    }
    let limited = |now_ns| client_limits::limited(&ClientKey::of(&flow.remote_addr), true, now_ns, bytes);
    match decide(&Maps, &rule, segment, limited) {
        Decision::Deny(rule) => {
            count::denied(rule, bytes);
            return PacketAction::Drop;
        }
        Decision::Drop(verdict) => {
            count::total(verdict, bytes);
            return PacketAction::Drop;
        }
        Decision::Metered(now_ns) => return meter(packet, &rule, segment, now_ns, bytes),
        Decision::Accept => {}
        Decision::Steer(WorkerChoice { worker, handoff }) => {
            handoffs::leave(flow, &handoff);
            count_choice(worker);
            count::total(Total::Decided, bytes);
            // Not in a function of its own: with two calls the compiler emits one for the closure of this log, and its frame
            // would not fit into the stack of kernels before 6.9.
            let (remote, port) = (flow.remote_addr, u16::from_be(flow.remote_port_be));
            debug!(packet, "receive: [{:i}]:{} to slot {}", remote, port, handoff.slot);
        }
        Decision::Leave(handoff) => {
            handoffs::leave(flow, &handoff);
            count::total(Total::Left, bytes);
        }
        Decision::Stale => count::total(Total::HeartbeatStale, bytes),
    }
    let host = known_host(flow);
    if is_checked(&rule, host) {
        if packet.is_refused_by_quic(segment.offset, bytes) {
            return PacketAction::Drop;
        }
        count::accepted(packet.nic(), UNATTRIBUTED, bytes);
        return PacketAction::Pass;
    }
    count::accepted(packet.nic(), host.unwrap_or(UNATTRIBUTED), bytes);
    PacketAction::Pass
}

/// Returns `true` if a packet is checked by [`Received::is_refused_by_quic`].
///
/// Packets from an address and a port with a connection to some host are not checked: who has such a connection has an ID
/// that would pass, too, and others would have to guess both.
///
/// A checked packet is handled to its end beside the others. After the call, no value from before it is compared again:
/// Linux 6.1 does not trace values back through calls. It would keep all of them apart, and refuse the programs after
/// 1,000,000 instructions.
#[inline(always)]
const fn is_checked(rule: &PortRule, host: Option<RawHostId>) -> bool {
    host.is_none() && rule.flags & PORT_QUIC_CHECKS != 0
}

/// Takes tokens for a packet other than a request, and counts the packet. A single lookup of the connection returns its
/// host and shows whether it is open, which selects the buckets.
#[inline(always)]
fn meter(packet: &impl Received, rule: &PortRule, segment: &Segment, now_ns: u64, bytes: u64) -> PacketAction {
    let flow = &segment.flow;
    let (client, host) = (ClientKey::of(&flow.remote_addr), known_host(flow));
    if is_checked(rule, host) {
        // Takes no tokens, because its sender is likely forged.
        if packet.is_refused_by_quic(segment.offset, bytes) {
            return PacketAction::Drop;
        }
        if let Some(verdict) = client_limits::limited(&client, false, now_ns, bytes) {
            count::total(verdict, bytes);
            return PacketAction::Drop;
        }
        count::accepted(packet.nic(), UNATTRIBUTED, bytes);
        return PacketAction::Pass;
    }
    // While packets are limited, the proxy enters every TCP connection that it has accepted.
    let key = if flow.proto == PROTO_TCP && host.is_some() { client.open() } else { client };
    if let Some(verdict) = client_limits::limited(&key, false, now_ns, bytes) {
        count::total(verdict, bytes);
        return PacketAction::Drop;
    }
    count::accepted(packet.nic(), host.unwrap_or(UNATTRIBUTED), bytes);
    PacketAction::Pass
}

/// Carries out the decision on a packet with an unreadable port.
#[inline(always)]
fn act_hidden(packet: &impl Received, bytes: u64) -> PacketAction {
    let Some(ends) = packet.ends() else { return leave(Total::Malformed, bytes) };
    match decide_hidden(&Maps, &ends, client_limits::are_limited) {
        Some(Decision::Deny(rule)) => {
            count::denied(rule, bytes);
            PacketAction::Drop
        }
        Some(Decision::Drop(verdict)) => {
            count::total(verdict, bytes);
            PacketAction::Drop
        }
        _ => leave(Total::Malformed, bytes),
    }
}

/// Counts a packet that is not for this ingress, and lets it pass.
#[inline(always)]
fn leave(verdict: Total, bytes: u64) -> PacketAction {
    count::total(verdict, bytes);
    PacketAction::Pass
}
