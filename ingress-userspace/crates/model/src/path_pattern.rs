//! Regular expressions of paths, parsed and measured. All expressions of a host are matched together elsewhere; this
//! module only matches single ones.

use std::{cmp::Ordering, fmt, hash, sync::Arc};

use regex_automata::{
    dfa::onepass,
    nfa::thompson::{self, WhichCaptures},
};
use regex_syntax::{
    ParserBuilder,
    hir::{
        Hir,
        literal::{Extractor, Seq},
    },
};

use super::{
    Pattern, PatternError,
    pattern::{NEST_MAX, SIZE_MAX},
};

/// A case-insensitive regular expression for the beginning of a path, as in ingress-nginx.
///
/// Equality covers the text and whether the expression is confined.
#[derive(Clone)]
pub struct PathPattern {
    text: Arc<str>,
    hir: Hir,
    size: usize,
    alone: Option<Pattern>,
    /// States per byte of a path that a search for groups may take, if compiled separately. The value is 0 if one pass
    /// finds the groups.
    group_states: usize,
    /// Length of the common beginning of all matches, for a confined expression.
    confined: Option<usize>,
}

// === impl PathPattern ===

impl PathPattern {
    /// Memory limit of the automaton of one expression, in bytes.
    pub const MAX: usize = SIZE_MAX;
    /// Limit for the product of states and bytes of a path (5 to 12 ns each) in a search for groups with several
    /// passes.
    const GROUPS_MAX: usize = 256 * 1024;

    /// Parses `text` and measures it, within `budget` bytes of memory. Nothing is compiled for matching.
    ///
    /// # Errors
    /// Fails if `text` is not a regular expression, has no bound on its matching time, or exceeds `budget` or the limit
    /// for one expression.
    pub fn parse(text: &str, budget: usize) -> Result<Self, PatternError> {
        let parsed = ParserBuilder::new().case_insensitive(true).nest_limit(NEST_MAX).build().parse(text);
        let hir = parsed.map_err(|error| PatternError::of_syntax(text, &error.to_string()))?;
        let config =
            thompson::Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(SIZE_MAX.min(budget)));
        let compiled = thompson::Compiler::new().configure(config).build_from_hir(&hir);
        let states = compiled.map_err(|error| match error.size_limit() {
            Some(_) => PatternError::TooLarge(text.to_owned()),
            None => PatternError::of_syntax(text, &error.to_string()),
        })?;
        Ok(Self {
            text: text.into(),
            hir,
            size: states.memory_usage() + text.len(),
            alone: None,
            group_states: 0,
            confined: None,
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the same expression, confined to the common beginning of its matches: it goes before prefixes shorter
    /// than this beginning, and behind all others. Returns `None` if the matches have only `/` in common.
    #[must_use]
    pub fn confined(&self) -> Option<Self> {
        let length = super::path::elements(&self.beginning()).len();
        (length > 0).then(|| Self { confined: Some(length), ..self.clone() })
    }

    /// Returns the same expression with the rank of one with a common beginning of `length` bytes.
    #[must_use]
    pub fn ranked(self, length: usize) -> Self {
        Self { confined: Some(length), ..self }
    }

    /// Returns the common beginning of all matches (ignoring case), which may be empty. It ends before the first
    /// non-ASCII character: `\u{212a}` matches `k`, which is shorter.
    #[must_use]
    pub fn beginning(&self) -> String {
        let beginnings = regex_syntax::parse(&self.text).map(|parsed| Extractor::new().extract(&parsed));
        let common = beginnings.as_ref().ok().and_then(Seq::longest_common_prefix).unwrap_or_default();
        common.iter().take_while(|byte| byte.is_ascii()).copied().map(char::from).collect()
    }

    /// Returns the length for ranking among paths, and whether a prefix of the same length goes first.
    #[must_use]
    pub fn rank(&self) -> (usize, bool) {
        (self.confined.unwrap_or(self.text.len()), self.confined.is_some())
    }

    /// Returns whether the expression goes before a prefix of this length.
    #[must_use]
    pub fn goes_before(&self, length: usize) -> bool {
        let (own, is_confined) = self.rank();
        own > length || own == length && !is_confined
    }

    /// Returns whether the expression goes before a [`PathMatch::Beginning`](super::PathMatch::Beginning) of this text.
    #[must_use]
    pub fn goes_before_text(&self, text: &str) -> bool {
        let (own, is_confined) = self.rank();
        own > text.len() || own == text.len() && !is_confined && *self.text >= *text
    }

    #[must_use]
    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Returns the memory used by the automaton, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the parsed expression.
    #[must_use]
    pub const fn hir(&self) -> &Hir {
        &self.hir
    }

    /// Returns the same expression, also compiled separately, for callers that need its groups.
    ///
    /// # Errors
    /// Fails if the expression is too large with its groups.
    pub fn with_groups(self) -> Result<Self, PatternError> {
        let alone = Pattern::of_path(&self.text)?;
        let config = thompson::Config::new().nfa_size_limit(Some(SIZE_MAX));
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&self.hir);
        let nfa = nfa.map_err(|_size| PatternError::TooLarge(self.text.to_string()))?;
        // The states of the common beginning are left after as many bytes, so they do not count.
        let states = nfa.states().len().saturating_sub(self.beginning().len());
        let config = onepass::Config::new().size_limit(Some(SIZE_MAX));
        let is_one_pass = onepass::Builder::new().configure(config).build_from_nfa(nfa).is_ok();
        Ok(Self { alone: Some(alone), group_states: if is_one_pass { 0 } else { states }, ..self })
    }

    /// Returns whether the search for groups in `path` may take too long.
    #[must_use]
    pub const fn takes_too_long(&self, path: &str) -> bool {
        self.group_states.saturating_mul(path.len()) > Self::GROUPS_MAX
    }

    /// Returns the separately compiled expression, if available.
    #[must_use]
    pub const fn alone(&self) -> Option<&Pattern> {
        self.alone.as_ref()
    }

    /// Returns whether `path` begins with a match. The call is slow if the expression is not compiled separately.
    #[must_use]
    pub fn is_match(&self, path: &str) -> bool {
        match &self.alone {
            Some(alone) => alone.is_match(path),
            None => Pattern::of_path(&self.text).is_ok_and(|alone| alone.is_match(path)),
        }
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.confined == other.confined
    }
}

impl Eq for PathPattern {}

impl hash::Hash for PathPattern {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for PathPattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathPattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text).then_with(|| self.confined.cmp(&other.confined))
    }
}

impl fmt::Debug for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilation_of_an_expression_stops_at_its_budget() {
        let heavy = "/1_a{2400}x?";
        let size = PathPattern::parse(heavy, usize::MAX).expect("within the limit of one").size();
        assert!((64 * 1024..SIZE_MAX).contains(&size), "{size}");
        assert_eq!(PathPattern::parse(heavy, size / 2), Err(PatternError::TooLarge(heavy.to_owned())));
        assert!(PathPattern::parse("/a-1/[0-9]+", 2048).expect("light").size() < 2048);
        let endless = "/((((((((((a{99}){99}){99}){99}))))))){99}";
        assert_eq!(PathPattern::parse(endless, usize::MAX), Err(PatternError::TooLarge(endless.to_owned())));
    }

    #[test]
    fn an_expression_is_confined_to_the_common_prefix_of_its_matches() {
        for (pattern, expect) in [
            ("/foo(/|$)(.*)", Some(4)),
            ("/api/[a-z]+", Some(4)),
            (r"/v1\.0/x.*", Some(7)),
            ("/login", Some(6)),
            ("/ab?c", Some(2)),
            ("/very/long/path|/", None),
            ("/very/long/path|/very/short", Some(5)),
            ("/((((((((((.*))))))))))", None),
            ("/[(]|/", None),
            ("/\u{212a}ing", None),
            ("/\u{17f}ign", None),
            ("/a/\u{212a}/b", Some(2)),
            ("/(?:|a)", None),
            ("/.*", None),
            ("/", None),
        ] {
            let pattern = PathPattern::parse(pattern, usize::MAX).expect("valid");
            assert_eq!(pattern.confined().map(|confined| confined.rank()), expect.map(|len| (len, true)), "{pattern}");
        }
    }

    #[test]
    fn capture_groups_are_searched_only_with_bounded_work() {
        let long = |length: usize| format!("/{}", "ab".repeat(length / 2));
        for (text, length, is_too_long) in [
            // Typical rewrite expressions need one pass, or have few states.
            ("/foo(/|$)(.*)", 8_000, false),
            ("/some/rather/long/path/of/a/service(/|$)(.*)", 8_000, false),
            ("/(.*)/x/(.*)", 8_000, false),
            ("/((a?b?){200}.*)*", 8_000, true),
            ("/((a?b?){200}.*)*", 200, false),
            ("/(((a|b)*){100})", 8_000, true),
        ] {
            let pattern = PathPattern::parse(text, usize::MAX).and_then(PathPattern::with_groups).expect("valid");
            assert_eq!(pattern.takes_too_long(&long(length)), is_too_long, "{text}, {length}");
        }
        let without = PathPattern::parse("/(((a|b)*){100})", usize::MAX).expect("valid");
        assert!(!without.takes_too_long(&long(8_000)), "nobody looks for its groups");
    }

    #[test]
    fn path_patterns_report_the_same_errors_as_other_patterns() {
        for text in ["/(?!api).*", r"/(a)\1", "/a)(b", "/(", "/[z-a]", "/*"] {
            assert_eq!(PathPattern::parse(text, usize::MAX).err(), Pattern::of_path(text).err(), "{text}");
        }
    }
}
