//! A map by host pattern with lookups by name: one hash for each pattern that may match.

use super::NameMap;
use crate::{HostPattern, host};

/// Values by host pattern. Copies share what is unchanged.
#[derive(Clone, Debug)]
pub struct HostMap<V> {
    exact: NameMap<V>,
    /// Keyed by the name after `*.`.
    wildcard: NameMap<V>,
    /// Keyed by the name after `*.`.
    suffix: NameMap<V>,
    any: Option<V>,
}

// === impl HostMap ===

impl<V> Default for HostMap<V> {
    fn default() -> Self {
        Self { exact: NameMap::default(), wildcard: NameMap::default(), suffix: NameMap::default(), any: None }
    }
}

impl<V> HostMap<V> {
    /// Returns the value of exactly this pattern.
    #[must_use]
    pub fn get(&self, pattern: &HostPattern) -> Option<&V> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name.as_str()),
            HostPattern::Wildcard(base) => self.wildcard.get(base.as_str()),
            HostPattern::Suffix(base) => self.suffix.get(base.as_str()),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    /// Returns the value of the most specific pattern that matches `name` (canonical form).
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&V> {
        self.find_named(name).or(self.any.as_ref())
    }

    /// Returns the same as [`Self::find`], but never the value for every host.
    #[must_use]
    #[inline]
    pub fn find_named(&self, name: &str) -> Option<&V> {
        let found = self.exact.get(name);
        if found.is_some() || (self.wildcard.is_empty() && self.suffix.is_empty()) {
            return found;
        }
        self.find_below(name)
    }

    /// Returns the value of the most specific wildcard or suffix. Apart, so that exact names are found without a call.
    #[inline(never)]
    fn find_below(&self, name: &str) -> Option<&V> {
        if name.starts_with('.') {
            return None;
        }
        let wildcard = if self.wildcard.is_empty() { None } else { self.wildcard.get(host::parent(name)?) };
        wildcard.or_else(|| self.suffixes(name).next())
    }

    /// Iterates over the values of all patterns that match `name` (canonical form), most specific first.
    pub fn matches<'m, 'n>(&'m self, name: &'n str) -> impl Iterator<Item = &'m V> + use<'m, 'n, V> {
        let parent = host::parent(name).filter(|_| !self.wildcard.is_empty() && !name.starts_with('.'));
        let wildcard = parent.and_then(|parent| self.wildcard.get(parent));
        self.exact.get(name).into_iter().chain(wildcard).chain(self.suffixes(name)).chain(&self.any)
    }

    /// Iterates over the values of all suffixes of `name`, longest first.
    fn suffixes<'m, 'n>(&'m self, name: &'n str) -> impl Iterator<Item = &'m V> + use<'m, 'n, V> {
        let name = Some(name).filter(|name| !self.suffix.is_empty() && !name.starts_with('.'));
        let parents = std::iter::successors(name.and_then(host::parent), |name| host::parent(name));
        parents.filter_map(|parent| self.suffix.get(parent))
    }

    /// Iterates over all values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.exact.values().chain(self.wildcard.values()).chain(self.suffix.values()).chain(&self.any)
    }
}

impl<V: Clone> HostMap<V> {
    /// Sets the value of `pattern`; `None` removes it.
    pub fn set(&mut self, pattern: &HostPattern, value: Option<V>) {
        match pattern {
            HostPattern::Exact(name) => self.exact.set(name, value),
            HostPattern::Wildcard(base) => self.wildcard.set(base, value),
            HostPattern::Suffix(base) => self.suffix.set(base, value),
            HostPattern::Any => self.any = value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_comes_first() {
        let mut map = HostMap::default();
        let ingress = |text: &str| HostPattern::parse(text).expect("valid");
        let gateway = |text: &str| HostPattern::parse_suffix(text).expect("valid");
        for pattern in [ingress("a.b.test"), ingress("*.b.test"), gateway("*.b.test"), gateway("*.test"), ingress("")] {
            map.set(&pattern, Some(format!("{pattern:?}")));
        }
        for (name, expect) in [
            ("a.b.test", vec!["Exact(\"a.b.test\")", "Wildcard(\"b.test\")", "Suffix(\"b.test\")", "Suffix(\"test\")"]),
            ("c.b.test", vec!["Wildcard(\"b.test\")", "Suffix(\"b.test\")", "Suffix(\"test\")"]),
            ("d.c.b.test", vec!["Suffix(\"b.test\")", "Suffix(\"test\")"]),
            ("b.test", vec!["Suffix(\"test\")"]),
            ("test", vec![]),
            (".test", vec![]),
            ("other", vec![]),
        ] {
            let found: Vec<_> = map.matches(name).map(String::as_str).collect();
            assert_eq!(found, [&*expect, &["Any"]].concat(), "{name}");
            assert_eq!(map.find_named(name).map(String::as_str), expect.first().copied(), "{name}");
            assert_eq!(map.find(name).map(String::as_str), found.first().copied(), "{name}");
        }
    }
}
