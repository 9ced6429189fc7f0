//! Packet memory that programs read directly, between `data` and `data_end` of the context.

use aya_ebpf::programs::TcContext;
use ingress_common::Total;
use ingress_ebpf::{
    announce::{self, FrameMut, Question},
    parse::{self, Ends, Frame, Quoted, Segment, parse},
};

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

/// Only for frames in XDP: others may share the memory of the stack's packets.
impl FrameMut for Linear {
    #[inline(always)]
    fn write<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        let at = self.start + offset;
        // As in `bytes`.
        if at + N > self.end {
            return false;
        }
        // SAFETY: as in `bytes`; `&mut self` is the only access.
        unsafe { (at as *mut [u8; N]).write_unaligned(*bytes) };
        true
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

/// Returns the question that a packet of the stack asks. Its headers are pulled into the linear part if they are not
/// there. Other packets are not touched.
#[inline(always)]
pub(crate) fn question(ctx: &TcContext, verdict: Total) -> Option<Question> {
    if !announce::may_be_question(&Linear::new(ctx.data(), ctx.data_end()), verdict) {
        return None;
    }
    if ctx.data_end() - ctx.data() < QUESTION && ctx.len() as usize > ctx.data_end() - ctx.data() {
        ctx.pull_data(ctx.len().min(HEADERS)).ok()?;
    }
    announce::question(&Linear::new(ctx.data(), ctx.data_end()), verdict)
}

/// Bytes of a question for an IPv6 address behind two VLAN tags.
const QUESTION: usize = 94;
