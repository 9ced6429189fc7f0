//! Cross-origin resource sharing (Fetch standard, 3.2): which origins may use a rule from their pages.

use std::{fmt, net::Ipv6Addr};

use http::HeaderValue;

/// The CORS policy sent to browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    pub origins: Origins,
    /// Value of `Access-Control-Allow-Methods`.
    pub methods: HeaderValue,
    /// Value of `Access-Control-Allow-Headers`.
    pub headers: HeaderValue,
    /// Value of `Access-Control-Expose-Headers`; omitted if absent.
    pub expose: Option<HeaderValue>,
    /// Whether to send `Access-Control-Allow-Credentials: true`.
    pub credentials: bool,
    /// Value of `Access-Control-Max-Age`, in seconds.
    pub max_age: u32,
    /// Meaning of `*` and of empty lists. Default as configured.
    pub wildcards: CorsWildcards,
}

/// Meaning of `*`, which browsers take literally in responses to requests with credentials (Fetch standard, 3.2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorsWildcards {
    /// Values are sent as they are configured.
    #[default]
    AsConfigured,
    /// The meaning in Gateway API's `HTTPCORSFilter`: with credentials, `*` is replaced by the origin, method and fields
    /// of the request, or by the names of the response's fields. Empty methods and fields are left out.
    Resolved,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    Any,
    These(Vec<CorsOrigin>),
}

/// An origin, or all origins below a host: `https://*.a.test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOrigin {
    /// Scheme with the trailing `://`.
    scheme: Box<str>,
    wildcard: Option<OriginWildcard>,
    /// Host and port, or the part after `*` if there is a wildcard.
    rest: Box<str>,
}

/// Part of a host that a wildcard of an origin stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginWildcard {
    /// One label.
    Label,
    /// Any number of labels, at least one.
    Labels,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no origin as `https://a.test`, `https://*.a.test:8443` or `*`")]
pub struct OriginError(String);

// === impl Origins ===

impl Origins {
    /// Parses origins separated by commas; `*` among them is every origin.
    ///
    /// # Errors
    /// Fails if a part is not an origin.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        let parts: Vec<_> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if parts.contains(&"*") {
            return Ok(Self::Any);
        }
        let parse = |part| CorsOrigin::parse(part, OriginWildcard::Label);
        parts.into_iter().map(parse).collect::<Result<_, _>>().map(Self::These)
    }

    /// Parses a list of Gateway API origins, where a wildcard stands for any number of labels, and `https://*` is every
    /// host. The default port of a scheme may be named. `*` among them is every origin.
    ///
    /// # Errors
    /// Fails if a part is not an origin.
    pub fn parse_list<'o>(list: impl IntoIterator<Item = &'o str>) -> Result<Self, OriginError> {
        let mut origins = Vec::new();
        for part in list {
            if part == "*" {
                return Ok(Self::Any);
            }
            origins.push(CorsOrigin::parse(part, OriginWildcard::Labels)?.without_default_port());
        }
        Ok(Self::These(origins))
    }
}

// === impl CorsOrigin ===

impl CorsOrigin {
    /// Parses an origin in which `*.` stands for `wildcard`.
    fn parse(text: &str, wildcard: OriginWildcard) -> Result<Self, OriginError> {
        let error = || OriginError(text.to_owned());
        let (scheme, host) = text.split_once("://").ok_or_else(error)?;
        let is_every_host =
            |rest: &str| wildcard == OriginWildcard::Labels && (rest.is_empty() || rest.starts_with(':'));
        let (wildcard, rest) = match host.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') || is_every_host(rest) => (Some(wildcard), rest),
            Some(_) => return Err(error()),
            None => (None, host),
        };
        let begins_with_dot = rest.starts_with('.') && wildcard.is_some();
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let is_host = (rest.len() > usize::from(begins_with_dot) || wildcard == Some(OriginWildcard::Labels))
            && rest != "."
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        if !is_scheme || !is_host {
            return Err(error());
        }
        let scheme = format!("{scheme}://").to_ascii_lowercase().into();
        Ok(Self { scheme, wildcard, rest: rest.to_ascii_lowercase().into() })
    }

    /// Drops the port if it is that of the scheme, because browsers leave it out.
    fn without_default_port(mut self) -> Self {
        let port = match &*self.scheme {
            "http://" => ":80",
            "https://" => ":443",
            _ => return self,
        };
        if let Some(host) = self.rest.strip_suffix(port) {
            self.rest = host.into();
        }
        self
    }

    /// Returns whether `origin`, as sent by a browser, matches.
    #[must_use]
    pub fn matches(&self, origin: &str) -> bool {
        let Self { scheme, wildcard, rest } = self;
        let Some(host) = origin.strip_prefix(&**scheme) else { return false };
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        match (wildcard, host.strip_suffix(&**rest)) {
            (_, None) => false,
            (None, Some(before)) => before.is_empty(),
            (Some(OriginWildcard::Label), Some(before)) => is_label(before),
            (Some(OriginWildcard::Labels), Some(before)) => {
                before.split('.').all(is_label) || (!rest.starts_with('.') && is_ipv6(before))
            }
        }
    }
}

/// Returns whether `host` is an IPv6 address as in a URL.
fn is_ipv6(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::These(origins) => {
                for (n, CorsOrigin { scheme, wildcard, rest }) in origins.iter().enumerate() {
                    let (space, star) = (if n == 0 { "" } else { " " }, if wildcard.is_some() { "*" } else { "" });
                    write!(f, "{space}{scheme}{star}{rest}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_by_scheme_host_and_port() {
        for (allowed, origin, expect) in [
            ("https://a.test", "https://a.test", true),
            ("https://a.test", "http://a.test", false),
            ("https://a.test", "https://a.test:8443", false),
            ("https://a.test", "https://a.test.evil", false),
            ("https://*.a.test:8443", "https://x.a.test:8443", true),
            ("https://*.a.test", "https://x.y.a.test", false),
            ("https://*.a.test", "https://a.test", false),
            ("https://*.a.test", "https://.a.test", false),
            ("https://*.a.test", "https://evil@x.a.test", false),
            ("https://b.test, HTTP://A.test", "http://a.test", true),
            ("http://[::1]:80", "http://[::1]:80", true),
        ] {
            let Ok(Origins::These(origins)) = Origins::parse(allowed) else { panic!("{allowed}") };
            assert_eq!(origins.iter().any(|allowed| allowed.matches(origin)), expect, "{allowed} {origin}");
        }
        assert_eq!(Origins::parse("https://a.test,*"), Ok(Origins::Any));
    }

    #[test]
    fn wildcards_of_a_list_stand_for_any_number_of_labels() {
        for (allowed, origin, expect) in [
            ("https://*.a.test", "https://x.a.test", true),
            ("https://*.a.test", "https://x.y.a.test", true),
            ("https://*.a.test", "https://a.test", false),
            ("https://*.a.test", "https://.a.test", false),
            ("https://*.a.test", "https://x..a.test", false),
            ("https://*.a.test", "https://xa.test", false),
            ("https://*.a.test", "https://x.a.test.evil", false),
            ("https://*.a.test", "https://evil@x.a.test", false),
            ("https://*.a.test", "https://x.a.test:8443", false),
            ("https://*.a.test", "http://x.a.test", false),
            ("https://*.a.test:8443", "https://x.y.a.test:8443", true),
            ("https://*", "https://x.y.a.test", true),
            ("https://*", "https://[::1]", true),
            ("https://*", "https://[::1", false),
            ("https://*", "https://", false),
            ("https://*", "https://a.test:8443", false),
            ("https://*:8443", "https://a.test:8443", true),
            ("https://*:8443", "https://a.test", false),
            ("https://a.test:443", "https://a.test", true),
            ("http://*.a.test:80", "http://x.a.test", true),
            ("http://a.test:443", "http://a.test:443", true),
        ] {
            let Ok(Origins::These(origins)) = Origins::parse_list([allowed]) else { panic!("{allowed}") };
            assert_eq!(origins[0].matches(origin), expect, "{allowed} {origin}");
        }
        assert_eq!(Origins::parse_list(["*"]), Ok(Origins::Any));
        for text in ["a.test", "https://*a.test", "https://a.*.test", "https://*.", "https://a.test/x", ""] {
            assert!(Origins::parse_list([text]).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_origins_are_refused() {
        for text in ["a.test", "https://", "https://*", "https://*a.test", "https://a.test/x", "://a", "https://*."] {
            assert!(Origins::parse(text).is_err(), "{text}");
        }
    }
}
