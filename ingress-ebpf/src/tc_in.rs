//! `ingress_tc_in`: sees received packets on interfaces where `ingress_xdp` cannot be attached, because the driver does
//! not support XDP or another program is attached already. The packet already belongs to the stack: segments merged by
//! GRO are one packet with one header, as in generic XDP.

use aya_ebpf::{
    bindings::{
        __sk_buff,
        tcx_action_base::{TCX_DROP, TCX_NEXT, TCX_REDIRECT},
    },
    helpers::generated::bpf_skb_load_bytes,
    macros::classifier,
    programs::TcContext,
};
use ingress_common::Total;
use ingress_ebpf::{
    announce::Question,
    forward::ETHERNET_ADDRESSES,
    parse::{Ends, FieldOffsets, Frame as _, Quoted, Segment},
};

use crate::{
    linear::{self, Linear},
    neighbours,
    quic_checks::ingress_tc_refuses_quic,
    receive::{PacketAction, Received, receive},
    rewrite,
    sockets::{TCP_LENGTH, TcpHeader},
};

#[classifier]
#[inline(always)]
fn ingress_tc_in(ctx: TcContext) -> i32 {
    match receive(&ctx, |_, _, _| None) {
        // The same numbers as clsact's TC_ACT_UNSPEC, TC_ACT_SHOT and TC_ACT_REDIRECT. After a pass the next program runs.
        PacketAction::Pass => TCX_NEXT,
        PacketAction::Drop => TCX_DROP,
        PacketAction::Transmit => TCX_REDIRECT,
    }
}

impl Received for TcContext {
    #[inline(always)]
    fn nic(&self) -> u32 {
        // SAFETY: the context this program was called with, valid for its whole run.
        let packet: &__sk_buff = unsafe { &*self.skb.skb };
        packet.ifindex
    }

    #[inline(always)]
    fn bytes(&self) -> u64 {
        // Not `wire_len`, which lacks the link header here.
        u64::from(self.len())
    }

    #[inline(always)]
    fn segment(&self) -> Result<Segment, Total> {
        linear::segment(self)
    }

    #[inline(always)]
    fn ends(&self) -> Option<Ends> {
        linear::ends(self)
    }

    #[inline(always)]
    fn quoted(&self) -> Option<Quoted> {
        linear::quoted(self)
    }

    #[inline(always)]
    fn question(&self, verdict: Total) -> Option<Question> {
        linear::question(self, verdict)
    }

    #[inline(always)]
    fn answer(&self, question: &Question, mac: &[u8; 6]) -> bool {
        neighbours::by_tc(self, question, mac)
    }

    #[inline(always)]
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        Linear::new(self.data(), self.data_end()).bytes(0).copied()
    }

    #[inline(always)]
    fn read_tcp_header(&self, offset: usize, header: &mut TcpHeader) -> bool {
        let packet = self.skb.skb.cast_const().cast();
        // SAFETY: the context is the one this program was called with, and `header` has as many bytes.
        unsafe { bpf_skb_load_bytes(packet, offset as u32, (&raw mut *header).cast(), TCP_LENGTH) == 0 }
    }

    #[inline(always)]
    fn is_refused_by_quic(&self, offset: usize, bytes: u64) -> bool {
        ingress_tc_refuses_quic(self.skb.skb, offset, bytes) != 0
    }

    #[inline(always)]
    fn send_to(&self, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool {
        neighbours::send_by_tc(self, addresses)
    }

    #[inline(always)]
    fn rewrite(&self, place: FieldOffsets, from_be: u16, to_be: u16) {
        rewrite::by_tc(self, place, from_be, to_be);
    }
}
