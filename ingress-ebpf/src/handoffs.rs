//! Stores the worker chosen for a connection, and looks the choice up again.
//!
//! Programs on all CPUs share the entries without locks. An entry that two programs write at once may be a mixture of
//! both. That does no harm: the rule of the port limits its slot, or the kernel checks it against the group of
//! sockets, and its time comes from one of the two.

use ingress_common::{
    FlowKey, Handoff, HandoffEntry,
    steer::{NO_SLOT, handoff_places},
};

use crate::maps::HANDOFFS;

/// Stores an entry in place of an older one.
#[inline(always)]
pub(crate) fn leave(flow: &FlowKey, handoff: &Handoff) {
    let [first, second] = handoff_places(flow).map(|place| HANDOFFS.get_ptr_mut(place));
    let (Some(first), Some(second)) = (first, second) else { return };
    // SAFETY: the verifier checked both against null, and the field lies within the value; volatile because programs on
    // other CPUs write it.
    let time_ns = |entry: *mut HandoffEntry| unsafe { (&raw const (*entry).handoff.time_ns).read_volatile() };
    let entry = if time_ns(first) <= time_ns(second) { first } else { second };
    // SAFETY: as above; the value is aligned for its type.
    unsafe { entry.write(HandoffEntry { flow: *flow, handoff: *handoff }) };
}

/// Returns the latest entry for a connection.
#[inline(always)]
pub(crate) fn find(flow: &FlowKey) -> Option<Handoff> {
    let handoff = find_or_default(flow);
    (handoff.time_ns != 0).then_some(handoff)
}

/// Like [`find`], but a choice with the time 0 and [`NO_SLOT`] stands for none. Neither has a closure or an `Option` for an entry: the
/// compiler emitted a function for the closure, or read a value that was not set, and the verifier refused
/// `ingress_lookup`.
#[inline(always)]
pub(crate) fn find_or_default(flow: &FlowKey) -> Handoff {
    let [first, second] = handoff_places(flow);
    // A retransmitted SYN has two entries.
    let (first, second) = (at(first, flow), at(second, flow));
    if first.time_ns >= second.time_ns { first } else { second }
}

#[inline(always)]
fn at(place: u32, flow: &FlowKey) -> Handoff {
    match HANDOFFS.get(place) {
        Some(entry) if is_same(&entry.flow, flow) => entry.handoff,
        _ => Handoff { slot: NO_SLOT, chosen_by: 0, time_ns: 0 },
    }
}

/// Compares field by field. For a comparison of all bytes the compiler emits some unaligned reads, which the verifier
/// refuses on the stack.
#[inline(always)]
fn is_same(a: &FlowKey, b: &FlowKey) -> bool {
    a.remote_port_be == b.remote_port_be
        && a.remote_addr == b.remote_addr
        && a.local_addr == b.local_addr
        && a.local_port_be == b.local_port_be
        && a.proto == b.proto
}
