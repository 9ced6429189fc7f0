//! Headers of QUIC that a path can read (RFC 9000, 17.2).

/// Returns whether the datagram begins with a long header: a packet of a handshake.
pub(super) fn is_of_handshake(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0)
}

/// Returns whether one of the datagram's packets is a Handshake packet of version 1.
pub(super) fn has_handshake_packet(mut datagram: &[u8]) -> bool {
    const INITIAL: u8 = 0;
    const HANDSHAKE: u8 = 2;
    const VERSION: [u8; 4] = [0, 0, 0, 1];
    while is_of_handshake(datagram) && datagram.get(1..5) == Some(&VERSION) {
        let kind = datagram[0] >> 4 & 3;
        if kind == HANDSHAKE {
            return true;
        }
        let Some(rest) = after(datagram, kind == INITIAL) else { return false };
        datagram = rest;
    }
    false
}

/// Returns the bytes after the first packet, which has a token or none.
fn after(datagram: &[u8], has_token: bool) -> Option<&[u8]> {
    let mut rest = datagram.get(5..)?;
    for _ in 0..2 {
        let (length, ids) = rest.split_first()?;
        rest = ids.get(usize::from(*length)..)?;
    }
    if has_token {
        let (length, token) = number(rest)?;
        rest = token.get(length..)?;
    }
    let (length, packet) = number(rest)?;
    packet.get(length..)
}

/// Reads an integer of variable length.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = number[1..].iter().fold(usize::from(first & 0x3f), |value, byte| value << 8 | usize::from(*byte));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a packet with a long header, both connection IDs, and four bytes of payload.
    fn packet(kind: u8, token: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xc0 | kind << 4, 0, 0, 0, 1, 2, 9, 9, 1, 9];
        packet.extend_from_slice(token);
        packet.extend_from_slice(&[0x40, 4, 1, 2, 3, 4]);
        packet
    }

    #[test]
    fn a_handshake_packet_is_found_behind_an_initial_one() {
        let (initial, handshake) = (packet(0, &[3, 1, 1, 1]), packet(2, &[]));
        assert!(has_handshake_packet(&handshake));
        assert!(has_handshake_packet(&[initial.clone(), handshake].concat()));
        assert!(!has_handshake_packet(&[initial.clone(), vec![0; 20]].concat()));
        assert!(!has_handshake_packet(&[initial, vec![0x40; 20]].concat()));
    }

    #[test]
    fn a_short_header_is_none_of_a_handshake() {
        assert!(!is_of_handshake(&[0x40; 30]));
        assert!(!is_of_handshake(&[]));
        assert!(!has_handshake_packet(&[0xc0, 0, 0]));
    }

    #[test]
    fn another_version_has_other_packets() {
        let mut handshake = packet(2, &[]);
        handshake[4] = 2;
        assert!(!has_handshake_packet(&handshake));
    }
}
