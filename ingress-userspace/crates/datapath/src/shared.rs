//! State that the handles of a datapath share: the pins, the maps and the heartbeat.

use std::{net::IpAddr, sync::atomic::AtomicU64};

use crate::{alive::Life, maps::Maps, pins::Pins, share::ShareWord, table::MapTable};
use ingress_common::{Move, MoveKey, NicMac, flow::v4_mapped};

/// State shared by the handles of a [`Datapath`](crate::Datapath).
#[derive(Debug)]
pub(crate) struct DatapathShared {
    pub(crate) pins: Pins,
    pub(crate) maps: Maps,
    /// Not among `maps`, because tools also read the pins of versions that lack it.
    pub(crate) nic_macs: MapTable<u32, NicMac>,
    /// Not among `maps`, for the same reason.
    pub(crate) moves: MapTable<MoveKey, Move>,
    /// Not among `maps`, for the same reason.
    pub(crate) share: ShareWord,
    pub(crate) life: Life,
    /// Number of connections that did not fit in `flows` and are not yet in `totals`.
    pub(crate) flows_full: AtomicU64,
}

/// Converts an address to the form of the maps: IPv4 as v4-mapped.
pub(crate) fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4_mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}
