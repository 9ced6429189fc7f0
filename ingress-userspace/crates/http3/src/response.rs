//! Messages that we send: HEADERS of responses, informational ones and trailers, and the head of DATA. Fields about the
//! connection are not sent (RFC 9114, 4.2).

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::{
    error::{Code, Error},
    frame, qpack,
    section::is_of_connection,
    varint,
};

/// Appends the HEADERS of a response. Any number of informational ones, such as 103 with `link`, precede the final one.
///
/// # Errors
/// `H3_INTERNAL_ERROR` of the stream for status 101, which HTTP/3 does not have (RFC 9114, 4.5). Nothing is written then.
pub fn head(status: StatusCode, headers: &HeaderMap, out: &mut BytesMut) -> Result<(), Error> {
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Error::stream(Code::InternalError, "a response switches protocols"));
    }
    write(Some(status), headers, out);
    Ok(())
}

/// Appends the HEADERS that end a response; none if no field is sent.
pub fn trailers(headers: &HeaderMap, out: &mut BytesMut) {
    let nominated = Nominated::of(headers);
    if headers.keys().any(|name| nominated.passes(name)) {
        write(None, headers, out);
    }
}

/// Appends the head of DATA; `length` bytes follow.
pub fn data_head(length: u64, out: &mut impl BufMut) {
    frame::write_head(frame::DATA, length, out);
}

fn write(status: Option<StatusCode>, headers: &HeaderMap, out: &mut BytesMut) {
    varint::write(frame::HEADERS, out);
    let at = out.len();
    // Room for the length, which is known only behind the section. Two bytes are nearly always enough.
    out.put_u16(0);
    qpack::begin(out);
    if let Some(status) = status {
        qpack::write_status(status.as_u16(), out);
    }
    let nominated = Nominated::of(headers);
    for (name, value) in headers.iter().filter(|(name, _)| nominated.passes(name)) {
        qpack::write_line(name.as_str(), value.as_bytes(), value.is_sensitive(), out);
    }
    let length = out.len() - at - 2;
    if let Ok(short @ 0..0x4000) = u16::try_from(length) {
        out[at..at + 2].copy_from_slice(&(short | 0x4000).to_be_bytes());
    } else {
        let section = out.split_off(at);
        varint::write(length as u64, out);
        out.put_slice(&section[2..]);
    }
}

/// The fields that `connection` names (RFC 9110, 7.6.1).
struct Nominated<'h> {
    values: Vec<&'h HeaderValue>,
}

impl<'h> Nominated<'h> {
    fn of(headers: &'h HeaderMap) -> Self {
        Self { values: headers.get_all(header::CONNECTION).iter().collect() }
    }

    /// Returns whether a field is sent.
    fn passes(&self, name: &HeaderName) -> bool {
        let mut tokens = self.values.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let is_named = tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()));
        !is_named && !is_of_connection(name) && *name != header::TE
    }
}
