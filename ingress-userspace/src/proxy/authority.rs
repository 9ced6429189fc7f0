//! The one authority of a request: which host it is for, computed once and used for routing, counting and forwarding.
//! It knows nothing of routes.
//!
//! Rules (RFC 9110, 7.2; RFC 9112, 3.2; RFC 9113, 8.3.1), each answered with 400 when broken:
//! - HTTP/1.1 requests carry exactly one `Host`; HTTP/1.0 and HTTP/2 at most one; one source must name the host.
//! - A target in absolute form and `:authority` win, but must agree with `Host` where both are present.
//! - No user information, no empty host, no port that is not a number of 16 bits, no character outside the grammar.

use std::borrow::Cow;

use http::{HeaderMap, Uri, Version, header};

/// Longest host, from RFC 1035, 2.3.4, in text form.
const HOST_MAX: usize = 253;

/// A canonical authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority<'r> {
    /// Lower case, one trailing dot dropped; IPv6 addresses in brackets.
    pub host: Cow<'r, str>,
    /// The port if the client sent one.
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
    /// The authority of a request.
    ///
    /// # Errors
    /// If the request breaks one of the module's rules.
    pub fn of(version: Version, uri: &'r Uri, headers: &'r HeaderMap) -> Result<Self, AuthorityError> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(AuthorityError::Several);
        }
        if host.is_none() && version == Version::HTTP_11 {
            return Err(AuthorityError::Missing);
        }
        let host = host.map(|value| Self::parse(value.as_bytes())).transpose()?;
        let target = uri.authority().map(|authority| Self::parse(authority.as_str().as_bytes())).transpose()?;
        match (target, host) {
            (Some(target), Some(host)) if target != host => Err(AuthorityError::Disagree),
            (Some(authority), _) | (None, Some(authority)) => Ok(authority),
            (None, None) => Err(AuthorityError::Missing),
        }
    }

    /// Parses `uri-host [ ":" port ]` (RFC 3986, 3.2.2) as strictly as names on the web are: letters, digits, `-`, `_`
    /// and `.`, or an IPv6 address in brackets.
    ///
    /// # Errors
    /// [`AuthorityError::Invalid`] for anything else.
    pub fn parse(text: &'r [u8]) -> Result<Self, AuthorityError> {
        let text = std::str::from_utf8(text).map_err(|_not_ascii| AuthorityError::Invalid)?;
        if text.starts_with('[') {
            return Self::parse_v6(text);
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, parse_port(port)?),
            None => (text, None),
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        if host.is_empty() || host.len() > HOST_MAX || !is_name(host.as_bytes()) {
            return Err(AuthorityError::Invalid);
        }
        Ok(Self { host: lower_case(host), port })
    }

    fn parse_v6(text: &'r str) -> Result<Self, AuthorityError> {
        let end = text.find(']').ok_or(AuthorityError::Invalid)?;
        let (host, rest) = text.split_at(end + 1);
        let address = &host[1..end];
        // Zone ids have no meaning to another machine (RFC 6874, 4).
        address.parse::<std::net::Ipv6Addr>().map_err(|_not_an_address| AuthorityError::Invalid)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => parse_port(port)?,
            None if rest.is_empty() => None,
            None => return Err(AuthorityError::Invalid),
        };
        Ok(Self { host: lower_case(host), port })
    }

    /// Writes `host[:port]`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.host.as_bytes());
        if let Some(port) = self.port {
            out.push(b':');
            let mut digits = [0; 5];
            out.extend_from_slice(decimal(port, &mut digits));
        }
    }
}

/// Empty labels are refused; that the name is one that DNS could hold is left to routes, which only name such.
fn is_name(host: &[u8]) -> bool {
    let mut after_dot = true;
    for &byte in host {
        match byte {
            b'.' if after_dot => return false,
            b'.' => after_dot = true,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => after_dot = false,
            _ => return false,
        }
    }
    !after_dot
}

/// `80` in `a:80`; the empty port of `a:` means none (RFC 3986, 3.2.3).
fn parse_port(text: &str) -> Result<Option<u16>, AuthorityError> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AuthorityError::Invalid);
    }
    text.parse().map(Some).map_err(|_out_of_range| AuthorityError::Invalid)
}

fn lower_case(host: &str) -> Cow<'_, str> {
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) { host.to_ascii_lowercase().into() } else { host.into() }
}

fn decimal(mut value: u16, digits: &mut [u8; 5]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// `hosts` are the Host headers; `expect` is `host[:port]` as forwarded, or the error.
    fn check(version: Version, target: &str, hosts: &[&str], expect: Result<&str, AuthorityError>) {
        let uri: Uri = target.parse().expect("valid target");
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).expect("valid header value"));
        }
        let got = Authority::of(version, &uri, &headers).map(|authority| {
            let mut out = Vec::new();
            authority.write(&mut out);
            String::from_utf8(out).expect("ascii")
        });
        assert_eq!(got.as_deref().map_err(|error| *error), expect, "{version:?} {target} {hosts:?}");
    }

    #[test]
    fn one_authority_per_request() {
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
    fn only_http_1_1_must_have_a_host_header() {
        for version in [Version::HTTP_10, Version::HTTP_2] {
            check(version, "http://a.test/", &[], Ok("a.test"));
            check(version, "/", &["a.test"], Ok("a.test"));
            check(version, "/", &[], Err(AuthorityError::Missing));
            check(version, "http://a.test/", &["evil.test"], Err(AuthorityError::Disagree));
        }
    }

    #[test]
    fn names_are_bounded() {
        check(Version::HTTP_11, "/", &[&"a".repeat(253)], Ok(&"a".repeat(253)));
        check(Version::HTTP_11, "/", &[&"a".repeat(254)], Err(AuthorityError::Invalid));
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_a_fixed_point(text in "[a-zA-Z0-9._:\\[\\]@%/ -]{0,24}") {
            if let Ok(authority) = Authority::parse(text.as_bytes()) {
                let mut out = Vec::new();
                authority.write(&mut out);
                let again = Authority::parse(&out).expect("canonical form parses");
                prop_assert_eq!(&again, &authority);
                prop_assert!(!authority.host.bytes().any(|b| b.is_ascii_uppercase() || b"@/% ".contains(&b)));
                prop_assert!(!authority.host.ends_with('.'));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(Authority::parse(&bytes));
        }
    }
}
