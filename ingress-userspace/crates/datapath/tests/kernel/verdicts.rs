//! Verdicts on a frame, as the kernel returns them from a test run.

pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_TX: u32 = 3;
pub(crate) const TCX_DROP: u32 = 2;
pub(crate) const TCX_REDIRECT: u32 = 7;
/// -1, as a number without sign.
pub(crate) const TCX_NEXT: u32 = u32::MAX;
