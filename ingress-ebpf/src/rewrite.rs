//! Replaces a port in a packet and updates the checksum that covers it, only for ports with
//! [`ingress_common::PortRule::rewrite_be`]. Other changes of packets are answers (`neighbours.rs`) and forwarded segments
//! (`sockets.rs`).
//!
//! All accesses use helpers, which need no bounds. With so many headers before the port, the verifier could lose track
//! of them.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    programs::{TcContext, XdpContext},
};
use ingress_common::steer::NIC_TRANSMITS;
use ingress_ebpf::{checksum::replaced, parse::FieldOffsets};

use crate::maps::NICS;

/// Bytes of a port or a checksum.
const WORD: u32 = 2;

/// Returns `true` if ports are rewritten in packets that this interface receives. That requires that they are restored
/// in packets that it sends, because one half without the other breaks connections.
#[inline(always)]
pub(crate) fn is_on(nic: u32) -> bool {
    let Some(nic) = NICS.get_ptr(nic) else { return false };
    // SAFETY: the verifier checked `nic` against null; userspace replaces the whole element.
    unsafe { (*nic).flags & NIC_TRANSMITS != 0 }
}

/// Rewrites a frame in XDP. On a failed read or write the bytes stay as they are; that does not happen, because the
/// parser has already read beyond this place.
#[inline(always)]
pub(crate) fn by_xdp(ctx: &XdpContext, place: FieldOffsets, from_be: u16, to_be: u16) {
    let FieldOffsets { port, checksum } = place;
    let mut sum = 0_u16;
    // SAFETY: the context is the one this program was called with, and `sum` has as many bytes.
    let read = unsafe { bpf_xdp_load_bytes(ctx.ctx, checksum as u32, (&raw mut sum).cast(), WORD) };
    if read == 0 {
        store(ctx.ctx, port, to_be);
        store(ctx.ctx, checksum, replaced(sum, from_be, to_be));
    }
}

/// Rewrites a packet of the stack. Pointers into the packet read before this call are invalid afterwards.
#[inline(always)]
pub(crate) fn by_tc(ctx: &TcContext, place: FieldOffsets, from_be: u16, to_be: u16) {
    let FieldOffsets { port, checksum } = place;
    // A port is not part of the pseudo header, so a checksum that is yet to be computed stays as it is.
    if ctx.l4_csum_replace(checksum, from_be.into(), to_be.into(), WORD.into()).is_ok() {
        let _stays = ctx.store(port, &to_be, 0).is_err();
    }
}

#[inline(always)]
fn store(ctx: *mut xdp_md, offset: usize, mut word: u16) {
    // SAFETY: as for reading; the helper reads `word` and does not keep it.
    let _stays = unsafe { bpf_xdp_store_bytes(ctx, offset as u32, (&raw mut word).cast(), WORD) };
}
