//! Regular expressions written by users: matched in linear time, bounded in size.

use std::{cmp::Ordering, fmt, hash};

use regex::{Captures, Regex, RegexBuilder};
use regex_automata::nfa::thompson::{Compiler, Config, WhichCaptures};

/// A regular expression in the syntax of the `regex` crate: that of PCRE without look-around and back references.
///
/// Two expressions are equal if their texts, their anchors and their sensitivity to case are.
#[derive(Clone)]
pub struct Pattern {
    text: Box<str>,
    regex: Regex,
    /// Longer values do not match.
    longest: usize,
    /// Memory of the automaton in bytes, if `longest` is bounded by it; else 0.
    memory: usize,
}

/// Memory limit of one compiled expression, in bytes.
pub(super) const SIZE_MAX: usize = 256 * 1024;
/// Memory limit of the lazy DFA cache per thread and expression, in bytes.
const CACHE_MAX: usize = 256 * 1024;
/// Memory limit of one expression of [`Pattern::of_rule`], and of its cache per thread, in bytes.
const RULE_MAX: usize = 64 * 1024;
/// Limit for the product of automaton states and bytes of a value, each 5 to 12 ns in the worst case, in one search.
const WORK_MAX: usize = 256 * 1024;
/// Maximum nesting depth of groups.
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
    /// Returns a case-insensitive pattern for the beginning of a path, as in ingress-nginx.
    ///
    /// # Errors
    /// Fails if `text` is not a regular expression, or is one without bounds on time and size.
    pub fn of_path(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("^(?:{text})"), true)
    }

    /// Returns a case-sensitive pattern for a whole header field or query parameter, for expressions and values from
    /// untrusted sources. Values that are too long do not match, as for [`Pattern::within_field`].
    ///
    /// # Errors
    /// Fails like [`Pattern::of_path`].
    pub fn of_field(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("^(?:{text})$"), false)?.bounded(SIZE_MAX)
    }

    /// Returns a case-sensitive pattern that matches anywhere in a value.
    ///
    /// # Errors
    /// Fails like [`Pattern::of_path`].
    pub fn within(text: &str) -> Result<Self, PatternError> {
        Self::new(text, text, false)
    }

    /// Returns a case-sensitive pattern that matches anywhere in a header field, for expressions and values from
    /// untrusted sources. Values too long to search in bounded time do not match: an expression of 30 states is
    /// searched for in up to 8 KiB, one of 1,000 states in up to 262 bytes.
    ///
    /// # Errors
    /// Fails like [`Pattern::of_path`].
    pub fn within_field(text: &str) -> Result<Self, PatternError> {
        Self::within(text)?.bounded(SIZE_MAX)
    }

    /// Bounds the length of values by the number of the automaton's states.
    fn bounded(self, max: usize) -> Result<Self, PatternError> {
        let config = Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(max));
        let automaton = Compiler::new().configure(config).build(self.regex.as_str());
        let automaton = automaton.map_err(|_size| PatternError::TooLarge(self.text.to_string()))?;
        let (longest, memory) = (WORK_MAX / automaton.states().len().max(1), automaton.memory_usage());
        Ok(Self { longest, memory, ..self })
    }

    /// Returns the memory of the automaton in bytes, for patterns with a bound on values; 0 for others.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns a pattern that matches anywhere in a value, with at most 64 KiB of memory. Expression and value may come
    /// from untrusted sources, like those of [`Pattern::within_field`].
    ///
    /// # Errors
    /// Fails like [`Pattern::of_path`].
    pub fn of_rule(text: &str, ignores_case: bool) -> Result<Self, PatternError> {
        regex_syntax_of(text)?;
        let whole = if ignores_case { format!("(?i:{text})") } else { text.to_owned() };
        let regex = RegexBuilder::new(&whole)
            .size_limit(RULE_MAX)
            .dfa_size_limit(RULE_MAX)
            .nest_limit(NEST_MAX)
            .build()
            .map_err(|error| describe(text, &error))?;
        Self { text: text.into(), regex, longest: usize::MAX, memory: 0 }.bounded(RULE_MAX)
    }

    /// Returns whether `text` is too long to be searched in bounded time, so that it does not match.
    #[must_use]
    pub fn is_beyond(&self, text: &str) -> bool {
        text.len() > self.longest
    }

    /// Returns the cost of searching `text`: the product of its bytes and the automaton's states, rounded down; 0 for
    /// patterns without a bound on values.
    #[must_use]
    pub fn work(&self, text: &str) -> usize {
        WORK_MAX / self.longest.max(1) * text.len()
    }

    /// Same as [`Pattern::within`], but ignores case.
    ///
    /// # Errors
    /// Fails like [`Pattern::of_path`].
    pub fn within_any_case(text: &str) -> Result<Self, PatternError> {
        Self::new(text, &format!("(?i:{text})"), false)
    }

    fn new(text: &str, anchored: &str, ignores_case: bool) -> Result<Self, PatternError> {
        // Checked separately, so that an extra parenthesis cannot close the group that anchors it.
        regex_syntax_of(text)?;
        let regex = RegexBuilder::new(anchored)
            .case_insensitive(ignores_case)
            .size_limit(SIZE_MAX)
            .dfa_size_limit(CACHE_MAX)
            .nest_limit(NEST_MAX)
            .build()
            .map_err(|error| describe(text, &error))?;
        Ok(Self { text: text.into(), regex, longest: usize::MAX, memory: 0 })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        text.len() <= self.longest && self.regex.is_match(text)
    }

    /// Returns the groups of the match, if there is one.
    #[must_use]
    pub fn captures<'t>(&self, text: &'t str) -> Option<Captures<'t>> {
        if self.is_beyond(text) { None } else { self.regex.captures(text) }
    }
}

/// Reports syntax errors of `text` by itself.
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
    /// Converts the `message` of a parser about `text`.
    pub(super) fn of_syntax(text: &str, message: &str) -> Self {
        let text = text.to_owned();
        if message.contains("look-around") || message.contains("backreferences") {
            return Self::Unbounded(text);
        }
        // The preceding lines mark the position with a caret, which is only readable in a fixed-width font.
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
    fn path_patterns_are_anchored_at_the_start_and_ignore_case() {
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
        assert!(!Pattern::of_field("a|b").expect("valid").is_match("ab"));
        assert!(!Pattern::of_field("a").expect("valid").is_match("A"));
    }

    #[test]
    fn whole_fields_are_matched_with_bounded_work() {
        let heavy = Pattern::of_field("(a?b?){600}c|a*").expect("valid");
        assert!(heavy.is_match(&"a".repeat(8)) && !heavy.is_match(&"a".repeat(8 * 1024)));
        assert!(heavy.memory() > 10_000, "{}", heavy.memory());
        assert!(Pattern::of_field("a*").expect("valid").is_match(&"a".repeat(8 * 1024)));
    }

    #[test]
    fn header_fields_are_searched_with_bounded_work() {
        let field = |pattern: &str| Pattern::within_field(pattern).expect("valid");
        let (long, longer) = ("a".repeat(8 * 1024), "a".repeat(32 * 1024));
        for light in ["^eu-|test", "MSIE [1-6]\\.", "a+$"] {
            assert_eq!(field(light).is_match(&long), light == "a+$", "{light}");
        }
        assert!(field("^eu-|test").is_match(&format!("{}test", &long[4..])));
        for heavy in ["(a?b?){600}c|a", r"(a.{60}){2}x|a", r"\w{2}|a"] {
            let pattern = field(heavy);
            assert!(pattern.longest * 20 < longer.len(), "{heavy}: {}", pattern.longest);
            assert!(!pattern.is_match(&longer), "{heavy}");
        }
        assert!(field(r"\w{3}").is_match("x-abc"));
    }

    #[test]
    fn unsupported_and_oversized_patterns_are_refused() {
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
