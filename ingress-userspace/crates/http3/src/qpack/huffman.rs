//! The Huffman code of field lines (RFC 7541, 5.2 and appendix B; RFC 9204, 4.1.2).
//!
//! The code is canonical: the lengths determine it. Codes of the same length are consecutive numbers in the order of
//! their symbols, and a longer code continues where shorter ones ended.

use bytes::{BufMut, BytesMut};

/// Bits of the code of each byte, and last of the end of a string (EOS).
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// Symbol of the end of a string. It must not occur in one.
const EOS: u16 = 256;
/// Bits of the longest code.
const LENGTH_MAX: u8 = 30;

/// Code of each symbol, in the lowest bits.
const CODES: [u32; 257] = codes();

const fn codes() -> [u32; 257] {
    let mut codes = [0; 257];
    let (mut next, mut length) = (0, 1);
    while length <= LENGTH_MAX {
        let mut symbol = 0;
        while symbol < codes.len() {
            if LENGTHS[symbol] == length {
                codes[symbol] = next;
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        length += 1;
    }
    codes
}

/// Inner node of the tree of codes: the next node for a bit 0 and a bit 1. Values from [`LEAF`] on are symbols.
type Node = [u16; 2];

const LEAF: u16 = 1 << 15;
/// A tree with 257 leaves has 256 inner nodes.
const NODES: usize = 256;

const fn tree() -> [Node; NODES] {
    let mut tree = [[0; 2]; NODES];
    let (mut used, mut symbol) = (1, 0);
    while symbol < CODES.len() {
        let (mut node, mut left) = (0, LENGTHS[symbol]);
        while left > 0 {
            left -= 1;
            let bit = (CODES[symbol] >> left & 1) as usize;
            if left == 0 {
                tree[node][bit] = LEAF | symbol as u16;
            } else {
                if tree[node][bit] == 0 {
                    tree[node][bit] = used;
                    used += 1;
                }
                node = tree[node][bit] as usize;
            }
        }
        symbol += 1;
    }
    tree
}

/// Outcome of four bits in a node. No code is shorter than five bits, so there is at most one symbol.
#[derive(Clone, Copy)]
struct Step {
    next: u8,
    symbol: Option<u8>,
    /// The bits end the code of EOS.
    is_eos: bool,
}

static STEPS: [[Step; 16]; NODES] = steps();

const fn steps() -> [[Step; 16]; NODES] {
    let tree = tree();
    let mut steps = [[Step { next: 0, symbol: None, is_eos: false }; 16]; NODES];
    let mut from = 0;
    while from < NODES {
        let mut nibble = 0;
        while nibble < 16 {
            let (mut node, mut bit) = (from, 4);
            let step = &mut steps[from][nibble];
            while bit > 0 {
                bit -= 1;
                let next = tree[node][nibble >> bit & 1];
                if next & LEAF == 0 {
                    node = next as usize;
                } else {
                    match next ^ LEAF {
                        EOS => step.is_eos = true,
                        symbol => step.symbol = Some(symbol as u8),
                    }
                    node = 0;
                }
            }
            step.next = node as u8;
            nibble += 1;
        }
        from += 1;
    }
    steps
}

/// Nodes in which a string may end: the root, and those that up to seven bits 1 lead to (RFC 7541, 5.2).
static IS_END: [bool; NODES] = ends();

const fn ends() -> [bool; NODES] {
    let tree = tree();
    let mut ends = [false; NODES];
    let (mut node, mut depth) = (0, 0);
    while depth <= 7 {
        ends[node] = true;
        node = tree[node][1] as usize;
        depth += 1;
    }
    ends
}

/// The reason why a string cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// The decoded string is longer than the limit.
    TooLong,
    /// The string contains EOS.
    Eos,
    /// The padding has more than seven bits, or a bit 0.
    Padding,
}

/// Decodes `encoded` to at most `max` bytes.
///
/// # Errors
/// If the string breaks a rule or is too long.
pub(crate) fn decode(encoded: &[u8], max: usize) -> Result<BytesMut, Invalid> {
    // The shortest codes have five bits.
    let mut out = BytesMut::with_capacity((encoded.len() / 5 * 8 + 8).min(max));
    let mut node = 0;
    for byte in encoded {
        for nibble in [byte >> 4, byte & 0xf] {
            let Step { next, symbol, is_eos } = STEPS[usize::from(node)][usize::from(nibble)];
            if is_eos {
                return Err(Invalid::Eos);
            }
            if let Some(symbol) = symbol {
                if out.len() == max {
                    return Err(Invalid::TooLong);
                }
                out.put_u8(symbol);
            }
            node = next;
        }
    }
    if IS_END[usize::from(node)] { Ok(out) } else { Err(Invalid::Padding) }
}

/// Returns the length of `text` as it is encoded, in bytes.
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum::<usize>().div_ceil(8)
}

/// Appends `text` as Huffman code.
pub(crate) fn encode(text: &[u8], out: &mut BytesMut) {
    // The lowest `filled` bits are not written yet; there are at most 31 + 30 of them.
    let (mut bits, mut filled) = (0_u64, 0);
    for byte in text {
        let length = LENGTHS[usize::from(*byte)];
        bits = bits << length | u64::from(CODES[usize::from(*byte)]);
        filled += length;
        if filled >= 32 {
            filled -= 32;
            out.put_u32((bits >> filled) as u32);
        }
    }
    while filled >= 8 {
        filled -= 8;
        out.put_u8((bits >> filled) as u8);
    }
    if filled > 0 {
        let padding = 8 - filled;
        out.put_u8((bits << padding) as u8 | (0xff >> filled));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_are_those_of_the_rfc() {
        // Appendix B of RFC 7541: the first and last of each region, and some between.
        for (symbol, code, length) in [
            (0_usize, 0x1ff8, 13),
            (1, 0x7f_ffd8, 23),
            (10, 0x3fff_fffc, 30),
            (13, 0x3fff_fffd, 30),
            (22, 0x3fff_fffe, 30),
            (32, 0x14, 6),
            (48, 0x0, 5),
            (50, 0x2, 5),
            (57, 0x1f, 6),
            (65, 0x21, 6),
            (88, 0xfc, 8),
            (92, 0x7_fff0, 19),
            (97, 0x3, 5),
            (116, 0x9, 5),
            (122, 0x7b, 7),
            (127, 0xfff_fffc, 28),
            (128, 0xf_ffe6, 20),
            (199, 0x1ff_ffec, 25),
            (249, 0xfff_fffe, 28),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!((CODES[symbol], LENGTHS[symbol]), (code, length), "symbol {symbol}");
        }
    }

    #[test]
    fn examples_of_the_rfc_are_read_and_written() {
        // Appendices C.4 and C.6 of RFC 7541.
        for (text, encoded) in [
            ("www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..]),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("custom-key", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f]),
            ("custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf]),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
            ("307", &[0x64, 0x0e, 0xff]),
            ("gzip", &[0x9b, 0xd9, 0xab]),
            ("", &[]),
        ] {
            let mut out = BytesMut::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!((&out[..], encoded_len(text.as_bytes())), (encoded, encoded.len()), "{text}");
            assert_eq!(decode(encoded, 64).as_deref(), Ok(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn invalid_strings_are_refused() {
        // Section 5.2 of RFC 7541; `a` is 00011.
        for (encoded, expect) in [
            (&[0b0001_1111][..], Ok(&b"a"[..])),
            (&[0b0001_1110], Err(Invalid::Padding)),
            (&[0b0001_1000], Err(Invalid::Padding)),
            (&[0b0001_1011], Err(Invalid::Padding)),
            // Eight bits and more of padding.
            (&[0xff], Err(Invalid::Padding)),
            (&[0b0001_1111, 0xff], Err(Invalid::Padding)),
            (&[0xff, 0xff, 0xff], Err(Invalid::Padding)),
            // EOS with two bits of padding, and within a string.
            (&[0xff, 0xff, 0xff, 0xff], Err(Invalid::Eos)),
            (&[0b0001_1111, 0xff, 0xff, 0xff, 0xff], Err(Invalid::Eos)),
            // Three of the five bits of a code.
            (&[0b0000_0000], Err(Invalid::Padding)),
        ] {
            assert_eq!(decode(encoded, 8).as_deref(), expect.as_ref().map(|text| &text[..]), "{encoded:02x?}");
        }
        assert_eq!(decode(&[0x00, 0x00, 0x0f], 3), Err(Invalid::TooLong));
        assert_eq!(decode(&[0x00, 0x00, 0x0f], 4).as_deref(), Ok(&b"0000"[..]));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(text: Vec<u8>) {
            let mut out = BytesMut::new();
            encode(&text, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&text));
            let read = decode(&out, text.len());
            prop_assert_eq!(read.as_deref(), Ok(&text[..]));
            if let Some(shorter) = text.len().checked_sub(1) {
                prop_assert_eq!(decode(&out, shorter), Err(Invalid::TooLong));
            }
        }

        /// A string has one encoding, so two readers cannot differ.
        #[test]
        fn what_is_read_is_written_the_same(encoded: Vec<u8>) {
            if let Ok(text) = decode(&encoded, usize::MAX) {
                let mut out = BytesMut::new();
                encode(&text, &mut out);
                prop_assert_eq!(&out[..], &encoded[..]);
            }
        }
    }
}
