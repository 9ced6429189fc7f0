//! Decides what becomes of a packet or a lookup from what the node knows; counts nothing and changes
//! nothing, but for the buckets of a client, which whoever is asked about it looks after.

use ingress_common::{
    DenyRule, FlowKey, Handoff, PortKey, PortRule, Total, WorkerLoad,
    flow::PROTO_TCP,
    steer::{
        CHOSEN_BY_LOOKUP, CHOSEN_BY_XDP, DENY_PASS, HANDOFF_FRESH_NS, HEARTBEAT_STALE_NS, PORT_COUNT_ONLY, PORT_DENIES,
        PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS, default_worker, fresh,
    },
};

use crate::{
    choose::choose,
    parse::{Ends, Quoted, Segment},
};

/// What decisions rest on. Asked lazily, cheapest question first; every answer is of this moment.
pub trait Node {
    /// The rule of a steered port.
    fn rule(&self, port: &PortKey) -> Option<PortRule>;
    /// Whether `addr` (IPv4 as v4-mapped) is an address of this node.
    fn holds(&self, addr: &[u8; 16]) -> bool;
    /// What the deny list has for `addr` (IPv4 as v4-mapped), by the longest prefix: a rule or [`DENY_PASS`].
    fn deny_entry(&self, addr: &[u8; 16]) -> Option<DenyRule>;
    /// How busy a worker is, by its index in the map of workers; `None` beyond the end of it.
    fn worker(&self, index: u32) -> Option<WorkerLoad>;
    /// Time of the proxy's latest heartbeat; 0 for none.
    fn heartbeat_ns(&self) -> u64;
    /// `CLOCK_MONOTONIC`.
    fn now_ns(&self) -> u64;
    /// The CPU that runs this.
    fn cpu(&self) -> u32;
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Its sender may not talk to us: count as denied, for this rule and for no host, and drop.
    Deny(DenyRule),
    /// Its sender has sent too much, hides its port, or asks for what no client may ask for: count the verdict, for no host, and drop.
    Drop(Total),
    /// Count as accepted, for its host, and pass.
    Accept,
    /// As [`Decision::Accept`], and leave this choice of a worker for the lookup.
    Steer(Choice),
    /// As [`Decision::Accept`], but a connection request that nobody should be chosen for: the proxy hangs.
    Stale,
}

/// A worker for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index in the map of workers.
    pub worker: u32,
    /// The note that says so.
    pub handoff: Handoff,
}

/// A packet that a steered port of this node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its connection, named as the packets of its client name it.
    pub flow: FlowKey,
    /// The port that the client knows, as the packet is to have it in place of its own.
    pub public_be: Option<u16>,
}

/// Where a lookup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Not ours: the stack's own lookup decides.
    Leave,
    /// To nobody: the deny list has its sender.
    Deny,
    /// XDP's choice.
    Chosen(u32),
    /// By the default rule, for XDP's choice is too old, or not within the rule. Nothing is to come of it in most
    /// cases: the connection is gone.
    Late(u32),
    /// By the default rule, as before.
    Kept(u32),
    /// By the default rule: XDP left no choice. To be kept, so that the ACK of a SYN cookie finds the listener that
    /// sent the cookie.
    Default(Choice),
}

/// The rule for packets of a connection, or the verdict on those of one that is not for this ingress: to be passed on.
///
/// # Errors
/// [`Total::OtherPort`] or [`Total::Transit`].
#[inline(always)]
pub fn ours(node: &impl Node, flow: &FlowKey) -> Result<PortRule, Total> {
    let rule = node.rule(&port_key(flow)).ok_or(Total::OtherPort)?;
    if node.holds(&flow.local_addr) { Ok(rule) } else { Err(Total::Transit) }
}

/// What becomes of one packet, for which `rule` is. `limited` is asked what becomes of a packet that its client's
/// limits hold for, at the time that it is given, and takes account of it.
///
/// Limits do not hold for those that the deny list lets pass, who speak for others, nor while the proxy hangs: then
/// nobody knows any more whether they are what an operator wants.
#[inline(always)]
pub fn decide(
    node: &impl Node,
    rule: &PortRule,
    segment: &Segment,
    limited: impl FnOnce(u64) -> Option<Total>,
) -> Decision {
    let Segment { flow, tcp_flags: _, offset: _ } = segment;
    // Without a request nobody comes to it. Others go on: the port may be one that a masquerade of the node's has
    // chosen for a connection of a pod's.
    if rule.public().is_some() && segment.is_request() {
        return Decision::Drop(Total::RewrittenPort);
    }
    // Whatever the packet is, also one of a connection that is older than the rule, and whether or not the heart beats.
    let entry = if rule.flags & PORT_DENIES != 0 { node.deny_entry(&flow.remote_addr) } else { None };
    let is_limited = match entry {
        Some(DENY_PASS) => false,
        Some(rule) => return Decision::Deny(rule),
        None => limits(rule, segment),
    };
    let is_steered = segment.is_request() && steers(rule);
    if !is_limited && !is_steered {
        return Decision::Accept;
    }
    let now = node.now_ns();
    if !fresh(now, node.heartbeat_ns(), HEARTBEAT_STALE_NS) {
        return if is_steered { Decision::Stale } else { Decision::Accept };
    }
    if is_limited && let Some(verdict) = limited(now) {
        return Decision::Drop(verdict);
    }
    if !is_steered {
        return Decision::Accept;
    }
    let worker = choose(node, rule, node.cpu() % rule.workers);
    Decision::Steer(choice(rule, worker, CHOSEN_BY_XDP, now))
}

/// What becomes of a packet whose port cannot be told; `None`: it is for somebody else, or nothing is decided by its
/// sender, and the stack makes of it what it can. `are_limited` is asked whether clients are limited at all.
///
/// Nobody who means well sends such to a port of ours (RFC 1858, 3; RFC 7112, 5): so whoever is limited and does is
/// dropped, for the limits would have to let pass what they cannot count.
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

/// What a packet that leaves is; `None` unless a steered port of this node sends it.
#[inline(always)]
pub fn sent(node: &impl Node, segment: &Segment) -> Option<Sent> {
    let mut flow = segment.flow.reversed();
    let public_be = ours(node, &flow).ok()?.public();
    if let Some(port_be) = public_be {
        flow.local_port_be = port_be;
    }
    Some(Sent { flow, public_be })
}

/// The port that is to stand in an ICMP error about a segment in place of the one that does, so that the stack finds
/// the connection; `None` if that is as it should be.
#[inline(always)]
pub fn rewritten(node: &impl Node, quoted: &Quoted) -> Option<u16> {
    let Quoted { sender, port_be, place: _ } = quoted;
    let port_be = node.rule(&PortKey { port_be: *port_be, proto: PROTO_TCP, pad: 0 })?.rewritten()?;
    node.holds(sender).then_some(port_be)
}

/// Where the lookup for `flow` goes, which is given the port that its client knows; `handoff` is asked only for a
/// connection that is ours, and `deny_entry` as [`Node::deny_entry`], which is not asked here: a lookup can run in the
/// middle of another program of the same CPU.
#[inline(always)]
pub fn route(
    node: &impl Node,
    flow: &mut FlowKey,
    deny_entry: impl FnOnce(&[u8; 16]) -> Option<DenyRule>,
    handoff: impl FnOnce(&FlowKey) -> Option<Handoff>,
) -> Route {
    if flow.proto != PROTO_TCP {
        return Route::Leave;
    }
    let Some(rule) = node.rule(&port_key(flow)) else { return Route::Leave };
    if !steers(&rule) || !node.holds(&flow.local_addr) {
        return Route::Leave;
    }
    // Once more, for what no program of an interface saw, or could not see through.
    if rule.flags & PORT_DENIES != 0 && deny_entry(&flow.remote_addr).is_some_and(|entry| entry != DENY_PASS) {
        return Route::Deny;
    }
    if let Some(port_be) = rule.public() {
        flow.local_port_be = port_be;
    }
    let now = node.now_ns();
    let home = default_worker(flow, rule.workers);
    if let Some(Handoff { slot, chosen_by, time_ns }) = handoff(flow) {
        // The slot is checked because the ports may have been laid out anew since the SYN.
        let holds = slot.wrapping_sub(rule.first_slot) < rule.workers && fresh(now, time_ns, HANDOFF_FRESH_NS);
        match (chosen_by, holds) {
            (CHOSEN_BY_LOOKUP, true) => return Route::Kept(slot),
            (CHOSEN_BY_LOOKUP, false) => {}
            (_, true) => return Route::Chosen(slot),
            (_, false) => return Route::Late(rule.first_slot.wrapping_add(home)),
        }
    }
    Route::Default(choice(&rule, choose(node, &rule, home), CHOSEN_BY_LOOKUP, now))
}

#[inline(always)]
const fn choice(rule: &PortRule, worker: u32, chosen_by: u32, time_ns: u64) -> Choice {
    let handoff = Handoff { slot: rule.first_slot.wrapping_add(worker), chosen_by, time_ns };
    Choice { worker: rule.first_worker.wrapping_add(worker), handoff }
}

/// Whether there is a limit for such packets.
#[inline(always)]
const fn limits(rule: &PortRule, segment: &Segment) -> bool {
    let of_segment = if segment.is_request() { PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS } else { PORT_LIMITS_PACKETS };
    rule.flags & of_segment != 0
}

#[inline(always)]
const fn steers(rule: &PortRule) -> bool {
    rule.workers != 0 && rule.flags & PORT_COUNT_ONLY == 0
}

#[inline(always)]
const fn port_key(flow: &FlowKey) -> PortKey {
    PortKey { port_be: flow.local_port_be, proto: flow.proto, pad: 0 }
}

#[cfg(test)]
mod tests;
