//! Framing of response bodies (RFC 9112, sections 6 and 7): pure state machines over buffers, no IO.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use super::{Malformed, head};

/// Limit for the chunk extensions of one body, in bytes. They have no defined meaning; only an attack needs more.
const EXTENSIONS_MAX: usize = 4 * 1024;
/// Limit for a trailer section, in bytes.
const TRAILERS_MAX: usize = 16 * 1024;

/// The way in which the end of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    /// The body ends with the connection.
    Close,
}

/// Extracts a body from the bytes of a connection, without taking a byte beyond its end.
#[derive(Debug)]
pub struct Decoder {
    state: DecoderState,
    extensions: usize,
    /// Bytes of an incomplete trailer section already searched for its end.
    scanned: usize,
    headers_max: usize,
}

/// The result of [`Decoder::decode`].
#[derive(Debug)]
pub enum Decoded {
    Data(Bytes),
    Trailers(HeaderMap),
    /// More bytes are needed.
    More,
    /// The body is complete; the remaining bytes of the buffer do not belong to it.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    Length(u64),
    Close,
    /// Before the first digit of a chunk size.
    SizeFirst,
    Size(u64),
    /// In white space after the size, which RFC 9112, section 7.1.1, only tolerates.
    SizeSpace(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    Trailers,
    End,
}

// === impl Decoder ===

impl Decoder {
    #[must_use]
    pub fn new(framing: Framing, headers_max: usize) -> Self {
        let state = match framing {
            Framing::Length(0) => DecoderState::End,
            Framing::Length(length) => DecoderState::Length(length),
            Framing::Chunked => DecoderState::SizeFirst,
            Framing::Close => DecoderState::Close,
        };
        Self { state, extensions: 0, scanned: 0, headers_max }
    }

    /// Takes the next piece from the front of `buffer`.
    ///
    /// # Errors
    /// If the bytes violate the framing; the decoder must not be used afterwards.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, Malformed> {
        loop {
            if self.state == DecoderState::End {
                return Ok(Decoded::End);
            }
            if buffer.is_empty() {
                return Ok(Decoded::More);
            }
            match self.state {
                DecoderState::Length(left) => {
                    let (data, left) = split(buffer, left);
                    self.state = if left == 0 { DecoderState::End } else { DecoderState::Length(left) };
                    return Ok(Decoded::Data(data));
                }
                DecoderState::Close => return Ok(Decoded::Data(buffer.split().freeze())),
                DecoderState::Data(left) => {
                    let (data, left) = split(buffer, left);
                    self.state = if left == 0 { DecoderState::DataCr } else { DecoderState::Data(left) };
                    return Ok(Decoded::Data(data));
                }
                DecoderState::Trailers => return self.trailers(buffer),
                state => {
                    self.state = self.step(state, buffer[0])?;
                    buffer.advance(1);
                }
            }
        }
    }

    /// Counts `count` bytes of a body of known length that bypassed the buffer.
    pub fn pass(&mut self, count: u64) {
        if let DecoderState::Length(left) = self.state {
            debug_assert!(count <= left, "no byte beyond the end is anybody's");
            self.state = if count < left { DecoderState::Length(left - count) } else { DecoderState::End };
        }
    }

    /// Marks the connection as closed for reading.
    ///
    /// Returns whether the body is complete: either it was already, or its framing is [`Framing::Close`].
    pub fn close(&mut self) -> bool {
        if self.state == DecoderState::Close {
            self.state = DecoderState::End;
        }
        self.is_end()
    }

    #[must_use]
    pub fn is_end(&self) -> bool {
        self.state == DecoderState::End
    }

    /// Returns the number of content bytes left, if the framing determines it.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            DecoderState::Length(left) => Some(left),
            DecoderState::End => Some(0),
            _ => None,
        }
    }

    /// Returns the number of content bytes certain to follow: of the body, or of the current chunk.
    #[must_use]
    pub fn expected(&self) -> u64 {
        match self.state {
            DecoderState::Length(left) | DecoderState::Data(left) => left,
            _ => 0,
        }
    }

    /// Handles one byte between the data of two chunks.
    fn step(&mut self, state: DecoderState, byte: u8) -> Result<DecoderState, Malformed> {
        Ok(match (state, byte) {
            (DecoderState::SizeFirst, _) => DecoderState::Size(digit(byte).ok_or(Malformed::ChunkSize)?),
            (DecoderState::Size(size), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = digit(byte).ok_or(Malformed::ChunkSize)?;
                DecoderState::Size(
                    size.checked_mul(16).and_then(|size| size.checked_add(digit)).ok_or(Malformed::ChunkSize)?,
                )
            }
            (DecoderState::Size(size) | DecoderState::SizeSpace(size) | DecoderState::Extension(size), b'\r') => {
                DecoderState::SizeLf(size)
            }
            (DecoderState::Size(size) | DecoderState::SizeSpace(size), b';') => self.extension(size)?,
            (DecoderState::Size(size) | DecoderState::SizeSpace(size), b' ' | b'\t') => {
                self.extension(size)?;
                DecoderState::SizeSpace(size)
            }
            // Some parsers accept a bare line feed as a line end and others do not, which allows request smuggling.
            (DecoderState::Extension(size), b'\t' | b' '..=b'~' | 0x80..) => self.extension(size)?,
            (DecoderState::Extension(_), _) => return Err(Malformed::ChunkExtension),
            (DecoderState::SizeLf(0), b'\n') => DecoderState::Trailers,
            (DecoderState::SizeLf(size), b'\n') => DecoderState::Data(size),
            (DecoderState::DataCr, b'\r') => DecoderState::DataLf,
            (DecoderState::DataLf, b'\n') => DecoderState::SizeFirst,
            (DecoderState::DataCr | DecoderState::DataLf, _) => return Err(Malformed::ChunkEnd),
            _ => return Err(Malformed::ChunkSize),
        })
    }

    fn extension(&mut self, size: u64) -> Result<DecoderState, Malformed> {
        self.extensions += 1;
        if self.extensions > EXTENSIONS_MAX {
            Err(Malformed::ChunkExtension)
        } else {
            Ok(DecoderState::Extension(size))
        }
    }

    fn trailers(&mut self, buffer: &mut BytesMut) -> Result<Decoded, Malformed> {
        if buffer.starts_with(b"\r\n") {
            buffer.advance(2);
            self.state = DecoderState::End;
            return Ok(Decoded::End);
        }
        // Parses again only after another line end. Otherwise the work for bytes that trickle in would be quadratic in
        // their number.
        let complete = buffer.get(self.scanned..).is_some_and(|fresh| fresh.contains(&b'\n'));
        self.scanned = buffer.len();
        if complete && let Some(trailers) = head::parse_trailers(buffer, self.headers_max, TRAILERS_MAX)? {
            self.state = DecoderState::End;
            return Ok(if trailers.is_empty() { Decoded::End } else { Decoded::Trailers(trailers) });
        }
        if buffer.len() > TRAILERS_MAX { Err(Malformed::Trailer) } else { Ok(Decoded::More) }
    }
}

/// Splits up to `left` bytes off `buffer`. Returns them and the rest of `left`.
fn split(buffer: &mut BytesMut, left: u64) -> (Bytes, u64) {
    let take = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    (buffer.split_to(take).freeze(), left - take as u64)
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// Appends the size line of a chunk with `length` bytes. A length of 0 would end the body, so there must be data.
pub fn write_chunk_size(out: &mut Vec<u8>, length: usize) {
    debug_assert_ne!(length, 0);
    let digits = (usize::BITS - length.leading_zeros()).div_ceil(4).max(1);
    for index in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(length >> (index * 4)) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// The line end after the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// The bytes after the data of the last chunk of a body without trailers.
pub const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Content, number of trailers, bytes after the end, and whether the end was found.
    type Whole = (Vec<u8>, usize, Vec<u8>, bool);

    /// Decodes `pieces` one after the other.
    fn decode(framing: Framing, pieces: &[&[u8]]) -> Result<Whole, Malformed> {
        let mut decoder = Decoder::new(framing, 100);
        let (mut buffer, mut content, mut trailers) = (BytesMut::new(), Vec::new(), 0);
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match decoder.decode(&mut buffer)? {
                    Decoded::Data(data) => content.extend_from_slice(&data),
                    Decoded::Trailers(fields) => trailers += fields.len(),
                    Decoded::More | Decoded::End => break,
                }
            }
        }
        Ok((content, trailers, buffer.to_vec(), decoder.is_end()))
    }

    #[test]
    fn chunked_bodies_are_parsed_strictly() {
        type Expect = Result<(&'static str, usize, &'static str), Malformed>;
        let cases: &[(&[u8], Expect)] = &[
            (b"0\r\n\r\n", Ok(("", 0, ""))),
            (b"5\r\nhello\r\n0\r\n\r\n", Ok(("hello", 0, ""))),
            (b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nHTTP", Ok(("hello world", 0, "HTTP"))),
            (b"A\r\n0123456789\r\n00\r\n\r\n", Ok(("0123456789", 0, ""))),
            (b"000000000000000000005\r\nhello\r\n0\r\n\r\n", Ok(("hello", 0, ""))),
            (b"5;name=value\r\nhello\r\n0;x\r\n\r\n", Ok(("hello", 0, ""))),
            (b"5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n", Ok(("hello", 0, ""))),
            (b"5 \r\nhello\r\n0\r\n\r\n", Ok(("hello", 0, ""))),
            (b"5 ;a\r\nhello\r\n0\r\n\r\n", Ok(("hello", 0, ""))),
            (b"1\r\nx\r\n0\r\na: b\r\nc: d\r\n\r\nrest", Ok(("x", 2, "rest"))),
            (b"1\r\nx\r\n0\r\ncontent-length: 7\r\n\r\n", Ok(("x", 0, ""))),
            (b"\r\n", Err(Malformed::ChunkSize)),
            (b"g\r\n", Err(Malformed::ChunkSize)),
            (b"0x5\r\nhello\r\n", Err(Malformed::ChunkSize)),
            (b"-5\r\n", Err(Malformed::ChunkSize)),
            (b"+5\r\n", Err(Malformed::ChunkSize)),
            (b" 5\r\n", Err(Malformed::ChunkSize)),
            (b"5_0\r\n", Err(Malformed::ChunkSize)),
            (b"5 5\r\n", Err(Malformed::ChunkSize)),
            (b"5\nhello\r\n", Err(Malformed::ChunkSize)),
            (b"5\rXhello", Err(Malformed::ChunkSize)),
            (b"5\r\r\nhello", Err(Malformed::ChunkSize)),
            (b"10000000000000000\r\n", Err(Malformed::ChunkSize)),
            (b"fffffffffffffffff\r\n", Err(Malformed::ChunkSize)),
            (b"5;a\nhello\r\n", Err(Malformed::ChunkExtension)),
            (b"5;a\0\r\nhello\r\n", Err(Malformed::ChunkExtension)),
            (b"5;a\rb\r\nhello\r\n", Err(Malformed::ChunkSize)),
            (b"5\r\nhelloX\r\n", Err(Malformed::ChunkEnd)),
            (b"5\r\nhello\n0\r\n", Err(Malformed::ChunkEnd)),
            (b"5\r\nhello\rX", Err(Malformed::ChunkEnd)),
            (b"0\r\nno colon\r\n\r\n", Err(Malformed::Trailer)),
            (b"0\r\na: b\n\r\n", Err(Malformed::Trailer)),
            (b"0\r\na: b\r\n c\r\n\r\n", Err(Malformed::Trailer)),
            (b"0\r\n\nx", Err(Malformed::Trailer)),
        ];
        for (bytes, expect) in cases {
            let expect = expect.map(|(content, trailers, rest)| (content.into(), trailers, rest.into(), true));
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(decode(Framing::Chunked, &[bytes]), expect, "{text:?}");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(decode(Framing::Chunked, &single), expect, "byte by byte {text:?}");
        }
    }

    #[test]
    fn oversized_chunk_extensions_and_trailers_are_refused() {
        let extension = [b"5;".as_slice(), &[b'a'; EXTENSIONS_MAX + 1]].concat();
        assert_eq!(decode(Framing::Chunked, &[&extension]), Err(Malformed::ChunkExtension));
        let spread = b"1;aaaaaaaaaaaaaaa\r\nx\r\n".repeat(EXTENSIONS_MAX / 16 + 1);
        assert_eq!(decode(Framing::Chunked, &[&spread]), Err(Malformed::ChunkExtension));
        let trailers = [b"0\r\na: ".as_slice(), &[b'a'; TRAILERS_MAX + 1]].concat();
        assert_eq!(decode(Framing::Chunked, &[&trailers]), Err(Malformed::Trailer));
        let many = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(101), b"\r\n"].concat();
        assert_eq!(decode(Framing::Chunked, &[&many]), Err(Malformed::Trailer));
    }

    #[test]
    fn only_a_body_without_length_ends_with_the_connection() {
        for (framing, expect) in [(Framing::Close, true), (Framing::Length(1), false), (Framing::Chunked, false)] {
            assert_eq!(Decoder::new(framing, 100).close(), expect, "{framing:?}");
        }
    }

    #[test]
    fn spliced_bytes_count_towards_the_length() {
        let mut decoder = Decoder::new(Framing::Length(10), 100);
        decoder.pass(3);
        assert_eq!(decoder.remaining(), Some(7));
        let mut buffer = BytesMut::from("four");
        assert!(matches!(decoder.decode(&mut buffer), Ok(Decoded::Data(data)) if data == "four"));
        decoder.pass(2);
        assert!(!decoder.is_end() && !decoder.close());
        decoder.pass(1);
        assert_eq!((decoder.is_end(), decoder.remaining()), (true, Some(0)));
    }

    #[test]
    fn chunk_sizes_are_hexadecimal_without_padding() {
        for length in [1, 9, 10, 15, 16, 255, 256, 4096, 65_535, 1 << 20, usize::MAX] {
            let mut out = Vec::new();
            write_chunk_size(&mut out, length);
            assert_eq!(out, format!("{length:x}\r\n").into_bytes());
        }
    }

    proptest! {
        #[test]
        fn chunked_bodies_decode_alike_for_any_split(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                write_chunk_size(&mut bytes, chunk.len());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(CHUNK_END);
            }
            bytes.extend_from_slice(b"0\r\n\r\nnext");
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (content, trailers, rest, end) = decode(Framing::Chunked, &pieces).expect("well-formed");
            prop_assert_eq!(content, chunks.concat());
            prop_assert_eq!((trailers, rest.as_slice(), end), (0, b"next".as_slice(), true));
        }

        #[test]
        fn a_body_ends_exactly_at_its_length(body in prop::collection::vec(any::<u8>(), 0..500), extra in 0_usize..20) {
            let bytes = [body.clone(), vec![b'x'; extra]].concat();
            let (content, _, rest, end) = decode(Framing::Length(body.len() as u64), &[&bytes]).expect("well-formed");
            prop_assert_eq!((content, rest.len(), end), (body, extra, true));
        }
    }
}
