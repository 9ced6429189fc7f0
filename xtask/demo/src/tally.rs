//! The client's own count of sent and received data, and its differences from the proxy's figures.

use std::collections::{BTreeMap, BTreeSet};

use ingress_common::{HostL7, StatusClass, Total};

use super::steps::{NOBODY, Origin, To};
use ingress_lab::maps::Counts;

/// Counts of the client.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Requests and body bytes by the host under which the proxy must count them. `active` stays 0.
    pub(super) hosts: BTreeMap<String, HostL7>,
    /// Answers by host and by server.
    pub(super) served: BTreeMap<String, BTreeMap<String, u64>>,
    /// Connections that reached the node through its NIC.
    pub(super) by_nic: u64,
    /// Connections that did not: from the node itself, and from pods.
    pub(super) by_default: u64,
    /// Connections that only pass through the node.
    pub(super) transit: u64,
}

/// A figure with its expected value.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) expected: String,
    pub(super) found: String,
    pub(super) holds: bool,
}

// === impl Tally ===

impl Tally {
    pub(super) fn connection(&mut self, from: Origin, to: To) {
        match (from, to) {
            (_, To::FirstPod) => self.transit += 1,
            (Origin::Client, To::Proxy) => self.by_nic += 1,
            (Origin::Node | Origin::Pod, To::Proxy) => self.by_default += 1,
        }
    }

    /// Counts an answer with this status, and its body bytes sent and received.
    pub(super) fn answer(&mut self, host: &str, server: &str, status: u16, sent: u64, received: u64) {
        let counts = self.hosts.entry(host.into()).or_default();
        counts.requests += StatusClass::of(status);
        counts.bytes_in += sent;
        counts.bytes_out += received;
        self.served(host, server);
    }

    /// Counts an answer that did not pass the proxy.
    pub(super) fn served(&mut self, host: &str, server: &str) {
        *self.served.entry(host.into()).or_default().entry(server.into()).or_default() += 1;
    }

    /// Returns the hosts of both sides, host 0 last.
    pub(super) fn all_hosts(&self, counts: &Counts) -> Vec<String> {
        let names: BTreeSet<&String> = self.hosts.keys().chain(counts.hosts.keys()).collect();
        let (nobody, named): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == NOBODY);
        named.into_iter().chain(nobody).cloned().collect()
    }

    pub(super) fn total(&self) -> HostL7 {
        self.hosts.values().fold(HostL7::default(), |sum, host| HostL7 {
            requests: sum.requests + host.requests,
            bytes_in: sum.bytes_in + host.bytes_in,
            bytes_out: sum.bytes_out + host.bytes_out,
            active: 0,
        })
    }

    /// Returns the relations that must hold between the client's count and the kernel's.
    pub(super) fn kernel_checks(&self, counts: &Counts) -> Vec<Check> {
        let packets = |total| counts.total(total).packets;
        let (received, accepted) = (counts.received(), counts.total(Total::Accepted));
        let (sent, transmitted) = (counts.transmitted(), counts.total(Total::Transmitted));
        vec![
            equal("Σ hosts, packets = accepted", accepted.packets, received.packets),
            equal("Σ hosts, bytes = accepted", accepted.bytes, received.bytes),
            equal("Σ hosts, packets sent = transmitted", transmitted.packets, sent.packets),
            equal("Σ hosts, bytes sent = transmitted", transmitted.bytes, sent.bytes),
            // A connection has at least a SYN-ACK, a response and an acknowledgement of the client's end.
            at_least("packets sent to the connections by the NIC", self.by_nic * 3, transmitted.packets),
            // More if a SYN was retransmitted, or a segment arrived after its connection was gone.
            at_least("connections by the NIC, decided by XDP", self.by_nic, packets(Total::Decided)),
            at_least("… and delivered to the worker it chose", self.by_nic, packets(Total::LookupDecided)),
            at_least("other connections, by the default rule", self.by_default, packets(Total::LookupDefault)),
            equal("undecided", 0, packets(Total::Undecided)),
            equal("slot empty", 0, packets(Total::SlotEmpty)),
            equal("assign failed", 0, packets(Total::AssignFailed)),
            equal(
                "dropped",
                0,
                [Total::Denied, Total::LimitedSyn, Total::LimitedPacket, Total::RewrittenPort]
                    .map(packets)
                    .iter()
                    .sum(),
            ),
            // A connection has at least a handshake, a request, an acknowledgement and a close.
            at_least("transit packets seen and left alone", self.transit * 5, packets(Total::Transit)),
        ]
    }
}

fn equal(name: &'static str, expected: u64, found: u64) -> Check {
    Check { name, expected: expected.to_string(), found: found.to_string(), holds: expected == found }
}

fn at_least(name: &'static str, expected: u64, found: u64) -> Check {
    Check { name, expected: format!("≥ {expected}"), found: found.to_string(), holds: found >= expected }
}

/// Returns `true` if the proxy's counts for a host equal the client's and no request is in progress.
pub(super) fn equals(client: &HostL7, proxy: &HostL7) -> bool {
    client == proxy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_belongs_to_the_rule_that_delivers_it() {
        let mut tally = Tally::default();
        for (from, to) in [
            (Origin::Client, To::Proxy),
            (Origin::Node, To::Proxy),
            (Origin::Pod, To::Proxy),
            (Origin::Client, To::FirstPod),
        ] {
            tally.connection(from, to);
        }
        assert_eq!((tally.by_nic, tally.by_default, tally.transit), (1, 2, 1));
    }

    #[test]
    fn host_0_is_listed_last() {
        let mut tally = Tally::default();
        for host in ["shop.example.com", NOBODY, "*.preview.example.com"] {
            tally.answer(host, "pod-a", 200, 0, 1);
        }
        assert_eq!(tally.all_hosts(&Counts::default()), ["*.preview.example.com", "shop.example.com", NOBODY]);
    }
}
