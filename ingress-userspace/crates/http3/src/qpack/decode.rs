//! The decoder of field sections (RFC 9204, 4.5).

use bytes::{Buf, Bytes};

use super::{
    LINE_OVERHEAD,
    huffman::{self, Invalid},
    table::ENTRIES,
};
use crate::error::{Error, Refusal};

/// A field line as it was decoded. Its name and value may contain any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The name; a slice of the section, unless it was encoded or is in the table.
    pub name: Bytes,
    /// The value, likewise.
    pub value: Bytes,
    /// Whether no hop may put it into a dynamic table (RFC 9204, 7.1.3).
    pub never_indexed: bool,
}

/// Decodes the lines of a field section, one after the other.
#[derive(Clone, Debug)]
pub struct Lines {
    rest: Bytes,
    /// Size that further lines may have.
    left: usize,
}

impl Lines {
    /// Begins with the section's prefix. The lines may have a size of `max_size`: bytes of names and values, and
    /// [`LINE_OVERHEAD`] for each line.
    ///
    /// # Errors
    /// `QPACK_DECOMPRESSION_FAILED` if the prefix is invalid or refers to a dynamic table.
    pub fn new(mut section: Bytes, max_size: usize) -> Result<Self, Error> {
        let first = next_byte(&mut section)?;
        if integer(first, 8, &mut section)? != 0 {
            return Err(Error::decompression("a section needs a dynamic table"));
        }
        let first = next_byte(&mut section)?;
        let _base = integer(first, 7, &mut section)?;
        // A base below 0 (RFC 9204, 4.5.1.2).
        if first & 0x80 != 0 {
            return Err(Error::decompression("the base of a section is negative"));
        }
        Ok(Self { rest: section, left: max_size })
    }

    /// Returns the next line, or `None` at the end of the section.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] above the limit; `QPACK_DECOMPRESSION_FAILED` for an invalid line. In both cases the rest
    /// must not be decoded.
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<Line>, Refusal> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.left = self.left.checked_sub(LINE_OVERHEAD).ok_or(Refusal::TooLarge)?;
        let first = next_byte(&mut self.rest)?;
        let line = match first {
            // Indexed field line: 1 T index(6).
            0x80.. => {
                let (name, value) = self.entry(first, 0x40, 6)?;
                let (name, value) = (self.constant(name)?, self.constant(value)?);
                Line { name, value, never_indexed: false }
            }
            // Literal with a name of the table: 01 N T index(4).
            0x40.. => {
                let (name, _) = self.entry(first, 0x10, 4)?;
                let name = self.constant(name)?;
                Line { name, value: self.value()?, never_indexed: first & 0x20 != 0 }
            }
            // Literal with a literal name: 001 N H length(3).
            0x20.. => {
                let name = self.string(first, 3)?;
                Line { name, value: self.value()?, never_indexed: first & 0x10 != 0 }
            }
            // Lines behind the base, which are in the dynamic table.
            _ => return Err(Error::decompression("a line refers to the dynamic table").into()),
        };
        Ok(Some(line))
    }

    /// Returns the entry of the static table whose index begins in `first`, if the bit `is_static` is set.
    fn entry(&mut self, first: u8, is_static: u8, prefix: u32) -> Result<(&'static str, &'static str), Error> {
        if first & is_static == 0 {
            return Err(Error::decompression("a line refers to the dynamic table"));
        }
        let index = integer(first, prefix, &mut self.rest)?;
        let entry = usize::try_from(index).ok().and_then(|index| ENTRIES.get(index));
        entry.copied().ok_or(Error::decompression("an index is behind the static table"))
    }

    fn constant(&mut self, text: &'static str) -> Result<Bytes, Refusal> {
        self.left = self.left.checked_sub(text.len()).ok_or(Refusal::TooLarge)?;
        Ok(Bytes::from_static(text.as_bytes()))
    }

    /// Reads a value: H length(7).
    fn value(&mut self) -> Result<Bytes, Refusal> {
        let first = next_byte(&mut self.rest)?;
        self.string(first, 7)
    }

    /// Reads a string, whose length begins in `first`. The bit before the length tells whether it is Huffman code.
    fn string(&mut self, first: u8, prefix: u32) -> Result<Bytes, Refusal> {
        let length = integer(first, prefix, &mut self.rest)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
        let encoded = self.rest.split_to(length.ok_or(Error::decompression("a string is truncated"))?);
        let string = if first >> prefix & 1 == 0 {
            encoded
        } else {
            match huffman::decode(&encoded, self.left) {
                Ok(text) => text.freeze(),
                Err(Invalid::TooLong) => return Err(Refusal::TooLarge),
                Err(Invalid::Eos) => return Err(Error::decompression("a string contains EOS").into()),
                Err(Invalid::Padding) => return Err(Error::decompression("the padding of a string is wrong").into()),
            }
        };
        self.left = self.left.checked_sub(string.len()).ok_or(Refusal::TooLarge)?;
        Ok(string)
    }
}

fn next_byte(bytes: &mut Bytes) -> Result<u8, Error> {
    bytes.try_get_u8().map_err(|_truncated| Error::decompression("a section is truncated"))
}

/// Reads an integer (RFC 7541, 5.1), the first bits of which are the lowest `prefix` ones of `first`. Integers above 62
/// bits are refused, as RFC 9204, 4.1.1, permits; so are more than nine bytes behind the first one.
fn integer(first: u8, prefix: u32, rest: &mut Bytes) -> Result<u64, Error> {
    let max = (1_u64 << prefix) - 1;
    let mut value = u64::from(first) & max;
    if value < max {
        return Ok(value);
    }
    for shift in (0..=56).step_by(7) {
        let byte = next_byte(rest)?;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if value <= crate::varint::MAX { Ok(value) } else { Err(too_large()) };
        }
    }
    Err(too_large())
}

fn too_large() -> Error {
    Error::decompression("an integer is too large")
}
