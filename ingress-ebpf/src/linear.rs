//! Packet memory that programs read directly, between `data` and `data_end` of the context.

use aya_ebpf::programs::TcContext;
use ingress_common::Total;
use ingress_ebpf::parse::{self, Ends, Frame, Quoted, Segment, parse};

/// Bytes that are pulled into the linear part of a packet if it lacks the headers: enough for two VLAN tags, an IP
/// header with more options or extensions than real traffic has, and a TCP header.
const HEADERS: u32 = 512;

/// The first buffer of a frame (XDP), or the linear part of a packet (tc).
pub(crate) struct Linear {
    start: usize,
    end: usize,
}

impl Linear {
    /// Creates the range from `data` and `data_end` of the context, read after the last helper that moves packet
    /// memory.
    #[inline(always)]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

impl Frame for Linear {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let at = self.start + offset;
        // Exactly this form: the verifier learns the range from the comparison of `at + N` with the end.
        if at + N > self.end {
            return None;
        }
        // SAFETY: `N` bytes from `at` lie within the packet, which outlives `self`; byte arrays have no alignment.
        Some(unsafe { &*(at as *const [u8; N]) })
    }
}

/// Parses a packet of the stack. Returns the verdict for a packet that is neither TCP nor UDP.
#[inline(always)]
pub(crate) fn segment(ctx: &TcContext) -> Result<Segment, Total> {
    match parse(&Linear::new(ctx.data(), ctx.data_end())) {
        // The stack writes headers into the linear part, and most drivers leave them there; some may not.
        Err(Total::Malformed | Total::HiddenPort) if ctx.pull_data(ctx.len().min(HEADERS)).is_ok() => {
            parse(&Linear::new(ctx.data(), ctx.data_end()))
        }
        parsed => parsed,
    }
}

/// Returns the source and destination address of a packet of the stack.
#[inline(always)]
pub(crate) fn ends(ctx: &TcContext) -> Option<Ends> {
    parse::ends(&Linear::new(ctx.data(), ctx.data_end()))
}

/// Parses an ICMP error that the stack received. ICMP is rare, so the quoted segment is always pulled into the linear
/// part. Other packets, such as those of tunnels, are not touched.
#[inline(always)]
pub(crate) fn quoted(ctx: &TcContext) -> Option<Quoted> {
    if !parse::is_icmp(&Linear::new(ctx.data(), ctx.data_end())) {
        return None;
    }
    ctx.pull_data(ctx.len().min(HEADERS)).ok()?;
    parse::quoted(&Linear::new(ctx.data(), ctx.data_end()))
}
