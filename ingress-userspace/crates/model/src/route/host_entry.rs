//! The rules of one host, and the lookup of a path among them.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    Exhausted, Meter, PassthroughRoute, Paths, Patterns, Rival, Route, Sets, UpstreamId, Work,
    beginnings::Beginnings,
    hashing::{Hashing, hashing},
};
use crate::{ClientCertificates, HostId, HostPattern, HostRoutes, PathMatch, RequestHead, Rule, UpstreamKey, path};

/// A host with its rules.
#[derive(Debug)]
pub struct HostEntry {
    pub pattern: HostPattern,
    pub id: HostId,
    exact: Paths,
    /// Keyed by [`path::elements`].
    prefix: Paths,
    /// Length of the longest key of `prefix`.
    longest_prefix: usize,
    patterns: Patterns,
    beginnings: Beginnings,
    fallback: Option<Box<Route>>,
    clients: Option<Arc<ClientCertificates>>,
    passing: Option<PassthroughRoute>,
    takes_http3: bool,
}

// === impl HostEntry ===

impl HostEntry {
    pub(super) fn compile(
        pattern: &HostPattern,
        id: HostId,
        routes: &HostRoutes,
        previous: Option<&Self>,
        sets: &mut Sets,
        upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId,
    ) -> Self {
        let HostRoutes { rules, fallback, clients, passthrough, refuses_http3: _ } = routes;
        let passing = passthrough.as_ref().map(|policy| PassthroughRoute {
            upstream: policy.upstream.as_ref().map(&mut *upstream),
            policy: Arc::clone(policy),
        });
        let meter = |rule: &Rule| {
            let known = previous.and_then(|entry| {
                entry.meters().find(|meter| meter.path == rule.path && meter.owner == rule.owner).map(Arc::clone)
            });
            let new = || Arc::new(Meter::new(pattern.clone(), rule.path.clone(), Arc::clone(&rule.owner)));
            rule.forwarding.metered.then(|| known.unwrap_or_else(new))
        };
        let mut route = |rule: &Rule| Route::compile(rule, meter(rule), upstream);
        let mut fallback_route = fallback.as_deref().map(|rule| Box::new(route(rule)));
        let [mut exact, mut prefix] = [hashing(), hashing()].map(HashMap::<Box<str>, Route, Hashing>::with_hasher);
        let (mut patterns, mut beginnings, mut longest_prefix) = (Vec::new(), Vec::new(), 0);
        // Rules are in order of precedence. `/a/` and `/a` match the same paths, so the first of them without conditions
        // is the last that is kept.
        for rule in rules {
            let (map, key) = match &rule.path {
                PathMatch::Pattern(pattern) => {
                    patterns.push((Arc::clone(pattern), route(rule)));
                    continue;
                }
                PathMatch::Beginning(text) => {
                    beginnings.push((Arc::clone(text), route(rule)));
                    continue;
                }
                PathMatch::Exact(text) => (&mut exact, &**text),
                PathMatch::Prefix(text) => {
                    let key = path::elements(text);
                    longest_prefix = longest_prefix.max(key.len());
                    (&mut prefix, key)
                }
            };
            match map.entry(key.into()) {
                Entry::Occupied(known) => known.into_mut().append(|| route(rule)),
                Entry::Vacant(free) => drop(free.insert(route(rule))),
            }
        }
        // Behind a prefix for everything, only `OPTIONS *` is left for a fallback. A meter there would repeat the
        // labels of the prefix.
        if let (Some(route), Some(fallback)) = (&mut fallback_route, fallback)
            && rules.iter().any(|rule| rule.path == fallback.path && rule.owner == fallback.owner)
        {
            route.meter = None;
        }
        Self {
            pattern: pattern.clone(),
            id,
            exact: exact.into(),
            prefix: prefix.into(),
            longest_prefix,
            patterns: Patterns::compile(patterns, previous.map(|entry| &entry.patterns), sets),
            beginnings: Beginnings::compile(beginnings),
            fallback: fallback_route,
            clients: clients.clone(),
            passing,
            takes_http3: routes.takes_http3(),
        }
    }

    /// Returns whether the host has no number of its own.
    pub(super) fn is_unnumbered(&self) -> bool {
        self.id == HostId::UNATTRIBUTED
    }

    pub(super) fn meters(&self) -> impl Iterator<Item = &Arc<Meter>> {
        let Self { exact, prefix, patterns, beginnings, fallback, .. } = self;
        let texts = exact.values().chain(prefix.values()).chain(beginnings.routes());
        let routes = texts.chain(patterns.routes()).chain(fallback.as_deref());
        routes.flat_map(Route::chain).filter_map(|route| route.meter.as_ref())
    }

    /// Returns the requirements on client certificates.
    #[must_use]
    pub fn clients(&self) -> Option<&Arc<ClientCertificates>> {
        self.clients.as_ref()
    }

    /// Returns the passthrough destination, if enabled.
    #[must_use]
    pub fn passing(&self) -> Option<&PassthroughRoute> {
        self.passing.as_ref()
    }

    /// Returns whether HTTP/3 may serve the host; see [`HostRoutes::takes_http3`].
    #[must_use]
    pub fn takes_http3(&self) -> bool {
        self.takes_http3
    }

    /// Returns `true` on the first call only, so that costly paths are reported once.
    #[must_use]
    pub fn is_untold(&self) -> bool {
        self.patterns.is_untold()
    }

    #[inline]
    pub(super) fn find(
        &self,
        path: &str,
        head: &RequestHead<'_>,
        work: &mut Work,
    ) -> Result<Option<&Route>, Exhausted> {
        if let Some(route) = self.exact.get(path).and_then(|route| route.accepting(head)) {
            return Ok(Some(route));
        }
        let prefix = self.find_prefix(path, head);
        if self.patterns.is_empty() && self.beginnings.is_empty() {
            return Ok(prefix.map(|(_, route)| route).or(self.fallback.as_deref()));
        }
        self.find_expression(path, prefix, work)
    }

    /// Returns the rule for a path with this longest prefix. Apart, because the search takes a large frame, and most hosts
    /// have no expressions.
    #[inline(never)]
    fn find_expression<'h>(
        &'h self,
        path: &str,
        prefix: Option<(&str, &'h Route)>,
        work: &mut Work,
    ) -> Result<Option<&'h Route>, Exhausted> {
        // Expressions and beginnings as long as the prefix, or longer, take precedence.
        let shortest = prefix.map_or(0, |(elements, _)| elements.len());
        let beginning = self.beginnings.find(path).filter(|(text, _)| text.len() >= shortest);
        let rival = Rival { prefix: shortest, beginning: beginning.map(|(text, _)| text) };
        let pattern = if self.patterns.is_empty() { None } else { self.patterns.find(path, rival, work)? };
        let texts = beginning.or(prefix).map(|(_, route)| route);
        Ok(pattern.or(texts).or(self.fallback.as_deref()))
    }

    /// Looks up the path at each element boundary, longest first, starting at the length of the longest prefix.
    fn find_prefix<'p>(&self, path: &'p str, head: &RequestHead<'_>) -> Option<(&'p str, &Route)> {
        if self.prefix.is_empty() || !path.starts_with('/') {
            return None;
        }
        let mut end = if path.len() <= self.longest_prefix {
            path.len()
        } else {
            // The boundary at `longest_prefix` itself counts, hence the extra byte. A cut at `/` never splits a UTF-8
            // character.
            path.as_bytes()[..=self.longest_prefix].iter().rposition(|&b| b == b'/')?
        };
        loop {
            if let Some(route) = self.prefix.get(&path[..end]).and_then(|route| route.accepting(head)) {
                return Some((&path[..end], route));
            }
            end = path[..end].rfind('/')?;
        }
    }
}
