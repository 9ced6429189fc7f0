//! Notes which worker a connection has been given, and finds the note again.
//!
//! Programs on all CPUs share the notes and wait for nobody. A note that two write at once may be of both: its slot is
//! checked against the rule of the port, and its time is that of one of them.

use ingress_common::{FlowKey, Handoff, HandoffEntry, steer::handoff_places};

use crate::maps::HANDOFFS;

/// Leaves a note in place of an older one.
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

/// The latest note for a connection.
#[inline(always)]
pub(crate) fn find(flow: &FlowKey) -> Option<Handoff> {
    let [first, second] = handoff_places(flow).map(|place| {
        let HandoffEntry { flow: noted, handoff } = HANDOFFS.get(place)?;
        is_same(noted, flow).then_some(*handoff)
    });
    match (first, second) {
        // A SYN that is sent again has two.
        (Some(first), Some(second)) => Some(if first.time_ns >= second.time_ns { first } else { second }),
        (first, second) => first.or(second),
    }
}

/// Field by field: of all bytes at once the compiler compares some without regard to their alignment, which the
/// verifier refuses on the stack.
#[inline(always)]
fn is_same(a: &FlowKey, b: &FlowKey) -> bool {
    a.remote_port_be == b.remote_port_be
        && a.remote_addr == b.remote_addr
        && a.local_addr == b.local_addr
        && a.local_port_be == b.local_port_be
        && a.proto == b.proto
}
