//! Packets built byte by byte, for senders that do not exist. It sends none.

use std::net::{SocketAddrV4, SocketAddrV6};

/// Returns the internet checksum of parts that each have an even length (RFC 1071).
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let pairs = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Returns a SYN. For a raw socket the kernel fills in the length, identification and checksum of IP.
#[must_use]
pub fn syn(from: SocketAddrV4, to: SocketAddrV4) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[0] = 0x45;
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&from.ip().octets());
    packet[16..20].copy_from_slice(&to.ip().octets());
    packet[20..22].copy_from_slice(&from.port().to_be_bytes());
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let checksum = checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]);
    packet[36..38].copy_from_slice(&checksum);
    packet
}

/// Returns a SYN with its header of IPv6, for a raw socket.
#[must_use]
pub fn syn6(from: SocketAddrV6, to: SocketAddrV6) -> [u8; 60] {
    let mut packet = [0; 60];
    packet[0] = 0x60;
    packet[4..8].copy_from_slice(&[0, 20, 6, 64]);
    packet[8..24].copy_from_slice(&from.ip().octets());
    packet[24..40].copy_from_slice(&to.ip().octets());
    packet[40..42].copy_from_slice(&from.port().to_be_bytes());
    packet[42..44].copy_from_slice(&to.port().to_be_bytes());
    packet[52..56].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let checksum = checksum(&[&packet[8..40], &[0, 6, 0, 20], &packet[40..]]);
    packet[56..58].copy_from_slice(&checksum);
    packet
}

/// Returns a datagram of UDP with its header of IPv4, and without a checksum of UDP (RFC 768). For a raw socket the kernel
/// fills in the rest.
///
/// # Panics
/// If the datagram is longer than a packet.
#[must_use]
pub fn udp(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 8).expect("a datagram fits into a packet");
    let mut packet = vec![0; 28];
    packet[0] = 0x45;
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&from.ip().octets());
    packet[16..20].copy_from_slice(&to.ip().octets());
    packet[20..22].copy_from_slice(&from.port().to_be_bytes());
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    packet[24..26].copy_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_packet_with_its_checksum_sums_to_zero() {
        // The example of RFC 1071, 3.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), [0x22, 0x0d]);
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 77, 3), 1024);
        let packet = syn(from, SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 10), 443));
        assert_eq!(checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]), [0, 0]);
        let of = |address, port| SocketAddrV6::new(address, port, 0, 0);
        let packet = syn6(of(Ipv6Addr::LOCALHOST, 1024), of(Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 0x10), 443));
        assert_eq!(checksum(&[&packet[8..40], &[0, 6, 0, 20], &packet[40..]]), [0, 0]);
    }
}
