//! Parses response heads strictly (RFC 9112) and writes request heads; bytes in, values out, no IO.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};

use super::{
    ExchangeError, ExchangeLimits, Malformed,
    framing::Framing,
    section::{Bounds, FieldLine, Section, status_line},
};

/// Most header fields of a message regardless of the configured limit, because their offsets are kept on the stack.
pub const HEADERS_MAX: usize = 128;
/// Most interim responses (1xx) that are skipped before the final one.
const INTERIM_MAX: usize = 8;

/// The head of a final response.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    /// The fields without hop-by-hop ones. `content-length` stays, except on 204, which has none (RFC 9110, section
    /// 8.6).
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection may serve another request once the body has ended.
    pub keep_alive: bool,
}

/// Parses one response head from the bytes of a connection as they arrive.
#[derive(Debug)]
pub struct HeadReader {
    /// Whether the request was a HEAD: its response has no body, regardless of the fields.
    bodiless: bool,
    bounds: Bounds,
    /// See [`ExchangeLimits::copies_fields`].
    copies_fields: bool,
    interim: usize,
    /// The expected answer to a WebSocket handshake, if one was sent.
    accept: Option<Accept>,
    /// Bytes already known to contain no complete head.
    scanned: usize,
}

/// The value of `Sec-WebSocket-Accept` for a key (RFC 6455, section 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept(pub [u8; 28]);

/// The fields of a head that concern its connection and its body.
#[derive(Default)]
struct FramingFields {
    content_length: Option<u64>,
    transfer_encoding: bool,
    close: bool,
    /// Whether `Connection` names other fields; it is kept until those are removed.
    nominates: bool,
}

// === impl HeadReader ===

impl HeadReader {
    /// Creates a reader for the response to a request with `method`.
    #[must_use]
    pub fn new(method: &Method, limits: ExchangeLimits) -> Self {
        let ExchangeLimits { head_max, headers_max, copies_fields, .. } = limits;
        let bounds = Bounds { fields: headers_max, length: head_max };
        Self { bodiless: method == Method::HEAD, bounds, copies_fields, interim: 0, accept: None, scanned: 0 }
    }

    /// Creates a reader for the response to a WebSocket handshake: 101 with this value is a final response as well.
    #[must_use]
    pub fn upgrading(accept: Accept, limits: ExchangeLimits) -> Self {
        Self { accept: Some(accept), ..Self::new(&Method::GET, limits) }
    }

    /// Takes the head of the final response from the front of `buffer` once it is complete; interim ones are skipped.
    ///
    /// # Errors
    /// If the head is malformed or exceeds a limit; [`ExchangeError::Malformed`] and [`ExchangeError::HeadTooLarge`]
    /// only.
    pub fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<ResponseHead>, ExchangeError> {
        // Parses again only after another line end, so that the work for a head that trickles in is bounded by its
        // number of lines.
        while self.scanned == 0 || buffer.get(self.scanned..).is_some_and(|fresh| fresh.contains(&b'\n')) {
            let Some((version, status, begin)) = status_line(buffer).map_err(malformed)? else { break };
            let mut lines = [FieldLine::default(); HEADERS_MAX];
            let Some(mut section) = Section::take(buffer, begin, self.bounds, &mut lines)? else { break };
            self.scanned = 0;
            if self.copies_fields {
                section.copy();
            }
            match status {
                StatusCode::SWITCHING_PROTOCOLS => return self.switch(version, section).map(Some).map_err(malformed),
                interim if interim.is_informational() => {
                    // An interim response is not forwarded, but its fields must be valid.
                    section.fields(|_, _| Ok(false)).map_err(malformed)?;
                    self.interim += 1;
                    if self.interim > INTERIM_MAX {
                        return Err(malformed(Malformed::TooManyInterim));
                    }
                }
                _ => return self.finish(status, version, section).map(Some).map_err(malformed),
            }
        }
        self.scanned = buffer.len();
        if buffer.len() > self.bounds.length {
            return Err(ExchangeError::HeadTooLarge);
        }
        Ok(None)
    }

    /// Checks a switch of protocols: to WebSocket, with the value that proves that the server has read the request (RFC
    /// 6455, section 4.1).
    fn switch(&self, version: Version, section: Section<'_>) -> Result<ResponseHead, Malformed> {
        let Accept(expected) = self.accept.ok_or(Malformed::SwitchingProtocols)?;
        let (mut connection, mut upgrade, mut accept) = (false, 0, 0);
        let headers = section.fields(|name, value| {
            if *name == header::CONNECTION {
                connection |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
            } else if *name == header::UPGRADE {
                upgrade += if value.eq_ignore_ascii_case(b"websocket") { 1 } else { 2 };
            } else if *name == header::SEC_WEBSOCKET_ACCEPT {
                accept += if value == expected { 1 } else { 2 };
            }
            // A 101 has no body (RFC 9110, section 8.6), regardless of its fields.
            Ok(!is_hop_by_hop(name) && *name != header::CONTENT_LENGTH)
        })?;
        if version != Version::HTTP_11 || !connection || upgrade != 1 || accept != 1 {
            return Err(Malformed::Upgrade);
        }
        let status = StatusCode::SWITCHING_PROTOCOLS;
        Ok(ResponseHead { status, headers, framing: Framing::Length(0), keep_alive: false })
    }

    fn finish(&self, status: StatusCode, version: Version, section: Section<'_>) -> Result<ResponseHead, Malformed> {
        let mut seen = FramingFields::default();
        let mut headers = section.fields(|name, value| seen.learn(name, value))?;
        let FramingFields { content_length, transfer_encoding, close, nominates } = seen;
        if transfer_encoding && content_length.is_some() {
            return Err(Malformed::BothLengths);
        }
        if transfer_encoding && version == Version::HTTP_10 {
            return Err(Malformed::TransferEncoding);
        }
        if nominates {
            strip_nominated(&mut headers);
            headers.remove(header::CONNECTION);
        }
        let mut keep_alive = version == Version::HTTP_11 && !close;
        let framing = if status == StatusCode::NO_CONTENT {
            headers.remove(header::CONTENT_LENGTH);
            // A body announced on a 204 may follow or not, so the following bytes on this connection cannot be trusted.
            keep_alive &= !transfer_encoding && content_length.unwrap_or(0) == 0;
            Framing::Length(0)
        } else if self.bodiless || status == StatusCode::NOT_MODIFIED {
            Framing::Length(0)
        } else if transfer_encoding {
            Framing::Chunked
        } else if let Some(length) = content_length {
            Framing::Length(length)
        } else {
            keep_alive = false;
            Framing::Close
        };
        Ok(ResponseHead { status, headers, framing, keep_alive })
    }
}

// === impl FramingFields ===

impl FramingFields {
    /// Records a field. Returns whether it is forwarded.
    fn learn(&mut self, name: &HeaderName, value: &[u8]) -> Result<bool, Malformed> {
        if *name == header::CONTENT_LENGTH {
            let length = decimal(value).ok_or(Malformed::ContentLength)?;
            // Two equal lengths are unambiguous, but no correct server sends them.
            if self.content_length.replace(length).is_some() {
                return Err(Malformed::ContentLength);
            }
            Ok(true)
        } else if *name == header::TRANSFER_ENCODING {
            if self.transfer_encoding || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed::TransferEncoding);
            }
            self.transfer_encoding = true;
            Ok(false)
        } else if *name == header::CONNECTION {
            for token in tokens(value) {
                if token.eq_ignore_ascii_case(b"close") {
                    self.close = true;
                } else if !token.eq_ignore_ascii_case(b"keep-alive") {
                    self.nominates = true;
                }
            }
            // A `Connection` field with only `close` or `keep-alive` is not needed any further.
            Ok(self.nominates)
        } else {
            Ok(!is_hop_by_hop(name))
        }
    }
}

/// Parses a trailer section from the front of `buffer` if it is complete, without fields that are not allowed in
/// trailers. The fields are copied: there are few, and they may be kept for long.
pub(super) fn parse_trailers(
    buffer: &mut BytesMut,
    headers_max: usize,
    length_max: usize,
) -> Result<Option<HeaderMap>, Malformed> {
    let mut lines = [FieldLine::default(); HEADERS_MAX];
    let bounds = Bounds { fields: headers_max, length: length_max };
    let section = Section::take(buffer, 0, bounds, &mut lines).map_err(|_fault| Malformed::Trailer)?;
    let Some(mut section) = section else { return Ok(None) };
    section.copy();
    section.fields(|name, _| Ok(is_trailer(name))).map(Some).map_err(|_fault| Malformed::Trailer)
}

fn malformed(why: Malformed) -> ExchangeError {
    ExchangeError::Malformed(why)
}

/// Digits of 2^64 - 1: numbers with fewer need no checks.
const DIGITS_MAX: usize = 20;

/// Parses `1*DIGIT` below 2^64; no sign, no list, no white space.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    if value.len() < DIGITS_MAX {
        return value.iter().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?));
    }
    value.iter().try_fold(0_u64, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?))
}

/// Returns the elements of a list (RFC 9110, section 5.6.1).
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Returns `value` without optional white space around it, which is only spaces and tabs (RFC 9110, section 5.6.3).
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    // Almost every value has a single space before it, and none after it.
    match value.strip_prefix(b" ").unwrap_or(value) {
        value @ [first, .., last] if !is_blank(*first) && !is_blank(*last) => value,
        value => trim_all(value),
    }
}

fn trim_all(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_blank(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_blank(*last)
    {
        value = rest;
    }
    value
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

// === hop-by-hop fields ===

/// Fields for a single connection (RFC 9110, section 7.6.1). `trailer` is not listed, because trailers are forwarded.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "upgrade",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
];

fn is_hop_by_hop(name: &HeaderName) -> bool {
    let name = name.as_str();
    // Checking the length first saves the comparisons for almost every field.
    matches!(name.len(), 2 | 7 | 10 | 16..=19 | 25) && HOP_BY_HOP.contains(&name)
}

/// Removes hop-by-hop fields, which HTTP/2 should not have.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes fields that are not allowed in trailers.
pub(super) fn retain_trailers(trailers: &mut HeaderMap) {
    let barred: Vec<HeaderName> = trailers.keys().filter(|name| !is_trailer(name)).cloned().collect();
    for name in barred {
        trailers.remove(name);
    }
}

/// Removes the fields that `Connection` nominates, except those that framing, routing or authorization rely on:
/// `Connection: set-cookie` must not change the meaning of a response.
fn strip_nominated(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| tokens(value.as_bytes()))
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .filter(|name| !is_protected(name))
        .collect();
    for name in nominated {
        headers.remove(name);
    }
}

/// Returns whether a field cannot be removed by `Connection`.
fn is_protected(name: &HeaderName) -> bool {
    static PROTECTED: [HeaderName; 8] = [
        header::HOST,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::AUTHORIZATION,
        header::COOKIE,
        header::SET_COOKIE,
        header::CACHE_CONTROL,
    ];
    PROTECTED.contains(name)
}

/// Returns whether a field may be in a trailer section: not those of framing, routing or authentication (RFC 9110,
/// section 6.5.1).
pub(super) fn is_trailer(name: &HeaderName) -> bool {
    !is_hop_by_hop(name) && !is_protected(name) && *name != header::TRAILER && *name != header::CONTENT_RANGE
}

// === request heads ===

/// Appends `GET /path HTTP/1.1` and the line end. `target` must be a valid request target: it is written unchanged.
pub fn write_request_line(out: &mut Vec<u8>, method: &Method, target: &str) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Appends one field and its line end.
pub fn write_header(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}
