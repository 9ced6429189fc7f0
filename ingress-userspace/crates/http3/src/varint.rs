//! Integers of variable length (RFC 9000, 16), as frames and settings have them.

use bytes::{Buf, BufMut, Bytes};

/// Largest integer that can be written.
pub const MAX: u64 = (1 << 62) - 1;

/// Reads an integer from the beginning of `bytes`. Returns it with its length, or `None` if bytes are missing.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = length_by(first);
    let rest = bytes.get(1..length)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Appends `value` in the shortest form. Values above [`MAX`] are written as [`MAX`].
pub fn write(value: u64, out: &mut impl BufMut) {
    match value.min(MAX) {
        // The branches bound the values, so the casts lose no bits.
        value @ 0..0x40 => out.put_u8(value as u8),
        value @ 0x40..0x4000 => out.put_u16(value as u16 | 0x4000),
        value @ 0x4000..0x4000_0000 => out.put_u32(value as u32 | 0x8000_0000),
        value => out.put_u64(value | 0xc000_0000_0000_0000),
    }
}

/// Returns the length of an integer that begins with `first`.
fn length_by(first: u8) -> usize {
    1 << (first >> 6)
}

/// Reads an integer whose bytes come in several chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    bytes: [u8; 8],
    filled: usize,
}

impl Reader {
    /// Takes bytes from `chunk`. Returns the integer when it is complete, and begins anew.
    pub(crate) fn read(&mut self, chunk: &mut Bytes) -> Option<u64> {
        // Nearly always one chunk has all bytes.
        if self.is_empty()
            && let Some((value, length)) = read(chunk)
        {
            chunk.advance(length);
            return Some(value);
        }
        while !chunk.is_empty() {
            self.bytes[self.filled] = chunk.get_u8();
            self.filled += 1;
            if let Some((value, _)) = read(&self.bytes[..self.filled]) {
                self.filled = 0;
                return Some(value);
            }
        }
        None
    }

    /// Returns whether no byte of an integer has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }
}
