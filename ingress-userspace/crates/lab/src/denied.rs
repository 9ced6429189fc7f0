//! Ten thousand unused networks, for measurements of deny lists.

use std::net::Ipv4Addr;

/// The number of networks.
pub const COUNT: u32 = 10_000;

/// The first network; the pods' network is beyond the last.
const FIRST: u32 = 0x0a00_0000;

/// Returns an address in one of the networks: consecutive numbers give consecutive networks, and after the last the
/// first again.
#[must_use]
pub fn address(number: u32) -> Ipv4Addr {
    (FIRST + ((number % COUNT) << 8) + 3).into()
}

/// Returns all networks as text.
pub fn networks() -> impl Iterator<Item = String> {
    (0..COUNT).map(|number| format!("{}/24", Ipv4Addr::from(FIRST + (number << 8))))
}

/// Returns a set of nftables called `denied`.
#[must_use]
pub fn nft_set() -> String {
    let networks = networks().collect::<Vec<_>>().join(", ");
    format!("set denied {{\ntype ipv4_addr; flags interval; elements = {{ {networks} }}\n}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_networks_are_distinct_and_exclude_pods() {
        let all: std::collections::BTreeSet<String> = networks().collect();
        assert_eq!(all.len(), COUNT as usize);
        assert!(all.contains("10.39.15.0/24") && !all.iter().any(|net| net.starts_with("10.244.")));
        assert_eq!(address(COUNT + 1), Ipv4Addr::new(10, 0, 1, 3));
    }
}
