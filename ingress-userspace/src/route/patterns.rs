//! Routes by regular expression, all of a host matched in one pass over the path. It knows nothing of prefixes.

use std::{collections::HashMap, sync::Arc};

use regex_automata::{
    Anchored, Input,
    meta::{Config, Regex},
    nfa::thompson::WhichCaptures,
};

use super::Route;
use crate::model::PathPattern;

/// The routes of one host whose paths are expressions, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    routes: Box<[Route]>,
    set: Arc<Set>,
}

/// Expressions that are matched together. Hosts with the same ones share it.
#[derive(Debug, Default)]
pub(super) struct Set {
    patterns: Box<[Arc<PathPattern>]>,
    /// `None` without expressions. Compiling fails beyond 2^31 states alone, which budgets do not let happen.
    regex: Option<Regex>,
}

/// The sets that were compiled for one table, by the texts and ranks of their expressions.
pub(super) type Sets = HashMap<Box<[(Arc<str>, (usize, bool))]>, Arc<Set>>;

/// Memory that a thread may spend on making a set faster, in bytes, beside what grows with the set.
const CACHE_MIN: usize = 512 * 1024;

// === impl Patterns ===

impl Patterns {
    /// Arranges `routes`, which are in order of precedence. A set that `previous` or `sets` has is not compiled again.
    pub(super) fn compile(routes: Vec<(Arc<PathPattern>, Route)>, previous: Option<&Self>, sets: &mut Sets) -> Self {
        if routes.is_empty() {
            return Self::default();
        }
        let (patterns, routes): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        let known = previous.map(|previous| &previous.set).filter(|set| *set.patterns == *patterns);
        let set = match known {
            Some(set) => Arc::clone(set),
            None => {
                let key = patterns.iter().map(|pattern| (pattern.text(), pattern.rank())).collect();
                Arc::clone(sets.entry(key).or_insert_with(|| Arc::new(Set::compile(patterns.into()))))
            }
        };
        Self { routes: routes.into(), set }
    }

    /// The first of the expressions that fit `path`, by precedence, and its route.
    pub(super) fn find(&self, path: &str) -> Option<(&PathPattern, &Route)> {
        let found = self.set.find(path)?;
        Some((self.set.patterns.get(found)?, self.routes.get(found)?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }
}

// === impl Set ===

impl Set {
    fn compile(patterns: Box<[Arc<PathPattern>]>) -> Self {
        let size: usize = patterns.iter().map(|pattern| pattern.size()).sum();
        let hirs: Vec<_> = patterns.iter().map(|pattern| pattern.hir()).collect();
        let config = Config::new()
            // How large each may be was asked when it was read.
            .nfa_size_limit(None)
            .hybrid_cache_capacity(CACHE_MIN + 4 * size)
            // These are of use to searches that are not anchored, and for groups.
            .which_captures(WhichCaptures::Implicit)
            .auto_prefilter(false)
            .onepass(false);
        let regex = Regex::builder().configure(config).build_many_from_hir(&hirs).ok();
        Self { patterns, regex }
    }

    /// Of matches that all begin where the path does, the engine prefers the pattern that comes first.
    fn find(&self, path: &str) -> Option<usize> {
        let found = self.regex.as_ref()?.search_half(&Input::new(path).anchored(Anchored::Yes))?;
        Some(found.pattern().as_usize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(owner: &str) -> Route {
        Route {
            owner: owner.into(),
            filters: Vec::new(),
            target: crate::route::Target::Refuse(crate::model::Unavailable::Backend),
            forwarding: Arc::default(),
            meter: None,
        }
    }

    fn routes(texts: &[&str]) -> Vec<(Arc<PathPattern>, Route)> {
        let pattern = |text| Arc::new(PathPattern::parse(text, usize::MAX).expect("valid"));
        texts.iter().map(|text| (pattern(text), route(text))).collect()
    }

    #[test]
    fn what_has_not_changed_is_not_compiled_again_and_what_is_the_same_is_compiled_once() {
        let mut sets = Sets::new();
        let one = Patterns::compile(routes(&["/a+", "/b"]), None, &mut sets);
        let same = Patterns::compile(routes(&["/a+", "/b"]), None, &mut sets);
        let later = Patterns::compile(routes(&["/a+", "/b"]), Some(&one), &mut Sets::new());
        let other = Patterns::compile(routes(&["/a+", "/c"]), Some(&one), &mut sets);
        assert!(Arc::ptr_eq(&one.set, &same.set) && Arc::ptr_eq(&one.set, &later.set));
        assert!(!Arc::ptr_eq(&one.set, &other.set));
    }

    #[test]
    fn the_first_that_fits_wins_whichever_ends_first() {
        let patterns =
            Patterns::compile(routes(&["/a.*z", "/a(b|bc)", "/ab", "/.*", "/a$|/B"]), None, &mut Sets::new());
        for (path, expect) in
            [("/abz", "/a.*z"), ("/abc", "/a(b|bc)"), ("/b", "/.*"), ("/", "/.*"), ("/ABZ", "/a.*z"), ("x", "")]
        {
            let found = patterns.find(path).map_or("", |(_, route)| &*route.owner);
            assert_eq!(found, expect, "{path}");
        }
    }
}
