//! Finds the rule for a host and a path. Pure: no IO, no clock, no allocation.
//!
//! [`Routes`] is a [`RouteTable`] arranged for lookup; it does not balance, filter or forward.
//!
//! Cost of a lookup: one hash for the host (another if that is none's and there are wildcards), one for exact paths, and one per
//! `/` within the longest prefix of that host, whatever the length of the request's path; where a host has few paths,
//! comparisons in place of a hash. The regular expressions of a host are matched together, in one pass over the path.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::model::{
    Action, Canary, CanaryRule, ClientCertificates, Filter, Forwarding, HostId, HostPattern, HostRoutes, Passthrough,
    PathMatch, Redirect, RouteTable, Rule, Split, Tree, Unavailable, UpstreamKey, host, path,
};

mod hashing;
mod meter;
mod names;
mod paths;
mod patterns;

use hashing::{Hashing, hashing};

pub use meter::{Meter, MeterView};
pub use names::Names;
use paths::Paths;
use patterns::{Patterns, Sets};

/// All hosts, arranged for [`Routes::find`].
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: Names<Arc<HostEntry>>,
    /// Keyed by the name after `*.`.
    wildcard: Names<Arc<HostEntry>>,
    any: Option<Arc<HostEntry>>,
    default: Option<Target>,
    /// What it was compiled from.
    source: Tree<HostPattern, Arc<HostRoutes>>,
    /// How many hosts have no number of their own.
    unnumbered: usize,
    // The following are trees, as there may be many, and each change has them copied.
    /// Those that nobody could be asked about.
    unasked: Tree<HostPattern, ()>,
    /// Hosts that ask their clients for certificates.
    asking: Tree<HostPattern, ()>,
    /// Hosts with rules whose requests are counted for themselves.
    metered: Tree<HostPattern, ()>,
    /// Hosts whose connections over TLS are passed on.
    passing: Tree<HostPattern, ()>,
}

/// One host and its rules.
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
    fallback: Option<Box<Route>>,
    clients: Option<Arc<ClientCertificates>>,
    passing: Option<Passing>,
}

/// Where connections over TLS for a host are passed on to.
#[derive(Debug)]
pub struct Passing {
    pub upstream: Option<UpstreamId>,
    pub policy: Arc<Passthrough>,
}

/// What a matching rule does.
#[derive(Debug)]
pub struct Route {
    pub owner: Arc<str>,
    pub filters: Vec<Filter>,
    pub target: Target,
    pub forwarding: Arc<Forwarding>,
    /// Counts its requests, if its Ingress asks for that.
    pub meter: Option<Arc<Meter>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Forward(UpstreamId),
    Refuse(Unavailable),
    Redirect(Arc<Redirect>),
    Split(Arc<Branches>),
}

/// The upstreams that share the requests of one rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Branches {
    pub main: UpstreamId,
    pub canaries: Vec<(CanaryRule, UpstreamId)>,
}

/// Index of an upstream in a snapshot; the same number for the same key in every later snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId(pub u32);

/// What [`Routes::find`] found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'r> {
    /// The host whose rules apply: `None` if no route names the request's host.
    pub host: Option<&'r HostEntry>,
    pub matched: Matched<'r>,
}

#[derive(Clone, Copy, Debug)]
pub enum Matched<'r> {
    Route(&'r Route),
    /// No rule fits; the default for everything takes it.
    Default(&'r Target),
    /// No rule fits and there is no default: 404.
    Nothing,
}

// === impl Matched ===

impl Matched<'_> {
    /// Whether the same rule, or the same lack of one, was found.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Route(one), Self::Route(other)) => std::ptr::eq(*one, *other),
            (Self::Default(_), Self::Default(_)) | (Self::Nothing, Self::Nothing) => true,
            _ => false,
        }
    }
}

// === impl Routes ===

impl Routes {
    /// Arranges `table`, asking `upstream` and `host_id` for the number of each upstream and host.
    ///
    /// Costs what differs from the table of `previous`. A host whose rules are the same as in `previous` keeps its
    /// entry, and nothing is asked about it: an upstream that both tables name has one number in both. One for which
    /// there was no answer (`None`) is asked about again, and [`HostId::UNATTRIBUTED`] until then.
    pub fn compile(
        previous: Option<&Self>,
        table: &RouteTable,
        mut upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        mut host_id: impl FnMut(&HostPattern) -> Option<HostId>,
    ) -> Self {
        let RouteTable {
            hosts,
            default,
            forwarding: _,
            upstreams: _,
            certificates: _,
            server_names: _,
            fallback_certificate: _,
            streams: _,
            settings: _,
            ticket_keys: _,
        } = table;
        let mut routes = previous.cloned().unwrap_or_default();
        let source = std::mem::replace(&mut routes.source, hosts.clone());
        let changed = source.differences(hosts).into_iter().map(|difference| difference.key);
        let unasked = std::mem::take(&mut routes.unasked);
        let mut sets = Sets::new();
        for pattern in changed.collect::<BTreeSet<_>>().union(&unasked.keys().collect()) {
            let previous = routes.of(pattern).map(Arc::clone);
            let entry = hosts.get(*pattern).map(|rules| {
                let answer = host_id(pattern);
                if answer.is_none() {
                    routes.unasked.insert((*pattern).clone(), ());
                }
                let id = answer.unwrap_or(HostId::UNATTRIBUTED);
                Arc::new(HostEntry::compile(pattern, id, rules, previous.as_deref(), &mut sets, &mut upstream))
            });
            routes.unnumbered += usize::from(entry.as_deref().is_some_and(HostEntry::is_unnumbered));
            routes.unnumbered -= usize::from(previous.as_deref().is_some_and(HostEntry::is_unnumbered));
            let is_asking = entry.as_ref().is_some_and(|entry| entry.clients.is_some());
            let is_passing = entry.as_ref().is_some_and(|entry| entry.passing.is_some());
            let is_metered = entry.as_ref().is_some_and(|entry| entry.meters().next().is_some());
            for (set, is_in) in
                [(&mut routes.asking, is_asking), (&mut routes.passing, is_passing), (&mut routes.metered, is_metered)]
            {
                if is_in {
                    set.insert((*pattern).clone(), ());
                } else {
                    set.remove(*pattern);
                }
            }
            match pattern {
                HostPattern::Exact(name) => routes.exact.set(name, entry),
                HostPattern::Wildcard(base) => routes.wildcard.set(base, entry),
                HostPattern::Any => routes.any = entry,
            }
        }
        routes.default = default.as_ref().map(|action| Target::compile(action, &mut upstream));
        routes
    }

    /// The rule for `host` (canonical form) and `path` (normalised, without query).
    ///
    /// The most specific pattern that fits the host decides alone: a path that its rules do not match does not fall
    /// through to a less specific host.
    #[must_use]
    pub fn find(&self, host: &str, path: &str) -> Found<'_> {
        let entry = self.host(host);
        let matched = match entry.and_then(|entry| entry.find(path)) {
            Some(route) => Matched::Route(route),
            None => self.default.as_ref().map_or(Matched::Nothing, Matched::Default),
        };
        Found { host: entry, matched }
    }

    /// How many hosts have no number of their own.
    #[must_use]
    pub fn unnumbered(&self) -> usize {
        self.unnumbered
    }

    /// What counts the requests of rules that are counted for themselves.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.metered.keys().filter_map(|pattern| self.of(pattern)).flat_map(|entry| entry.meters()).map(Arc::as_ref)
    }

    /// The entry of exactly this pattern.
    fn of(&self, pattern: &HostPattern) -> Option<&Arc<HostEntry>> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name.as_str()),
            HostPattern::Wildcard(base) => self.wildcard.get(base.as_str()),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    /// Whether any host asks its clients for certificates.
    #[must_use]
    pub fn ask_clients(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Whether connections over TLS for any host are passed on.
    #[must_use]
    pub fn pass_through(&self) -> bool {
        !self.passing.is_empty()
    }

    /// The host whose rules serve `name` (canonical form).
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&HostEntry> {
        self.named(name).or(self.any.as_ref()).map(Arc::as_ref)
    }

    /// Whether rules name `name` (canonical form), other than those for every host.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    fn named(&self, name: &str) -> Option<&Arc<HostEntry>> {
        let exact = self.exact.get(name);
        if exact.is_some() || self.wildcard.is_empty() {
            return exact;
        }
        self.wildcard.get(host::parent(name).filter(|_| !name.starts_with('.'))?)
    }

    /// Every host, in no particular order.
    pub fn hosts(&self) -> impl Iterator<Item = &HostEntry> {
        self.exact.values().chain(self.wildcard.values()).chain(&self.any).map(Arc::as_ref)
    }
}

// === impl HostEntry ===

impl HostEntry {
    fn compile(
        pattern: &HostPattern,
        id: HostId,
        routes: &HostRoutes,
        previous: Option<&Self>,
        sets: &mut Sets,
        upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId,
    ) -> Self {
        let HostRoutes { rules, fallback, clients, passthrough } = routes;
        let passing = passthrough.as_ref().map(|policy| Passing {
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
        let (mut patterns, mut longest_prefix) = (Vec::new(), 0);
        // Rules come in order of precedence, so of `/a/` and `/a`, which fit the same paths, the first to arrive stays.
        for rule in rules {
            let (map, key) = match &rule.path {
                PathMatch::Pattern(pattern) => {
                    patterns.push((Arc::clone(pattern), route(rule)));
                    continue;
                }
                PathMatch::Exact(text) => (&mut exact, &**text),
                PathMatch::Prefix(text) => {
                    let key = path::elements(text);
                    longest_prefix = longest_prefix.max(key.len());
                    (&mut prefix, key)
                }
            };
            map.entry(key.into()).or_insert_with(|| route(rule));
        }
        // Nothing but `OPTIONS *` is left for a fallback behind a prefix for everything, whose labels it would have
        // again.
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
            fallback: fallback_route,
            clients: clients.clone(),
            passing,
        }
    }

    /// Whether it has no number of its own.
    fn is_unnumbered(&self) -> bool {
        self.id == HostId::UNATTRIBUTED
    }

    fn meters(&self) -> impl Iterator<Item = &Arc<Meter>> {
        let Self { exact, prefix, patterns, fallback, .. } = self;
        let routes = exact.values().chain(prefix.values()).chain(patterns.routes()).chain(fallback.as_deref());
        routes.filter_map(|route| route.meter.as_ref())
    }

    /// What its clients must show in handshakes.
    #[must_use]
    pub fn clients(&self) -> Option<&Arc<ClientCertificates>> {
        self.clients.as_ref()
    }

    /// Where its connections over TLS are passed on to, if they are.
    #[must_use]
    pub fn passing(&self) -> Option<&Passing> {
        self.passing.as_ref()
    }

    fn find(&self, path: &str) -> Option<&Route> {
        if let Some(route) = self.exact.get(path) {
            return Some(route);
        }
        let prefix = self.find_prefix(path);
        // An expression that is as long as the prefix, or longer, goes before it.
        let shortest = prefix.map_or(0, |(elements, _)| elements.len());
        let pattern = if self.patterns.is_empty() { None } else { self.patterns.find(path) };
        let pattern = pattern.filter(|(pattern, _)| pattern.goes_before(shortest)).map(|(_, route)| route);
        pattern.or(prefix.map(|(_, route)| route)).or(self.fallback.as_deref())
    }

    /// Tries the path cut at each element boundary, longest first, beginning no longer than the longest prefix.
    fn find_prefix<'p>(&self, path: &'p str) -> Option<(&'p str, &Route)> {
        if self.prefix.is_empty() || !path.starts_with('/') {
            return None;
        }
        let mut end = if path.len() <= self.longest_prefix {
            path.len()
        } else {
            // The boundary at `longest_prefix` itself counts, hence the byte more. Cutting at a `/` keeps UTF-8 whole.
            path.as_bytes()[..=self.longest_prefix].iter().rposition(|&b| b == b'/')?
        };
        loop {
            if let Some(route) = self.prefix.get(&path[..end]) {
                return Some((&path[..end], route));
            }
            end = path[..end].rfind('/')?;
        }
    }
}

// === impl Route ===

impl Route {
    fn compile(rule: &Rule, meter: Option<Arc<Meter>>, upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId) -> Self {
        let Rule { path: _, owner, filters, action, forwarding } = rule;
        Self {
            owner: Arc::clone(owner),
            filters: filters.clone(),
            target: Target::compile(action, upstream),
            forwarding: Arc::clone(forwarding),
            meter,
        }
    }
}

impl Target {
    fn compile(action: &Action, upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId) -> Self {
        match action {
            Action::Forward(key) => Self::Forward(upstream(key)),
            Action::Refuse(why) => Self::Refuse(*why),
            Action::Redirect(redirect) => Self::Redirect(Arc::clone(redirect)),
            Action::Split(split) => {
                let Split { main, canaries } = &**split;
                let main = upstream(main);
                let canaries = canaries.iter().map(|Canary { when, upstream: key }| (when.clone(), upstream(key)));
                Self::Split(Arc::new(Branches { main, canaries: canaries.collect() }))
            }
        }
    }
}

pub mod canary;
pub mod filter;
pub mod template;

pub use filter::Subject;

#[cfg(test)]
mod tests;
