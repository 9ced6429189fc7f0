//! The encoder of field sections (RFC 9204, 4.5), with the static table alone.

use bytes::{BufMut, BytesMut};

use super::{
    huffman,
    table::{ENTRIES, indexes_of},
};

/// Length of the shortest string that is written in Huffman code, which RFC 9204, 4.1.2, leaves to us. The code takes
/// some 20 instructions for each byte and saves a fifth of them. Nearly all values of a usual head are shorter, and their
/// code was half of its work. Long values, such as cookies and policies, are still encoded.
const HUFFMAN_MIN: usize = 32;

/// Appends the prefix of a section, which refers to no dynamic table.
pub fn begin(out: &mut BytesMut) {
    out.put_u16(0);
}

/// Appends `:status`; `status` is from 100 to 999.
pub fn write_status(status: u16, out: &mut BytesMut) {
    let digits = [100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8);
    write_line(":status", &digits, false, out);
}

/// Appends a line. `name` is in lower case. `is_sensitive` lines must not get into a dynamic table of any hop.
pub fn write_line(name: &str, value: &[u8], is_sensitive: bool, out: &mut BytesMut) {
    let indexes = indexes_of(name);
    let whole = indexes.iter().find(|at| ENTRIES[usize::from(**at)].1.as_bytes() == value);
    match (whole, indexes) {
        // 1 T index(6).
        (Some(whole), _) if !is_sensitive => write_integer(0xc0, 6, usize::from(*whole), out),
        // 01 N T index(4).
        (_, [first, ..]) => {
            write_integer(0x50 | u8::from(is_sensitive) << 5, 4, usize::from(*first), out);
            write_string(0, 7, value, out);
        }
        // 001 N H length(3).
        (_, []) => {
            write_string(0x20 | u8::from(is_sensitive) << 4, 3, name.as_bytes(), out);
            write_string(0, 7, value, out);
        }
    }
}

/// Appends a string: the bits of `first`, whether it is Huffman code, its length with `prefix` bits, its bytes.
fn write_string(first: u8, prefix: u32, text: &[u8], out: &mut BytesMut) {
    if text.len() >= HUFFMAN_MIN {
        let encoded = huffman::encoded_len(text);
        if encoded < text.len() {
            write_integer(first | 1 << prefix, prefix, encoded, out);
            return huffman::encode(text, out);
        }
    }
    write_integer(first, prefix, text.len(), out);
    out.put_slice(text);
}

/// Appends an integer (RFC 7541, 5.1), the first bits of which are the lowest `prefix` ones of the first byte.
fn write_integer(first: u8, prefix: u32, mut value: usize, out: &mut BytesMut) {
    let max = (1 << prefix) - 1;
    if value < max {
        return out.put_u8(first | value as u8);
    }
    out.put_u8(first | max as u8);
    value -= max;
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}
