//! Cross-origin resource sharing (Fetch standard, 3.2): which origins may use a rule from their pages.

use std::fmt;

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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    Any,
    These(Vec<CorsOrigin>),
}

/// An origin, or all origins one label below a host: `https://*.a.test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOrigin {
    /// Scheme with the trailing `://`.
    scheme: Box<str>,
    has_wildcard: bool,
    /// Host and port, or the part after `*` if there is a wildcard.
    rest: Box<str>,
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
        parts.into_iter().map(CorsOrigin::parse).collect::<Result<_, _>>().map(Self::These)
    }
}

// === impl CorsOrigin ===

impl CorsOrigin {
    fn parse(text: &str) -> Result<Self, OriginError> {
        let error = || OriginError(text.to_owned());
        let (scheme, host) = text.split_once("://").ok_or_else(error)?;
        let (has_wildcard, rest) = match host.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => (true, rest),
            Some(_) => return Err(error()),
            None => (false, host),
        };
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let is_host = rest.len() > usize::from(has_wildcard)
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        if !is_scheme || !is_host {
            return Err(error());
        }
        let scheme = format!("{scheme}://").to_ascii_lowercase().into();
        Ok(Self { scheme, has_wildcard, rest: rest.to_ascii_lowercase().into() })
    }

    /// Returns whether `origin`, as sent by a browser, matches.
    #[must_use]
    pub fn matches(&self, origin: &str) -> bool {
        let Self { scheme, has_wildcard, rest } = self;
        let Some(host) = origin.strip_prefix(&**scheme) else { return false };
        if !has_wildcard {
            return *host == **rest;
        }
        let label = host.strip_suffix(&**rest);
        label.is_some_and(|label| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::These(origins) => {
                for (n, CorsOrigin { scheme, has_wildcard, rest }) in origins.iter().enumerate() {
                    let (space, star) = (if n == 0 { "" } else { " " }, if *has_wildcard { "*" } else { "" });
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
    fn invalid_origins_are_refused() {
        for text in ["a.test", "https://", "https://*", "https://*a.test", "https://a.test/x", "://a", "https://*."] {
            assert!(Origins::parse(text).is_err(), "{text}");
        }
    }
}
