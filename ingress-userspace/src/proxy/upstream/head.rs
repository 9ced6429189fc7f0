//! Response heads read strictly (RFC 9112) and request heads written; bytes in, values out, no IO.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};

use super::{
    ExchangeError, Limits, Malformed,
    framing::Framing,
    section::{Bounds, Line, Section, status_line},
};

/// Most header fields of a message whatever the configured limit, because they are found on the stack.
pub const HEADERS_MAX: usize = 128;
/// Interim responses (1xx) skipped before the final one.
const INTERIM_MAX: usize = 8;

/// The head of a final response.
#[derive(Debug)]
pub struct Head {
    pub status: StatusCode,
    /// Without hop-by-hop fields. `content-length` stays, except on 204, which has none (RFC 9110, 8.6).
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection may serve another request once the body has ended.
    pub keep_alive: bool,
}

/// Reads one response head, from the bytes of a connection as they arrive.
#[derive(Debug)]
pub struct Reader {
    /// Whether the request was a HEAD, whose response has no body whatever its fields say.
    bodiless: bool,
    bounds: Bounds,
    /// See [`Limits::copies_fields`].
    copies_fields: bool,
    interim: usize,
    /// What a WebSocket handshake must answer, if one was asked for.
    accept: Option<Accept>,
    /// Bytes known to hold no complete head.
    scanned: usize,
}

/// The value of `Sec-WebSocket-Accept` that a key calls for (RFC 6455, 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept(pub [u8; 28]);

/// What a head says about its connection and its body.
#[derive(Default)]
struct Facts {
    content_length: Option<u64>,
    transfer_encoding: bool,
    close: bool,
    /// `Connection` names other fields, and is kept until those are gone.
    nominates: bool,
}

// === impl Reader ===

impl Reader {
    /// For the response to a request with `method`.
    #[must_use]
    pub fn new(method: &Method, limits: Limits) -> Self {
        let Limits { head_max, headers_max, copies_fields, .. } = limits;
        let bounds = Bounds { fields: headers_max, length: head_max };
        Self { bodiless: method == Method::HEAD, bounds, copies_fields, interim: 0, accept: None, scanned: 0 }
    }

    /// For the response to a WebSocket handshake: 101 with this value is a final response, too.
    #[must_use]
    pub fn upgrading(accept: Accept, limits: Limits) -> Self {
        Self { accept: Some(accept), ..Self::new(&Method::GET, limits) }
    }

    /// Takes the head of the final response from the front of `buffer` once it is complete; interim ones are skipped.
    ///
    /// # Errors
    /// If it is malformed or over its limits; [`ExchangeError::Malformed`] and [`ExchangeError::HeadTooLarge`] only.
    pub fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<Head>, ExchangeError> {
        // Parsing again only after another line end bounds the work of a head that trickles in by its number of lines.
        while self.scanned == 0 || buffer.get(self.scanned..).is_some_and(|fresh| fresh.contains(&b'\n')) {
            let Some((version, status, begin)) = status_line(buffer).map_err(malformed)? else { break };
            let mut lines = [Line::default(); HEADERS_MAX];
            let Some(mut section) = Section::take(buffer, begin, self.bounds, &mut lines)? else { break };
            self.scanned = 0;
            if self.copies_fields {
                section.copy();
            }
            match status {
                StatusCode::SWITCHING_PROTOCOLS => return self.switch(version, section).map(Some).map_err(malformed),
                interim if interim.is_informational() => {
                    // It goes no further, but its fields must be sound.
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

    /// A switch of protocols: the one that was asked for, by who read the request (RFC 6455, 4.1).
    fn switch(&self, version: Version, section: Section<'_>) -> Result<Head, Malformed> {
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
            // A 101 has no body (RFC 9110, 8.6), whatever it says.
            Ok(!is_hop_by_hop(name) && *name != header::CONTENT_LENGTH)
        })?;
        if version != Version::HTTP_11 || !connection || upgrade != 1 || accept != 1 {
            return Err(Malformed::Upgrade);
        }
        let status = StatusCode::SWITCHING_PROTOCOLS;
        Ok(Head { status, headers, framing: Framing::Length(0), keep_alive: false })
    }

    fn finish(&self, status: StatusCode, version: Version, section: Section<'_>) -> Result<Head, Malformed> {
        let mut facts = Facts::default();
        let mut headers = section.fields(|name, value| facts.learn(name, value))?;
        let Facts { content_length, transfer_encoding, close, nominates } = facts;
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
            // A body announced on 204 may follow or not: whatever comes next on this connection cannot be trusted.
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
        Ok(Head { status, headers, framing, keep_alive })
    }
}

// === impl Facts ===

impl Facts {
    /// Takes note of a field; whether it is forwarded.
    fn learn(&mut self, name: &HeaderName, value: &[u8]) -> Result<bool, Malformed> {
        if *name == header::CONTENT_LENGTH {
            let length = decimal(value).ok_or(Malformed::ContentLength)?;
            // Twice the same is unambiguous, but nothing sound sends it.
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
            // What says no more than `close` or `keep-alive` is done with.
            Ok(self.nominates)
        } else {
            Ok(!is_hop_by_hop(name))
        }
    }
}

/// Reads a trailer section from the front of `buffer` if it is complete, without fields that must not be in trailers.
/// They are copied: they are few, and it is not known here who keeps them.
pub(super) fn parse_trailers(
    buffer: &mut BytesMut,
    headers_max: usize,
    length_max: usize,
) -> Result<Option<HeaderMap>, Malformed> {
    let mut lines = [Line::default(); HEADERS_MAX];
    let bounds = Bounds { fields: headers_max, length: length_max };
    let section = Section::take(buffer, 0, bounds, &mut lines).map_err(|_fault| Malformed::Trailer)?;
    let Some(mut section) = section else { return Ok(None) };
    section.copy();
    section.fields(|name, _| Ok(is_trailer(name))).map(Some).map_err(|_fault| Malformed::Trailer)
}

fn malformed(why: Malformed) -> ExchangeError {
    ExchangeError::Malformed(why)
}

/// `1*DIGIT` below 2^64; no sign, no list, no white space.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The elements of a list (RFC 9110, 5.6.1).
pub(in crate::proxy) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Without optional white space around it, which is spaces and tabs and nothing else (RFC 9110, 5.6.3).
pub(in crate::proxy) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

// === hop-by-hop fields ===

/// What concerns one connection only (RFC 9110, 7.6.1). `trailer` is not among it, because trailers are forwarded.
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
    // Their lengths spare almost every field the comparisons.
    matches!(name.len(), 2 | 7 | 10 | 16..=19 | 25) && HOP_BY_HOP.contains(&name)
}

/// Removes what concerns one connection only, of which HTTP/2 should have none.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes from trailers what may not be in them.
pub(super) fn retain_trailers(trailers: &mut HeaderMap) {
    let barred: Vec<HeaderName> = trailers.keys().filter(|name| !is_trailer(name)).cloned().collect();
    for name in barred {
        trailers.remove(name);
    }
}

/// Removes the fields that `Connection` nominates. Those that framing, routing or authorisation rely on stay all the
/// same: `Connection: set-cookie` must not turn one response into another.
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

/// Fields that `Connection` cannot take away.
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

/// Whether a field may be in a trailer section: none of framing, routing or authentication (RFC 9110, 6.5.1).
pub(super) fn is_trailer(name: &HeaderName) -> bool {
    !is_hop_by_hop(name) && !is_protected(name) && *name != header::TRAILER && *name != header::CONTENT_RANGE
}

// === request heads ===

/// Appends `GET /path HTTP/1.1` and the line end. `target` must be a valid request target: it is written as it is.
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
