//! `ingress_lookup`: delivers new connections for steered ports to a worker's listener, independent of the address and
//! port to which that listener is bound. All other lookups are left to the stack.
//!
//! Linux 5.9 to 5.17 use `ingress_lookup_blind` instead, because their context lacks the interface of the packet.

use aya_ebpf::{
    bindings::{
        bpf_sk_lookup,
        sk_action::{SK_DROP, SK_PASS},
    },
    macros::sk_lookup,
    programs::SkLookupContext,
};
use aya_log_ebpf::debug;
use ingress_common::{
    FlowKey, Handoff, PortKey, Total,
    flow::{PROTO_TCP, v4_mapped},
    steer::default_worker,
};
use ingress_ebpf::decide::{LookupTarget, Node as _, WorkerChoice, route};

use crate::{
    count, deny, handoffs,
    maps::{LISTENERS, NICS},
    node::{Maps, count_choice},
    sockets,
};

#[sk_lookup]
fn ingress_lookup(ctx: SkLookupContext) -> u32 {
    look_up::<true>(&ctx)
}

#[sk_lookup]
fn ingress_lookup_blind(ctx: SkLookupContext) -> u32 {
    look_up::<false>(&ctx)
}

/// Looks a connection up. `SEES_NIC`: the context has the interface (since kernel commit f89315650ba3, Linux 5.17).
#[inline(always)]
fn look_up<const SEES_NIC: bool>(ctx: &SkLookupContext) -> u32 {
    let Some(mut flow) = flow(ctx) else { return SK_PASS };
    deliver::<SEES_NIC>(ctx, &mut flow)
}

#[inline(always)]
fn deliver<const SEES_NIC: bool>(ctx: &SkLookupContext, flow: &mut FlowKey) -> u32 {
    // Programs of interfaces look up TCP only.
    if flow.proto == PROTO_TCP && sockets::are_probed() {
        show(ctx, flow);
        return SK_PASS;
    }
    let (slot, event) = match route(&Maps, flow, deny::asked, handoffs::find) {
        LookupTarget::Leave => return SK_PASS,
        LookupTarget::Share(handoff) => {
            if let Some(handoff) = handoff {
                handoffs::leave(flow, &handoff);
            }
            count::total(Total::LookupLeft, 0);
            return SK_PASS;
        }
        LookupTarget::Deny => {
            count::total(Total::LookupDenied, 0);
            return SK_DROP;
        }
        LookupTarget::Chosen(slot) => (slot, Total::LookupDecided),
        LookupTarget::Late(slot) => (slot, Total::LookupLate),
        LookupTarget::Kept(slot) => (slot, by_default::<SEES_NIC>(ctx, flow)),
        LookupTarget::Default(choice) => {
            keep(flow, &choice);
            (choice.handoff.slot, by_default::<SEES_NIC>(ctx, flow))
        }
    };
    const NO_ENTRY: i32 = -2;
    let event = match LISTENERS.redirect_sk_lookup(ctx, slot, 0) {
        Ok(()) => event,
        Err(NO_ENTRY) => Total::SlotEmpty,
        Err(_) => Total::AssignFailed,
    };
    // Lookups have no frame, hence no bytes.
    count::total(event, 0);
    debug!(
        ctx,
        "lookup: [{:i}]:{} to slot {}, total {}",
        flow.remote_addr,
        u16::from_be(flow.remote_port_be),
        slot,
        event as u32
    );
    // Also for an empty slot: the stack's own lookup decides. Another listener of the port gets the connection, else it is
    // refused at once.
    SK_PASS
}

/// Shows a program of an interface the listener that got, or would get, the request of a connection. Nothing is counted or
/// stored.
#[inline(always)]
fn show(ctx: &SkLookupContext, flow: &mut FlowKey) {
    let port = PortKey { port_be: flow.local_port_be, proto: flow.proto, pad: 0 };
    let Some(rule) = Maps.rule(&port) else { return };
    if let Some(port_be) = rule.public() {
        flow.local_port_be = port_be;
    }
    let Handoff { slot, .. } = handoffs::find_or_default(flow);
    let is_chosen = slot.wrapping_sub(rule.first_slot) < rule.workers;
    let slot = if is_chosen { slot } else { rule.first_slot.wrapping_add(default_worker(flow, rule.workers)) };
    if rule.workers != 0 {
        let _none = LISTENERS.redirect_sk_lookup(ctx, slot, 0).is_err();
    }
}

/// Returns the event for a lookup by the default rule. If the interface is unknown, the lookup does not count as seen
/// by XDP.
#[inline(always)]
fn by_default<const SEES_NIC: bool>(ctx: &SkLookupContext, flow: &FlowKey) -> Total {
    if SEES_NIC && seen_before(ctx, flow) { Total::Undecided } else { Total::LookupDefault }
}

/// Stores the choice, so that later lookups of the connection find the same worker.
#[inline(always)]
fn keep(flow: &FlowKey, choice: &WorkerChoice) {
    let WorkerChoice { worker, handoff } = choice;
    handoffs::leave(flow, handoff);
    count_choice(*worker);
}

/// Returns `true` if the packet arrived on an interface with `ingress_xdp` or `ingress_tc_in`.
///
/// A packet that the node sends to one of its own addresses crosses loopback, but its route, and therefore the kernel,
/// names the interface that holds the address (`inet_iif`). The source address distinguishes the two cases: a packet
/// from outside cannot have an address of this node.
#[inline(always)]
fn seen_before(ctx: &SkLookupContext, flow: &FlowKey) -> bool {
    if Maps.holds(&flow.remote_addr) {
        return false;
    }
    // SAFETY: `ctx` is the context this program was called with.
    let ifindex = unsafe { (*ctx.lookup).ingress_ifindex };
    NICS.get_ptr(ifindex).is_some()
}

/// Returns the connection that is looked up, in the form that XDP uses; `None` for other address families.
#[inline(always)]
fn flow(ctx: &SkLookupContext) -> Option<FlowKey> {
    const AF_INET: u32 = 2;
    const AF_INET6: u32 = 10;
    // SAFETY: the context belongs to this invocation of the program and is valid for its whole run.
    let lookup: &bpf_sk_lookup = unsafe { &*ctx.lookup };
    // All four are read before the branch. LLVM merges reads in its arms into one read through a computed pointer,
    // which the verifier refuses ("dereference of modified ctx ptr"). The kernel returns 0 for fields of the other
    // family.
    let (remote4, local4) = (read(&lookup.remote_ip4), read(&lookup.local_ip4));
    let (remote6, local6) = (lookup.remote_ip6.each_ref().map(read), lookup.local_ip6.each_ref().map(read));
    let (remote_addr, local_addr) = match lookup.family {
        AF_INET => (v4_mapped(remote4.to_ne_bytes()), v4_mapped(local4.to_ne_bytes())),
        AF_INET6 => (address(remote6), address(local6)),
        _ => return None,
    };
    Some(FlowKey {
        remote_addr,
        local_addr,
        remote_port_be: lookup.remote_port,
        // The only port of this context in host byte order.
        local_port_be: (lookup.local_port as u16).to_be(),
        proto: lookup.protocol as u8,
        pad: 0,
        pad_end: 0,
    })
}

/// Returns an address in the byte order of the packet.
#[inline(always)]
fn address(words: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Reads a field of the context exactly here: the compiler cannot move the read.
#[inline(always)]
fn read(field: &u32) -> u32 {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::from_ref(field).read_volatile() }
}
