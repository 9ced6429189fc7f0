//! `ingress_tc_out`: counts what steered ports of this node send, for the host of the connection. It sees packets as
//! the stack hands them to an interface, before its queues, and lets every one of them go on to whatever comes next.
//!
//! The stack leaves it to the driver, or to the last moment, to cut large packets into segments. What is counted are
//! the segments: as many as there will be, and the bytes of all of them with a header each.

use aya_ebpf::{
    bindings::{__sk_buff, tcx_action_base::TCX_NEXT},
    macros::classifier,
    programs::TcContext,
};
use ingress_common::{Total, Traffic};
use ingress_ebpf::{
    decide::sent,
    parse::{Segment, parse},
};

use crate::{
    count,
    linear::Linear,
    node::{Maps, host},
};

/// Bytes that are brought into the linear part of a packet whose headers are not in it: two VLAN tags, an IP header
/// with more options or extensions than anybody sends, and a TCP header.
const HEADERS: u32 = 512;

#[classifier]
fn ingress_tc_out(ctx: TcContext) -> i32 {
    if let Some(flow) = segment(&ctx).as_ref().and_then(|segment| sent(&Maps, segment)) {
        // SAFETY: `ctx` is the context this program was called with, valid for its whole run.
        let packet: &__sk_buff = unsafe { &*ctx.skb.skb };
        // 0 segments: it is one already.
        let traffic = Traffic { packets: u64::from(packet.gso_segs.max(1)), bytes: u64::from(packet.wire_len) };
        count::transmitted(packet.ifindex, host(&flow), traffic);
    }
    // The same number as clsact's TC_ACT_UNSPEC: as if this program were not here.
    TCX_NEXT
}

/// What the packet is about, if it is of TCP or UDP.
#[inline(always)]
fn segment(ctx: &TcContext) -> Option<Segment> {
    match parse(&Linear::new(ctx.data(), ctx.data_end())) {
        // The stack writes headers into the linear part; whoever else sends a packet from an address of ours may not.
        Err(Total::Malformed) if ctx.pull_data(ctx.len().min(HEADERS)).is_ok() => {
            parse(&Linear::new(ctx.data(), ctx.data_end())).ok()
        }
        parsed => parsed.ok(),
    }
}
