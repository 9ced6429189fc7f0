//! `ingress_xdp`: sees received packets before the stack does, in the driver or just behind it. `ingress_xdp_cookies`
//! also answers floods of SYNs, and is loaded in its place if that is wanted. Linux 5.9 to 5.17 use `ingress_xdp_linear`
//! instead, which sees frames of one buffer only and rewrites no ports.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
    helpers::generated::{bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
    macros::xdp,
    programs::XdpContext,
};
use ingress_common::Total;
use ingress_ebpf::{
    announce::{self, Question},
    forward::{ETHERNET_ADDRESSES, send_on},
    parse::{Ends, FieldOffsets, Frame as _, Quoted, Segment, ends, parse, quoted},
};

use crate::{
    linear::Linear,
    quic_checks::ingress_xdp_refuses_quic,
    receive::{PacketAction, Received, receive},
    rewrite,
    sockets::{TCP_LENGTH, TcpHeader},
    syn_cookies,
};

#[xdp(frags)]
#[inline(always)]
fn ingress_xdp(ctx: XdpContext) -> u32 {
    verdict(receive(&ctx, |_, _, _| None))
}

/// Does the same, and answers floods of SYNs by SYN cookies (`syn_cookies.rs`).
#[xdp(frags)]
#[inline(always)]
fn ingress_xdp_cookies(ctx: XdpContext) -> u32 {
    verdict(receive(&ctx, |segment, rule, bytes| syn_cookies::in_flood(&ctx, segment, rule, bytes)))
}

#[xdp]
#[inline(always)]
fn ingress_xdp_linear(ctx: XdpContext) -> u32 {
    verdict(receive(&OneBuffer(ctx), |_, _, _| None))
}

#[inline(always)]
const fn verdict(action: PacketAction) -> u32 {
    match action {
        PacketAction::Pass => XDP_PASS,
        PacketAction::Drop => XDP_DROP,
        PacketAction::Transmit => XDP_TX,
    }
}

/// A frame in one buffer. Programs without `xdp.frags` see no other frames.
struct OneBuffer(XdpContext);

impl Received for XdpContext {
    #[inline(always)]
    fn nic(&self) -> u32 {
        // SAFETY: the context belongs to this invocation of the program and is valid for its whole run.
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
    fn ends(&self) -> Option<Ends> {
        ends(&Linear::new(self.data(), self.data_end()))
    }

    #[inline(always)]
    fn quoted(&self) -> Option<Quoted> {
        quoted(&Linear::new(self.data(), self.data_end()))
    }

    #[inline(always)]
    fn question(&self, verdict: Total) -> Option<Question> {
        announce::question(&Linear::new(self.data(), self.data_end()), verdict)
    }

    #[inline(always)]
    fn answer(&self, question: &Question, mac: &[u8; 6]) -> bool {
        announce::answer(&mut Linear::new(self.data(), self.data_end()), question, mac)
    }

    #[inline(always)]
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        Linear::new(self.data(), self.data_end()).bytes(0).copied()
    }

    #[inline(always)]
    fn read_tcp_header(&self, offset: usize, header: &mut TcpHeader) -> bool {
        // SAFETY: the context is the one this program was called with, and `header` has as many bytes.
        unsafe { bpf_xdp_load_bytes(self.ctx, offset as u32, (&raw mut *header).cast(), TCP_LENGTH) == 0 }
    }

    #[inline(always)]
    fn is_refused_by_quic(&self, offset: usize, bytes: u64) -> bool {
        ingress_xdp_refuses_quic(self.ctx, offset, bytes) != 0
    }

    #[inline(always)]
    fn send_to(&self, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool {
        send_on(&mut Linear::new(self.data(), self.data_end()), addresses)
    }

    #[inline(always)]
    fn rewrite(&self, place: FieldOffsets, from_be: u16, to_be: u16) {
        rewrite::by_xdp(self, place, from_be, to_be);
    }
}

impl EbpfContext for OneBuffer {
    #[inline(always)]
    fn as_ptr(&self) -> *mut c_void {
        let Self(ctx) = self;
        ctx.as_ptr()
    }
}

impl Received for OneBuffer {
    #[inline(always)]
    fn nic(&self) -> u32 {
        let Self(ctx) = self;
        ctx.nic()
    }

    #[inline(always)]
    fn bytes(&self) -> u64 {
        let Self(ctx) = self;
        // Without a helper: `bpf_xdp_get_buff_len` arrived with multi-buffer frames (kernel commit 0165cc817075).
        (ctx.data_end() - ctx.data()) as u64
    }

    #[inline(always)]
    fn segment(&self) -> Result<Segment, Total> {
        let Self(ctx) = self;
        ctx.segment()
    }

    #[inline(always)]
    fn ends(&self) -> Option<Ends> {
        let Self(ctx) = self;
        ctx.ends()
    }

    #[inline(always)]
    fn quoted(&self) -> Option<Quoted> {
        None
    }

    #[inline(always)]
    fn question(&self, verdict: Total) -> Option<Question> {
        let Self(ctx) = self;
        ctx.question(verdict)
    }

    #[inline(always)]
    fn answer(&self, question: &Question, mac: &[u8; 6]) -> bool {
        let Self(ctx) = self;
        ctx.answer(question, mac)
    }

    #[inline(always)]
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        let Self(ctx) = self;
        ctx.ethernet()
    }

    /// Always `false`: the helper arrived with multi-buffer frames, as those of `is_rewritten`.
    #[inline(always)]
    fn read_tcp_header(&self, _: usize, _: &mut TcpHeader) -> bool {
        false
    }

    /// Always `false`: HTTP/3 was not tried with kernels that have no multi-buffer frames.
    #[inline(always)]
    fn is_refused_by_quic(&self, _: usize, _: u64) -> bool {
        false
    }

    #[inline(always)]
    fn send_to(&self, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool {
        let Self(ctx) = self;
        ctx.send_to(addresses)
    }

    /// Always `false`: the helpers that read and write ports arrived with multi-buffer frames (kernel commit
    /// 3f364222d032).
    #[inline(always)]
    fn is_rewritten(&self) -> bool {
        false
    }

    #[inline(always)]
    fn rewrite(&self, _: FieldOffsets, _: u16, _: u16) {}
}

/// An empty program, the baseline for measurements of `ingress_xdp`. Never attached.
#[xdp]
fn ingress_bare(_: XdpContext) -> u32 {
    XDP_PASS
}
