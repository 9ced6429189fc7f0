//! `ingress_xdp`: sees what an interface receives before the stack does, in the driver or just behind it.

use aya_ebpf::{
    EbpfContext as _,
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    helpers::generated::bpf_xdp_get_buff_len,
    macros::xdp,
    programs::XdpContext,
};
use ingress_common::Total;
use ingress_ebpf::parse::{Place, Quoted, Segment, parse, quoted};

use crate::{
    linear::Linear,
    receive::{Fate, Received, receive},
    rewrite,
};

#[xdp(frags)]
fn ingress_xdp(ctx: XdpContext) -> u32 {
    match receive(&ctx) {
        Fate::Pass => XDP_PASS,
        Fate::Drop => XDP_DROP,
    }
}

impl Received for XdpContext {
    #[inline(always)]
    fn nic(&self) -> u32 {
        // SAFETY: the context this program was called with, valid for its whole run.
        unsafe { (*self.ctx).ingress_ifindex }
    }

    #[inline(always)]
    fn bytes(&self) -> u64 {
        // Not `data_end - data`: a frame in several buffers has more bytes than its first one.
        // SAFETY: as in `nic`.
        unsafe { bpf_xdp_get_buff_len(self.as_ptr().cast()) }
    }

    #[inline(always)]
    fn segment(&self) -> Result<Segment, Total> {
        // The first buffer holds all headers (kernel commit f45d5b6ce2e8, `xdp.frags`).
        parse(&Linear::new(self.data(), self.data_end()))
    }

    #[inline(always)]
    fn quoted(&self) -> Option<Quoted> {
        quoted(&Linear::new(self.data(), self.data_end()))
    }

    #[inline(always)]
    fn rewrite(&self, place: Place, from_be: u16, to_be: u16) {
        rewrite::by_xdp(self, place, from_be, to_be);
    }
}

/// A program that does nothing: what `ingress_xdp` is measured against. Never attached.
#[xdp(frags)]
fn ingress_bare(_: XdpContext) -> u32 {
    XDP_PASS
}
