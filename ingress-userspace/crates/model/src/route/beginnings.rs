//! Routes by the text that paths begin with, ignoring the case of ASCII letters. Expressions are unknown here.

use std::{cmp::Ordering, sync::Arc};

use super::Route;

/// The routes of one host with [`PathMatch::Beginning`](crate::PathMatch::Beginning).
///
/// A lookup takes one binary search, and then one step for each text that begins the nearest one.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    /// Sorted by text, ignoring case; each text once.
    entries: Box<[Entry]>,
}

#[derive(Debug)]
struct Entry {
    text: Arc<str>,
    route: Route,
    /// Index of the longest other text that this one begins with.
    shorter: Option<usize>,
}

// === impl Beginnings ===

impl Beginnings {
    /// Arranges `routes`, given in order of precedence.
    pub(super) fn compile(mut routes: Vec<(Arc<str>, Route)>) -> Self {
        // Of texts that differ in case only, the first stays.
        routes.sort_by(|(a, _), (b, _)| compare(a, b));
        routes.dedup_by(|(later, _), (first, _)| compare(later, first).is_eq());
        let mut entries = Vec::<Entry>::with_capacity(routes.len());
        for (text, route) in routes {
            let mut shorter = entries.len().checked_sub(1);
            while let Some(entry) = shorter.and_then(|at| entries.get(at))
                && common(&entry.text, &text) < entry.text.len()
            {
                shorter = entry.shorter;
            }
            entries.push(Entry { text, route, shorter });
        }
        Self { entries: entries.into() }
    }

    /// Returns the longest text that `path` begins with, and its route.
    pub(super) fn find(&self, path: &str) -> Option<(&str, &Route)> {
        let behind = self.entries.partition_point(|entry| compare(&entry.text, path).is_le());
        // Every text that the path begins with is also the beginning of this one, the last that is not behind the path.
        let mut entry = self.entries.get(behind.checked_sub(1)?)?;
        let common = common(&entry.text, path);
        while entry.text.len() > common {
            entry = self.entries.get(entry.shorter?)?;
        }
        Some((&entry.text, &entry.route))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.entries.iter().map(|entry| &entry.route)
    }
}

fn lower(text: &str) -> impl Iterator<Item = u8> {
    text.bytes().map(|byte| byte.to_ascii_lowercase())
}

fn compare(a: &str, b: &str) -> Ordering {
    lower(a).cmp(lower(b))
}

/// Returns the length of the common beginning.
fn common(a: &str, b: &str) -> usize {
    lower(a).zip(lower(b)).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn beginnings(texts: &[String]) -> Beginnings {
        let route = |text: &String| Route {
            owner: text.as_str().into(),
            filters: Vec::new(),
            target: crate::route::RouteTarget::Refuse(crate::Unavailable::Backend),
            forwarding: Arc::default(),
            conditional: None,
            meter: None,
        };
        Beginnings::compile(texts.iter().map(|text| (text.as_str().into(), route(text))).collect())
    }

    proptest! {
        #[test]
        fn the_longest_beginning_is_found_whatever_its_case(
            texts in prop::collection::vec("/[abAB/]{0,5}", 0..12),
            path in "/[abAB/]{0,7}",
        ) {
            let all = beginnings(&texts);
            let is_beginning = |text: &&String| path.to_lowercase().starts_with(&text.to_lowercase());
            let expect = texts.iter().filter(is_beginning).map(String::len).max();
            let found = all.find(&path);
            prop_assert_eq!(found.map(|(text, _)| text.len()), expect);
            let first = texts.iter().find(|text| found.is_some_and(|(found, _)| text.eq_ignore_ascii_case(found)));
            prop_assert_eq!(found.map(|(_, route)| &*route.owner), first.map(String::as_str));
        }
    }
}
