//! Chooses the node that announces an address: every node that knows the same nodes makes the same choice, and a node
//! that comes or goes changes the choice only for its own addresses (rendezvous hashing).

use std::net::IpAddr;

use ingress_common::flow::v4_mapped;
use ingress_control::fnv;

use crate::node::Mac;

/// Name of a node among those on its link: an Ethernet address of it.
pub(super) type NodeId = Mac;

/// Returns the node that announces `address`; `None` if there are no nodes. Which one is part of the protocol between
/// nodes: another function would make nodes of two versions disagree.
pub(super) fn announcer(address: &IpAddr, nodes: impl IntoIterator<Item = NodeId>) -> Option<NodeId> {
    nodes.into_iter().max_by_key(|node| (score(address, node), *node))
}

/// Returns the hash of an address and a node: FNV-1a, and the finalizer of MurmurHash3, without which nodes whose
/// addresses differ only in the last byte would win in turn.
fn score(address: &IpAddr, node: &NodeId) -> u64 {
    let octets = match address {
        IpAddr::V4(v4) => v4_mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    };
    let hash = fnv(&[&octets[..], node].concat());
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::Ipv4Addr};

    use super::*;

    fn node(last: u8) -> NodeId {
        [2, 0, 0, 0, 0, last]
    }

    fn addresses() -> impl Iterator<Item = IpAddr> {
        (0..2000_u32).map(|index| Ipv4Addr::from_bits(0xc000_0200 + index).into())
    }

    #[test]
    fn the_order_of_nodes_makes_no_difference() {
        for address in addresses() {
            assert_eq!(announcer(&address, (0..5).map(node)), announcer(&address, (0..5).rev().map(node)));
        }
        assert_eq!(announcer(&Ipv4Addr::LOCALHOST.into(), []), None);
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_addresses() {
        for address in addresses() {
            let before = announcer(&address, (0..5).map(node));
            let after = announcer(&address, (0..5).map(node).filter(|other| *other != node(3)));
            assert!(before == after || before == Some(node(3)), "{address}");
        }
    }

    #[test]
    fn addresses_are_spread_evenly() {
        let mut counts = BTreeMap::new();
        for address in addresses() {
            *counts.entry(announcer(&address, (0..5).map(node))).or_insert(0) += 1;
        }
        assert!(counts.len() == 5 && counts.values().all(|count| (320..480).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_choice_is_the_same_in_all_versions() {
        let chosen = |address: &str| announcer(&address.parse().expect("an address"), (0..5).map(node));
        let last = |address| chosen(address).map(|node| node[5]);
        let found: Vec<_> = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8::2"].map(last).into();
        assert_eq!(found, [Some(3), Some(0), Some(2), Some(4), Some(4)]);
    }
}
