//! Regular expressions of paths: read and measured, to be matched together with the others of their host. It matches
//! none itself but for those that ask for one alone.

use std::{cmp::Ordering, fmt, hash, sync::Arc};

use regex_automata::nfa::thompson::{self, WhichCaptures};
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

/// What a path must begin with, upper and lower case alike, as ingress-nginx has it.
///
/// Compared by its text, and by whether it is confined.
#[derive(Clone)]
pub struct PathPattern {
    text: Arc<str>,
    hir: Hir,
    size: usize,
    alone: Option<Pattern>,
    /// Of one that is confined: the length of what all its matches begin with.
    confined: Option<usize>,
}

// === impl PathPattern ===

impl PathPattern {
    /// Memory that the automaton of one may take, in bytes.
    pub const MAX: usize = SIZE_MAX;

    /// Reads `text` and measures it, within `budget` bytes of memory; nothing is compiled for matching.
    ///
    /// # Errors
    /// If `text` is no regular expression, or one without bounds on time, or a larger one than `budget` and the limit
    /// of one expression allow.
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
        Ok(Self { text: text.into(), hir, size: states.memory_usage() + text.len(), alone: None, confined: None })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same expression, confined to where all its matches begin: it goes before prefixes that are shorter than this
    /// beginning, and behind all others. `None` if its matches have nothing but `/` in common.
    #[must_use]
    pub fn confined(&self) -> Option<Self> {
        let length = super::path::elements(&self.beginning()).len();
        (length > 0).then(|| Self { confined: Some(length), ..self.clone() })
    }

    /// What everything that matches begins with, upper and lower case alike; empty if that is nothing.
    #[must_use]
    pub fn beginning(&self) -> String {
        let beginnings = regex_syntax::parse(&self.text).map(|parsed| Extractor::new().extract(&parsed));
        let common = beginnings.as_ref().ok().and_then(Seq::longest_common_prefix).unwrap_or_default();
        String::from_utf8_lossy(common).into_owned()
    }

    /// The length by which it is ranked among paths, and whether a prefix of the same length goes before it.
    #[must_use]
    pub fn rank(&self) -> (usize, bool) {
        (self.confined.unwrap_or(self.text.len()), self.confined.is_some())
    }

    /// Whether it goes before a prefix of this length.
    #[must_use]
    pub fn goes_before(&self, length: usize) -> bool {
        let (own, is_confined) = self.rank();
        own > length || own == length && !is_confined
    }

    #[must_use]
    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Memory that its automaton takes, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// What it was read as.
    #[must_use]
    pub const fn hir(&self) -> &Hir {
        &self.hir
    }

    /// The same, compiled by itself, too, for whoever wants its groups.
    ///
    /// # Errors
    /// If it becomes too large with its groups.
    pub fn with_groups(self) -> Result<Self, PatternError> {
        let alone = Pattern::of_path(&self.text)?;
        Ok(Self { alone: Some(alone), ..self })
    }

    /// The expression compiled by itself, if it is.
    #[must_use]
    pub const fn alone(&self) -> Option<&Pattern> {
        self.alone.as_ref()
    }

    /// Whether `path` begins with it. To ask this of one that is not compiled by itself takes long.
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
    fn an_expression_is_refused_before_more_than_its_budget_is_made() {
        let heavy = "/1_a{2400}x?";
        let size = PathPattern::parse(heavy, usize::MAX).expect("within the limit of one").size();
        assert!((64 * 1024..SIZE_MAX).contains(&size), "{size}");
        assert_eq!(PathPattern::parse(heavy, size / 2), Err(PatternError::TooLarge(heavy.to_owned())));
        assert!(PathPattern::parse("/a-1/[0-9]+", 2048).expect("light").size() < 2048);
        let endless = "/((((((((((a{99}){99}){99}){99}))))))){99}";
        assert_eq!(PathPattern::parse(endless, usize::MAX), Err(PatternError::TooLarge(endless.to_owned())));
    }

    #[test]
    fn an_expression_is_confined_to_what_all_its_matches_begin_with() {
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
            ("/(?:|a)", None),
            ("/.*", None),
            ("/", None),
        ] {
            let pattern = PathPattern::parse(pattern, usize::MAX).expect("valid");
            assert_eq!(pattern.confined().map(|confined| confined.rank()), expect.map(|len| (len, true)), "{pattern}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_expression_is_said_as_of_any_other() {
        for text in ["/(?!api).*", r"/(a)\1", "/a)(b", "/(", "/[z-a]", "/*"] {
            assert_eq!(PathPattern::parse(text, usize::MAX).err(), Pattern::of_path(text).err(), "{text}");
        }
    }
}
