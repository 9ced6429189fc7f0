//! The authority of a request, which names its host. It is computed once, and used for routing, counting and
//! forwarding. It does not depend on routes.
//!
//! Rules (RFC 9110, section 7.2; RFC 9112, section 3.2; RFC 9113, section 8.3.1; RFC 9114, section 4.3.1), each answered with 400 when violated:
//! - HTTP/1.1 requests carry exactly one `Host`; HTTP/1.0, HTTP/2 and HTTP/3 at most one; one source must name the host, except
//!   in HTTP/1.0, where it is optional: a request without a host is for [`NAMELESS`].
//! - A target in absolute form and `:authority` take precedence, but must agree with `Host` where both are present.
//! - No user information, no empty host, only ports that are 16-bit numbers, no character outside the grammar.

use std::{borrow::Cow, net::Ipv6Addr};

use http::{Uri, Version};

use crate::http::fields::Field;

/// Longest host in text form (RFC 1035, section 2.3.4).
const HOST_MAX: usize = 253;

/// The host of HTTP/1.0 requests that name none, which is valid there; nginx calls its default server the same. No host
/// of an API server has this name, so such requests match rules without a host, and so do requests with `Host: _`.
const NAMELESS: &str = "_";

/// A canonical authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority<'r> {
    /// `host[:port]` as it is forwarded; borrowed if the client wrote it in this form.
    text: Cow<'r, str>,
    /// Length of the host within `text`.
    host_len: usize,
    /// The port, if the client sent one.
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    #[error("request names no host")]
    Missing,
    #[error("request has more than one host header")]
    Several,
    #[error("host header and request target name different hosts")]
    Disagree,
    #[error("host is not a valid authority")]
    Invalid,
}

impl<'r> Authority<'r> {
    /// Returns the authority of a request with `host` as its `Host`.
    ///
    /// # Errors
    /// If the request violates one of the module's rules.
    pub(crate) fn of(version: Version, uri: &'r Uri, host: Field<'r>) -> Result<Self, AuthorityError> {
        let host = match host {
            Field::Repeated => return Err(AuthorityError::Several),
            Field::Absent if version == Version::HTTP_11 => return Err(AuthorityError::Missing),
            Field::Absent => None,
            Field::Once(value) => Some(Self::parse(value.to_str().map_err(|_not_ascii| AuthorityError::Invalid)?)?),
        };
        let target = uri.authority().map(|authority| Self::parse(authority.as_str())).transpose()?;
        match (target, host) {
            (Some(target), Some(host)) if target != host => Err(AuthorityError::Disagree),
            (Some(authority), _) | (None, Some(authority)) => Ok(authority),
            (None, None) if version == Version::HTTP_10 => Self::parse(NAMELESS),
            (None, None) => Err(AuthorityError::Missing),
        }
    }

    /// Parses `uri-host [ ":" port ]` (RFC 3986, section 3.2.2) with only the characters of names on the web: letters,
    /// digits, `-`, `_` and `.`, or an IPv6 address in brackets.
    ///
    /// # Errors
    /// [`AuthorityError::Invalid`] for anything else.
    pub fn parse(text: &'r str) -> Result<Self, AuthorityError> {
        let parsed = if text.starts_with('[') { Self::parse_v6(text) } else { Self::parse_name(text) };
        parsed.ok_or(AuthorityError::Invalid)
    }

    /// Refuses empty labels. Other rules of DNS are not checked, because routes contain only valid names.
    fn parse_name(text: &'r str) -> Option<Self> {
        let (mut end, mut after_dot, mut is_lower) = (text.len(), true, true);
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => after_dot = false,
                b'A'..=b'Z' => (after_dot, is_lower) = (false, false),
                b'.' if !after_dot => after_dot = true,
                b':' => {
                    end = at;
                    break;
                }
                _ => return None,
            }
        }
        let (host, port) = text.split_at(end);
        let host = if after_dot { host.strip_suffix('.')? } else { host };
        if host.len() > HOST_MAX {
            return None;
        }
        Some(Self::canonical(text, host, is_lower, parse_port(port)?))
    }

    fn parse_v6(text: &'r str) -> Option<Self> {
        let (host, port) = text.split_at(text.find(']')? + 1);
        // Zone ids have no meaning on another machine (RFC 6874, section 4).
        host[1..host.len() - 1].parse::<Ipv6Addr>().ok()?;
        let is_lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(Self::canonical(text, host, is_lower, parse_port(port)?))
    }

    /// Returns the canonical form of `text`, which begins with `host`.
    fn canonical(text: &'r str, host: &'r str, is_lower: bool, port: Option<u16>) -> Self {
        let text: Cow<'r, str> = match (port, &text.as_bytes()[host.len()..]) {
            (None, _) if is_lower => host.into(),
            (None, _) => host.to_ascii_lowercase().into(),
            (Some(_), [b':', b'1'..=b'9', ..] | b":0") if is_lower => text.into(),
            (Some(port), _) => format!("{}:{port}", host.to_ascii_lowercase()).into(),
        };
        Self { text, host_len: host.len(), port }
    }

    /// Returns the host in lower case, without a trailing dot; IPv6 addresses are in brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.text[..self.host_len]
    }

    /// Returns `host[:port]`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Like [`Authority::as_str`].
    #[must_use]
    pub fn into_text(self) -> Cow<'r, str> {
        self.text
    }

    /// Like [`Authority::host`].
    #[must_use]
    pub fn into_host(self) -> Cow<'r, str> {
        match self.text {
            Cow::Borrowed(text) => Cow::Borrowed(&text[..self.host_len]),
            Cow::Owned(mut text) => {
                text.truncate(self.host_len);
                text.into()
            }
        }
    }
}

/// Parses `:80` to `80`; the empty port of `:` means none (RFC 3986, section 3.2.3), and so does empty text. Returns
/// `None` for an invalid port.
fn parse_port(text: &str) -> Option<Option<u16>> {
    if matches!(text, "" | ":") {
        return Some(None);
    }
    let digits = text.strip_prefix(':').filter(|digits| digits.len() <= 5)?;
    let port =
        digits.bytes().try_fold(0_u32, |port, byte| byte.is_ascii_digit().then(|| port * 10 + u32::from(byte - b'0')));
    u16::try_from(port?).ok().map(Some)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};
    use proptest::prelude::*;

    use super::*;

    /// Checks a request with `hosts` as its Host headers; `expect` is `host[:port]` as forwarded, or the error.
    fn check(version: Version, target: &str, hosts: &[&str], expect: Result<&str, AuthorityError>) {
        let uri: Uri = target.parse().expect("valid target");
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).expect("valid header value"));
        }
        let got = Authority::of(version, &uri, Field::of(&headers, &header::HOST));
        let got = got.as_ref().map(Authority::as_str).map_err(|error| *error);
        assert_eq!(got, expect, "{version:?} {target} {hosts:?}");
    }

    #[test]
    fn a_request_has_exactly_one_authority() {
        use AuthorityError::{Disagree, Invalid, Missing, Several};
        for (target, hosts, expect) in [
            ("/", &["a.test"][..], Ok("a.test")),
            ("/", &["A.Test."], Ok("a.test")),
            ("/", &["a.test:8080"], Ok("a.test:8080")),
            ("/", &["a.test.:443"], Ok("a.test:443")),
            ("/", &["a.test:"], Ok("a.test")),
            ("/", &["a.test:0080"], Ok("a.test:80")),
            ("/", &["10.0.0.1"], Ok("10.0.0.1")),
            ("/", &["[::1]"], Ok("[::1]")),
            ("/", &["[2001:DB8::1]:443"], Ok("[2001:db8::1]:443")),
            ("/", &["a_b.test"], Ok("a_b.test")),
            ("/", &[], Err(Missing)),
            ("/", &["a.test", "a.test"], Err(Several)),
            ("/", &[""], Err(Invalid)),
            ("/", &["."], Err(Invalid)),
            ("/", &["a..test"], Err(Invalid)),
            ("/", &[".a.test"], Err(Invalid)),
            ("/", &["a.test.."], Err(Invalid)),
            ("/", &["user@a.test"], Err(Invalid)),
            ("/", &["a.test/x"], Err(Invalid)),
            ("/", &["a.test, b.test"], Err(Invalid)),
            ("/", &["a test"], Err(Invalid)),
            ("/", &["a%2etest"], Err(Invalid)),
            ("/", &["a.test:x"], Err(Invalid)),
            ("/", &["a.test:+80"], Err(Invalid)),
            ("/", &["a.test:65536"], Err(Invalid)),
            ("/", &["a.test:80:80"], Err(Invalid)),
            ("/", &["[::1"], Err(Invalid)),
            ("/", &["[::1]x"], Err(Invalid)),
            ("/", &["[fe80::1%25eth0]"], Err(Invalid)),
            ("/", &["::1"], Err(Invalid)),
            ("/", &["[a.test]"], Err(Invalid)),
            ("http://a.test/", &["a.test"], Ok("a.test")),
            ("http://A.test/", &["a.TEST"], Ok("a.test")),
            ("http://a.test/", &[], Err(Missing)),
            ("http://a.test/", &["b.test"], Err(Disagree)),
            ("http://a.test:80/", &["a.test"], Err(Disagree)),
            ("http://user@a.test/", &["a.test"], Err(Invalid)),
        ] {
            check(Version::HTTP_11, target, hosts, expect);
        }
    }

    #[test]
    fn only_http_1_1_requires_a_host_header() {
        for version in [Version::HTTP_10, Version::HTTP_2, Version::HTTP_3] {
            check(version, "http://a.test/", &[], Ok("a.test"));
            check(version, "/", &["a.test"], Ok("a.test"));
            let nameless = if version == Version::HTTP_10 { Ok("_") } else { Err(AuthorityError::Missing) };
            check(version, "/", &[], nameless);
            check(version, "/", &[""], Err(AuthorityError::Invalid));
            check(version, "http://a.test/", &["evil.test"], Err(AuthorityError::Disagree));
        }
    }

    #[test]
    fn host_names_are_limited_in_length() {
        check(Version::HTTP_11, "/", &[&"a".repeat(253)], Ok(&"a".repeat(253)));
        check(Version::HTTP_11, "/", &[&"a".repeat(254)], Err(AuthorityError::Invalid));
    }

    #[test]
    fn canonical_text_is_not_copied() {
        for (text, host, is_copied) in [
            ("a.test", "a.test", false),
            ("a.test.", "a.test", false),
            ("a.test:", "a.test", false),
            ("a.test.:", "a.test", false),
            ("a.test:80", "a.test", false),
            ("a.test:0", "a.test", false),
            ("[::1]:80", "[::1]", false),
            ("a.test:080", "a.test", true),
            ("a.test:00", "a.test", true),
            ("a.test.:80", "a.test", true),
            ("A.test:80", "a.test", true),
            ("A.test", "a.test", true),
            ("[::A]", "[::a]", true),
        ] {
            let authority = Authority::parse(text).expect("valid");
            assert_eq!((authority.host(), matches!(authority.text, Cow::Owned(_))), (host, is_copied), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_a_fixed_point(text in "[a-zA-Z0-9._:\\[\\]@%/ -]{0,24}") {
            if let Ok(authority) = Authority::parse(&text) {
                let again = Authority::parse(authority.as_str()).expect("canonical form parses");
                prop_assert_eq!(&again, &authority);
                prop_assert!(matches!(again.text, Cow::Borrowed(_)));
                prop_assert!(!authority.host().bytes().any(|b| b.is_ascii_uppercase() || b"@/% ".contains(&b)));
                prop_assert!(!authority.host().ends_with('.'));
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,64}|\\[\\PC{0,20}\\]?:?[0-9]{0,6}") {
            drop(Authority::parse(&text));
        }
    }
}
