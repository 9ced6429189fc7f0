//! Temporary denials, in addition to the networks that the configuration denies. Only userspace reads and writes these
//! maps; their effect is the contents of [`crate::map::DENY4`] and [`crate::map::DENY6`].

use crate::text;

/// Key of [`crate::map::DENIALS`]: a network and the origin of its denial.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DenialKey {
    /// `ORIGIN_OPERATOR` or `ORIGIN_ESCALATION`.
    pub origin: u32,
    /// Prefix length out of 128 bits. IPv4 is stored v4-mapped, so its prefixes are 96 longer than in CIDR notation.
    pub prefix_len: u32,
    pub addr: [u8; 16],
}

/// Added by an operator with `xdp-ingress deny add`.
pub const ORIGIN_OPERATOR: u32 = 1;
/// Added by a process because the proxy had to refuse this client's requests.
pub const ORIGIN_ESCALATION: u32 = 2;

/// Value of [`crate::map::DENIALS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DenialValue {
    /// Expiry on `CLOCK_MONOTONIC`, the clock of the heartbeat; 0 means that the denial stays until it is removed.
    pub expires_ns: u64,
    pub reason: DenialReason,
}

/// Reason for a denial, for operators: printable ASCII, zero-padded.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DenialReason {
    pub text: [i8; 48],
}

/// Longest text that fits into [`DenialReason`].
pub const REASON_MAX: usize = 47;

/// Bit in the values of [`crate::map::DENY_CONFIG`]: the network is denied.
pub const CONFIG_DENIES: u32 = 1;
/// The network holds trusted proxies, which may speak for other addresses. It is never denied.
pub const CONFIG_TRUSTS: u32 = 2;
/// Clients are limited, but this network is exempt. Exempt networks are in the tries even if no entry denies them.
pub const CONFIG_SPARES: u32 = 4;

impl DenialReason {
    /// Creates a reason. Returns `None` if `text` is longer than [`REASON_MAX`] or not printable ASCII.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if is_printable { text::padded(text).map(|text| Self { text }) } else { None }
    }
}

impl Default for DenialReason {
    fn default() -> Self {
        Self { text: [0; 48] }
    }
}

impl core::fmt::Display for DenialReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        text::show(&self.text, f)
    }
}

impl core::fmt::Debug for DenialReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Reason({self})")
    }
}

const _: () = assert!(size_of::<DenialReason>() == REASON_MAX + 1);
const _: () = assert!(size_of::<DenialKey>() == 24 && align_of::<DenialKey>() == 4);
const _: () = assert!(size_of::<DenialValue>() == 56 && align_of::<DenialValue>() == 8);
