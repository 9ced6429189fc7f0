//! `ingress_tc_out`: counts packets that steered ports of this node send, for the host of the connection, and replaces
//! a rewritten source port with the port that the client knows. It sees packets as the stack passes them to an
//! interface, before the queues, and lets all of them continue to the next program.
//!
//! The stack leaves the segmentation of large packets to the driver or to the last moment. The counters hold segments:
//! as many as there will be, and the bytes of all of them with a header each.

use aya_ebpf::{
    bindings::{__sk_buff, tcx_action_base::TCX_NEXT},
    macros::classifier,
    programs::TcContext,
};
use ingress_common::Traffic;
use ingress_ebpf::decide::{Sent, sent};

use crate::{
    count, linear,
    node::{Maps, host},
    rewrite,
};

#[classifier]
fn ingress_tc_out(ctx: TcContext) -> i32 {
    if let Ok(segment) = linear::segment(&ctx)
        && let Some(Sent { flow, public_be }) = sent(&Maps, &segment)
    {
        // SAFETY: `ctx` is the context this program was called with, valid for its whole run.
        let packet: &__sk_buff = unsafe { &*ctx.skb.skb };
        // 0 means that the packet is a single segment already.
        let traffic = Traffic { packets: u64::from(packet.gso_segs.max(1)), bytes: u64::from(packet.wire_len) };
        count::transmitted(packet.ifindex, host(&flow), traffic);
        if let Some(port_be) = public_be {
            rewrite::by_tc(&ctx, segment.source_port(), segment.flow.remote_port_be, port_be);
        }
    }
    // The same number as clsact's TC_ACT_UNSPEC: processing continues as if this program were not attached.
    TCX_NEXT
}
