//! How much each client may send to a node, whatever it is about. It reads no packet.

use std::num::NonZeroU32;

/// Limits of each client, an address of IPv4 or a /64 of IPv6, that kernel programs enforce, where there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections that it asks for.
    pub syns: PacketLimit,
    /// Packets of any kind.
    pub packets: PacketLimit,
    /// Whether what is above a limit is counted and passes. Default false.
    pub is_dry_run: bool,
}

/// How many packets of some kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketLimit {
    /// In the long run. Default any number.
    pub per_second: Option<NonZeroU32>,
    /// At once, after a pause. Default as many as in a second.
    pub burst: Option<NonZeroU32>,
}
