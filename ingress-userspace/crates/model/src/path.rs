//! Paths of rules: case-sensitive, without the query, in the same normal form as the paths of requests.

use std::{borrow::Cow, cmp::Reverse, fmt, sync::Arc};

use super::{PathPattern, PatternError};

/// Path below which certificate authorities request ACME challenges (RFC 8555, 8.3).
pub const ACME_CHALLENGE: &str = "/.well-known/acme-challenge";

/// How a rule matches the path of a request.
///
/// The type is ordered by precedence: the least of all matching values wins ([`Ord`] is a total order).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// This path, byte for byte in normal form ([`decode_unreserved`]).
    Exact(Arc<str>),
    /// This path and everything below it, element by element: `/a` matches `/a`, `/a/` and `/a/b`, but not `/ab`. A
    /// trailing slash only affects precedence (`/a/` goes before `/a`).
    Prefix(Arc<str>),
    /// Paths that begin with a match of this regular expression, ignoring case. Longer texts go first, so a prefix
    /// precedes expressions shorter than its elements. A confined expression is ranked by the common beginning of its
    /// matches ([`PathPattern::confined`]).
    Pattern(Arc<PathPattern>),
    /// Paths that begin with this text, ignoring the case of ASCII letters: `/a` matches `/a`, `/ab` and `/A/b`. It is
    /// ranked as an expression with this text, for hosts on which all paths are meant as expressions.
    Beginning(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path `{0}` must begin with `/`")]
    NotAbsolute(String),
    #[error("path `{path}` holds `{sequence}`, which no normalised request path has")]
    NotNormal { path: String, sequence: &'static str },
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

impl PathMatch {
    /// Returns a match for exactly `path`.
    ///
    /// # Errors
    /// Fails if the path does not begin with `/`, or can equal no normalised path.
    pub fn exact(path: &str) -> Result<Self, PathError> {
        normal(path).map(Self::Exact)
    }

    /// Returns a match for `path` and all paths below it.
    ///
    /// # Errors
    /// Fails like [`PathMatch::exact`].
    pub fn prefix(path: &str) -> Result<Self, PathError> {
        normal(path).map(Self::Prefix)
    }

    /// Returns a match for paths that begin with the regular expression `text`.
    ///
    /// # Errors
    /// Fails if the text does not begin with `/`, or is not an acceptable regular expression.
    pub fn pattern(text: &str) -> Result<Self, PathError> {
        let pattern = Self::pattern_within(text, usize::MAX)?.with_groups()?;
        Ok(Self::Pattern(Arc::new(pattern)))
    }

    /// Parses the regular expression `text` within a memory limit of `budget` bytes.
    ///
    /// # Errors
    /// Fails like [`PathMatch::pattern`], or if the limit is exceeded.
    pub fn pattern_within(text: &str, budget: usize) -> Result<PathPattern, PathError> {
        if !text.starts_with('/') {
            return Err(PathError::NotAbsolute(text.to_owned()));
        }
        Ok(PathPattern::parse(text, budget)?)
    }

    /// Returns whether a request for `path` (in normal form, without query) matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Prefix(prefix) => {
                path.strip_prefix(elements(prefix)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Self::Pattern(pattern) => pattern.is_match(path),
            Self::Beginning(text) => {
                let start = path.as_bytes().get(..text.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(text.as_bytes()))
            }
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) | Self::Beginning(path) => path,
            Self::Pattern(pattern) => pattern.as_str(),
        }
    }
}

/// Returns a prefix as its elements: without the trailing slash, so `""` for `/`.
#[must_use]
pub fn elements(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Returns `path` with the escapes of unreserved characters (letters, digits, `-`, `.`, `_`, `~`) decoded, as both
/// spellings are the same path (RFC 3986, 6.2.2.2). All other escapes stay as written, as does a `%` that begins none.
/// The result is borrowed if nothing changes.
#[must_use]
pub fn decode_unreserved(path: &str) -> Cow<'_, str> {
    let mut decoded = String::new();
    let mut copied = 0;
    for (at, _) in path.match_indices('%') {
        if let Some(character) = unreserved(path.as_bytes().get(at + 1..at + 3)) {
            decoded.push_str(&path[copied..at]);
            decoded.push(character);
            copied = at + 3;
        }
    }
    if copied == 0 {
        return path.into();
    }
    decoded.push_str(&path[copied..]);
    decoded.into()
}

/// Returns the character encoded by two hexadecimal digits, if it is unreserved (RFC 3986, 2.3).
fn unreserved(digits: Option<&[u8]>) -> Option<char> {
    let Some(&[high, low]) = digits else { return None };
    let value = char::from(high).to_digit(16)? << 4 | char::from(low).to_digit(16)?;
    char::from_u32(value).filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~'))
}

/// Returns the normal form of a rule's path. The API server guarantees it for `Exact` and `Prefix` (k/k validation.go,
/// `invalidPathSequences`); here it is required of every source.
fn normal(path: &str) -> Result<Arc<str>, PathError> {
    let path = decode_unreserved(path);
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute(path.into_owned()));
    }
    for sequence in ["//", "/./", "/../", "%2f", "%2F"] {
        if path.contains(sequence) {
            return Err(PathError::NotNormal { path: path.into_owned(), sequence });
        }
    }
    for sequence in ["/.", "/.."] {
        if path.ends_with(sequence) {
            return Err(PathError::NotNormal { path: path.into_owned(), sequence });
        }
    }
    Ok(path.into())
}

impl PartialOrd for PathMatch {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathMatch {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        /// Ranks by kind, length and kind again; lower ranks go first.
        fn rank(path: &PathMatch) -> (u8, Reverse<usize>, u8) {
            match path {
                PathMatch::Exact(path) => (0, Reverse(path.len()), 0),
                PathMatch::Pattern(pattern) => {
                    let (length, is_confined) = pattern.rank();
                    (1, Reverse(length), if is_confined { 2 } else { 0 })
                }
                PathMatch::Prefix(prefix) => (1, Reverse(elements(prefix).len()), 1),
                PathMatch::Beginning(text) => (1, Reverse(text.len()), 0),
            }
        }
        let (a, b) = (self.as_str(), other.as_str());
        let is_written = |path: &Self| matches!(path, Self::Beginning(_));
        rank(self).cmp(&rank(other)).then_with(|| b.len().cmp(&a.len())).then_with(|| match self {
            Self::Exact(_) | Self::Prefix(_) => a.cmp(b),
            // ingress-nginx sorts expressions of the same length downwards.
            Self::Pattern(_) | Self::Beginning(_) => b.cmp(a).then_with(|| is_written(self).cmp(&is_written(other))),
        })
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => write!(f, "= {path}"),
            Self::Prefix(path) => write!(f, "{path}"),
            Self::Pattern(pattern) => write!(f, "~ {pattern}"),
            Self::Beginning(text) => {
                f.write_str("~ ")?;
                text.chars().try_for_each(|character| match character {
                    '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => {
                        write!(f, "\\{character}")
                    }
                    other => write!(f, "{other}"),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples from the Ingress documentation.
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
    fn a_beginning_matches_bytes_in_any_case() {
        let beginning = PathMatch::Beginning("/v1.0".into());
        for (path, expect) in [
            ("/v1.0", true),
            ("/V1.0/x", true),
            ("/v1.01", true),
            ("/v1x0", false),
            ("/v1", false),
            ("/v1.\u{e9}", false),
        ] {
            assert_eq!(beginning.matches(path), expect, "{path}");
        }
        assert_eq!(beginning.to_string(), r"~ /v1\.0");
        let pattern = PathMatch::pattern("/v1.0").expect("valid");
        assert_eq!(pattern.cmp(&beginning), std::cmp::Ordering::Less, "the order is total");
        assert!(PathMatch::pattern("/a/[a-z]").expect("valid") > PathMatch::Beginning("/a/bcdef".into()));
        assert!(PathMatch::Beginning("/a".into()) < PathMatch::Prefix("/a".into()));
    }

    #[test]
    fn paths_outside_the_normal_form_are_refused() {
        for path in ["", "a", "/a//b", "/a/./b", "/a/../b", "/a%2fb", "/a%2Fb", "/a/..", "/a/.", "/a/%2e%2E/b", "/%2e"]
        {
            assert!(PathMatch::prefix(path).is_err(), "{path}");
        }
        for path in ["/", "/.well-known/acme-challenge/x", "/a.b/..c"] {
            assert!(PathMatch::exact(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn configuration_metacharacters_in_paths_are_literal() {
        // Characters that end a line, a statement or a block in configuration files of other proxies.
        for path in ["/a;b", "/a{b}", "/a#b", "/a\"b", "/a\nb", "/a\r\nb", "/a b", "/a$b", "/a\\b", "/a'b"] {
            for made in [PathMatch::exact(path), PathMatch::prefix(path)] {
                let made = made.expect("text");
                assert_eq!(made.as_str(), path);
                assert!(
                    made.matches(path) && !made.matches("/a") && !made.matches("/") && !made.matches("/b"),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn escapes_of_unreserved_characters_are_decoded() {
        for (path, expect) in [
            ("/", "/"),
            ("/plain", "/plain"),
            ("/%61dmin", "/admin"),
            ("/%41%5A%5a%30%2D%2d%2E%5F%7E%7e", "/AZZ0--._~~"),
            ("/a%20b%2Fc%2f%25%c3%A9", "/a%20b%2Fc%2f%25%c3%A9"),
            ("/%2541", "/%2541"),
            ("/%25%34%31", "/%2541"),
            ("/é%61é", "/éaé"),
            ("/%", "/%"),
            ("/%6", "/%6"),
            ("/%zz%61", "/%zza"),
            ("/%6é", "/%6é"),
            ("/%+1", "/%+1"),
            ("", ""),
        ] {
            let decoded = decode_unreserved(path);
            assert_eq!(decoded, expect, "{path}");
            assert_eq!(matches!(decoded, Cow::Borrowed(_)), path == expect, "{path} was copied");
        }
    }

    #[test]
    fn rules_match_the_normal_form() {
        assert_eq!(PathMatch::prefix("/%61dmin/").expect("valid").as_str(), "/admin/");
        assert!(PathMatch::exact("/%7Euser").expect("valid").matches("/~user"));
        assert!(PathMatch::exact("/a%20b").expect("valid").matches("/a%20b"));
    }
}
