//! How many packets each client may send, and what is known of those that have sent some.

use crate::flow::{unmapped, v4_mapped};

/// Key of [`crate::map::CLIENTS`]: an IPv4 address, v4-mapped, or the first address of a /64 of IPv6, which is what one
/// customer has at least. Aligned as [`crate::FlowKey`] is, for the same reason.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ClientKey {
    pub addr: [u8; 16],
}

impl ClientKey {
    /// The client that sends from `addr` (IPv4 as v4-mapped).
    #[must_use]
    #[inline(always)]
    pub const fn of(addr: &[u8; 16]) -> Self {
        if let Some(addr) = unmapped(addr) {
            return Self { addr: v4_mapped(addr) };
        }
        let &[a, b, c, d, e, f, g, h, ..] = addr;
        Self { addr: [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0] }
    }
}

/// Value of [`crate::map::CLIENTS`].
///
/// A bucket is one number, the time from which on it is full again. What it lacks now is how long that still takes,
/// counted in the time that one token takes to come ([`Bucket::token_ns`]). So it refills by itself, whoever looks at
/// it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Client {
    /// When the bucket of SYNs is full, by `bpf_ktime_get_ns`; what has gone by means full.
    pub syns_full_ns: u64,
    /// As `syns_full_ns`, of packets.
    pub packets_full_ns: u64,
    /// SYNs that found no token.
    pub limited_syns: u64,
    /// Packets that found none; SYNs for which there was one of SYNs are among them.
    pub limited_packets: u64,
    /// When the latest of either came; 0 for never.
    pub limited_ns: u64,
}

/// A token bucket, of each client one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bucket {
    /// Time in which one token comes; 0 for no limit.
    pub token_ns: u64,
    /// Time in which as many come as it holds.
    pub whole_ns: u64,
    /// Tokens that come in a second, for readers: no program looks at it.
    pub per_second: u32,
    /// Tokens that it holds, likewise.
    pub burst: u32,
}

impl Bucket {
    /// The bucket into which `per_second` tokens come, as long as there are fewer than `burst`. No limit if either is
    /// 0. A token's time is rounded down to nanoseconds: an error below a thousandth as long as a million of them come.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        if per_second == 0 || burst == 0 {
            return Self { token_ns: 0, whole_ns: 0, per_second: 0, burst: 0 };
        }
        // More than a billion are a billion, and not no limit.
        let token_ns = match SECOND_NS / per_second as u64 {
            0 => 1,
            token_ns => token_ns,
        };
        Self { token_ns, whole_ns: token_ns * burst as u64, per_second, burst }
    }

    #[must_use]
    #[inline(always)]
    pub const fn is_limit(&self) -> bool {
        self.token_ns != 0
    }
}

/// Value of [`crate::map::LIMITS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    pub syns: Bucket,
    pub packets: Bucket,
    /// Bits of `LIMITS_*`.
    pub flags: u32,
    pub pad: u32,
}

/// Count what is above a limit, and let it pass.
pub const LIMITS_DRY_RUN: u32 = 1;

const _: () = assert!(size_of::<ClientKey>() == 16 && align_of::<ClientKey>() == 8);
const _: () = assert!(size_of::<Client>() == 40 && align_of::<Client>() == 8);
const _: () = assert!(size_of::<Bucket>() == 24 && align_of::<Bucket>() == 8);
const _: () = assert!(size_of::<Limits>() == 56 && align_of::<Limits>() == 8);
