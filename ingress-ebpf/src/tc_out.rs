//! `ingress_tc_out`: counts what steered ports of this node send, for the host of the connection, and gives what a
//! rewritten port sends the port that the client knows. It sees packets as the stack hands them to an interface, before
//! its queues, and lets every one of them go on to whatever comes next.
//!
//! The stack leaves it to the driver, or to the last moment, to cut large packets into segments. What is counted are
//! the segments: as many as there will be, and the bytes of all of them with a header each.

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
        // 0 segments: it is one already.
        let traffic = Traffic { packets: u64::from(packet.gso_segs.max(1)), bytes: u64::from(packet.wire_len) };
        count::transmitted(packet.ifindex, host(&flow), traffic);
        if let Some(port_be) = public_be {
            rewrite::by_tc(&ctx, segment.source_port(), segment.flow.remote_port_be, port_be);
        }
    }
    // The same number as clsact's TC_ACT_UNSPEC: as if this program were not here.
    TCX_NEXT
}
