//! Packet memory that programs read directly: what lies between two addresses of the context.

use aya_ebpf::programs::TcContext;
use ingress_common::Total;
use ingress_ebpf::parse::{self, Ends, Frame, Quoted, Segment, parse};

/// Bytes that are brought into the linear part of a packet whose headers are not in it: two VLAN tags, an IP header
/// with more options or extensions than anybody sends, and a TCP header.
const HEADERS: u32 = 512;

/// The first buffer of a frame (XDP), or the linear part of a packet (tc).
pub(crate) struct Linear {
    start: usize,
    end: usize,
}

impl Linear {
    /// `start` and `end` are `data` and `data_end` of the context, read after the last helper that moves packet memory.
    #[inline(always)]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start, end }
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
        // SAFETY: `N` bytes from `at` lie within the packet, which outlives `self`; byte arrays have no alignment.
        Some(unsafe { &*(at as *const [u8; N]) })
    }
}

/// What a packet of the stack is about, or the verdict on one that is of no TCP or UDP.
#[inline(always)]
pub(crate) fn segment(ctx: &TcContext) -> Result<Segment, Total> {
    match parse(&Linear::new(ctx.data(), ctx.data_end())) {
        // The stack writes headers into the linear part, and drivers mostly leave them there; others may not.
        Err(Total::Malformed | Total::HiddenPort) if ctx.pull_data(ctx.len().min(HEADERS)).is_ok() => {
            parse(&Linear::new(ctx.data(), ctx.data_end()))
        }
        parsed => parsed,
    }
}

/// Whom a packet of the stack is from and to.
#[inline(always)]
pub(crate) fn ends(ctx: &TcContext) -> Option<Ends> {
    parse::ends(&Linear::new(ctx.data(), ctx.data_end()))
}

/// What an ICMP error of the stack says of a segment. ICMP is rare, so what it quotes is always brought into the linear
/// part; of anything else (tunnels) nothing is.
#[inline(always)]
pub(crate) fn quoted(ctx: &TcContext) -> Option<Quoted> {
    if !parse::is_icmp(&Linear::new(ctx.data(), ctx.data_end())) {
        return None;
    }
    ctx.pull_data(ctx.len().min(HEADERS)).ok()?;
    parse::quoted(&Linear::new(ctx.data(), ctx.data_end()))
}
