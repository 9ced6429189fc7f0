//! The limits of clients in the kernel: makes them what they should be, and tells whom they have limited. Whom to
//! limit, and how far, is the caller's to know; who is spared stands in the deny list.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use ingress_common::{
    Bucket, Client, ClientKey, Limits,
    flow::unmapped,
    limit::LIMITS_DRY_RUN,
    map::LIMITS_ALL,
    steer::{PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS},
};
use ipnet::IpNet;

use super::{Shared, error::Error, flags::PortFlags};

/// How much each client may send to the ports of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// New connections that it asks for. Default any number.
    pub syns: Option<PacketRate>,
    /// Packets of any kind, SYNs among them. Default any number.
    pub packets: Option<PacketRate>,
    /// Whether what is above a limit is counted and passes. Default false.
    pub is_dry_run: bool,
}

/// How many packets of some kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRate {
    /// In the long run. The kernel part is exact to a thousandth up to a million.
    pub per_second: NonZeroU32,
    /// At once, after a pause.
    pub burst: NonZeroU32,
}

/// The limits of this node, which outlast processes as all maps do, and hold while one of them lets its heart beat.
#[derive(Debug)]
pub struct ClientLimiter {
    shared: Arc<Shared>,
    /// Whether the programs look at limits.
    flags: PortFlags,
}

/// A client that has sent more than it may, as long as the kernel remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedClient {
    /// An address of IPv4, or a /64.
    pub client: IpNet,
    /// SYNs that were above the limit, since the limits are what they are.
    pub syns: u64,
    /// Other packets that were, and SYNs that were above that of packets alone.
    pub packets: u64,
    /// Time since the latest of them.
    pub ago: Duration,
}

// === impl ClientLimits ===

impl ClientLimits {
    /// Whether anything is limited.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.syns.is_some() || self.packets.is_some()
    }

    /// As the programs know them.
    fn in_kernel(self) -> Limits {
        let Self { syns, packets, is_dry_run } = self;
        let bucket = |rate: Option<PacketRate>| {
            rate.map_or_else(Bucket::default, |PacketRate { per_second, burst }| {
                Bucket::new(per_second.get(), burst.get())
            })
        };
        let flags = if is_dry_run && self.is_on() { LIMITS_DRY_RUN } else { 0 };
        Limits { syns: bucket(syns), packets: bucket(packets), flags, pad: 0 }
    }

    pub(super) fn from_kernel(limits: Limits) -> Self {
        let Limits { syns, packets, flags, pad: _ } = limits;
        let rate = |bucket: Bucket| {
            let Bucket { per_second, burst, .. } = bucket;
            Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
        };
        Self { syns: rate(syns), packets: rate(packets), is_dry_run: flags & LIMITS_DRY_RUN != 0 }
    }
}

// === impl ClientLimiter ===

impl ClientLimiter {
    /// Takes the limits as they are.
    pub(super) fn read(shared: Arc<Shared>) -> Result<Self, Error> {
        let limits = shared.maps.client_limits()?;
        Ok(Self { shared, flags: PortFlags::new(PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS, flags(limits)) })
    }

    /// Makes the limits what is `wanted`; whether they were others. Then every client begins anew, with full buckets
    /// and nothing counted for it, for what is left of a bucket means nothing for one of another size. Meanwhile, up to
    /// some 0.1 s, nothing is limited.
    ///
    /// To be called by the owner of the node, under the lock that [`super::Datapath::take_over_with`] holds, and when
    /// those who are to be spared stand in the deny list ([`super::DenyConfig::sparing`]).
    ///
    /// # Errors
    /// [`Error::Kernel`], after which nothing is limited or what was is; another call does all of it.
    pub fn set(&self, wanted: ClientLimits) -> Result<bool, Error> {
        let maps = &self.shared.maps;
        let is_change = maps.limits.get(&LIMITS_ALL)?.unwrap_or_default() != wanted.in_kernel();
        if is_change {
            // No limits until all is forgotten, so that a process that does not come so far leaves none, and not the
            // new ones with the old buckets.
            maps.limits.set(&LIMITS_ALL, &Limits::default())?;
            self.flags.set(0, &maps.ports)?;
            for (client, _) in maps.clients.entries()? {
                maps.clients.remove(&client)?;
            }
            maps.limits.set(&LIMITS_ALL, &wanted.in_kernel())?;
        }
        self.flags.set(flags(wanted), &maps.ports)?;
        Ok(is_change)
    }

    /// The flags of a port, with what the limits say of it.
    pub(super) fn flags(&self, flags: u16) -> u16 {
        self.flags.apply(flags)
    }
}

/// What the programs are to look at.
const fn flags(limits: ClientLimits) -> u16 {
    let syns = if limits.syns.is_some() { PORT_LIMITS_SYNS } else { 0 };
    let packets = if limits.packets.is_some() { PORT_LIMITS_PACKETS } else { 0 };
    syns | packets
}

// === impl LimitedClient ===

impl LimitedClient {
    /// `None` for a client that has never sent too much.
    pub(super) fn of(key: ClientKey, client: Client, now_ns: u64) -> Option<Self> {
        let Client { limited_syns: syns, limited_packets: packets, limited_ns, .. } = client;
        let client = match unmapped(&key.addr) {
            Some(addr) => IpNet::from(IpAddr::from(addr)),
            None => IpNet::new_assert(Ipv6Addr::from(key.addr).into(), 64),
        };
        let ago = Duration::from_nanos(now_ns.saturating_sub(limited_ns));
        (limited_ns != 0).then_some(Self { client, syns, packets, ago })
    }

    /// All that was above a limit.
    #[must_use]
    pub const fn limited(&self) -> u64 {
        self.syns.saturating_add(self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Option<PacketRate> {
        Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
    }

    #[test]
    fn limits_come_back_from_the_kernel_as_they_went() {
        for limits in [
            ClientLimits::default(),
            ClientLimits { syns: rate(50, 100), packets: None, is_dry_run: false },
            ClientLimits { syns: None, packets: rate(700_000, 1), is_dry_run: true },
            ClientLimits { syns: rate(1, 1_000_000), packets: rate(3, 7), is_dry_run: false },
        ] {
            assert_eq!(ClientLimits::from_kernel(limits.in_kernel()), limits);
            assert_eq!(flags(limits) != 0, limits.is_on());
        }
        // Without limits it does not matter how, and so nothing has changed.
        let nothing = ClientLimits { is_dry_run: true, ..ClientLimits::default() };
        assert_eq!(nothing.in_kernel(), Limits::default());
    }

    #[test]
    fn clients_are_networks_and_those_within_their_limits_none() {
        let client = Client { limited_syns: 2, limited_packets: 3, limited_ns: 5_000_000_000, ..Client::default() };
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
            assert_eq!(LimitedClient::of(key, Client { limited_ns: 0, ..client }, 6_500_000_000), None);
        }
    }
}
