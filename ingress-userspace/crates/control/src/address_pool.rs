//! The pool of addresses for Gateways, as the operator names it: networks, and the addresses in them that a Gateway can
//! have. This module assigns none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Networks with addresses that only Gateways use. Valid by construction: the networks are disjoint, and they have at
/// most [`AddressPool::MAX`] addresses together. The default is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPool {
    /// In ascending order, IPv4 first.
    networks: Vec<IpNet>,
}

/// Reason why networks are no pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPool {
    #[error("`{0}` is neither a network nor an address; write it like `192.0.2.0/28` or `2001:db8::1`")]
    Text(String),
    #[error("`{given}` has bits beyond its prefix; write `{network}`")]
    HostBits { given: IpNet, network: IpNet },
    #[error("`{0}` has addresses that no host can have (unspecified, loopback, link-local or multicast)")]
    Unusable(IpNet),
    #[error("`{0}` and `{1}` overlap; name each address once")]
    Overlap(IpNet, IpNet),
    #[error("`{0}` makes the pool larger than {max} addresses; name smaller networks", max = AddressPool::MAX)]
    TooLarge(IpNet),
}

// === impl AddressPool ===

impl AddressPool {
    /// Maximum number of addresses in a pool.
    pub const MAX: usize = 4096;

    /// Creates a pool of these networks, in any order.
    ///
    /// # Errors
    /// Fails if a network has host bits or unusable addresses, if two overlap, or if there are too many addresses.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Result<Self, InvalidPool> {
        let mut networks: Vec<_> = networks.into_iter().collect();
        networks.sort();
        let mut size = 0;
        for network in &networks {
            check(network)?;
            size += size_of(network).ok_or(InvalidPool::TooLarge(*network))?;
            if size > Self::MAX {
                return Err(InvalidPool::TooLarge(*network));
            }
        }
        for (index, network) in networks.iter().enumerate() {
            if let Some(other) = networks[..index].iter().find(|other| overlap(network, other)) {
                return Err(InvalidPool::Overlap(*other, *network));
            }
        }
        Ok(Self { networks })
    }

    /// Parses a network, or a single address.
    ///
    /// # Errors
    /// Fails if the text is neither.
    pub fn parse_network(text: &str) -> Result<IpNet, InvalidPool> {
        let text = text.trim();
        match (text.parse(), text.parse::<IpAddr>()) {
            (Ok(network), _) => Ok(network),
            (_, Ok(address)) => Ok(address.into()),
            (Err(_), Err(_)) => Err(InvalidPool::Text(text.to_owned())),
        }
    }

    /// Returns `true` if no network was named.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Returns the networks, in ascending order, IPv4 first.
    #[must_use]
    pub fn networks(&self) -> &[IpNet] {
        &self.networks
    }

    /// Returns the addresses that a Gateway can have, in ascending order, IPv4 first. Networks of more than two
    /// addresses lack their first one (the network, or the anycast address of its routers, RFC 4291, 2.6.1), and those
    /// of IPv4 their last one (broadcast).
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.networks.iter().flat_map(|network| {
            let count = size_of(network).unwrap_or(0);
            (0..count).map(|index| nth(network, index)).filter(|address| is_usable(network, address))
        })
    }

    /// Returns `true` for an address that [`AddressPool::addresses`] returns.
    #[must_use]
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address) && is_usable(network, address))
    }
}

/// Checks that a network is one, and that hosts can have its addresses.
fn check(network: &IpNet) -> Result<(), InvalidPool> {
    if network.trunc() != *network {
        return Err(InvalidPool::HostBits { given: *network, network: network.trunc() });
    }
    let unusable = match network.network() {
        IpAddr::V4(first) => {
            first.octets()[0] == 0
                || first.is_loopback()
                || first.is_link_local()
                // Multicast and reserved.
                || first.octets()[0] >= 224
        }
        IpAddr::V6(first) => {
            first.is_multicast()
                || first.is_unicast_link_local()
                // Unspecified, loopback, IPv4 in IPv6.
                || first.segments()[..5] == [0; 5]
        }
    };
    if unusable { Err(InvalidPool::Unusable(*network)) } else { Ok(()) }
}

/// Returns the number of addresses in a network; `None` above [`AddressPool::MAX`].
fn size_of(network: &IpNet) -> Option<usize> {
    let bits = u32::from(network.max_prefix_len() - network.prefix_len());
    1_usize.checked_shl(bits).filter(|size| *size <= AddressPool::MAX)
}

fn nth(network: &IpNet, index: usize) -> IpAddr {
    match network.network() {
        IpAddr::V4(first) => {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            Ipv4Addr::from_bits(first.to_bits().saturating_add(index)).into()
        }
        IpAddr::V6(first) => {
            let index = u128::try_from(index).unwrap_or(u128::MAX);
            Ipv6Addr::from_bits(first.to_bits().saturating_add(index)).into()
        }
    }
}

/// Returns `true` unless the address means the network itself.
fn is_usable(network: &IpNet, address: &IpAddr) -> bool {
    if network.max_prefix_len() - network.prefix_len() < 2 {
        return true;
    }
    *address != network.network() && (address.is_ipv6() || *address != network.broadcast())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str) -> Result<AddressPool, InvalidPool> {
        let networks: Result<Vec<_>, _> = text.split(',').map(AddressPool::parse_network).collect();
        AddressPool::new(networks?)
    }

    #[track_caller]
    fn check_addresses(text: &str, expect: &[&str]) {
        let pool = pool(text).expect("valid");
        let found: Vec<_> = pool.addresses().map(|address| address.to_string()).collect();
        assert_eq!(found, expect, "{text}");
        assert!(pool.addresses().all(|address| pool.contains(&address)), "{text}");
    }

    #[test]
    fn addresses_that_mean_the_network_are_left_out() {
        check_addresses("192.0.2.8/30", &["192.0.2.9", "192.0.2.10"]);
        check_addresses("192.0.2.8/31", &["192.0.2.8", "192.0.2.9"]);
        check_addresses("192.0.2.8", &["192.0.2.8"]);
        check_addresses("2001:db8::/126", &["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        check_addresses("2001:db8::/127", &["2001:db8::", "2001:db8::1"]);
        for (address, is_in) in
            [("192.0.2.8", false), ("192.0.2.9", true), ("192.0.2.11", false), ("192.0.2.12", false)]
        {
            let address = address.parse().expect("an address");
            assert_eq!(pool("192.0.2.8/30").expect("valid").contains(&address), is_in, "{address}");
        }
    }

    #[test]
    fn networks_come_in_their_order_with_ipv4_first() {
        check_addresses("2001:db8::7, 192.0.2.9,192.0.2.4", &["192.0.2.4", "192.0.2.9", "2001:db8::7"]);
    }

    #[test]
    fn a_pool_has_at_most_4096_addresses() {
        assert_eq!(pool("10.0.0.0/20").expect("valid").addresses().count(), 4094);
        assert_eq!(pool("2001:db8::/116").expect("valid").addresses().count(), 4095);
        for text in ["10.0.0.0/19", "2001:db8::/64", "2000::/3", "10.0.0.0/20,192.0.2.1"] {
            assert!(matches!(pool(text), Err(InvalidPool::TooLarge(_))), "{text}");
        }
        assert!(!pool("10.0.0.0/20").expect("valid").is_empty() && AddressPool::default().is_empty());
    }

    #[test]
    fn networks_that_no_host_can_use_are_refused() {
        for (text, expect) in [
            ("", "`` is neither a network nor an address; write it like `192.0.2.0/28` or `2001:db8::1`"),
            (
                "192.0.2.300",
                "`192.0.2.300` is neither a network nor an address; write it like `192.0.2.0/28` or `2001:db8::1`",
            ),
            ("192.0.2.5/24", "`192.0.2.5/24` has bits beyond its prefix; write `192.0.2.0/24`"),
            (
                "127.0.0.8/29",
                "`127.0.0.8/29` has addresses that no host can have (unspecified, loopback, link-local or multicast)",
            ),
            ("192.0.2.0/28,192.0.2.8", "`192.0.2.0/28` and `192.0.2.8/32` overlap; name each address once"),
            ("192.0.2.8,192.0.2.8", "`192.0.2.8/32` and `192.0.2.8/32` overlap; name each address once"),
            ("10.0.0.0/8", "`10.0.0.0/8` makes the pool larger than 4096 addresses; name smaller networks"),
        ] {
            assert_eq!(pool(text).expect_err("invalid").to_string(), expect);
        }
        for text in [
            "0.0.0.0/28",
            "169.254.1.0/28",
            "224.0.0.0/28",
            "255.255.255.255",
            "::/124",
            "::1",
            "fe80::/124",
            "ff02::1",
            "::ffff:192.0.2.1",
        ] {
            assert!(matches!(pool(text), Err(InvalidPool::Unusable(_))), "{text}");
        }
    }
}
