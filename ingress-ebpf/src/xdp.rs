//! `ingress_xdp`: counts every packet once, for its host if it is for a steered port, and chooses the worker of a new
//! connection. Drops what the deny list denies and what is above a client's limits, nothing else, and never changes a
//! packet.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{
        BPF_ANY,
        xdp_action::{XDP_DROP, XDP_PASS},
    },
    helpers::generated::bpf_xdp_get_buff_len,
    macros::xdp,
    programs::XdpContext,
};
use aya_log_ebpf::debug;
use ingress_common::{FlowKey, Total};
use ingress_ebpf::{
    decide::{Choice, Decision, decide},
    parse::{Segment, parse},
};

use crate::{
    clients, count,
    linear::Linear,
    maps::HANDOFF,
    node::{Maps, count_choice, host},
};

#[xdp(frags)]
fn ingress_xdp(ctx: XdpContext) -> u32 {
    // Not `data_end - data`: a frame in several buffers has more bytes than its first one.
    // SAFETY: `ctx` is the context this program was called with.
    let bytes = unsafe { bpf_xdp_get_buff_len(ctx.as_ptr().cast()) };
    // The first buffer holds all headers (kernel commit f45d5b6ce2e8, `xdp.frags`).
    match parse(&Linear::new(ctx.data(), ctx.data_end())) {
        Ok(segment) => act(&ctx, &segment, bytes),
        Err(verdict) => leave(verdict, bytes),
    }
}

/// Carries out the decision on a TCP or UDP packet.
#[inline(always)]
fn act(ctx: &XdpContext, segment: &Segment, bytes: u64) -> u32 {
    let Segment { flow, tcp_flags: _ } = segment;
    match decide(&Maps, segment, |now_ns| clients::limited(flow, segment.is_request(), now_ns, bytes)) {
        Decision::Leave(verdict) => return leave(verdict, bytes),
        Decision::Deny(rule) => {
            count::denied(rule, bytes);
            return XDP_DROP;
        }
        Decision::Limit(verdict) => {
            count::total(verdict, bytes);
            return XDP_DROP;
        }
        Decision::Accept => {}
        Decision::Steer(choice) => hand_off(ctx, flow, &choice, bytes),
        Decision::Stale => count::total(Total::HeartbeatStale, bytes),
    }
    count::accepted(nic(ctx), host(flow), bytes);
    XDP_PASS
}

/// Counts what is not for this ingress, and lets it go its way.
#[inline(always)]
fn leave(verdict: Total, bytes: u64) -> u32 {
    count::total(verdict, bytes);
    XDP_PASS
}

/// Leaves the choice of a worker for `ingress_lookup`.
#[inline(always)]
fn hand_off(ctx: &XdpContext, flow: &FlowKey, choice: &Choice, bytes: u64) {
    let Choice { worker, handoff } = choice;
    let event = match HANDOFF.insert(flow, handoff, u64::from(BPF_ANY)) {
        Ok(()) => {
            count_choice(*worker);
            Total::Decided
        }
        Err(_) => Total::HandoffFull,
    };
    count::total(event, bytes);
    debug!(ctx, "xdp: [{:i}]:{} to slot {}", flow.remote_addr, u16::from_be(flow.remote_port_be), handoff.slot);
}

/// The index of the interface that received the frame.
#[inline(always)]
fn nic(ctx: &XdpContext) -> u32 {
    // SAFETY: `ctx` is the context this program was called with, valid for its whole run.
    unsafe { (*ctx.ctx).ingress_ifindex }
}

/// A program that does nothing: what `ingress_xdp` is measured against. Never attached.
#[xdp(frags)]
fn ingress_bare(_: XdpContext) -> u32 {
    XDP_PASS
}
