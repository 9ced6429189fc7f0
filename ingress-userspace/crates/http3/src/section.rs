//! Field sections of requests: from encoded lines to [`http::request::Parts`] (RFC 9114, 4.1 to 4.3).
//!
//! The section is malformed unless pseudo-header fields come first, each at most once and each known; names are tokens
//! in lower case; values have no control characters and no white space around them; no field is about the connection;
//! and `host` repeats `:authority`, if both are there. Host names are not validated further here.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header,
    request::Parts,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::{
    error::{Error, Refusal},
    qpack::{LINE_OVERHEAD, Line, Lines},
};

/// A request, whose body follows.
#[derive(Debug)]
pub struct Request {
    /// Method, URI, fields, and version HTTP/3. The URI has scheme and authority if the client sent `:authority`, else
    /// only the path; that of a CONNECT without a protocol has only an authority. There is at most one `cookie`.
    pub parts: Parts,
    /// The `:protocol` of an extended CONNECT (RFC 9220). It is `None` for any other request, also for a plain CONNECT,
    /// which the caller refuses.
    pub protocol: Option<HeaderValue>,
    /// Checks the body against `content-length`.
    pub length: BodyLength,
}

/// Decodes the section of a request. `max_size` is the limit in our settings, counted as [`size`] does.
/// `connect_protocol` tells whether extended CONNECT is enabled there.
///
/// # Errors
/// [`Refusal::TooLarge`] above the limit. Otherwise `H3_MESSAGE_ERROR` for a malformed request, which ends the stream,
/// and `QPACK_DECOMPRESSION_FAILED`, which ends the connection.
pub fn request(section: Bytes, max_size: usize, connect_protocol: bool) -> Result<Request, Refusal> {
    let mut lines = Lines::new(section, max_size)?;
    let mut pseudo = Pseudo::default();
    let mut fields = Fields::default();
    while let Some(line) = lines.next()? {
        match line.name.strip_prefix(b":") {
            Some(_) if !fields.is_empty() => return Err(malformed("a pseudo-header field behind a field")),
            Some(name) => pseudo.set(name, line.value, connect_protocol)?,
            None => fields.push(line)?,
        }
    }
    let headers = fields.finish();
    let length = BodyLength::of(&headers)?;
    let (method, uri, protocol) = pseudo.finish(&headers)?;
    if method == Method::CONNECT && length.left.is_some() {
        return Err(malformed("CONNECT with a content-length"));
    }
    let (mut parts, ()) = http::Request::new(()).into_parts();
    (parts.method, parts.uri, parts.version, parts.headers) = (method, uri, Version::HTTP_3, headers);
    Ok(Request { parts, protocol, length })
}

/// Decodes trailers. They obey the rules of fields, and have no pseudo-header fields.
///
/// # Errors
/// As [`request`].
pub fn trailers(section: Bytes, max_size: usize) -> Result<HeaderMap, Refusal> {
    let mut lines = Lines::new(section, max_size)?;
    let mut fields = Fields::default();
    while let Some(line) = lines.next()? {
        if line.name.starts_with(b":") {
            return Err(malformed("a pseudo-header field in trailers"));
        }
        fields.push(line)?;
    }
    Ok(fields.finish())
}

/// Returns the size of fields as the setting of the peer counts them (RFC 9114, 4.2.2), without pseudo-header fields.
#[must_use]
pub fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + LINE_OVERHEAD).sum()
}

/// Returns whether `name` is about a connection, and so not of HTTP/3 (RFC 9114, 4.2). `te` is an exception in requests.
pub(crate) fn is_of_connection(name: &HeaderName) -> bool {
    // The first five are in RFC 9110, 7.6.1; the last is of the upgrade to HTTP/2.
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" | "http2-settings"
    )
}

fn malformed(reason: &'static str) -> Refusal {
    Error::malformed(reason).into()
}

// === pseudo-header fields ===

#[derive(Default)]
struct Pseudo {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    protocol: Option<Bytes>,
}

impl Pseudo {
    fn set(&mut self, name: &[u8], value: Bytes, connect_protocol: bool) -> Result<(), Error> {
        let field = match name {
            b"method" => &mut self.method,
            b"scheme" => &mut self.scheme,
            b"authority" => &mut self.authority,
            b"path" => &mut self.path,
            b"protocol" if connect_protocol => &mut self.protocol,
            _ => return Err(Error::malformed("an unknown pseudo-header field")),
        };
        match field.replace(value) {
            None => Ok(()),
            Some(_) => Err(Error::malformed("a pseudo-header field is repeated")),
        }
    }

    /// Returns method, URI and protocol.
    fn finish(self, headers: &HeaderMap) -> Result<(Method, Uri, Option<HeaderValue>), Error> {
        let Self { method, scheme, authority, path, protocol } = self;
        let method = method.and_then(|method| Method::from_bytes(&method).ok());
        let method = method.ok_or(Error::malformed("no valid `:method`"))?;
        let authority = authority.map(authority_of).transpose()?;
        check_host(headers, authority.as_ref())?;
        if method == Method::CONNECT && protocol.is_none() {
            let (Some(authority), None, None) = (authority, scheme, path) else {
                return Err(Error::malformed("CONNECT needs `:authority` alone"));
            };
            return Ok((method, uri(None, Some(authority), None)?, None));
        }
        let protocol = protocol.map(|protocol| protocol_of(&method, protocol)).transpose()?;
        let scheme = scheme_of(scheme)?;
        let path = path_of(&method, path)?;
        let scheme = authority.is_some().then_some(scheme);
        Ok((method, uri(scheme, authority, Some(path))?, protocol))
    }
}

fn uri(scheme: Option<Scheme>, authority: Option<Authority>, path: Option<PathAndQuery>) -> Result<Uri, Error> {
    let mut parts = http::uri::Parts::default();
    (parts.scheme, parts.authority, parts.path_and_query) = (scheme, authority, path);
    Uri::from_parts(parts).map_err(|_unfit| Error::malformed("no valid target"))
}

/// Any scheme will do that RFC 3986, 3.1, allows; the library would take an empty one.
fn scheme_of(text: Option<Bytes>) -> Result<Scheme, Error> {
    let text = text.filter(|text| text.first().is_some_and(u8::is_ascii_alphabetic));
    let scheme = text.and_then(|text| Scheme::try_from(&*text).ok());
    scheme.ok_or(Error::malformed("no valid `:scheme`"))
}

/// User information is not permitted (RFC 9114, 4.3.1).
fn authority_of(text: Bytes) -> Result<Authority, Error> {
    let invalid = Error::malformed("no valid `:authority`");
    if text.contains(&b'@') {
        return Err(invalid);
    }
    Authority::from_maybe_shared(text).map_err(|_not_in_grammar| invalid)
}

/// A path begins with a slash; `*` stands alone and only in OPTIONS (RFC 9114, 4.3.1). There is no fragment.
fn path_of(method: &Method, text: Option<Bytes>) -> Result<PathAndQuery, Error> {
    let invalid = Error::malformed("no valid `:path`");
    let text = text.ok_or(invalid)?;
    let is_path = text.starts_with(b"/") && !text.contains(&b'#');
    let is_asterisk = *method == Method::OPTIONS && &*text == b"*";
    if !is_path && !is_asterisk {
        return Err(invalid);
    }
    PathAndQuery::from_maybe_shared(text).map_err(|_not_in_grammar| invalid)
}

fn protocol_of(method: &Method, text: Bytes) -> Result<HeaderValue, Error> {
    if *method != Method::CONNECT {
        return Err(Error::malformed("`:protocol` without CONNECT"));
    }
    // A token, as a method is (RFC 9110, 5.6.2; RFC 8441, 4).
    if Method::from_bytes(&text).is_err() {
        return Err(Error::malformed("no valid `:protocol`"));
    }
    HeaderValue::from_maybe_shared(text).map_err(|_not_in_grammar| Error::malformed("no valid `:protocol`"))
}

/// `:authority` or `host` must be there; both have the same value, apart from upper case (RFC 9114, 4.3.1).
fn check_host(headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Error> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (authority, hosts.next(), hosts.next()) {
        (_, _, Some(_)) => Err(Error::malformed("more than one `host`")),
        (None, None, _) => Err(Error::malformed("neither `:authority` nor `host`")),
        (None, Some(host), _) if host.is_empty() => Err(Error::malformed("`host` is empty")),
        (Some(authority), Some(host), _) if !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()) => {
            Err(Error::malformed("`:authority` and `host` differ"))
        }
        _ => Ok(()),
    }
}

// === fields ===

/// Fields in order, with the parts of `cookie` put together (RFC 9114, 4.2.1).
#[derive(Default)]
struct Fields {
    headers: HeaderMap,
    cookie: Option<HeaderValue>,
    /// All parts of the cookie, if there are several.
    crumbs: Vec<u8>,
}

impl Fields {
    fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.cookie.is_none()
    }

    fn push(&mut self, line: Line) -> Result<(), Refusal> {
        let Line { name, value, never_indexed } = line;
        // The library refuses upper case, but takes quotes, which are in no token (RFC 9110, 5.6.2).
        if name.contains(&b'"') {
            return Err(malformed("the name of a field is invalid"));
        }
        let name =
            HeaderName::from_lowercase(&name).map_err(|_no_token| malformed("the name of a field is invalid"))?;
        let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if is_space(value.first()) || is_space(value.last()) {
            return Err(malformed("white space around the value of a field"));
        }
        let value = HeaderValue::from_maybe_shared(value);
        let mut value = value.map_err(|_character| malformed("the value of a field is invalid"))?;
        value.set_sensitive(never_indexed);
        if is_of_connection(&name) || (name == header::TE && value != "trailers") {
            return Err(malformed("a field about the connection"));
        }
        match &mut self.cookie {
            // A part without text would leave white space behind the others.
            Some(_) if name == header::COOKIE && value.is_empty() => {}
            Some(first) if name == header::COOKIE && first.is_empty() => {
                value.set_sensitive(never_indexed || first.is_sensitive());
                *first = value;
            }
            Some(first) if name == header::COOKIE => {
                if self.crumbs.is_empty() {
                    self.crumbs.extend_from_slice(first.as_bytes());
                }
                self.crumbs.extend_from_slice(b"; ");
                self.crumbs.extend_from_slice(value.as_bytes());
                // One part is enough to keep the whole out of tables.
                first.set_sensitive(never_indexed || first.is_sensitive());
            }
            None if name == header::COOKIE => self.cookie = Some(value),
            // The map is full long after every sensible limit of the size.
            _ => drop(self.headers.try_append(name, value).map_err(|_full| Refusal::TooLarge)?),
        }
        Ok(())
    }

    fn finish(self) -> HeaderMap {
        let Self { mut headers, cookie, crumbs } = self;
        if let Some(first) = cookie {
            let joined =
                if crumbs.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(crumbs)).ok() };
            let mut joined = joined.unwrap_or_else(|| first.clone());
            joined.set_sensitive(first.is_sensitive());
            headers.insert(header::COOKIE, joined);
        }
        headers
    }
}

// === the body's length ===

/// Compares the lengths of DATA with `content-length` (RFC 9114, 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLength {
    /// The bytes that are to come, if announced.
    left: Option<u64>,
}

impl BodyLength {
    /// Reads the `content-length` of a request: once, and a number in digits alone.
    fn of(headers: &HeaderMap) -> Result<Self, Error> {
        let invalid = Error::malformed("no valid `content-length`");
        let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
        let Some(value) = values.next() else { return Ok(Self { left: None }) };
        let text = value.to_str().map_err(|_not_ascii| invalid)?;
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if values.next().is_some() || !is_number {
            return Err(invalid);
        }
        Ok(Self { left: Some(text.parse().map_err(|_overflow| invalid)?) })
    }

    /// Returns the bytes that are to come, or `None` if the request announces no length.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    /// Counts bytes of the body.
    ///
    /// # Errors
    /// `H3_MESSAGE_ERROR` for more than announced.
    pub fn data(&mut self, count: usize) -> Result<(), Error> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(count as u64).ok_or(Error::malformed("the body is longer than announced"))?;
        }
        Ok(())
    }

    /// Checks that the body may end here.
    ///
    /// # Errors
    /// `H3_MESSAGE_ERROR` for less than announced.
    pub fn finish(&self) -> Result<(), Error> {
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(Error::malformed("the body is shorter than announced")),
        }
    }
}
