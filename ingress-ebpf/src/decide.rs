//! Decides about packets and lookups from the state of the node. The functions here count nothing and change nothing;
//! the token buckets of a client are handled by the closures that callers pass in.

use crate::{
    choose::choose,
    parse::{Ends, Quoted, Segment},
    share::left,
};
use ingress_common::{
    DenyRule, FlowKey, Handoff, PortKey, PortRule, Total,
    flow::PROTO_TCP,
    steer::{
        CHOSEN_BY_LOOKUP, CHOSEN_BY_XDP, DENY_PASS, HANDOFF_FRESH_NS, HEARTBEAT_STALE_NS, LEFT_BY_SHARE,
        PORT_COUNT_ONLY, PORT_DENIES, PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS, default_worker, fresh,
    },
};

pub use crate::node_facts::Node;

/// Decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The deny list denies its sender: count as denied, for this rule and for no host, and drop.
    Deny(DenyRule),
    /// Its sender is above a limit, hides its port, or connects to a port that clients may not use: count the verdict,
    /// for no host, and drop.
    Drop(Total),
    /// Count as accepted, for its host, and pass.
    Accept,
    /// Like [`Decision::Accept`], unless the client is above a limit at this time. For packets other than requests that
    /// are subject to the limits.
    Metered(u64),
    /// Like [`Decision::Accept`], and store this choice of a worker for the lookup.
    Steer(WorkerChoice),
    /// Like [`Decision::Accept`], for the request of a connection that is left to another listener; store this for the
    /// lookup.
    Leave(Handoff),
    /// Like [`Decision::Accept`], for a connection request that gets no worker because the proxy hangs.
    Stale,
}

/// Choice of a worker for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerChoice {
    /// Index in the map of workers.
    pub worker: u32,
    /// The entry to store for the lookup.
    pub handoff: Handoff,
}

/// A packet sent from a steered port of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its connection, named as in the packets of its client.
    pub flow: FlowKey,
    /// The port that the client knows, which is to replace the packet's own source port.
    pub public_be: Option<u16>,
}

/// Destination of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupTarget {
    /// Not a connection of this ingress: the stack's own lookup decides.
    Leave,
    /// A connection outside the share: another listener of its port takes it. The caller stores the entry, if there is
    /// one, for the same reason as in [`LookupTarget::Default`].
    Share(Option<Handoff>),
    /// Refused: the sender is on the deny list.
    Deny,
    /// The slot of XDP's choice.
    Chosen(u32),
    /// The slot by the default rule, because XDP's choice is too old or outside the rule. Such a lookup usually fails:
    /// the connection is gone.
    Late(u32),
    /// The slot that the default rule chose before.
    Kept(u32),
    /// A new choice by the default rule, because XDP left none. The caller stores it, so that the ACK of a SYN cookie
    /// finds the listener that sent the cookie.
    Default(WorkerChoice),
}

/// Returns the rule for packets of a connection, and the flags of its local address. For a connection that is not for
/// this ingress it returns the verdict on its packets, which are to be passed on.
///
/// # Errors
/// [`Total::OtherPort`] or [`Total::Transit`].
#[inline(always)]
pub fn ours(node: &impl Node, flow: &FlowKey) -> Result<(PortRule, u32), Total> {
    let rule = node.rule(&port_key(flow)).ok_or(Total::OtherPort)?;
    let flags = node.address_flags(&flow.local_addr).ok_or(Total::Transit)?;
    Ok((rule, flags))
}

/// Decides about one packet, to which `rule` applies. `limited` is called for a request that is subject to its client's
/// limits, with the current time. It takes tokens and returns the verdict on a request above a limit. The caller checks
/// the limits of other packets ([`Decision::Metered`]), which need no further decision.
///
/// Limits apply neither to senders with [`DENY_PASS`], which are trusted proxies, nor while the proxy hangs, because
/// then the limits in the map may no longer be the configured ones.
#[inline(always)]
pub fn decide(
    node: &impl Node,
    rule: &PortRule,
    segment: &Segment,
    limited: impl FnOnce(u64) -> Option<Total>,
) -> Decision {
    match admit(node, rule, segment, limited) {
        Ok(now) => steer(node, rule, &segment.flow.remote_addr, now),
        Err(decision) => decision,
    }
}

/// Does the first part of [`decide`]. Returns the current time for a request that gets a worker.
///
/// # Errors
/// Returns the decision about any other packet.
#[inline(always)]
pub fn admit(
    node: &impl Node,
    rule: &PortRule,
    segment: &Segment,
    limited: impl FnOnce(u64) -> Option<Total>,
) -> Result<u64, Decision> {
    let Segment { flow, tcp_flags: _, offset: _ } = segment;
    // A packet other than a request finds no connection on this port by itself. It passes, because a masquerade on the
    // node may have chosen the port for a connection of a pod.
    if rule.public().is_some() && segment.is_request() {
        return Err(Decision::Drop(Total::RewrittenPort));
    }
    // Applies to every packet, also of a connection that is older than the rule, and regardless of the heartbeat.
    let entry = if rule.flags & PORT_DENIES != 0 { node.deny_entry(&flow.remote_addr) } else { None };
    let is_limited = match entry {
        Some(DENY_PASS) => false,
        Some(rule) => return Err(Decision::Deny(rule)),
        None => limits(rule, segment),
    };
    let is_steered = segment.is_request() && steers(rule);
    if !is_limited && !is_steered {
        return Err(Decision::Accept);
    }
    let now = node.now_ns();
    if !fresh(now, node.heartbeat_ns(), HEARTBEAT_STALE_NS) {
        return Err(if is_steered { Decision::Stale } else { Decision::Accept });
    }
    if !segment.is_request() {
        return Err(Decision::Metered(now));
    }
    if is_limited && let Some(verdict) = limited(now) {
        return Err(Decision::Drop(verdict));
    }
    if is_steered { Ok(now) } else { Err(Decision::Accept) }
}

/// Chooses a worker for a new connection of the client at `remote_addr`, or leaves the connection.
#[inline(always)]
fn steer(node: &impl Node, rule: &PortRule, remote_addr: &[u8; 16], now: u64) -> Decision {
    if let Some(handoff) = left(node, rule, remote_addr, now) {
        return Decision::Leave(handoff);
    }
    // A port that steers has workers; without the check the compiler may emit a panic.
    let worker = choose(node, rule, node.cpu().checked_rem(rule.workers).unwrap_or_default());
    Decision::Steer(choice(rule, worker, CHOSEN_BY_XDP, now))
}

/// Decides about a packet with an unreadable port. Returns `None` if the packet is for another address or if neither
/// the deny list nor a limit applies to its sender; the stack then handles it. `are_limited` returns whether clients
/// are limited at all.
///
/// Legitimate clients do not send such packets to this node's ports (RFC 1858, 3; RFC 7112, 5). Packets of a limited
/// client are therefore dropped, because the limits would otherwise have to pass packets that they cannot count.
#[inline(always)]
pub fn decide_hidden(node: &impl Node, ends: &Ends, are_limited: impl FnOnce() -> bool) -> Option<Decision> {
    if !node.holds(&ends.local_addr) {
        return None;
    }
    match node.deny_entry(&ends.remote_addr) {
        Some(DENY_PASS) => None,
        Some(rule) => Some(Decision::Deny(rule)),
        None => {
            let is_limited = are_limited() && fresh(node.now_ns(), node.heartbeat_ns(), HEARTBEAT_STALE_NS);
            is_limited.then_some(Decision::Drop(Total::HiddenPort))
        }
    }
}

/// Classifies a packet that leaves. Returns `None` unless it comes from a steered port of this node.
#[inline(always)]
pub fn sent(node: &impl Node, segment: &Segment) -> Option<Sent> {
    let mut flow = segment.flow.reversed();
    let (rule, _) = ours(node, &flow).ok()?;
    let public_be = rule.public();
    if let Some(port_be) = public_be {
        flow.local_port_be = port_be;
    }
    Some(Sent { flow, public_be })
}

/// Returns the port that an ICMP error about a segment must name for the stack to find the connection; `None` if the
/// error needs no change.
#[inline(always)]
pub fn rewritten(node: &impl Node, quoted: &Quoted) -> Option<u16> {
    let Quoted { sender, port_be, place: _ } = quoted;
    let port_be = node.rule(&PortKey { port_be: *port_be, proto: PROTO_TCP, pad: 0 })?.rewritten()?;
    node.holds(sender).then_some(port_be)
}

/// Returns the destination of the lookup for `flow`, and puts the port that the client knows into `flow`. `handoff` is
/// called only for a connection of this ingress. `deny_entry` works like [`Node::deny_entry`], which must not be called
/// here: its cache belongs to the CPU, and a program of an interface that asks for a socket has the lookup run in its middle.
#[inline(always)]
pub fn route(
    node: &impl Node,
    flow: &mut FlowKey,
    deny_entry: impl FnOnce(&[u8; 16]) -> Option<DenyRule>,
    handoff: impl FnOnce(&FlowKey) -> Option<Handoff>,
) -> LookupTarget {
    if flow.proto != PROTO_TCP {
        return LookupTarget::Leave;
    }
    let Some(rule) = node.rule(&port_key(flow)) else { return LookupTarget::Leave };
    if !steers(&rule) || !node.holds(&flow.local_addr) {
        return LookupTarget::Leave;
    }
    // A second check, for packets that passed no program of an interface, or one that could not parse them.
    if rule.flags & PORT_DENIES != 0 && deny_entry(&flow.remote_addr).is_some_and(|entry| entry != DENY_PASS) {
        return LookupTarget::Deny;
    }
    if let Some(port_be) = rule.public() {
        flow.local_port_be = port_be;
    }
    let now = node.now_ns();
    let preferred = default_worker(flow, rule.workers);
    let handoff = handoff(flow);
    if let Some(Handoff { slot, chosen_by, time_ns }) = handoff
        && fresh(now, time_ns, HANDOFF_FRESH_NS)
    {
        // The slot is checked because the ports may have been assigned anew since the SYN.
        let holds = slot.wrapping_sub(rule.first_slot) < rule.workers;
        match (chosen_by, holds) {
            (LEFT_BY_SHARE, _) => return LookupTarget::Share(None),
            (CHOSEN_BY_LOOKUP, true) => return LookupTarget::Kept(slot),
            (CHOSEN_BY_LOOKUP, false) => {}
            (_, true) => return LookupTarget::Chosen(slot),
            (_, false) => return LookupTarget::Late(rule.first_slot.wrapping_add(preferred)),
        }
    }
    if let Some(handoff) = left(node, &rule, &flow.remote_addr, now) {
        return LookupTarget::Share(Some(handoff));
    }
    if handoff.is_some_and(|handoff| handoff.chosen_by == CHOSEN_BY_XDP) {
        return LookupTarget::Late(rule.first_slot.wrapping_add(preferred));
    }
    LookupTarget::Default(choice(&rule, choose(node, &rule, preferred), CHOSEN_BY_LOOKUP, now))
}

/// Returns the choice of the rule's worker with this number.
#[must_use]
#[inline(always)]
pub const fn choice(rule: &PortRule, worker: u32, chosen_by: u32, time_ns: u64) -> WorkerChoice {
    let handoff = Handoff { slot: rule.first_slot.wrapping_add(worker), chosen_by, time_ns };
    WorkerChoice { worker: rule.first_worker.wrapping_add(worker), handoff }
}

/// Returns `true` if there is a limit for such packets.
#[inline(always)]
const fn limits(rule: &PortRule, segment: &Segment) -> bool {
    let of_segment = if segment.is_request() { PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS } else { PORT_LIMITS_PACKETS };
    rule.flags & of_segment != 0
}

/// Returns `true` if connections to the port get a worker.
#[must_use]
#[inline(always)]
pub const fn steers(rule: &PortRule) -> bool {
    rule.workers != 0 && rule.flags & PORT_COUNT_ONLY == 0
}

#[inline(always)]
const fn port_key(flow: &FlowKey) -> PortKey {
    PortKey { port_be: flow.local_port_be, proto: flow.proto, pad: 0 }
}

#[cfg(test)]
mod tests;
