//! Packets built byte by byte, for senders that do not exist. It sends none.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

/// Returns the internet checksum of parts that each have an even length (RFC 1071).
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let pairs = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Returns a SYN to port 80. For a raw socket the kernel fills in the length, identification and checksum of IP.
#[must_use]
pub fn syn(from: SocketAddrV4, to: Ipv4Addr) -> [u8; 40] {
    let [port_high, port_low] = from.port().to_be_bytes();
    let mut packet = [0; 40];
    packet[0] = 0x45;
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&from.ip().octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet[20..24].copy_from_slice(&[port_high, port_low, 0, 80]);
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let checksum = checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]);
    packet[36..38].copy_from_slice(&checksum);
    packet
}

/// Returns a SYN to port 80 with its header of IPv6, for a raw socket.
#[must_use]
pub fn syn6((from, port): (Ipv6Addr, u16), to: Ipv6Addr) -> [u8; 60] {
    let mut packet = [0; 60];
    packet[0] = 0x60;
    packet[4..8].copy_from_slice(&[0, 20, 6, 64]);
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&to.octets());
    packet[40..42].copy_from_slice(&port.to_be_bytes());
    packet[43] = 80;
    packet[52..56].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
    let checksum = checksum(&[&packet[8..40], &[0, 6, 0, 20], &packet[40..]]);
    packet[56..58].copy_from_slice(&checksum);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_with_its_checksum_sums_to_zero() {
        // The example of RFC 1071, 3.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03], &[0xf4, 0xf5, 0xf6, 0xf7]]), [0x22, 0x0d]);
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 77, 3), 1024);
        let packet = syn(from, Ipv4Addr::new(203, 0, 113, 10));
        assert_eq!(checksum(&[&packet[12..20], &[0, 6, 0, 20], &packet[20..]]), [0, 0]);
        let packet = syn6((Ipv6Addr::LOCALHOST, 1024), Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 0x10));
        assert_eq!(checksum(&[&packet[8..40], &[0, 6, 0, 20], &packet[40..]]), [0, 0]);
    }
}
