//! `ingress_xdp`: counts every packet once, for its host if it is for a steered port, and chooses the worker of a new
//! connection. Drops what the deny list denies and nothing else, and never changes a packet.

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
use ingress_common::{FlowKey, Handoff, HostId, Total, flow::UNATTRIBUTED};
use ingress_ebpf::{
    decide::{Decision, decide},
    parse::{Frame, Segment, parse},
};

use crate::{
    count,
    maps::{FLOWS, HANDOFF},
    node::Maps,
};

#[xdp(frags)]
fn ingress_xdp(ctx: XdpContext) -> u32 {
    // Not `data_end - data`: a frame in several buffers has more bytes than its first one.
    // SAFETY: `ctx` is the context this program was called with.
    let bytes = unsafe { bpf_xdp_get_buff_len(ctx.as_ptr().cast()) };
    match parse(&Linear::of(&ctx)) {
        Ok(segment) => act(&ctx, &segment, bytes),
        Err(verdict) => leave(verdict, bytes),
    }
}

/// Carries out the decision on a TCP or UDP packet.
#[inline(always)]
fn act(ctx: &XdpContext, segment: &Segment, bytes: u64) -> u32 {
    let Segment { flow, tcp_flags: _ } = segment;
    match decide(&Maps, segment) {
        Decision::Leave(verdict) => return leave(verdict, bytes),
        Decision::Deny(rule) => {
            count::denied(rule, bytes);
            return XDP_DROP;
        }
        Decision::Accept => {}
        Decision::Steer(handoff) => hand_off(ctx, flow, &handoff, bytes),
        Decision::Stale => count::total(Total::HeartbeatStale, bytes),
    }
    count::accepted(host(flow), bytes);
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
fn hand_off(ctx: &XdpContext, flow: &FlowKey, handoff: &Handoff, bytes: u64) {
    let event = match HANDOFF.insert(flow, handoff, u64::from(BPF_ANY)) {
        Ok(()) => Total::Decided,
        Err(_) => Total::HandoffFull,
    };
    count::total(event, bytes);
    debug!(ctx, "xdp: [{:i}]:{} to slot {}", flow.remote_addr, u16::from_be(flow.remote_port_be), handoff.slot);
}

/// The host of the latest request on this connection.
#[inline(always)]
fn host(flow: &FlowKey) -> HostId {
    // SAFETY: the program never writes this map; an element freed meanwhile stays readable until the program ends (RCU).
    unsafe { FLOWS.get(flow) }.map_or(UNATTRIBUTED, |flow| flow.host_id)
}

/// The first buffer of a frame, which holds all headers (kernel commit f45d5b6ce2e8, `xdp.frags`).
struct Linear {
    start: usize,
    end: usize,
}

impl Linear {
    #[inline(always)]
    fn of(ctx: &XdpContext) -> Self {
        Self { start: ctx.data(), end: ctx.data_end() }
    }
}

impl Frame for Linear {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let at = self.start + offset;
        // This form and no other: the verifier learns the range from `at + N` compared with the end.
        if at + N > self.end {
            return None;
        }
        // SAFETY: `N` bytes from `at` lie within the frame, which outlives `self`; byte arrays have no alignment.
        Some(unsafe { &*(at as *const [u8; N]) })
    }
}

/// A program that does nothing: what `ingress_xdp` is measured against. Never attached.
#[xdp(frags)]
fn ingress_bare(_: XdpContext) -> u32 {
    XDP_PASS
}
