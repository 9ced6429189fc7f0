//! Regular expressions that users write: matched in linear time, bounded in size.

use std::{cmp::Ordering, fmt, hash};

use regex::{Captures, Regex, RegexBuilder};

/// A regular expression, in the syntax of the `regex` crate: that of PCRE without look-around and back references.
///
/// Compared by its text.
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    regex: Regex,
}

/// Memory that one compiled expression may take, in bytes.
pub(super) const SIZE_MAX: usize = 256 * 1024;
/// Memory that a thread may spend on making one expression faster, in bytes.
const CACHE_MAX: usize = 256 * 1024;
/// Depth of groups within groups.
pub(super) const NEST_MAX: u32 = 50;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("`{0}` holds look-around or a back reference, which would take endless time on some requests")]
    Unbounded(String),
    #[error("`{0}` is too large as a regular expression")]
    TooLarge(String),
    #[error("`{text}` is no regular expression: {reason}")]
    Syntax { text: String, reason: String },
}

// === impl Pattern ===

impl Pattern {
    /// What a path must begin with, upper and lower case alike, as ingress-nginx has it.
    ///
    /// # Errors
    /// If `text` is no regular expression, or one without bounds on time and size.
    pub fn of_path(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("^(?:{text})"), true)
    }

    /// What a value must be as a whole; case matters.
    ///
    /// # Errors
    /// As [`Pattern::of_path`].
    pub fn of_value(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("^(?:{text})$"), false)
    }

    /// What a value must hold somewhere; case matters.
    ///
    /// # Errors
    /// As [`Pattern::of_path`].
    pub fn within(text: &str) -> Result<Self, PatternError> {
        Self::new(text, text, false)
    }

    /// The same whatever the case.
    ///
    /// # Errors
    /// As [`Pattern::of_path`].
    pub fn within_any_case(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("(?i:{text})"), false)
    }

    fn new(text: &str, anchored: &str, ignores_case: bool) -> Result<Self, PatternError> {
        // Alone, so that a parenthesis too many cannot reach out of the group that anchors it.
        regex_syntax_of(text)?;
        let regex = RegexBuilder::new(anchored)
            .case_insensitive(ignores_case)
            .size_limit(SIZE_MAX)
            .dfa_size_limit(CACHE_MAX)
            .nest_limit(NEST_MAX)
            .build()
            .map_err(|error| describe(text, &error))?;
        Ok(Self { text: text.into(), regex })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// The groups of the match, if there is one.
    #[must_use]
    pub fn captures<'t>(&self, text: &'t str) -> Option<Captures<'t>> {
        self.regex.captures(text)
    }
}

/// Says what is wrong with `text` by itself.
fn regex_syntax_of(text: &str) -> Result<(), PatternError> {
    let parsed = RegexBuilder::new(text).size_limit(SIZE_MAX).nest_limit(NEST_MAX).build();
    parsed.map(drop).map_err(|error| describe(text, &error))
}

fn describe(text: &str, error: &regex::Error) -> PatternError {
    match error {
        regex::Error::CompiledTooBig(_) => PatternError::TooLarge(text.to_owned()),
        error => PatternError::of_syntax(text, &error.to_string()),
    }
}

// === impl PatternError ===

impl PatternError {
    /// What a parser's `message` says of `text`.
    pub(super) fn of_syntax(text: &str, message: &str) -> Self {
        let text = text.to_owned();
        if message.contains("look-around") || message.contains("backreferences") {
            return Self::Unbounded(text);
        }
        // The first lines show the place with a caret, which only a fixed-width font keeps there.
        let reason = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Self::Syntax { text, reason }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.regex.as_str() == other.regex.as_str()
    }
}

impl Eq for Pattern {}

impl hash::Hash for Pattern {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for Pattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text).then_with(|| self.regex.as_str().cmp(other.regex.as_str()))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_from_their_begin_whatever_their_case() {
        for (pattern, path, expect) in [
            ("/api", "/api/x", true),
            ("/api", "/API/x", true),
            ("/api", "/v1/api", false),
            ("/a|/b", "/b", true),
            ("/a|/b", "/c/b", false),
            ("/foo(/|$)(.*)", "/foo", true),
            ("/foo(/|$)(.*)", "/foobar", false),
            (r"/[a-z]+/\d{2}", "/x/12", true),
        ] {
            assert_eq!(Pattern::of_path(pattern).expect("valid").is_match(path), expect, "{pattern} {path}");
        }
        assert!(!Pattern::of_value("a|b").expect("valid").is_match("ab"));
        assert!(!Pattern::of_value("a").expect("valid").is_match("A"));
    }

    #[test]
    fn what_has_no_bounds_is_refused() {
        for (pattern, expect) in [
            ("/(?!api).*", "look-around"),
            (r"/(a)\1", "back reference"),
            ("/a)(b", "unopened group"),
            ("/(", "unclosed group"),
            ("/((((((((((a{99}){99}){99}){99}))))))){99}", "too large"),
        ] {
            let error = Pattern::of_path(pattern).expect_err(pattern).to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
