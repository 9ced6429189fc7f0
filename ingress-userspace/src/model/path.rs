//! Paths as rules match them: case-sensitive, query not included.

use std::fmt;

/// How a rule matches the path of a request.
///
/// Ordered by precedence: of the matches that fit a path, the least one wins ([`Ord`] is a total order).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// This path, byte for byte.
    Exact(String),
    /// This path and everything below it, element by element: `/a` fits `/a`, `/a/` and `/a/b`, not `/ab`. A slash at the
    /// end changes nothing but the precedence (`/a/` goes before `/a`).
    Prefix(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path `{0}` must begin with `/`")]
    NotAbsolute(String),
    #[error("path `{path}` holds `{sequence}`, which no normalised request path has")]
    NotNormal { path: String, sequence: &'static str },
}

impl PathMatch {
    /// A match for exactly `path`.
    ///
    /// # Errors
    /// If the path does not begin with `/`, or no normalised path could equal it.
    pub fn exact(path: &str) -> Result<Self, PathError> {
        validate(path).map(|()| Self::Exact(path.into()))
    }

    /// A match for `path` and what is below it.
    ///
    /// # Errors
    /// As for [`PathMatch::exact`].
    pub fn prefix(path: &str) -> Result<Self, PathError> {
        validate(path).map(|()| Self::Prefix(path.into()))
    }

    /// Whether a request for `path` (without query) fits.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == path,
            Self::Prefix(prefix) => {
                path.strip_prefix(elements(prefix)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
        }
    }
}

/// A prefix as the elements it stands for: without the slash at its end, so `""` for `/`.
#[must_use]
pub fn elements(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// The guarantees of the API server for `Exact` and `Prefix` (k/k validation.go, `invalidPathSequences`), asked of every source.
fn validate(path: &str) -> Result<(), PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute(path.into()));
    }
    for sequence in ["//", "/./", "/../", "%2f", "%2F"] {
        if path.contains(sequence) {
            return Err(PathError::NotNormal { path: path.into(), sequence });
        }
    }
    for sequence in ["/.", "/.."] {
        if path.ends_with(sequence) {
            return Err(PathError::NotNormal { path: path.into(), sequence });
        }
    }
    Ok(())
}

impl PartialOrd for PathMatch {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathMatch {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let rank = |path: &Self| match path {
            Self::Exact(_) => 0,
            Self::Prefix(_) => 1,
        };
        let (a, b) = (self.as_str(), other.as_str());
        rank(self).cmp(&rank(other)).then_with(|| b.len().cmp(&a.len())).then_with(|| a.cmp(b))
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "= {path}"),
            Self::Prefix(path) => write!(f, "{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the Ingress documentation.
    #[test]
    fn prefix_matches_whole_elements() {
        for (prefix, path, expect) in [
            ("/", "/", true),
            ("/", "/anything/below", true),
            ("/foo", "/foo", true),
            ("/foo", "/foo/", true),
            ("/foo/", "/foo", true),
            ("/foo/", "/foo/", true),
            ("/aaa/bb", "/aaa/bbb", false),
            ("/aaa/bbb", "/aaa/bbb", true),
            ("/aaa/bbb/", "/aaa/bbb", true),
            ("/aaa/bbb", "/aaa/bbb/", true),
            ("/aaa/bbb", "/aaa/bbb/ccc", true),
            ("/aaa/bbb", "/aaa/bbbxyz", false),
            ("/aaa", "/ccc", false),
            ("/foo", "/FOO", false),
        ] {
            assert_eq!(PathMatch::prefix(prefix).expect("valid").matches(path), expect, "{prefix} {path}");
        }
    }

    #[test]
    fn exact_matches_bytes() {
        for (exact, path, expect) in
            [("/foo", "/foo", true), ("/foo", "/foo/", false), ("/foo/", "/foo", false), ("/foo", "/FOO", false)]
        {
            assert_eq!(PathMatch::exact(exact).expect("valid").matches(path), expect, "{exact} {path}");
        }
    }

    #[test]
    fn paths_no_request_can_have_are_refused() {
        for path in ["", "a", "/a//b", "/a/./b", "/a/../b", "/a%2fb", "/a%2Fb", "/a/..", "/a/."] {
            assert!(PathMatch::prefix(path).is_err(), "{path}");
        }
        for path in ["/", "/.well-known/acme-challenge/x", "/a.b/..c"] {
            assert!(PathMatch::exact(path).is_ok(), "{path}");
        }
    }
}
