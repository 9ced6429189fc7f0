//! Routes by regular expression; those of a namespace are matched in one pass over the path. Prefixes are only known by
//! their length.
//!
//! Each namespace of a host has its own automaton and its own share of the work that a request may cause. Costly
//! expressions of one namespace therefore cannot keep a request from a route of another one.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    Route, Work,
    automaton::{Automaton, Exhausted, WorkShare},
};
use crate::PathPattern;

/// The routes of one host with regular expressions.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    groups: Box<[Group]>,
}

/// The expressions of one namespace for a host, in order of precedence.
#[derive(Debug)]
struct Group {
    routes: Box<[Route]>,
    /// Index of each expression among all expressions of the host.
    places: Box<[usize]>,
    set: Arc<Set>,
}

/// The best match of another kind, which takes precedence over some expressions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rival<'r> {
    /// Length of the longest matching prefix.
    pub(super) prefix: usize,
    /// The longest matching text of a [`PathMatch::Beginning`](crate::PathMatch::Beginning).
    pub(super) beginning: Option<&'r str>,
}

/// A [`Group`] that is not compiled yet.
#[derive(Default)]
struct UncompiledGroup {
    patterns: Vec<Arc<PathPattern>>,
    routes: Vec<Route>,
    places: Vec<usize>,
}

/// Expressions matched together. Hosts with the same expressions share a set.
#[derive(Debug, Default)]
pub(super) struct Set {
    patterns: Box<[Arc<PathPattern>]>,
    /// `None` without expressions.
    automaton: Option<Automaton>,
    /// Common beginnings of the expressions' matches. They are only computed for a path that is costly.
    beginnings: OnceLock<Box<[String]>>,
    /// Whether a costly path was already reported.
    is_warned: AtomicBool,
}

/// Sets compiled for one table, keyed by the texts and ranks of their expressions.
pub(super) type Sets = HashMap<Box<[(Arc<str>, (usize, bool))]>, Arc<Set>>;

/// Base memory per thread for the DFA states of a set, in bytes; a part proportional to the set is added.
const CACHE_MIN: usize = 512 * 1024;

// === impl Patterns ===

impl Patterns {
    /// Arranges `routes`, given in order of precedence. Sets present in `previous` or `sets` are reused.
    pub(super) fn compile(routes: Vec<(Arc<PathPattern>, Route)>, previous: Option<&Self>, sets: &mut Sets) -> Self {
        let mut parts = Vec::<UncompiledGroup>::new();
        let mut numbers = HashMap::<Box<str>, usize>::new();
        for (place, (pattern, route)) in routes.into_iter().enumerate() {
            let number = *numbers.entry(route.namespace().into()).or_insert(parts.len());
            if number == parts.len() {
                parts.push(UncompiledGroup::default());
            }
            if let Some(part) = parts.get_mut(number) {
                part.patterns.push(pattern);
                part.routes.push(route);
                part.places.push(place);
            }
        }
        // The expressions of the host's owner are not confined. They come first, so that their share of the work is never
        // one that several namespaces use.
        parts.sort_by_key(|UncompiledGroup { patterns, places, .. }| {
            (patterns.iter().all(|pattern| pattern.rank().1), places.first().copied())
        });
        let known = |patterns: &[Arc<PathPattern>]| {
            let mut groups = previous.into_iter().flat_map(|previous| &previous.groups);
            groups.find(|group| *group.set.patterns == *patterns).map(|group| Arc::clone(&group.set))
        };
        let groups = parts.into_iter().map(|UncompiledGroup { patterns, routes, places }| {
            let set = known(&patterns).unwrap_or_else(|| {
                let key = patterns.iter().map(|pattern| (pattern.text(), pattern.rank())).collect();
                Arc::clone(sets.entry(key).or_insert_with(|| Arc::new(Set::compile(patterns.into()))))
            });
            Group { routes: routes.into(), places: places.into(), set }
        });
        Self { groups: groups.collect() }
    }

    /// Returns the route of the first expression, by precedence, that matches `path` and goes before `rival`.
    ///
    /// # Errors
    /// Fails if an expression that would go before the result may match, and too much work is needed to decide.
    pub(super) fn find(&self, path: &str, rival: Rival<'_>, work: &mut Work) -> Result<Option<&Route>, Exhausted> {
        let mut first: Option<(usize, Result<&Route, Exhausted>)> = None;
        for (number, group) in self.groups.iter().enumerate() {
            let Some(found) = group.find(path, rival, work.share(number)) else { continue };
            if first.as_ref().is_none_or(|(place, _)| found.0 < *place) {
                first = Some(found);
            }
        }
        first.map(|(_, found)| found).transpose()
    }

    /// Returns `true` on the first call only, so that costly paths are reported once.
    pub(super) fn is_untold(&self) -> bool {
        let untold = self.groups.iter().filter(|group| !group.set.is_warned.swap(true, Relaxed));
        untold.count() > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.groups.iter().flat_map(|group| &group.routes)
    }
}

// === impl Rival ===

impl Rival<'_> {
    fn is_behind(self, pattern: &PathPattern) -> bool {
        pattern.goes_before(self.prefix) && self.beginning.is_none_or(|text| pattern.goes_before_text(text))
    }
}

// === impl Group ===

impl Group {
    /// Returns the place and the route of the first expression that matches and goes before `rival`; or, if there is too
    /// much work to decide, the place of the first one that may.
    fn find(&self, path: &str, rival: Rival<'_>, work: &mut WorkShare) -> Option<(usize, Result<&Route, Exhausted>)> {
        let Self { routes, places, set } = self;
        let found = match set.automaton.as_ref()?.find(path, work) {
            Ok(found) => found?,
            Err(Exhausted) => {
                let candidate = set.first_candidate(path, rival)?;
                return Some((*places.get(candidate)?, Err(Exhausted)));
            }
        };
        let (pattern, route, place) = (set.patterns.get(found)?, routes.get(found)?, *places.get(found)?);
        let result = if pattern.takes_too_long(path) { Err(Exhausted) } else { Ok(route) };
        rival.is_behind(pattern).then_some((place, result))
    }
}

// === impl Set ===

impl Set {
    fn compile(patterns: Box<[Arc<PathPattern>]>) -> Self {
        let size: usize = patterns.iter().map(|pattern| pattern.size()).sum();
        let hirs: Vec<_> = patterns.iter().map(|pattern| pattern.hir()).collect();
        let automaton = Automaton::compile(&hirs, CACHE_MIN + 4 * size);
        Self { patterns, automaton, beginnings: OnceLock::new(), is_warned: AtomicBool::new(false) }
    }

    /// Returns the first expression that goes before `rival` and has a beginning in common with `path`.
    fn first_candidate(&self, path: &str, rival: Rival<'_>) -> Option<usize> {
        let beginnings =
            self.beginnings.get_or_init(|| self.patterns.iter().map(|pattern| pattern.beginning()).collect());
        self.patterns.iter().zip(beginnings).position(|(pattern, beginning)| {
            let start = path.as_bytes().get(..beginning.len());
            rival.is_behind(pattern) && start.is_some_and(|start| start.eq_ignore_ascii_case(beginning.as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(owner: &str) -> Route {
        Route {
            owner: owner.into(),
            filters: Vec::new(),
            target: crate::route::RouteTarget::Refuse(crate::Unavailable::Backend),
            forwarding: Arc::default(),
            conditional: None,
            meter: None,
        }
    }

    fn routes(texts: &[&str]) -> Vec<(Arc<PathPattern>, Route)> {
        let pattern = |text| Arc::new(PathPattern::parse(text, usize::MAX).expect("valid"));
        texts.iter().map(|text| (pattern(text), route(text))).collect()
    }

    #[test]
    fn unchanged_and_equal_pattern_sets_are_compiled_once() {
        let set = |patterns: &Patterns| Arc::clone(&patterns.groups[0].set);
        let mut sets = Sets::new();
        let one = Patterns::compile(routes(&["/a+", "/b"]), None, &mut sets);
        let same = Patterns::compile(routes(&["/a+", "/b"]), None, &mut sets);
        let later = Patterns::compile(routes(&["/a+", "/b"]), Some(&one), &mut Sets::new());
        let other = Patterns::compile(routes(&["/a+", "/c"]), Some(&one), &mut sets);
        assert!(Arc::ptr_eq(&set(&one), &set(&same)) && Arc::ptr_eq(&set(&one), &set(&later)));
        assert!(!Arc::ptr_eq(&set(&one), &set(&other)));
    }

    #[test]
    fn the_first_matching_pattern_wins_whatever_its_length() {
        let patterns =
            Patterns::compile(routes(&["/a.*z", "/a(b|bc)", "/ab", "/.*", "/a$|/B"]), None, &mut Sets::new());
        for (path, expect) in
            [("/abz", "/a.*z"), ("/abc", "/a(b|bc)"), ("/b", "/.*"), ("/", "/.*"), ("/ABZ", "/a.*z"), ("x", "")]
        {
            let found = patterns.find(path, Rival::default(), &mut Work::of_request()).expect("little work");
            let found = found.map_or("", |route| &*route.owner);
            assert_eq!(found, expect, "{path}");
        }
    }

    /// Returns the owner of the route for `path`, or "too costly".
    fn owner<'r>(patterns: &'r Patterns, path: &str, prefix: usize) -> &'r str {
        match patterns.find(path, Rival { prefix, beginning: None }, &mut Work::of_request()) {
            Ok(found) => found.map_or("", |route| &*route.owner),
            Err(Exhausted) => "too costly",
        }
    }

    #[test]
    fn costly_expressions_do_not_affect_other_namespaces() {
        let rule = |text: &str, owner: &str, is_confined: bool| {
            let pattern = PathPattern::parse(text, usize::MAX).expect("valid");
            let pattern = if is_confined { pattern.confined().expect("a beginning") } else { pattern };
            (Arc::new(pattern), route(owner))
        };
        let costly = |number| format!("/ap(a?p?i?/?){{250}}{number}");
        let mut rules = vec![rule("/api/[a-z/]+/of-the-owner", "shop/a", false), rule("/api/[0-9]+", "team/b", true)];
        rules.extend((0..40).map(|number| rule(&costly(number), "evil/c", true)));
        rules.sort_by_key(|(pattern, _)| {
            let (length, is_confined) = pattern.rank();
            (std::cmp::Reverse(length), is_confined)
        });
        let patterns = Patterns::compile(rules, None, &mut Sets::new());
        let costly_path = format!("/api/{}", "api/".repeat(2000));
        assert_eq!(owner(&patterns, &costly_path, 1), "too costly", "the attack works where nothing goes before it");
        let prefix = "/api".len();
        assert_eq!(owner(&patterns, &costly_path, prefix), "", "the prefix goes before all of them");
        assert_eq!(owner(&patterns, &format!("{costly_path}of-the-owner"), prefix), "shop/a");
        assert_eq!(owner(&patterns, &format!("{costly_path}of-the-owner"), 1), "shop/a");
        for path in ["/api/7".to_owned(), format!("/api/7{}", "api/".repeat(2000))] {
            assert_eq!(owner(&patterns, &path, 1), "team/b", "{path}");
        }
        assert_eq!(owner(&patterns, &"/x".repeat(2000), 1), "", "no expression begins like this");
    }

    #[test]
    fn expressions_of_many_namespaces_share_one_work_limit() {
        let texts: Vec<_> = (0..40).map(|number| format!("/(a?b?){{250}}{number}")).collect();
        let rules = |namespace: usize| {
            texts.iter().map(move |text| {
                let pattern = PathPattern::parse(text, usize::MAX).expect("valid");
                (Arc::new(pattern), route(&format!("team-{namespace}/i")))
            })
        };
        let patterns = Patterns::compile((0..20).flat_map(rules).collect(), None, &mut Sets::new());
        let mut work = Work::of_request();
        assert!(patterns.find(&format!("/{}", "ab".repeat(4000)), Rival::default(), &mut work).is_err());
        assert!(work.is_used_up());
    }
}
