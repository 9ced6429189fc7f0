//! Reads the addresses of this node, once per call. It does not follow changes.

use std::{collections::BTreeSet, net::IpAddr};

use nix::ifaddrs::getifaddrs;

use crate::{address_pool::AddressPool, translate::is_always_refused};

/// Returns the relevant addresses of interfaces, and those of the pool `held`, which this node holds without an
/// interface. `None`: they cannot be read. Loopback and link-local addresses are left out: they come and go with pods,
/// and endpoints with such addresses are refused anyway.
pub(super) fn addresses(held: &AddressPool) -> Option<BTreeSet<IpAddr>> {
    let interfaces = getifaddrs().inspect_err(|errno| {
        tracing::warn!(%errno, "cannot read the addresses of this node; endpoints are checked against the addresses that were read before");
    });
    let addresses = interfaces.ok()?.filter_map(|interface| interface.address);
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Some(that_matter(addresses.filter_map(ip).chain(held.addresses())))
}

fn that_matter(addresses: impl Iterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
    addresses.filter(|address| !is_always_refused(*address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_addresses_exclude_loopback_and_link_local() {
        let held = AddressPool::new([AddressPool::parse_network("192.0.2.8/30").expect("a network")]).expect("a pool");
        let found = addresses(&held).expect("interfaces");
        assert!(found.contains(&IpAddr::from([192, 0, 2, 9])), "{found:?}");
        assert!(!found.contains(&IpAddr::from([127, 0, 0, 1])), "{found:?}");
        let all = ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "10.1.0.1", "2001:db8::1"];
        let found = that_matter(all.iter().map(|address| address.parse().expect("an address")));
        let expect = ["10.1.0.1", "2001:db8::1"].map(|address| address.parse().expect("an address"));
        assert_eq!(found, BTreeSet::from(expect));
    }
}
