//! WebSocket handshakes of clients: detects and validates them, and computes the expected answer. It forwards nothing.
//!
//! A handshake is an HTTP/1.1 request with one `Upgrade: websocket` and `upgrade` in `Connection` (RFC 6455, 4.2.1).
//! Any other request with an `Upgrade` is treated as an ordinary one (RFC 9110, 7.8). In HTTP/2 and HTTP/3 a
//! handshake is a CONNECT with the `:protocol` `websocket` (RFC 8441, 5; RFC 9220). It goes to the endpoint as the equivalent HTTP/1.1 request,
//! with a key generated here.

use aws_lc_rs::digest;
use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use http::{Extensions, HeaderMap, Method, Version, header, request::Parts};
use hyper::ext::Protocol;

use crate::random::random;
use crate::{
    http::fields::Field,
    upstream::{Accept, head::tokens},
};

/// Suffix that an endpoint appends to the key before hashing (RFC 6455, 1.3).
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A handshake to be sent to the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// The `Sec-WebSocket-Accept` that must answer it.
    pub(crate) accept: Accept,
    /// The generated key, if the client's request has none that counts.
    pub(crate) key: Option<Key>,
}

/// The value of `Sec-WebSocket-Key`.
pub(crate) type Key = [u8; 24];

/// Reason to refuse a handshake. Clients see the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("a websocket handshake must be a GET")]
    Method,
    #[error("the only supported `:protocol` is `websocket`")]
    Protocol,
    #[error("sec-websocket-version must be 13")]
    Version,
    #[error("sec-websocket-key must be 16 bytes in base64")]
    Key,
}

/// Returns whether the request is an extended CONNECT, which names a protocol to switch to (RFC 8441, 4).
pub(crate) fn is_extended_connect(parts: &Parts) -> bool {
    parts.method == Method::CONNECT && protocol(&parts.extensions).is_some()
}

/// Returns the handshake in the request; `None` if it is an ordinary request.
pub(crate) fn handshake(parts: &Parts) -> Result<Option<Handshake>, HandshakeError> {
    let Parts { method, version, headers, extensions, .. } = parts;
    if is_extended_connect(parts) {
        return extended(protocol(extensions), headers).map(Some);
    }
    if !is_handshake(*version, headers) {
        return Ok(None);
    }
    if *method != Method::GET {
        return Err(HandshakeError::Method);
    }
    if !has_version(headers) {
        return Err(HandshakeError::Version);
    }
    let key = Field::of(headers, &header::SEC_WEBSOCKET_KEY).once().ok_or(HandshakeError::Key)?;
    let accept = accept(key.as_bytes()).ok_or(HandshakeError::Key)?;
    Ok(Some(Handshake { accept, key: None }))
}

/// Returns the `:protocol` of a CONNECT, of HTTP/2 or HTTP/3.
fn protocol(extensions: &Extensions) -> Option<&[u8]> {
    let http3 = || Some(extensions.get::<ingress_quic::Protocol>()?.0.as_bytes());
    extensions.get::<Protocol>().map(AsRef::as_ref).or_else(http3)
}

fn extended(protocol: Option<&[u8]>, headers: &HeaderMap) -> Result<Handshake, HandshakeError> {
    if protocol != Some(b"websocket") {
        return Err(HandshakeError::Protocol);
    }
    if !has_version(headers) {
        return Err(HandshakeError::Version);
    }
    // The key need not be secret: it shows that the endpoint speaks the protocol and that no cache answers (RFC 6455,
    // 1.3).
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&random().to_be_bytes());
    nonce[8..].copy_from_slice(&random().to_be_bytes());
    let key: Key = STANDARD.encode(nonce).into_bytes().try_into().map_err(|_longer| HandshakeError::Key)?;
    Ok(Handshake { accept: accept(&key).ok_or(HandshakeError::Key)?, key: Some(key) })
}

/// Returns whether the request resembles a handshake on the wire, so that the bytes behind it must be held back.
pub(crate) fn looks_like_one(parts: &Parts) -> bool {
    let mut upgrades = parts.headers.get_all(header::UPGRADE).iter();
    upgrades.any(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn is_handshake(version: Version, headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(header::CONNECTION).iter().flat_map(|value| tokens(value.as_bytes()));
    let upgrade = Field::of(headers, &header::UPGRADE).once();
    version == Version::HTTP_11
        && upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && connection.any(|option| option.eq_ignore_ascii_case(b"upgrade"))
}

/// Returns whether the client uses version 13, the only one.
fn has_version(headers: &HeaderMap) -> bool {
    Field::of(headers, &header::SEC_WEBSOCKET_VERSION).once().is_some_and(|version| version == "13")
}

fn accept(key: &[u8]) -> Option<Accept> {
    // Clients that build a key of random characters leave meaningless trailing bits.
    const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical);
    const KEY: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, CONFIG);
    if KEY.decode(key).ok()?.len() != 16 {
        return None;
    }
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(SUFFIX);
    STANDARD.encode(hash.finish()).into_bytes().try_into().ok().map(Accept)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn check(method: &str, fields: &[(&str, &str)], expect: Result<bool, HandshakeError>) {
        let mut request = Request::builder().method(method);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        assert_eq!(handshake(&parts).map(|accept| accept.is_some()), expect, "{method} {fields:?}");
    }

    #[test]
    fn accept_matches_the_example_of_rfc_6455() {
        assert_eq!(accept(KEY.as_bytes()), Some(Accept(*b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
    }

    #[test]
    fn only_complete_handshakes_are_accepted() {
        let (up, conn) = (("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade"));
        let (version, key) = (("sec-websocket-version", "13"), ("sec-websocket-key", KEY));
        check("GET", &[up, conn, version, key], Ok(true));
        check("GET", &[up, version, key], Ok(false));
        check("GET", &[conn, version, key], Ok(false));
        check("GET", &[("upgrade", "h2c"), conn, version, key], Ok(false));
        check("GET", &[("upgrade", "websocket, h2c"), conn, version, key], Ok(false));
        check("GET", &[up, up, conn, version, key], Ok(false));
        check("POST", &[up, conn, version, key], Err(HandshakeError::Method));
        check("GET", &[up, conn, key], Err(HandshakeError::Version));
        check("GET", &[up, conn, ("sec-websocket-version", "8"), key], Err(HandshakeError::Version));
        check("GET", &[up, conn, version, version, key], Err(HandshakeError::Version));
        check("GET", &[up, conn, version], Err(HandshakeError::Key));
        check("GET", &[up, conn, version, key, key], Err(HandshakeError::Key));
        for bad in ["", "c2hvcnQ=", "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZSE=", "dGhlIHNhbXBsZSBub25j!Q=="] {
            check("GET", &[up, conn, version, ("sec-websocket-key", bad)], Err(HandshakeError::Key));
        }
    }

    #[test]
    fn http_1_0_has_no_upgrades() {
        let request = Request::builder().version(Version::HTTP_10).header("upgrade", "websocket");
        let (parts, ()) = request.header("connection", "upgrade").body(()).expect("a request").into_parts();
        assert_eq!(handshake(&parts), Ok(None));
    }
}
