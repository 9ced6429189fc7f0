//! What becomes of a packet that an interface receives, whichever program sees it: counts it once, for its host if it
//! is for a steered port, and chooses the worker of a new connection. Has dropped what the deny list denies, what is
//! above a client's limits or hides from them, and who asks for a rewritten port, nothing else, and changes nothing but ports that are to
//! be rewritten.

use aya_ebpf::EbpfContext;
use aya_log_ebpf::debug;
use ingress_common::{FlowKey, Total};
use ingress_ebpf::{
    decide::{Choice, Decision, decide, decide_hidden, ours, rewritten},
    parse::{Ends, Place, Quoted, Segment},
};

use crate::{
    clients, count, handoffs,
    node::{Maps, count_choice, host},
    rewrite,
};

/// A packet that is being received, as the context of a program shows it.
pub(crate) trait Received: EbpfContext {
    /// Index of the interface that receives it.
    fn nic(&self) -> u32;
    /// Its length with the link header.
    fn bytes(&self) -> u64;
    /// What it is about, or the verdict on one that is of no TCP or UDP.
    fn segment(&self) -> Result<Segment, Total>;
    /// Whom it is from and to.
    fn ends(&self) -> Option<Ends>;
    /// What it says of a segment, if it is an ICMP error.
    fn quoted(&self) -> Option<Quoted>;
    /// Whether ports are rewritten in what comes by this interface.
    #[inline(always)]
    fn is_rewritten(&self) -> bool {
        rewrite::is_on(self.nic())
    }
    /// Puts a port in the place of the one that stands there, and mends the checksum.
    fn rewrite(&self, place: Place, from_be: u16, to_be: u16);
}

/// What the kernel is to do with a packet.
#[derive(Clone, Copy)]
pub(crate) enum Fate {
    Pass,
    /// The deny list denies its sender, or that has sent too much, hides its port, or asks for what no client may ask for.
    Drop,
}

/// Decides about a packet, and carries that out but for its fate.
#[inline(always)]
pub(crate) fn receive(packet: &impl Received) -> Fate {
    let bytes = packet.bytes();
    match packet.segment() {
        Ok(segment) => act(packet, &segment, bytes),
        Err(Total::HiddenPort) => act_hidden(packet, bytes),
        Err(verdict) => {
            if verdict == Total::OtherProtocol && packet.is_rewritten() {
                rewrite_quoted(packet);
            }
            leave(verdict, bytes)
        }
    }
}

/// Has an ICMP error about a segment that has got another port on its way out name the one that the stack knows.
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
fn act(packet: &impl Received, segment: &Segment, bytes: u64) -> Fate {
    let Segment { flow, tcp_flags: _, offset: _ } = segment;
    let rule = match ours(&Maps, flow) {
        Ok(rule) => rule,
        Err(verdict) => return leave(verdict, bytes),
    };
    // Now, although it may yet be dropped: behind the loop over workers the verifier would have to walk that loop for
    // every length that the headers may have, which is more than Linux 6.1 puts up with.
    if let Some(port_be) = rule.rewritten()
        && packet.is_rewritten()
    {
        packet.rewrite(segment.destination_port(), flow.local_port_be, port_be);
    }
    match decide(&Maps, &rule, segment, |now_ns| clients::limited(flow, segment.is_request(), now_ns, bytes)) {
        Decision::Deny(rule) => {
            count::denied(rule, bytes);
            return Fate::Drop;
        }
        Decision::Drop(verdict) => {
            count::total(verdict, bytes);
            return Fate::Drop;
        }
        Decision::Accept => {}
        Decision::Steer(choice) => hand_off(packet, flow, &choice, bytes),
        Decision::Stale => count::total(Total::HeartbeatStale, bytes),
    }
    count::accepted(packet.nic(), host(flow), bytes);
    Fate::Pass
}

/// Carries out the decision on a packet whose port cannot be told.
#[inline(always)]
fn act_hidden(packet: &impl Received, bytes: u64) -> Fate {
    let Some(ends) = packet.ends() else { return leave(Total::Malformed, bytes) };
    match decide_hidden(&Maps, &ends, clients::are_limited) {
        Some(Decision::Deny(rule)) => {
            count::denied(rule, bytes);
            Fate::Drop
        }
        Some(Decision::Drop(verdict)) => {
            count::total(verdict, bytes);
            Fate::Drop
        }
        _ => leave(Total::Malformed, bytes),
    }
}

/// Counts what is not for this ingress, and lets it go its way.
#[inline(always)]
fn leave(verdict: Total, bytes: u64) -> Fate {
    count::total(verdict, bytes);
    Fate::Pass
}

/// Leaves the choice of a worker for `ingress_lookup`.
#[inline(always)]
fn hand_off(packet: &impl Received, flow: &FlowKey, choice: &Choice, bytes: u64) {
    let Choice { worker, handoff } = choice;
    handoffs::leave(flow, handoff);
    count_choice(*worker);
    count::total(Total::Decided, bytes);
    debug!(packet, "receive: [{:i}]:{} to slot {}", flow.remote_addr, u16::from_be(flow.remote_port_be), handoff.slot);
}
