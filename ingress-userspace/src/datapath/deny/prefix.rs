//! Networks as the maps hold them: in one space of 128 bits, IPv4 v4-mapped. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ingress_common::flow::{self, v4_mapped};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Bits of a v4-mapped address before those of IPv4.
const MAPPED: u8 = 96;

/// The one way to write a network: no bits behind the prefix, and IPv4 as such.
pub(super) fn canonical(network: IpNet) -> IpNet {
    let network = network.trunc();
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= MAPPED => flow::unmapped(&v6.network().octets())
            .and_then(|addr| v4(addr, v6.prefix_len() - MAPPED))
            .unwrap_or(network),
        IpNet::V4(_) | IpNet::V6(_) => network,
    }
}

/// Length and address of a canonical network.
pub(super) fn mapped(network: IpNet) -> (u32, [u8; 16]) {
    match network {
        IpNet::V4(v4) => (u32::from(v4.prefix_len() + MAPPED), v4_mapped(v4.network().octets())),
        IpNet::V6(v6) => (v6.prefix_len().into(), v6.network().octets()),
    }
}

/// The inverse of [`mapped`]; `None` for a prefix that is longer than there are.
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
    fn networks_of_both_families_have_their_place_in_one_space() {
        for (network, length, canonical_text) in [
            ("0.0.0.0/0", 96, "0.0.0.0/0"),
            ("192.0.2.7/32", 128, "192.0.2.7/32"),
            ("192.0.2.7/24", 120, "192.0.2.0/24"),
            ("::ffff:192.0.2.7/128", 128, "192.0.2.7/32"),
            ("::ffff:0:0/96", 96, "0.0.0.0/0"),
            ("::/0", 0, "::/0"),
            // It holds more than IPv4.
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
