//! Networks in the form of the maps: one space of 128 bits, with IPv4 as v4-mapped addresses. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ingress_common::flow::{self, v4_mapped};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Length of the v4-mapped prefix before the bits of IPv4.
const MAPPED: u8 = 96;

/// Returns the canonical form of a network: no bits behind the prefix, and mapped IPv4 as IPv4.
pub(super) fn canonical(network: IpNet) -> IpNet {
    let network = network.trunc();
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= MAPPED => flow::unmapped(&v6.network().octets())
            .and_then(|addr| v4(addr, v6.prefix_len() - MAPPED))
            .unwrap_or(network),
        IpNet::V4(_) | IpNet::V6(_) => network,
    }
}

/// Returns length and address of a canonical network in the maps.
pub(super) fn mapped(network: IpNet) -> (u32, [u8; 16]) {
    match network {
        IpNet::V4(v4) => (u32::from(v4.prefix_len() + MAPPED), v4_mapped(v4.network().octets())),
        IpNet::V6(v6) => (v6.prefix_len().into(), v6.network().octets()),
    }
}

/// Inverts [`mapped`]; `None` for an invalid prefix length.
pub(super) fn unmapped(prefix_len: u32, addr: [u8; 16]) -> Option<IpNet> {
    let network = Ipv6Net::new(Ipv6Addr::from(addr), u8::try_from(prefix_len).ok()?).ok()?;
    Some(canonical(IpNet::V6(network)))
}

fn v4(addr: [u8; 4], prefix_len: u8) -> Option<IpNet> {
    Ipv4Net::new(Ipv4Addr::from(addr), prefix_len).ok().map(IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_map_into_one_address_space() {
        for (network, length, canonical_text) in [
            ("0.0.0.0/0", 96, "0.0.0.0/0"),
            ("192.0.2.7/32", 128, "192.0.2.7/32"),
            ("192.0.2.7/24", 120, "192.0.2.0/24"),
            ("::ffff:192.0.2.7/128", 128, "192.0.2.7/32"),
            ("::ffff:0:0/96", 96, "0.0.0.0/0"),
            ("::/0", 0, "::/0"),
            // A prefix that contains more than IPv4.
            ("::ffff:0:0/95", 95, "::fffe:0:0/95"),
            ("2001:db8::1/64", 64, "2001:db8::/64"),
        ] {
            let network = canonical(network.parse().expect("a network"));
            assert_eq!(network.to_string(), canonical_text);
            let (prefix_len, addr) = mapped(network);
            assert_eq!(prefix_len, length, "{network}");
            assert_eq!(unmapped(prefix_len, addr), Some(network));
        }
        assert_eq!(unmapped(129, [0; 16]), None);
    }
}
