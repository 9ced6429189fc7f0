//! Splits a head or a trailer section strictly into lines (RFC 9112, sections 2.1 and 5); bytes in, values out, no IO.
//!
//! This module finds lines, colons and white space. `http` validates the text between them when it creates a name or a
//! value, so it is not validated here.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use memchr::{memchr, memchr_iter};

use super::{
    ExchangeError, Malformed,
    head::{HEADERS_MAX, trim},
    names,
};

const CRLF: &[u8] = b"\r\n";

/// The offsets of a field line, which begins at the end of the previous one.
#[derive(Clone, Copy, Default)]
pub(super) struct FieldLine {
    colon: u32,
    /// The offset after its CRLF.
    end: u32,
}

/// Field lines and the empty line after them, taken from a connection.
pub(super) struct Section<'a> {
    bytes: Bytes,
    /// The offset of the first field line.
    begin: usize,
    lines: &'a [FieldLine],
}

/// Limits of a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most fields; larger values than [`HEADERS_MAX`] count as that.
    pub(super) fields: usize,
    /// Most bytes, including those before the first field line.
    pub(super) length: usize,
}

// === impl Section ===

impl<'a> Section<'a> {
    /// Takes a section, and the `begin` bytes before it, from the front of `buffer` once it is complete. The offsets of
    /// its lines are stored in `lines`.
    ///
    /// # Errors
    /// If a line does not end in CRLF or has no colon, or if the section exceeds its limits.
    pub(super) fn take(
        buffer: &mut BytesMut,
        begin: usize,
        bounds: Bounds,
        lines: &'a mut [FieldLine; HEADERS_MAX],
    ) -> Result<Option<Self>, ExchangeError> {
        let lines = &mut lines[..bounds.fields.min(HEADERS_MAX)];
        let Some((count, end)) = find(buffer, begin, lines)? else { return Ok(None) };
        if end > bounds.length {
            return Err(ExchangeError::HeadTooLarge);
        }
        Ok(Some(Self { bytes: buffer.split_to(end).freeze(), begin, lines: &lines[..count] }))
    }

    /// Copies the section, so that its values do not keep the read buffer in use.
    pub(super) fn copy(&mut self) {
        self.bytes = Bytes::copy_from_slice(&self.bytes);
    }

    /// Returns the fields for which `keep` returns `true` as a map, with values that are slices of the section.
    ///
    /// # Errors
    /// [`Malformed::Header`] if a name is not a token or a value not text, even for fields that are not kept; and the
    /// errors of `keep`.
    pub(super) fn fields(
        self,
        mut keep: impl FnMut(&HeaderName, &[u8]) -> Result<bool, Malformed>,
    ) -> Result<HeaderMap, Malformed> {
        let Self { bytes, mut begin, lines } = self;
        let mut headers = HeaderMap::with_capacity(lines.len());
        for line in lines {
            let (colon, end) = (line.colon as usize, line.end as usize);
            let name = names::name(&bytes[begin..colon])?;
            let value = trim(&bytes[colon + 1..end - CRLF.len()]);
            if keep(&name, value)? {
                let value = HeaderValue::from_maybe_shared(bytes.slice_ref(value));
                headers.append(name, value.map_err(|_invalid| Malformed::Header)?);
            } else if !is_text(value) {
                return Err(Malformed::Header);
            }
            begin = end;
        }
        Ok(headers)
    }
}

/// Returns the number of field lines from `fields` on, and the end of the empty line after them, if that has arrived.
fn find(bytes: &[u8], fields: usize, lines: &mut [FieldLine]) -> Result<Option<(usize, usize)>, ExchangeError> {
    let (mut begin, mut count) = (fields, 0);
    loop {
        let rest = &bytes[begin..];
        if rest.starts_with(CRLF) {
            return Ok(Some((count, begin + CRLF.len())));
        }
        let Some(line) = first_line(rest).map_err(ExchangeError::Malformed)? else {
            return await_more(&bytes[fields..], Malformed::Header).map_err(ExchangeError::Malformed);
        };
        let Some(colon) = memchr(b':', line) else {
            return Err(ExchangeError::Malformed(Malformed::Header));
        };
        let Some(found) = lines.get_mut(count) else { return Err(ExchangeError::HeadTooLarge) };
        let end = begin + line.len() + CRLF.len();
        *found = FieldLine { colon: offset(begin + colon)?, end: offset(end)? };
        count += 1;
        begin = end;
    }
}

fn offset(at: usize) -> Result<u32, ExchangeError> {
    u32::try_from(at).map_err(|_beyond| ExchangeError::HeadTooLarge)
}

/// Returns the first line without its end, if it is complete. A bare line feed is refused: some parsers accept it and
/// others do not, and ambiguous messages are not forwarded. A bare carriage return is refused with the name or value
/// that it is part of.
fn first_line(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    // One byte is found in half the instructions that two take.
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    match bytes[..end].split_last() {
        Some((b'\r', line)) => Ok(Some(line)),
        _ => Err(Malformed::LineEnd),
    }
}

/// Refuses a bare carriage return in an incomplete head at once, because its line is read with the complete one.
#[cold]
fn await_more<T>(bytes: &[u8], fault: Malformed) -> Result<Option<T>, Malformed> {
    let is_bare = |at: usize| bytes.get(at + 1).is_some_and(|next| *next != b'\n');
    if memchr_iter(b'\r', bytes).any(is_bare) { Err(fault) } else { Ok(None) }
}

/// Returns the version, the status and the end of the status line, if it is complete. The reason phrase is dropped, but
/// must be text.
pub(super) fn status_line(bytes: &[u8]) -> Result<Option<(Version, StatusCode, usize)>, Malformed> {
    let Some(line) = first_line(bytes)? else { return await_more(bytes, Malformed::StatusLine) };
    let (version, status) = version_and_status(line).ok_or(Malformed::StatusLine)?;
    Ok(Some((version, status, line.len() + CRLF.len())))
}

fn version_and_status(line: &[u8]) -> Option<(Version, StatusCode)> {
    let (version, rest) = line.split_first_chunk::<9>()?;
    let version = match version {
        b"HTTP/1.1 " => Version::HTTP_11,
        b"HTTP/1.0 " => Version::HTTP_10,
        _ => return None,
    };
    let (status, reason) = rest.split_first_chunk::<3>()?;
    let status = StatusCode::from_bytes(status).ok()?;
    // Without a reason phrase, the space before it is missing as well.
    let sound = matches!(reason, [] | [b' ', ..]) && is_text(reason);
    sound.then_some((version, status))
}

/// Returns whether the bytes contain no control character except tabs.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Fields = Vec<(String, Vec<u8>)>;
    /// Status, fields, and the bytes after the head; `Err` for any error.
    type Outcome = Result<Option<(u16, Fields, Vec<u8>)>, ()>;

    /// Returns the fields of `http` in an order that does not depend on the parser.
    fn our_fields(headers: &HeaderMap) -> Fields {
        let fields = headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        let mut fields: Fields = fields.collect();
        fields.sort();
        fields
    }

    /// Returns the fields of `httparse` in the same order.
    fn their_fields(headers: &[httparse::Header<'_>]) -> Fields {
        let fields = headers.iter().map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()));
        let mut fields: Fields = fields.collect();
        fields.sort();
        fields
    }

    /// Returns whether every line ends in CRLF.
    fn has_crlf(lines: &[u8]) -> bool {
        lines.split_inclusive(|byte| *byte == b'\n').all(|line| line.ends_with(CRLF))
    }

    fn ours(bytes: &[u8]) -> Outcome {
        let mut buffer = BytesMut::from(bytes);
        let mut lines = [FieldLine::default(); HEADERS_MAX];
        let Some((_, status, begin)) = status_line(&buffer).map_err(|_fault| ())? else { return Ok(None) };
        let bounds = Bounds { fields: 100, length: 64 * 1024 };
        let section = Section::take(&mut buffer, begin, bounds, &mut lines).map_err(|_fault| ())?;
        let Some(section) = section else { return Ok(None) };
        let headers = section.fields(|name, _| Ok(name != http::header::TE)).map_err(|_fault| ())?;
        Ok(Some((status.as_u16(), our_fields(&headers), buffer.to_vec())))
    }

    /// Parses with `httparse`, and requires that every line ends in CRLF.
    fn theirs(bytes: &[u8]) -> Outcome {
        let mut fields = [httparse::EMPTY_HEADER; 100];
        let mut response = httparse::Response::new(&mut fields);
        // `httparse` would skip empty lines.
        let parsed = if bytes.starts_with(b"H") { response.parse(bytes).map_err(|_fault| ())? } else { return Err(()) };
        let httparse::Status::Complete(length) = parsed else { return Ok(None) };
        let (head, rest) = bytes.split_at(length);
        let status = response.code.filter(|code| *code >= 100 && has_crlf(head)).ok_or(())?;
        let mut fields = their_fields(response.headers);
        fields.retain(|(name, _)| name != "te");
        Ok(Some((status, fields, rest.to_vec())))
    }

    fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        prop::sample::select(texts).prop_map(|text| text.as_bytes().to_vec())
    }

    /// Pieces of heads, valid and invalid; their combinations are heads of either kind.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let sound = one_of(&[
            "a: b\r\n",
            "te: c\r\n",
            "a:b\r\n",
            "A!#$%&'*+-.^_`|~9:\t b \t\r\n",
            "a:\r\n",
            "a: \r\n",
            "a::b:\r\n",
            "a: \u{e9}\r\n",
            "a: b\tc\r\n",
        ]);
        let other = one_of(&[
            "\r\n",
            "\n",
            "\r",
            ":",
            " ",
            "\t",
            "a",
            "a : b\r\n",
            " a: b\r\n",
            "a: b\n",
            "a: b\r\r\n",
            "te: b\0\r\n",
            "te: b\x0b\r\n",
            "te: \x0cb\r\n",
            "a: \x7f\r\n",
            "a: b\rc\r\n",
            ": b\r\n",
            "a\r\n",
            "a(: b\r\n",
            "\u{e9}: b\r\n",
            "\0",
            "te: b\x0c\r\n",
        ]);
        prop_oneof![
            8 => sound,
            1 => other,
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ]
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let other = one_of(&[
            "HTTP/1.1 200\r\n",
            "HTTP/1.0 404 \r\n",
            "HTTP/1.1 999 a\tb \u{e9}\r\n",
            "HTTP/1.1 200OK\r\n",
            "HTTP/1.1 20 OK\r\n",
            "HTTP/1.1 2000\r\n",
            "HTTP/1.1  200\r\n",
            "HTTP/1.2 200 OK\r\n",
            "http/1.1 200 OK\r\n",
            "HTTP/1.1 099 OK\r\n",
            "HTTP/1.1 200 O\0K\r\n",
            "HTTP/1.1 200 O\rK\r\n",
            "HTTP/1.1 200 OK\n",
            "HTTP/1.1\r\n",
            "HTTP/1.1 200\t\r\n",
            "\r\nHTTP/1.1 200 OK\r\n",
            "H\r\n",
            "HTTP/1.1 +20 OK\r\n",
            "HTTP/1.1 200 \x7f\r\n",
        ]);
        prop_oneof![3 => Just(b"HTTP/1.1 200 OK\r\n".to_vec()), 1 => other]
    }

    #[test]
    fn a_bare_carriage_return_is_refused_before_the_head_is_complete() {
        for (bytes, is_refused) in [
            ("HTTP/1.1 200 O\rK", true),
            ("HTTP/1.1 200 OK\r", false),
            ("HTTP/1.1 200 OK\r\na: b\rc", true),
            ("HTTP/1.1 200 OK\r\na: b\rc\r\nd: e", true),
            ("HTTP/1.1 200 OK\r\na: b\r\r", true),
            ("HTTP/1.1 200 OK\r\na: b\r\nd: e\r", false),
        ] {
            assert_eq!(ours(bytes.as_bytes()).is_err(), is_refused, "{bytes:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn heads_are_parsed_as_by_httparse(
            line in line(),
            pieces in prop::collection::vec(piece(), 0..12),
        ) {
            // The end of the head is always appended, because an incomplete head may be reported as an error earlier or
            // later.
            let bytes = [line, pieces.concat(), b"\r\n\r\nbody".to_vec()].concat();
            prop_assert_eq!(ours(&bytes), theirs(&bytes), "{:?}", String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn trailers_are_parsed_as_by_httparse(pieces in prop::collection::vec(piece(), 0..12)) {
            let bytes = [pieces.concat(), b"\r\n\r\nrest".to_vec()].concat();
            let mut buffer = BytesMut::from(&bytes[..]);
            let mut lines = [FieldLine::default(); HEADERS_MAX];
            let bounds = Bounds { fields: 100, length: 64 * 1024 };
            let section = Section::take(&mut buffer, 0, bounds, &mut lines).ok().flatten();
            let headers = section.and_then(|section| section.fields(|_, _| Ok(true)).ok());
            let ours = headers.map(|headers| (our_fields(&headers), buffer.to_vec()));
            let mut fields = [httparse::EMPTY_HEADER; 100];
            let theirs = match httparse::parse_headers(&bytes, &mut fields) {
                Ok(httparse::Status::Complete((length, headers))) if has_crlf(&bytes[..length]) => {
                    Some((their_fields(headers), bytes[length..].to_vec()))
                }
                _ => None,
            };
            prop_assert_eq!(ours, theirs, "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
