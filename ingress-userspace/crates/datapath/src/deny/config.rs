//! The configured part of the deny list: networks to deny, and networks of trusted proxies. The pins also make it
//! available to editors outside the process. No decisions are made here.

use std::collections::BTreeMap;

use ingress_common::{
    DenyKey6,
    denial::{CONFIG_DENIES, CONFIG_SPARES, CONFIG_TRUSTS},
};
use ipnet::IpNet;

use super::{
    super::{error::Error, maps::Maps},
    prefix,
};

/// Networks denied by the configuration, and networks of trusted proxies, which are never denied. Networks of both
/// kinds may contain each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyConfig(BTreeMap<IpNet, u32>);

impl DenyConfig {
    #[must_use]
    pub fn new(denied: impl IntoIterator<Item = IpNet>, trusted: impl IntoIterator<Item = IpNet>) -> Self {
        Self::of_bits(denied, trusted, CONFIG_TRUSTS)
    }

    /// Same as [`DenyConfig::new`], for a node that limits its clients. Networks in `trusted` get an entry in any case,
    /// even if no denial covers them. The entry also exempts their packets from the limits
    /// ([`super::super::ClientLimiter`]).
    #[must_use]
    pub fn sparing(denied: impl IntoIterator<Item = IpNet>, trusted: impl IntoIterator<Item = IpNet>) -> Self {
        Self::of_bits(denied, trusted, CONFIG_TRUSTS | CONFIG_SPARES)
    }

    fn of_bits(denied: impl IntoIterator<Item = IpNet>, trusted: impl IntoIterator<Item = IpNet>, trusts: u32) -> Self {
        let mut networks = BTreeMap::new();
        for network in denied {
            *networks.entry(prefix::canonical(network)).or_default() |= CONFIG_DENIES;
        }
        for network in trusted {
            *networks.entry(prefix::canonical(network)).or_default() |= trusts;
        }
        Self(networks)
    }

    /// Returns whether the configuration denies exactly this network.
    #[must_use]
    pub fn denies(&self, network: IpNet) -> bool {
        self.0.get(&network).is_some_and(|bits| bits & CONFIG_DENIES != 0)
    }

    /// Returns whether all trusted networks need an entry. After an incomplete update, some entries already have the
    /// flag: an additional entry drops no packets.
    pub(super) fn spares(&self) -> bool {
        self.of(CONFIG_SPARES).next().is_some()
    }

    pub(super) fn denied(&self) -> impl Iterator<Item = IpNet> {
        self.of(CONFIG_DENIES)
    }

    pub(super) fn trusted(&self) -> impl Iterator<Item = IpNet> {
        self.of(CONFIG_TRUSTS)
    }

    fn of(&self, bit: u32) -> impl Iterator<Item = IpNet> {
        self.0.iter().filter(move |(_, bits)| **bits & bit != 0).map(|(network, _)| *network)
    }

    pub(crate) fn read(maps: &Maps) -> Result<Self, Error> {
        let entries = maps.deny_config.entries()?.into_iter();
        let networks = entries
            .filter_map(|(DenyKey6 { prefix_len, addr }, bits)| Some((prefix::unmapped(prefix_len, addr)?, bits)));
        Ok(Self(networks.collect()))
    }

    /// Replaces the pinned configuration by differences. Returns the number of denied networks that did not fit.
    ///
    /// The caller must hold the lock of the pins.
    pub(super) fn write(&self, maps: &Maps) -> Result<usize, Error> {
        let Self(present) = Self::read(maps)?;
        let set = |network: IpNet, bits: u32| {
            let (prefix_len, addr) = prefix::mapped(network);
            maps.deny_config.set(&DenyKey6 { prefix_len, addr }, &bits)
        };
        let is_trusted = |(_, bits): &(IpNet, u32)| bits & CONFIG_TRUSTS != 0;
        // Trust is added first and removed last: a partially written configuration must not deny a trusted proxy.
        let changed = self.0.iter().filter(|(network, bits)| present.get(*network) != Some(*bits));
        let mut changed: Vec<_> = changed.map(|(&network, &bits)| (network, bits)).collect();
        changed.sort_by_key(|entry| !is_trusted(entry));
        let mut postponed = Vec::new();
        for (network, bits) in changed {
            if !set(network, bits)? {
                postponed.push((network, bits));
            }
        }
        let mut gone: Vec<_> = present.into_iter().filter(|(network, _)| !self.0.contains_key(network)).collect();
        gone.sort_by_key(is_trusted);
        for (network, _) in gone {
            let (prefix_len, addr) = prefix::mapped(network);
            maps.deny_config.remove(&DenyKey6 { prefix_len, addr })?;
        }
        // Trusted networks displace others, because a trusted proxy might be denied otherwise.
        let mut left_out = 0;
        for (network, bits) in postponed {
            if set(network, bits)? {
                continue;
            }
            if bits & CONFIG_TRUSTS != 0 {
                let (count, max) = (self.trusted().count(), maps.deny_config.capacity());
                return Err(Error::TooMany { what: "networks of trusted proxies and of the deny list", count, max });
            }
            left_out += 1;
        }
        Ok(left_out)
    }
}

// === impl Maps ===

impl Maps {
    /// Returns the configured part of the deny list, as last written by the owner of the node.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn deny_config(&self) -> Result<DenyConfig, Error> {
        DenyConfig::read(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|net| net.parse().expect("a network")).collect()
    }

    #[test]
    fn a_network_may_be_denied_and_trusted() {
        let config = DenyConfig::new(nets("10.0.0.0/8 10.1.0.0/16 192.0.2.7/24"), nets("10.1.0.0/16 2001:db8::/32"));
        assert_eq!(config.denied().collect::<Vec<_>>(), nets("10.0.0.0/8 10.1.0.0/16 192.0.2.0/24"));
        assert_eq!(config.trusted().collect::<Vec<_>>(), nets("10.1.0.0/16 2001:db8::/32"));
        for (network, denies) in
            [("10.0.0.0/8", true), ("10.0.0.0/9", false), ("10.1.0.0/16", true), ("2001:db8::/32", false)]
        {
            assert_eq!(config.denies(nets(network)[0]), denies, "{network}");
        }
        assert!(!config.spares());
    }

    #[test]
    fn trusted_networks_are_exempt_from_limits_if_configured() {
        let networks = || (nets("10.0.0.0/8 10.1.0.0/16"), nets("10.1.0.0/16 2001:db8::/32"));
        let (plain, sparing) =
            (DenyConfig::new(networks().0, networks().1), DenyConfig::sparing(networks().0, networks().1));
        assert!(sparing.spares() && sparing != plain);
        assert!(sparing.denied().eq(plain.denied()) && sparing.trusted().eq(plain.trusted()));
        assert!(!DenyConfig::sparing(networks().0, []).spares(), "nobody is trusted");
    }
}
