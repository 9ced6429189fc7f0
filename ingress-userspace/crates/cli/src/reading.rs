//! Readings of all counters of a node, and the difference of two readings. Neither maps nor clocks are read here.

use std::{
    array,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ingress_common::{HostL7, HostNet, RawHostId, StatusClass, Total, Traffic};

/// All counters of a node at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub at: Instant,
    /// Kernel id of the maps. With other maps, counting started over at 0.
    pub maps: u32,
    pub hosts: Vec<HostReading>,
    pub totals: Vec<ReasonCount>,
}

/// A host with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReading {
    pub name: String,
    pub id: RawHostId,
    pub counts: L7Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L7Counts {
    pub l7: HostL7,
    pub net: HostNet,
}

/// Packets and bytes for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonCount {
    pub total: Total,
    pub name: &'static str,
    pub traffic: Traffic,
}

/// Counted amounts: totals, or those of an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amounts {
    /// Length of the interval; `None` for totals since the maps were created.
    pub within: Option<Duration>,
    pub hosts: Vec<HostReading>,
    pub totals: Vec<ReasonCount>,
}

// === impl Reading ===

impl Reading {
    /// Returns all counters.
    pub fn whole(&self) -> Amounts {
        let Self { at: _, maps: _, hosts, totals } = self;
        Amounts { within: None, hosts: hosts.clone(), totals: totals.clone() }
    }

    /// Returns the difference to `earlier`. A counter that decreased, or that is in different maps, gives 0.
    pub fn since(&self, earlier: &Self) -> Amounts {
        let continued = self.maps == earlier.maps;
        let before: BTreeMap<_, _> = earlier.hosts.iter().map(|host| (host.name.as_str(), host.counts)).collect();
        let hosts = self.hosts.iter().map(|HostReading { name, id, counts }| {
            let before = if continued { before.get(name.as_str()).copied().unwrap_or_default() } else { *counts };
            HostReading { name: name.clone(), id: *id, counts: counts.since(before) }
        });
        let totals = self.totals.iter().map(|&ReasonCount { total, name, traffic }| {
            let before = earlier.totals.iter().find(|before| continued && before.total == total);
            let before = before.map_or(traffic, |before| before.traffic);
            let traffic = Traffic {
                packets: traffic.packets.saturating_sub(before.packets),
                bytes: traffic.bytes.saturating_sub(before.bytes),
            };
            ReasonCount { total, name, traffic }
        });
        Amounts {
            within: Some(self.at.saturating_duration_since(earlier.at)),
            hosts: hosts.collect(),
            totals: totals.collect(),
        }
    }
}

// === impl ReasonCount ===

impl ReasonCount {
    /// Returns every reason, including those without packets.
    pub fn all(totals: impl IntoIterator<Item = (Total, &'static str, Traffic)>) -> Vec<Self> {
        totals.into_iter().map(|(total, name, traffic)| Self { total, name, traffic }).collect()
    }
}

// === impl L7Counts ===

impl L7Counts {
    fn since(self, before: Self) -> Self {
        let HostL7 { requests, bytes_in, bytes_out, active } = self.l7;
        let HostNet { rx_packets, rx_bytes, tx_packets, tx_bytes } = self.net;
        let (now, then) = (requests.to_array(), before.l7.requests.to_array());
        let requests: [u64; StatusClass::COUNT] = array::from_fn(|class| now[class].saturating_sub(then[class]));
        Self {
            l7: HostL7 {
                requests: requests.into(),
                bytes_in: bytes_in.saturating_sub(before.l7.bytes_in),
                bytes_out: bytes_out.saturating_sub(before.l7.bytes_out),
                // A gauge: the current value, not a difference.
                active,
            },
            net: HostNet {
                rx_packets: rx_packets.saturating_sub(before.net.rx_packets),
                rx_bytes: rx_bytes.saturating_sub(before.net.rx_bytes),
                tx_packets: tx_packets.saturating_sub(before.net.tx_packets),
                tx_bytes: tx_bytes.saturating_sub(before.net.tx_bytes),
            },
        }
    }
}

// === impl Amounts ===

impl Amounts {
    /// Returns the sum of packets and bytes over the `wanted` reasons.
    pub fn sum(&self, wanted: impl Fn(Total) -> bool) -> Traffic {
        let mut sum = Traffic::default();
        for counted in self.totals.iter().filter(|counted| wanted(counted.total)) {
            sum += counted.traffic;
        }
        sum
    }
}

#[cfg(test)]
pub mod tests {
    use ingress_common::Requests;

    use super::*;

    /// Returns a host with counters that are different multiples of `unit`.
    pub fn host(name: &str, id: RawHostId, unit: u64) -> HostReading {
        let requests = Requests {
            success: unit * 10,
            redirect: unit * 2,
            client_error: unit * 3,
            server_error: unit * 4,
            aborted: unit,
        };
        let l7 = HostL7 { requests, bytes_in: unit * 1000, bytes_out: unit * 50_000, active: unit };
        let net = HostNet { rx_packets: unit * 100, rx_bytes: unit * 9000, tx_packets: 0, tx_bytes: 0 };
        HostReading { name: name.to_owned(), id, counts: L7Counts { l7, net } }
    }

    /// Returns a reading with maps id 1 and the totals of its hosts. As many packets are dropped as accepted.
    pub fn reading(at: Instant, hosts: Vec<HostReading>) -> Reading {
        let sum = hosts.iter().fold(Traffic::default(), |sum, host| Traffic {
            packets: sum.packets + host.counts.net.rx_packets,
            bytes: sum.bytes + host.counts.net.rx_bytes,
        });
        let total = |total, name| ReasonCount { total, name, traffic: sum };
        let totals = vec![total(Total::Accepted, "accepted"), total(Total::Denied, "denied")];
        Reading { at, maps: 1, hosts, totals }
    }

    #[test]
    fn rates_are_differences_of_counters() {
        let start = Instant::now();
        let before = reading(start, vec![host("a.test", 1, 5), host("b.test", 2, 1)]);
        let now = reading(
            start + Duration::from_secs(2),
            vec![host("a.test", 1, 8), host("b.test", 2, 1), host("new.test", 3, 2)],
        );
        let amounts = now.since(&before);
        assert_eq!(amounts.within, Some(Duration::from_secs(2)));
        let grown = |unit, active| {
            let mut counts = host("", 0, unit).counts;
            counts.l7.active = active;
            counts
        };
        let counts: Vec<_> = amounts.hosts.iter().map(|host| (host.name.as_str(), host.counts)).collect();
        assert_eq!(counts, [("a.test", grown(3, 8)), ("b.test", grown(0, 1)), ("new.test", grown(2, 2))]);
        assert_eq!(amounts.sum(|total| total == Total::Accepted), Traffic { packets: 500, bytes: 45_000 });
        assert_eq!(amounts.sum(|_| true).packets, 1000);
        assert_eq!(now.whole().hosts, now.hosts);
    }

    #[test]
    fn a_reset_counter_has_no_rate() {
        let start = Instant::now();
        let before = reading(start, vec![host("a.test", 1, 5)]);
        let smaller = reading(start, vec![host("a.test", 1, 2)]);
        let larger_in_other_maps = Reading { maps: 2, ..reading(start, vec![host("a.test", 1, 9)]) };
        for (now, active) in [(smaller, 2), (larger_in_other_maps, 9)] {
            let amounts = now.since(&before);
            let mut nothing = L7Counts::default();
            nothing.l7.active = active;
            assert_eq!(amounts.hosts[0].counts, nothing);
            assert_eq!(amounts.sum(|_| true), Traffic::default());
            assert_eq!(amounts.within, Some(Duration::ZERO));
        }
    }
}
