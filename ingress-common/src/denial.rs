//! Who is denied for some time, beside those whom the configuration names. Userspace alone reads and writes these maps;
//! what follows from them stands in [`crate::map::DENY4`] and [`crate::map::DENY6`].

use crate::text;

/// Key of [`crate::map::DENIALS`]: a network, and who asks for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DenialKey {
    /// One of `ORIGIN_*`.
    pub origin: u32,
    /// Of 128 bits. IPv4 stands here v4-mapped, so that its prefixes are 96 longer than they are written.
    pub prefix_len: u32,
    pub addr: [u8; 16],
}

/// An operator, by `xdp-ingress deny add`.
pub const ORIGIN_OPERATOR: u32 = 1;
/// A process, because of what the proxy had to refuse.
pub const ORIGIN_ESCALATION: u32 = 2;

/// Value of [`crate::map::DENIALS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Denial {
    /// `CLOCK_MONOTONIC`, as the heartbeat; 0 for one that stands until it is removed.
    pub expires_ns: u64,
    pub reason: Reason,
}

/// Why, for people: printable ASCII, zero-padded.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    pub text: [i8; 48],
}

/// Longest text that [`Reason`] holds.
pub const REASON_MAX: usize = 47;

/// Bits of the values of [`crate::map::DENY_CONFIG`]: the network is denied.
pub const CONFIG_DENIES: u32 = 1;
/// Whoever is in the network may speak for others, and is never denied.
pub const CONFIG_TRUSTS: u32 = 2;
/// Clients are limited, but for whoever is in the network: it stands in the tries even where nothing denies it.
pub const CONFIG_SPARES: u32 = 4;

impl Reason {
    /// `None` for a text that is longer than [`REASON_MAX`] or not of printable ASCII.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if is_printable { text::padded(text).map(|text| Self { text }) } else { None }
    }
}

impl Default for Reason {
    fn default() -> Self {
        Self { text: [0; 48] }
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        text::show(&self.text, f)
    }
}

impl core::fmt::Debug for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Reason({self})")
    }
}

const _: () = assert!(size_of::<Reason>() == REASON_MAX + 1);
const _: () = assert!(size_of::<DenialKey>() == 24 && align_of::<DenialKey>() == 4);
const _: () = assert!(size_of::<Denial>() == 56 && align_of::<Denial>() == 8);
