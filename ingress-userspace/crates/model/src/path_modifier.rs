//! Modifies request paths without a template: a redirect or a rewrite replaces the whole path, or the prefix that its
//! rule matched.

use std::fmt;

use crate::path::elements;

/// A modification of a request's path. Queries are left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathModifier {
    /// Replaces the whole path.
    Full(ReplacementPath),
    /// Replaces the prefix that the rule matched, by elements. Exactly one slash is at the seam, and a trailing slash of
    /// either side is ignored there. A path without the prefix stays as it is.
    Prefix { matched: Box<str>, replacement: ReplacementPath },
}

/// A path, absolute and without a query. Empty text is `/`, so an empty replacement removes a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacementPath(Box<str>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplacementPathError {
    #[error("`{0}` must begin with `/`")]
    NotAbsolute(String),
    #[error("`{0}` holds a character that no path has; write it as an escape, as `%20`")]
    Character(String),
    #[error("`{0}` holds a segment `.` or `..`, which would lead to another path")]
    Dots(String),
}

// === impl ReplacementPath ===

impl ReplacementPath {
    /// Parses a path.
    ///
    /// # Errors
    /// Fails if the text is not an absolute path (RFC 3986, 3.3), or has a segment `.` or `..`.
    pub fn parse(text: &str) -> Result<Self, ReplacementPathError> {
        if text.is_empty() {
            return Ok(Self("/".into()));
        }
        if !text.starts_with('/') {
            return Err(ReplacementPathError::NotAbsolute(text.to_owned()));
        }
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&b);
        if !text.bytes().all(is_allowed) || !has_whole_escapes(text) {
            return Err(ReplacementPathError::Character(text.to_owned()));
        }
        if text.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(ReplacementPathError::Dots(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether each `%` begins an escape (RFC 3986, 2.1).
fn has_whole_escapes(text: &str) -> bool {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_escape)
}

// === impl PathModifier ===

impl PathModifier {
    /// Returns the modified `path`, which is in normal form and has no query.
    #[must_use]
    pub fn apply(&self, path: &str) -> String {
        match self {
            Self::Full(ReplacementPath(replacement)) => replacement.to_string(),
            Self::Prefix { matched, replacement: ReplacementPath(replacement) } => {
                let rest = path.strip_prefix(elements(matched));
                let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
                    return path.to_owned();
                };
                let modified = format!("{}{rest}", elements(replacement));
                if modified.is_empty() { "/".to_owned() } else { modified }
            }
        }
    }
}

/// Formats the modifier, such as `/new`, or `/old -> /new` for a prefix.
impl fmt::Display for PathModifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(replacement) => f.write_str(replacement.as_str()),
            Self::Prefix { matched, replacement } => write!(f, "{matched} -> {}", replacement.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacement(text: &str) -> ReplacementPath {
        ReplacementPath::parse(text).expect("valid")
    }

    #[test]
    fn a_prefix_is_replaced_by_elements_with_one_slash_at_the_seam() {
        for (path, matched, by, expect) in [
            // The table of Gateway API's `HTTPPathModifier`.
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            // Further cases.
            ("/foo", "/foo/", "/xyz/", "/xyz"),
            ("/", "/", "/xyz", "/xyz/"),
            ("/a/b", "/", "/xyz", "/xyz/a/b"),
            ("/a/b", "/", "/", "/a/b"),
            ("/foobar", "/foo", "/xyz", "/foobar"),
            ("*", "/", "/xyz", "*"),
        ] {
            let modifier = PathModifier::Prefix { matched: matched.into(), replacement: replacement(by) };
            assert_eq!(modifier.apply(path), expect, "{path} {matched} {by}");
        }
    }

    #[test]
    fn a_whole_path_is_replaced() {
        for (by, expect) in [("/new", "/new"), ("/new/", "/new/"), ("", "/"), ("/a%20b", "/a%20b")] {
            assert_eq!(PathModifier::Full(replacement(by)).apply("/old/path"), expect);
        }
    }

    #[test]
    fn texts_that_are_no_path_are_refused() {
        for text in ["new", "/a?b", "/a#b", "/a b", "/ä", "/a%2", "/a%zz", "/a/../b", "/.", "https://a.test/"] {
            assert!(ReplacementPath::parse(text).is_err(), "{text}");
        }
    }
}
