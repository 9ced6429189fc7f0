//! Packet memory that programs read directly: what lies between two addresses of the context.

use ingress_ebpf::parse::Frame;

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
