//! Client limits in the kernel: brings them to the wanted state, and reports limited clients. The rates come from the
//! caller; exempt networks are part of the deny list.

use std::{
    cmp::Reverse,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use super::{error::Error, flags::PortFlags, maps::Maps, shared::DatapathShared, sys};
use ingress_common::{
    Bucket, ClientEntry, ClientKey, LimitBuckets,
    flow::unmapped,
    limit::LIMITS_DRY_RUN,
    map::LIMITS_ALL,
    steer::{PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS},
};

/// Packet limits of each client for the ports of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Limit of new connections. Default unlimited.
    pub syns: Option<PacketRate>,
    /// Limit of packets of any kind, including SYNs. Packets of open TCP connections are counted separately, against a
    /// second limit of the same size. Default unlimited.
    pub packets: Option<PacketRate>,
    /// Dry run: packets above a limit are counted but pass. Default false.
    pub is_dry_run: bool,
}

/// A rate of packets with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRate {
    /// Sustained rate. The kernel part is exact to a thousandth up to a million.
    pub per_second: NonZeroU32,
    /// Number of packets at once after a pause.
    pub burst: NonZeroU32,
}

/// The limits of this node. Like all maps, they outlive processes; they apply while one of them sends heartbeats.
#[derive(Debug)]
pub struct ClientLimiter {
    shared: Arc<DatapathShared>,
    /// Whether the programs apply limits.
    flags: PortFlags,
}

/// A client that exceeded its limits, as long as the kernel remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedClient {
    /// An IPv4 address, or a /64 of IPv6.
    pub client: IpNet,
    /// SYNs above the limit, since the limits last changed.
    pub syns: u64,
    /// Other packets above their limit, and SYNs above that limit only.
    pub packets: u64,
    /// Time since the latest of them.
    pub ago: Duration,
}

// === impl ClientLimits ===

impl ClientLimits {
    /// Returns whether any limit is set.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.syns.is_some() || self.packets.is_some()
    }

    /// Converts the limits to the form of the programs.
    fn in_kernel(self) -> LimitBuckets {
        let Self { syns, packets, is_dry_run } = self;
        let bucket = |rate: Option<PacketRate>| {
            rate.map_or_else(Bucket::default, |PacketRate { per_second, burst }| {
                Bucket::new(per_second.get(), burst.get())
            })
        };
        let flags = if is_dry_run && self.is_on() { LIMITS_DRY_RUN } else { 0 };
        LimitBuckets { syns: bucket(syns), packets: bucket(packets), flags, pad: 0 }
    }

    pub(super) fn from_kernel(limits: LimitBuckets) -> Self {
        let LimitBuckets { syns, packets, flags, pad: _ } = limits;
        let rate = |bucket: Bucket| {
            let Bucket { per_second, burst, .. } = bucket;
            Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
        };
        Self { syns: rate(syns), packets: rate(packets), is_dry_run: flags & LIMITS_DRY_RUN != 0 }
    }
}

// === impl ClientLimiter ===

impl ClientLimiter {
    /// Reads the existing limits.
    pub(super) fn read(shared: Arc<DatapathShared>) -> Result<Self, Error> {
        let limits = shared.maps.client_limits()?;
        Ok(Self { shared, flags: PortFlags::new(PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS, flags(limits)) })
    }

    /// Sets the limits to `wanted`, and returns whether they changed. After a change, every client starts with full
    /// buckets and zero counters, because the level of a bucket means nothing for a bucket of another size. During the
    /// change, up to some 0.1 s, nothing is limited.
    ///
    /// Must be called by the owner of the node, under the lock held by [`super::Datapath::take_over_with`], once the
    /// exempt networks are in the deny list ([`super::DenyConfig::sparing`]).
    ///
    /// # Errors
    /// Fails with [`Error::Kernel`], after which there are either no limits or the previous ones; another call
    /// completes the change.
    pub fn set(&self, wanted: ClientLimits) -> Result<bool, Error> {
        let maps = &self.shared.maps;
        let is_change = maps.limits.get(&LIMITS_ALL)?.unwrap_or_default() != wanted.in_kernel();
        if is_change {
            // Limits are off until all buckets are cleared. A process that dies here then leaves no limits, rather than
            // new limits with old buckets.
            maps.limits.set(&LIMITS_ALL, &LimitBuckets::default())?;
            self.flags.set(0, &maps.ports)?;
            for (client, _) in maps.clients.entries()? {
                maps.clients.remove(&client)?;
            }
            maps.limits.set(&LIMITS_ALL, &wanted.in_kernel())?;
        }
        self.flags.set(flags(wanted), &maps.ports)?;
        Ok(is_change)
    }

    /// Adds the flags for the limits to those of a port.
    pub(super) fn flags(&self, flags: u16) -> u16 {
        self.flags.apply(flags)
    }
}

/// Returns the port flags for these limits.
const fn flags(limits: ClientLimits) -> u16 {
    let syns = if limits.syns.is_some() { PORT_LIMITS_SYNS } else { 0 };
    let packets = if limits.packets.is_some() { PORT_LIMITS_PACKETS } else { 0 };
    syns | packets
}

// === impl LimitedClient ===

impl LimitedClient {
    /// Returns `None` for a client that never exceeded its limits.
    pub(super) fn of(key: ClientKey, client: ClientEntry, now_ns: u64) -> Option<Self> {
        let ClientEntry { limited_syns: syns, limited_packets: packets, limited_ns, .. } = client;
        let ClientKey { addr } = key.client();
        let client = match unmapped(&addr) {
            Some(addr) => IpNet::from(IpAddr::from(addr)),
            None => IpNet::new_assert(Ipv6Addr::from(addr).into(), 64),
        };
        let ago = Duration::from_nanos(now_ns.saturating_sub(limited_ns));
        (limited_ns != 0).then_some(Self { client, syns, packets, ago })
    }

    /// Merges entries per client: packets on its open connections have a separate entry in the map.
    pub(super) fn joined(mut entries: Vec<Self>) -> Vec<Self> {
        entries.sort_by_key(|entry| entry.client);
        entries.dedup_by(|other, kept| {
            let is_same = other.client == kept.client;
            if is_same {
                kept.syns = kept.syns.saturating_add(other.syns);
                kept.packets = kept.packets.saturating_add(other.packets);
                kept.ago = kept.ago.min(other.ago);
            }
            is_same
        });
        entries
    }

    /// Returns the number of all packets above a limit.
    #[must_use]
    pub const fn limited(&self) -> u64 {
        self.syns.saturating_add(self.packets)
    }
}

// === impl Maps ===

impl Maps {
    /// Returns the limits of each client.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn client_limits(&self) -> Result<ClientLimits, Error> {
        Ok(ClientLimits::from_kernel(self.limits.get(&LIMITS_ALL)?.unwrap_or_default()))
    }

    /// Returns the clients that exceeded their limits, those with the most packets above them first. Reads all recently
    /// active clients, about 0.1 µs for each.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn limited_clients(&self) -> Result<Vec<LimitedClient>, Error> {
        let (now, mut limited) = (sys::now_ns(), Vec::new());
        self.clients.scan(|key, client| limited.extend(LimitedClient::of(*key, *client, now)))?;
        let mut limited = LimitedClient::joined(limited);
        limited.sort_by_key(|client| (Reverse(client.limited()), client.client));
        Ok(limited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Option<PacketRate> {
        Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
    }

    #[test]
    fn limits_round_trip_through_their_kernel_form() {
        for limits in [
            ClientLimits::default(),
            ClientLimits { syns: rate(50, 100), packets: None, is_dry_run: false },
            ClientLimits { syns: None, packets: rate(700_000, 1), is_dry_run: true },
            ClientLimits { syns: rate(1, 1_000_000), packets: rate(3, 7), is_dry_run: false },
        ] {
            assert_eq!(ClientLimits::from_kernel(limits.in_kernel()), limits);
            assert_eq!(flags(limits) != 0, limits.is_on());
        }
        // Without limits, the dry run has no effect, so there is no change.
        let nothing = ClientLimits { is_dry_run: true, ..ClientLimits::default() };
        assert_eq!(nothing.in_kernel(), LimitBuckets::default());
    }

    #[test]
    fn limited_clients_are_listed_as_networks() {
        let client =
            ClientEntry { limited_syns: 2, limited_packets: 3, limited_ns: 5_000_000_000, ..ClientEntry::default() };
        for (addr, expect) in [
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ] {
            let key = ClientKey::of(&addr.parse::<Ipv6Addr>().expect("an address").octets());
            let expect = LimitedClient {
                client: expect.parse().expect("a network"),
                syns: 2,
                packets: 3,
                ago: Duration::from_millis(1500),
            };
            assert_eq!(LimitedClient::of(key, client, 6_500_000_000), Some(expect));
            assert_eq!(expect.limited(), 5);
            assert_eq!(LimitedClient::of(key, ClientEntry { limited_ns: 0, ..client }, 6_500_000_000), None);
            let open = ClientEntry { limited_syns: 0, limited_packets: 4, limited_ns: 6_000_000_000, ..client };
            let open = LimitedClient::of(key.open(), open, 6_500_000_000).expect("it was limited");
            let both = LimitedClient { packets: 7, ago: Duration::from_millis(500), ..expect };
            assert_eq!(LimitedClient::joined(vec![open, expect]), [both]);
        }
    }
}
