//! Puts one port in the place of another in a packet, and mends the checksum that covers it. The only place where
//! programs change packets, and only those of ports that [`ingress_common::PortRule::rewrite_be`] names.
//!
//! All by helpers: they need no bounds that the verifier could lose sight of behind so many headers.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    programs::{TcContext, XdpContext},
};
use ingress_common::steer::NIC_TRANSMITS;
use ingress_ebpf::{checksum::replaced, parse::Place};

use crate::maps::NICS;

/// Bytes of a port, and of a checksum.
const WORD: u32 = 2;

/// Whether ports are rewritten in what this interface receives: only where they are put right again in what it sends,
/// for half of that would be worse than nothing.
#[inline(always)]
pub(crate) fn is_on(nic: u32) -> bool {
    let Some(nic) = NICS.get_ptr(nic) else { return false };
    // SAFETY: the verifier checked `nic` against null; userspace replaces the whole element.
    unsafe { (*nic).flags & NIC_TRANSMITS != 0 }
}

/// In a frame that XDP sees. What cannot be read or written stays; whoever names the place has read beyond it.
#[inline(always)]
pub(crate) fn by_xdp(ctx: &XdpContext, place: Place, from_be: u16, to_be: u16) {
    let Place { port, checksum } = place;
    let mut sum = 0_u16;
    // SAFETY: the context is the one this program was called with, and `sum` has as many bytes.
    let read = unsafe { bpf_xdp_load_bytes(ctx.ctx, checksum as u32, (&raw mut sum).cast(), WORD) };
    if read == 0 {
        store(ctx.ctx, port, to_be);
        store(ctx.ctx, checksum, replaced(sum, from_be, to_be));
    }
}

/// In a packet of the stack. Packet memory that was read before may be elsewhere then.
#[inline(always)]
pub(crate) fn by_tc(ctx: &TcContext, place: Place, from_be: u16, to_be: u16) {
    let Place { port, checksum } = place;
    // A port is no part of a pseudo header: where the checksum is still to be computed it stays as it is.
    if ctx.l4_csum_replace(checksum, from_be.into(), to_be.into(), WORD.into()).is_ok() {
        let _stays = ctx.store(port, &to_be, 0).is_err();
    }
}

#[inline(always)]
fn store(ctx: *mut xdp_md, offset: usize, mut word: u16) {
    // SAFETY: as for reading; the helper reads `word` and does not keep it.
    let _stays = unsafe { bpf_xdp_store_bytes(ctx, offset as u32, (&raw mut word).cast(), WORD) };
}
