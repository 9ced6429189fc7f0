//! Packet rate limits per client, regardless of content. No packet is read here.

use std::num::NonZeroU32;

/// Limits of each client, an IPv4 address or a /64 of IPv6. Kernel programs enforce them, if attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimitSettings {
    /// New connections (SYN packets).
    pub syns: PacketLimit,
    /// Packets of any kind.
    pub packets: PacketLimit,
    /// Dry run: packets above a limit are counted but pass. Default false.
    pub is_dry_run: bool,
}

/// A rate of packets with a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketLimit {
    /// Sustained rate. Default unlimited.
    pub per_second: Option<NonZeroU32>,
    /// Number of packets at once after a pause. Default the packets of one second.
    pub burst: Option<NonZeroU32>,
}
