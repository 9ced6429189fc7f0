//! Sets of IP networks.

use std::{fmt, net::IpAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A set of networks. A lookup costs one binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Sorted and disjoint.
    networks: Box<[IpNet]>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a network as `10.0.0.0/8`")]
pub struct NetworkError(String);

// === impl Networks ===

impl Networks {
    /// Parses networks and addresses separated by commas or white space.
    ///
    /// # Errors
    /// Fails if a part is neither an address nor a network.
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let parts = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
        let networks = parts.map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { networks: IpNet::aggregate(&networks).into() })
    }

    /// Returns the set of all addresses of both families.
    #[must_use]
    pub fn everybody() -> Self {
        Self { networks: [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())].into() }
    }

    /// Iterates over the networks, which are sorted and disjoint.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.networks.iter().copied()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Returns whether the set contains all addresses of both families.
    #[must_use]
    pub fn is_everybody(&self) -> bool {
        self.networks.len() == 2 && self.networks.iter().all(|network| network.prefix_len() == 0)
    }

    /// Returns whether the set contains all IPv4 addresses.
    #[must_use]
    pub fn holds_every_v4(&self) -> bool {
        self.networks.iter().any(|network| matches!(network, IpNet::V4(network) if network.prefix_len() == 0))
    }

    /// Returns whether the set contains `address`. IPv4-mapped addresses count as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let after = self.networks.partition_point(|network| network.network() <= address);
        after.checked_sub(1).is_some_and(|at| self.networks[at].contains(&address))
    }
}

fn parse(text: &str) -> Result<IpNet, NetworkError> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => text.parse::<IpNet>().map_err(|_invalid| NetworkError(text.to_owned()))?,
    };
    Ok(network.trunc())
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, network) in self.networks.iter().enumerate() {
            write!(f, "{}{network}", if n == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_networks() {
        let networks = Networks::parse("10.1.2.3/8, 192.0.2.1\n2001:db8::/32,10.64.0.0/10").expect("valid");
        assert_eq!(networks.to_string(), "10.0.0.0/8 192.0.2.1/32 2001:db8::/32");
        for (address, expect) in [
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("::ffff:10.0.0.1", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::", false),
        ] {
            assert_eq!(networks.contains(address.parse().expect("an address")), expect, "{address}");
        }
        assert!(!Networks::default().contains([10, 0, 0, 1].into()));
        for (text, expect) in
            [("0.0.0.0/0", true), ("::/0", false), ("0.0.0.0/1 128.0.0.0/1", true), ("10.0.0.0/8", false)]
        {
            assert_eq!(Networks::parse(text).expect("valid").holds_every_v4(), expect, "{text}");
        }
        for everybody in ["0.0.0.0/0 ::/0", "::/0,0.0.0.0/0"] {
            let networks = Networks::parse(everybody).expect("valid");
            assert!(networks.is_everybody() && networks.holds_every_v4());
            assert_eq!(networks, Networks::everybody());
            assert!(
                ["0.0.0.0", "255.255.255.255", "::", "ffff::"]
                    .iter()
                    .all(|a| networks.contains(a.parse().expect("an address")))
            );
        }
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in ["10.0.0.0/33", "10.0.0", "a.test", "10.0.0.0/8/9", "2001:db8::/129"] {
            assert!(Networks::parse(text).is_err(), "{text}");
        }
        assert!(Networks::parse(" , ").expect("valid").is_empty());
    }
}
