//! Host names of routes and requests in one canonical form, parsed once.

use std::{borrow::Borrow, fmt, sync::Arc};

/// A DNS name in canonical form: lower-case A-labels, no trailing dot, no port (RFC 1123, 2.1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(Arc<str>);

/// Hosts that a group of rules serves.
///
/// The order of the variants is the order of precedence: the first that matches wins, and of suffixes the longest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(Host),
    /// Exactly one label before this name: `*.example.com` contains the host `example.com`.
    Wildcard(Host),
    /// One or more labels before this name: the wildcard of Gateway routes. Of two that match a host, the longer one is
    /// more specific.
    Suffix(Host),
    /// Every host without a more specific match.
    Any,
}

/// Number of a host in counters. Each [`HostPattern`] keeps its number. The number of a removed host is assigned to
/// another one only after some time, when no counter uses it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostId(pub u32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("host name is empty")]
    Empty,
    #[error("host name `{0}` is longer than 253 bytes")]
    TooLong(String),
    #[error("host name `{0}` has an empty label, or one longer than 63 bytes")]
    Label(String),
    #[error(
        "host name `{name}` holds {character:?}; allowed are letters, digits, `-`, `_` and `.` (write other scripts as A-labels, `xn--…`)"
    )]
    Character { name: String, character: char },
    #[error("host name `{0}` has a label that begins or ends with `-`")]
    Hyphen(String),
    #[error("`{0}` is an IP address; routes need a DNS name")]
    Address(String),
    #[error("wildcard `{0}` must be `*.` followed by a name")]
    Wildcard(String),
}

// === impl Host ===

impl Host {
    /// Parses a DNS name: folds ASCII case and drops one trailing dot.
    ///
    /// Besides the letters, digits and `-` of RFC 1123, `_` is accepted, because some names in use contain it.
    ///
    /// # Errors
    /// Fails if the text is not a DNS name: see [`HostError`].
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        if name.len() > 253 {
            return Err(HostError::TooLong(text.into()));
        }
        for label in name.split('.') {
            if label.is_empty() || label.len() > 63 {
                return Err(HostError::Label(text.into()));
            }
            if let Some(character) = label.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '-' || *c == '_')) {
                return Err(HostError::Character { name: text.into(), character });
            }
            if label.starts_with('-') || label.ends_with('-') {
                return Err(HostError::Hyphen(text.into()));
            }
        }
        // A name with a numeric last label is an IPv4 address in some form (WHATWG URL, "ends in a number").
        if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit())) {
            return Err(HostError::Address(text.into()));
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name without its first label, or `None` for a single label.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        parent(&self.0)
    }
}

/// Returns `b.c` for `a.b.c`, and `None` for a name without a dot.
#[must_use]
pub fn parent(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, rest)| rest)
}

impl Borrow<str> for Host {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

// === impl HostId ===

impl HostId {
    /// Requests that match the rules of no host, and hosts beyond the capacity of the counters.
    pub const UNATTRIBUTED: Self = Self(0);
}

// === impl HostPattern ===

impl HostPattern {
    /// Parses a host in Kubernetes notation: empty for every host, `*.` for exactly one leading label.
    ///
    /// # Errors
    /// Fails for any other text: `*` alone or elsewhere, ports and addresses are refused.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Ok(Self::Any);
        }
        match text.strip_prefix("*.") {
            Some(rest) => Host::parse(rest).map(Self::Wildcard),
            None if text.contains('*') => Err(HostError::Wildcard(text.into())),
            None => Host::parse(text).map(Self::Exact),
        }
    }

    /// Parses a hostname of a Gateway listener or route: like [`Self::parse`], but `*.` stands for one or more labels.
    ///
    /// # Errors
    /// Fails like [`Self::parse`].
    pub fn parse_suffix(text: &str) -> Result<Self, HostError> {
        Ok(match Self::parse(text)? {
            Self::Wildcard(base) => Self::Suffix(base),
            other => other,
        })
    }

    /// Returns whether the pattern matches `host` (in canonical form).
    #[must_use]
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name.as_str() == host,
            Self::Wildcard(base) => {
                host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == base.as_str())
            }
            Self::Suffix(base) => host
                .strip_suffix(base.as_str())
                .and_then(|labels| labels.strip_suffix('.'))
                .is_some_and(|labels| !labels.is_empty() && !labels.starts_with('.')),
            Self::Any => true,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Wildcard(base) | Self::Suffix(base) => write!(f, "*.{base}"),
            Self::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let got = match HostPattern::parse(text) {
            Ok(pattern) => pattern.to_string(),
            Err(error) => format!("error: {error}"),
        };
        if let Some(fragment) = expect.strip_prefix("error: ") {
            assert!(got.starts_with("error: ") && got.contains(fragment), "{text}: {got}");
        } else {
            assert_eq!(got, expect, "{text}");
        }
    }

    #[test]
    fn hosts_parse_to_one_canonical_form() {
        for (text, expect) in [
            ("", "*"),
            ("example.com", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("*.Example.com", "*.example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("a_b.example", "a_b.example"),
            ("1.example", "1.example"),
            (".", "error: empty"),
            ("*", "error: must be `*.`"),
            ("*.", "error: empty"),
            ("a.*.b", "error: must be `*.`"),
            ("*foo.com", "error: must be `*.`"),
            ("*.*.com", "error: holds '*'"),
            ("a..b", "error: empty label"),
            ("a.com:80", "error: holds ':'"),
            ("bücher.example", "error: holds 'ü'"),
            ("-a.com", "error: begins or ends with `-`"),
            ("10.0.0.1", "error: IP address"),
            ("[::1]", "error: holds '['"),
            ("a/b", "error: holds '/'"),
        ] {
            check(text, expect);
        }
        check(&"a".repeat(64), "error: longer than 63");
        check(&["a"; 128].join("."), "error: longer than 253");
    }

    #[test]
    fn wildcard_covers_exactly_one_label() {
        let wildcard = HostPattern::parse("*.foo.com").expect("valid pattern");
        for (host, expect) in
            [("bar.foo.com", true), ("baz.bar.foo.com", false), ("foo.com", false), (".foo.com", false)]
        {
            assert_eq!(wildcard.matches(host), expect, "{host}");
        }
    }

    #[test]
    fn exact_precedes_wildcard_precedes_any() {
        let mut order = vec![HostPattern::Any];
        order.push(HostPattern::parse("*.a").expect("valid pattern"));
        order.push(HostPattern::parse("z.a").expect("valid pattern"));
        order.sort();
        assert_eq!(order.iter().map(ToString::to_string).collect::<Vec<_>>(), ["z.a", "*.a", "*"]);
    }
}
