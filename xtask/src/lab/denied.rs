//! Ten thousand networks that nobody is in, for whoever is to be measured at denying them, and packets from there.

use std::net::Ipv4Addr;

/// How many there are.
pub const COUNT: u32 = 10_000;

/// The first of them; the pods' network is beyond the last.
const FIRST: u32 = 0x0a00_0000;

/// An address in a network: in the next one for each number, and in the first again after the last.
#[must_use]
pub fn address(number: u32) -> Ipv4Addr {
    (FIRST + ((number % COUNT) << 8) + 3).into()
}

/// All of them, as text.
pub fn networks() -> impl Iterator<Item = String> {
    (0..COUNT).map(|number| format!("{}/24", Ipv4Addr::from(FIRST + (number << 8))))
}

/// A set of nftables called `denied`.
#[must_use]
pub fn nft_set() -> String {
    let networks = networks().collect::<Vec<_>>().join(", ");
    format!("set denied {{\ntype ipv4_addr; flags interval; elements = {{ {networks} }}\n}}")
}

/// The internet checksum of parts that each have an even length (RFC 1071).
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let pairs = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// A SYN to port 80 from [`address`]; the kernel fills in what it always does for a raw socket: length, identification
/// and checksum of IP.
#[must_use]
pub fn syn(number: u32, to: Ipv4Addr) -> [u8; 40] {
    let [port_high, port_low] = (1024 + (number / COUNT % 60_000) as u16).to_be_bytes();
    let mut packet = [0; 40];
    packet[0] = 0x45;
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&address(number).octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet[20..24].copy_from_slice(&[port_high, port_low, 0, 80]);
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let checksum = checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]);
    packet[36..38].copy_from_slice(&checksum);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_distinct_and_spare_the_pods() {
        let all: std::collections::BTreeSet<String> = networks().collect();
        assert_eq!(all.len(), COUNT as usize);
        assert!(all.contains("10.39.15.0/24") && !all.iter().any(|net| net.starts_with("10.244.")));
        assert_eq!(address(COUNT + 1), Ipv4Addr::new(10, 0, 1, 3));
    }

    #[test]
    fn a_whole_checksums_to_nothing() {
        // The example of RFC 1071, 3.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), [0x22, 0x0d]);
        let packet = syn(77, Ipv4Addr::new(203, 0, 113, 10));
        assert_eq!(checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]), [0, 0]);
    }
}
