//! Packet limits of clients, and the state kept for each client that has sent packets lately.

use crate::flow::{unmapped, v4_mapped};

/// Key of [`crate::map::CLIENTS`]: an IPv4 address, v4-mapped, or the first address of an IPv6 /64, the smallest
/// network that one customer gets. Aligned like [`crate::FlowKey`], for the same reason.
///
/// A client has a second entry for the packets of its open connections; its key has 1 in a byte that is 0 in the first
/// key. Source addresses are easy to forge, but the ports of a client's connections are hard to guess. Packets forged
/// in a client's name therefore take no tokens from its open connections.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ClientKey {
    pub addr: [u8; 16],
}

impl ClientKey {
    /// Returns the key for packets from `addr` (IPv4 as v4-mapped).
    #[must_use]
    #[inline(always)]
    pub const fn of(addr: &[u8; 16]) -> Self {
        if let Some(addr) = unmapped(addr) {
            return Self { addr: v4_mapped(addr) };
        }
        let &[a, b, c, d, e, f, g, h, ..] = addr;
        Self { addr: [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0] }
    }

    /// Value of the byte at [`Self::OPEN_AT`] in the key for a client's open connections.
    const OPEN: u8 = 1;
    /// Index of byte 8, which is 0 in a v4-mapped address and in the first address of a /64.
    const OPEN_AT: usize = 8;

    /// Returns the key of the same client for packets of its open connections.
    #[must_use]
    #[inline(always)]
    pub const fn open(self) -> Self {
        let Self { mut addr } = self;
        addr[Self::OPEN_AT] = Self::OPEN;
        Self { addr }
    }

    /// Returns the first key of the client, from either of its two keys.
    #[must_use]
    pub const fn client(self) -> Self {
        let Self { mut addr } = self;
        addr[Self::OPEN_AT] = 0;
        Self { addr }
    }
}

/// Value of [`crate::map::CLIENTS`].
///
/// A bucket is one number: the time at which it is full again. The time left until then is the deficit, counted in
/// units of [`Bucket::token_ns`], the time that one token takes to arrive. The bucket therefore refills by itself, with
/// no task to update it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClientEntry {
    /// Time at which the SYN bucket is full, by `bpf_ktime_get_ns`; a time in the past means full.
    pub syns_full_ns: u64,
    /// Time at which the packet bucket is full, as in `syns_full_ns`.
    pub packets_full_ns: u64,
    /// SYNs for which the SYN bucket had no token.
    pub limited_syns: u64,
    /// Packets for which the packet bucket had no token, including SYNs that did get a SYN token.
    pub limited_packets: u64,
    /// Time of the latest packet counted in either; 0 for never.
    pub limited_ns: u64,
}

/// Parameters of a token bucket; every client has its own bucket of each kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bucket {
    /// Time in which one token arrives; 0 means no limit.
    pub token_ns: u64,
    /// Time in which an empty bucket fills up.
    pub whole_ns: u64,
    /// Tokens per second. Only for readers of the map; programs ignore this field.
    pub per_second: u32,
    /// Capacity in tokens, likewise only for readers of the map.
    pub burst: u32,
}

impl Bucket {
    /// Creates a bucket of capacity `burst` that gains `per_second` tokens each second. There is no limit if either is
    /// 0. The time of a token is rounded down to nanoseconds, an error below a thousandth for rates of up to a million
    /// per second.
    #[must_use]
    pub const fn new(per_second: u32, burst: u32) -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        if per_second == 0 || burst == 0 {
            return Self { token_ns: 0, whole_ns: 0, per_second: 0, burst: 0 };
        }
        // Rates above a billion become a billion; rounding to 0 would mean no limit.
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
pub struct LimitBuckets {
    pub syns: Bucket,
    pub packets: Bucket,
    /// Bits of `LIMITS_*`.
    pub flags: u32,
    pub pad: u32,
}

/// Count packets above a limit, but let them pass.
pub const LIMITS_DRY_RUN: u32 = 1;

const _: () = assert!(size_of::<ClientKey>() == 16 && align_of::<ClientKey>() == 8);
const _: () = assert!(size_of::<ClientEntry>() == 40 && align_of::<ClientEntry>() == 8);
const _: () = assert!(size_of::<Bucket>() == 24 && align_of::<Bucket>() == 8);
const _: () = assert!(size_of::<LimitBuckets>() == 56 && align_of::<LimitBuckets>() == 8);
