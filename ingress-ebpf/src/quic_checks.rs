//! Drops datagrams of QUIC that no process of the node can have asked for, before a socket gets them (ADR 0060).
//!
//! A check is a function of its own, with numbers and the context for arguments. The verifier walks such a global function
//! once, and not for each state of its callers. Its frame must fit beside that of the largest caller, so it keeps what it
//! reads in registers.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use ingress_common::{
    Total,
    steer::{HEARTBEAT_STALE_NS, fresh},
};
use ingress_ebpf::{
    decide::Node as _,
    quic::{Datagram, QuicNode as _},
};

use crate::{count, node::Maps};

/// Length of the header of UDP.
const UDP: usize = 8;
/// Bound on the offset of that header, above all that the parser reaches.
const OFFSET_MAX: usize = 0x3fff;

/// Counts a datagram of `bytes` that is to be dropped, and returns 1; 0 for others. `offset` is that of its header of UDP.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn ingress_xdp_refuses_quic(ctx: *mut xdp_md, offset: usize, bytes: u64) -> u32 {
    // SAFETY: the callers pass their context, which is valid for their whole run.
    let (start, end) = unsafe { ((*ctx).data as usize, (*ctx).data_end as usize) };
    refuses(start, end, offset, bytes)
}

/// Does the same for a packet of the stack. A train that GRO has merged passes: only its first datagram could be read.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn ingress_tc_refuses_quic(ctx: *mut __sk_buff, offset: usize, bytes: u64) -> u32 {
    // SAFETY: as in `ingress_xdp_refuses_quic`.
    let (start, end, segment) = unsafe { ((*ctx).data as usize, (*ctx).data_end as usize, (*ctx).gso_size) };
    if segment != 0 {
        return 0;
    }
    refuses(start, end, offset, bytes)
}

#[inline(always)]
fn refuses(start: usize, end: usize, offset: usize, bytes: u64) -> u32 {
    let Some(verdict) = refused(start, end, offset) else { return 0 };
    // Only now: most datagrams need no clock. While the proxy hangs, or another program has the port, no datagram is
    // dropped.
    if !fresh(Maps.now_ns(), Maps.heartbeat_ns(), HEARTBEAT_STALE_NS) {
        return 0;
    }
    if matches!(verdict, Total::QuicUnknown) && !Maps.has_all_keys() {
        return 0;
    }
    count::total(verdict, bytes);
    1
}

/// Returns the reason to drop the datagram whose header is at `offset` in this memory. One that cannot be read passes.
#[inline(always)]
fn refused(start: usize, end: usize, offset: usize) -> Option<Total> {
    if offset > OFFSET_MAX {
        return None;
    }
    let at = start + offset;
    if at + UDP + Datagram::HEAD <= end {
        let word = |offset: usize| {
            // SAFETY: within the packet, as checked above; the verifier has seen it.
            u64::from_le(unsafe { ((at + offset) as *const u64).read_unaligned() })
        };
        // The last word ends with the head, so it overlaps the one before by two bytes.
        let words = [word(UDP), word(UDP + 8), word(UDP + Datagram::HEAD - 8)];
        let length = length(at);
        return if (length as usize) < Datagram::HEAD {
            Some(Total::QuicUnknown)
        } else {
            Datagram { length, words }.refused(&Maps)
        };
    }
    // In several buffers, or shorter than the head.
    if at + UDP > end {
        return None;
    }
    ((length(at) as usize) < Datagram::HEAD).then_some(Total::QuicUnknown)
}

/// Returns the bytes of the payload of the datagram whose header is at this place.
#[inline(always)]
fn length(at: usize) -> u16 {
    const LENGTH: usize = 4;
    // SAFETY: the callers have checked that the header is within the packet.
    let both = unsafe { ((at + LENGTH) as *const u16).read_unaligned() };
    u16::from_be(both).saturating_sub(UDP as u16)
}
