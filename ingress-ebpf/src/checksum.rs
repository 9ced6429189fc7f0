//! Incremental checksum update for a change of one word (RFC 1624), without reading the rest of the packet.

/// Returns the checksum of data in which a 16-bit word changed from `from` to `to`.
///
/// All three arguments are as they are in the packet: ones' complement sums are the same in either byte order (RFC
/// 1071, 2B).
#[must_use]
#[inline(always)]
pub const fn replaced(checksum: u16, from: u16, to: u16) -> u16 {
    // RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
    let sum = (!checksum as u32) + (!from as u32) + (to as u32);
    // The sum of three words carries two at most.
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum over all words, by RFC 1071.
    fn checksum(words: &[u16]) -> u16 {
        let mut sum: u64 = words.iter().map(|&word| u64::from(word)).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).expect("folded")
    }

    #[test]
    fn the_updated_checksum_equals_the_recomputed_one() {
        let ports = [0x0050, 0x01bb, 0x2760, 0x28cb, 0, 0xffff, 0x8000, 0x7fff];
        for rest in 0..=u16::MAX {
            for from in ports {
                for to in ports {
                    let (before, after) = ([0x4500, rest, from], [0x4500, rest, to]);
                    assert_eq!(replaced(checksum(&before), from, to), checksum(&after), "{rest:#x} {from:#x} {to:#x}");
                }
            }
        }
    }

    #[test]
    fn byte_order_makes_no_difference() {
        for (sum, from, to) in [(0x1234, 80_u16, 10_080_u16), (0xfffe, 443, 10_443), (0, 10_080, 80)] {
            let swapped = replaced(u16::swap_bytes(sum), from.swap_bytes(), to.swap_bytes());
            assert_eq!(swapped, replaced(sum, from, to).swap_bytes());
        }
    }

    #[test]
    fn rewriting_back_restores_the_checksum() {
        for sum in 0..0xffff {
            assert_eq!(replaced(replaced(sum, 80, 10_080), 10_080, 80), sum);
        }
    }
}
