//! Route lookup: finds the rule for a host and a path. Pure: no IO and no clock. Only regular expressions
//! allocate, for states that a path is the first to need.
//!
//! [`Routes`] is a [`RouteTable`] arranged for lookup; balancing, filters and forwarding are elsewhere.
//!
//! Cost of a lookup: one hash for the host (another one for wildcards if there is no exact match), one for exact paths,
//! and one per `/` within the longest prefix of that host, regardless of the length of the request's path. Hosts with
//! few paths use comparisons in place of hashes. The regular expressions of a host are matched together, in one pass
//! over the path.

use std::{collections::BTreeSet, num::NonZeroU32, sync::Arc};

use crate::{
    Action, Canary, CanaryRule, Conditions, Filter, Forwarding, HostId, HostPattern, HostRoutes, Listener, Passthrough,
    Redirect, RequestHead, RouteTable, Rule, Split, Tree, Unavailable, UpstreamKey, WeightedBackend, WeightedBackends,
};

mod automaton;
mod beginnings;
mod even_spread;
mod hashing;
mod host_entry;
mod host_map;
mod meter;
mod names;
mod paths;
mod patterns;

use automaton::Exhausted;
pub use automaton::Work;
pub use even_spread::EvenSpread;

pub use host_entry::HostEntry;
pub use host_map::HostMap;
pub use meter::{Meter, MeterView};
pub use names::NameMap;
use paths::Paths;
use patterns::{Patterns, Rival, Sets};

/// The hosts of all Ingresses, or of one listener of a Gateway, arranged for [`Routes::find`].
#[derive(Clone, Debug, Default)]
pub struct Routes {
    entries: HostMap<Arc<HostEntry>>,
    default: Option<RouteTarget>,
    precedence: HostPrecedence,
    /// The hosts from which this was compiled.
    source: Tree<HostPattern, Arc<HostRoutes>>,
    /// Number of hosts without their own number.
    unnumbered: usize,
    // The following are trees: they may be large, and each change clones them.
    /// Hosts that have not got a number.
    unasked: Tree<HostPattern, ()>,
    /// Hosts that request client certificates.
    asking: Tree<HostPattern, ()>,
    /// Hosts with metered rules.
    metered: Tree<HostPattern, ()>,
    /// Hosts with TLS passthrough.
    passing: Tree<HostPattern, ()>,
}

/// Treatment of a request for which the most specific host has no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPrecedence {
    /// The default backend answers, as for Ingresses.
    #[default]
    MostSpecific,
    /// The rules of the next less specific host apply, as for the routes of a Gateway's listener.
    FallThrough,
}

/// Destination of a host's TLS connections with passthrough.
#[derive(Debug)]
pub struct PassthroughRoute {
    pub upstream: Option<UpstreamId>,
    pub policy: Arc<Passthrough>,
}

/// Filters, target and policy of a rule.
#[derive(Debug)]
pub struct Route {
    pub owner: Arc<str>,
    pub filters: Vec<Filter>,
    pub target: RouteTarget,
    pub forwarding: Arc<Forwarding>,
    /// Metrics of the rule, if its Ingress enables them.
    pub meter: Option<Arc<Meter>>,
    conditional: Option<Box<Conditional>>,
}

/// The conditions of a rule, and the rules with the same path after it, in order of precedence.
#[derive(Debug)]
struct Conditional {
    conditions: Conditions,
    /// Empty in all rules but the first of a path.
    rest: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    Forward(UpstreamId),
    Refuse(Unavailable),
    Redirect(Arc<Redirect>),
    Split(Arc<Branches>),
    Weighted(Arc<Shares>),
}

/// The backends that share the requests of one rule by weight.
#[derive(Debug, PartialEq, Eq)]
pub struct Shares {
    pub backends: Box<[Share]>,
    /// Sum of all weights.
    total: NonZeroU32,
    sequence: EvenSpread,
}

/// The share of one backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Share {
    /// Never 0.
    pub weight: u32,
    pub target: Result<UpstreamId, Unavailable>,
    /// Filters that apply after those of the rule.
    pub filters: Vec<Filter>,
}

/// The upstreams that share the requests of one rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Branches {
    pub main: UpstreamId,
    pub canaries: Vec<(CanaryRule, UpstreamId)>,
    /// Upstreams, each with the one that takes its place for clients over TLS.
    pub over_tls: Vec<(UpstreamId, UpstreamId)>,
}

/// Index of an upstream in a snapshot. A key keeps its number as long as successive snapshots contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId(pub u32);

/// Result of [`Routes::find`].
#[derive(Clone, Copy, Debug)]
pub struct FoundRoute<'r> {
    /// The host that provides the rules, or `None` if no route names the request's host.
    pub host: Option<&'r HostEntry>,
    pub matched: Matched<'r>,
}

#[derive(Clone, Copy, Debug)]
pub enum Matched<'r> {
    Route(&'r Route),
    /// No rule matches; the default backend answers.
    Default(&'r RouteTarget),
    /// No rule matches and there is no default backend: 404.
    Nothing,
    /// The lookup would take too long: 414.
    Costly,
}

// === impl Matched ===

impl Matched<'_> {
    /// Returns whether both results are the same rule, or the same kind of miss.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Route(one), Self::Route(other)) => std::ptr::eq(*one, *other),
            (Self::Default(_), Self::Default(_)) | (Self::Nothing, Self::Nothing) | (Self::Costly, Self::Costly) => {
                true
            }
            _ => false,
        }
    }
}

// === impl Routes ===

impl Routes {
    /// Arranges the hosts of Ingresses in `table`, like [`Self::of_listener`].
    pub fn compile(
        previous: Option<&Self>,
        table: &RouteTable,
        upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        host_id: impl FnMut(&HostPattern) -> Option<HostId>,
    ) -> Self {
        let RouteTable { hosts, default, .. } = table;
        Self::arrange(previous, hosts, default.as_ref(), HostPrecedence::MostSpecific, upstream, host_id)
    }

    /// Arranges the hosts of a Gateway's listener, with numbers of upstreams and hosts from `upstream` and `host_id`.
    ///
    /// The cost is that of the difference to `previous`. A host with unchanged rules keeps its entry without any call,
    /// so an upstream in both tables must have the same number. Hosts without a number (`None`) use
    /// [`HostId::UNATTRIBUTED`]. The next compilation requests their numbers again, until it gets `None` for one of them.
    pub fn of_listener(
        previous: Option<&Self>,
        listener: &Listener,
        upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        host_id: impl FnMut(&HostPattern) -> Option<HostId>,
    ) -> Self {
        Self::arrange(previous, &listener.hosts, None, HostPrecedence::FallThrough, upstream, host_id)
    }

    fn arrange(
        previous: Option<&Self>,
        hosts: &Tree<HostPattern, Arc<HostRoutes>>,
        default: Option<&Action>,
        precedence: HostPrecedence,
        mut upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        mut host_id: impl FnMut(&HostPattern) -> Option<HostId>,
    ) -> Self {
        let mut routes = previous.cloned().unwrap_or_default();
        routes.precedence = precedence;
        let source = std::mem::replace(&mut routes.source, hosts.clone());
        let changed: BTreeSet<_> = source.differences(hosts).into_iter().map(|difference| difference.key).collect();
        let (unasked, mut sets) = (routes.unasked.clone(), Sets::new());
        for &pattern in &changed {
            let rules = hosts.get(pattern);
            let id = rules.and_then(|_| host_id(pattern));
            routes.place(pattern, rules, id, &mut sets, &mut upstream);
        }
        for pattern in unasked.keys().filter(|pattern| !changed.contains(pattern)) {
            // If there is no number for one host, there is none for the others: they may be many.
            let Some(id) = host_id(pattern) else { break };
            routes.place(pattern, hosts.get(pattern), Some(id), &mut sets, &mut upstream);
        }
        routes.default = default.map(|action| RouteTarget::compile(action, &mut upstream));
        routes
    }

    /// Replaces the entry of a host. Without `rules` it has none.
    fn place(
        &mut self,
        pattern: &HostPattern,
        rules: Option<&Arc<HostRoutes>>,
        id: Option<HostId>,
        sets: &mut Sets,
        upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId,
    ) {
        let previous = self.entries.get(pattern).map(Arc::clone);
        let entry = rules.map(|rules| {
            let id = id.unwrap_or(HostId::UNATTRIBUTED);
            Arc::new(HostEntry::compile(pattern, id, rules, previous.as_deref(), sets, upstream))
        });
        self.unnumbered += usize::from(entry.as_deref().is_some_and(HostEntry::is_unnumbered));
        self.unnumbered -= usize::from(previous.as_deref().is_some_and(HostEntry::is_unnumbered));
        let is_asking = entry.as_ref().is_some_and(|entry| entry.clients().is_some());
        let is_passing = entry.as_ref().is_some_and(|entry| entry.passing().is_some());
        let is_metered = entry.as_ref().is_some_and(|entry| entry.meters().next().is_some());
        for (set, is_in) in [
            (&mut self.asking, is_asking),
            (&mut self.passing, is_passing),
            (&mut self.metered, is_metered),
            (&mut self.unasked, rules.is_some() && id.is_none()),
        ] {
            if is_in {
                set.insert(pattern.clone(), ());
            } else {
                set.remove(pattern);
            }
        }
        self.entries.set(pattern, entry);
    }

    /// Returns the rule for `host` (canonical form), `path` (normalised, without query) and the `head` of a request.
    ///
    /// With [`HostPrecedence::MostSpecific`], only the most specific pattern for the host applies: a path without a match
    /// does not fall through to a less specific host.
    #[must_use]
    pub fn find(&self, host: &str, path: &str, head: &RequestHead<'_>) -> FoundRoute<'_> {
        self.find_within(host, path, head, &mut Work::of_request())
    }

    /// Same as [`Self::find`], with a budget shared by several paths of one request.
    #[must_use]
    pub fn find_within(&self, host: &str, path: &str, head: &RequestHead<'_>, work: &mut Work) -> FoundRoute<'_> {
        let entry = self.host(host);
        match entry.map_or(Ok(None), |entry| entry.find(path, head, work)) {
            Ok(Some(route)) => FoundRoute { host: entry, matched: Matched::Route(route) },
            Err(Exhausted) => FoundRoute { host: entry, matched: Matched::Costly },
            Ok(None) => match self.precedence {
                HostPrecedence::MostSpecific => self.missed(entry),
                HostPrecedence::FallThrough => self.fall_through(host, path, head, work),
            },
        }
    }

    /// Returns the rule of a less specific host than the first that matches. Without one, the request counts for the
    /// first host.
    #[cold]
    #[inline(never)]
    fn fall_through(&self, host: &str, path: &str, head: &RequestHead<'_>, work: &mut Work) -> FoundRoute<'_> {
        let mut entries = self.entries.matches(host).map(Arc::as_ref);
        let first = entries.next();
        for entry in entries {
            match entry.find(path, head, work) {
                Ok(Some(route)) => return FoundRoute { host: Some(entry), matched: Matched::Route(route) },
                Ok(None) => {}
                Err(Exhausted) => return FoundRoute { host: Some(entry), matched: Matched::Costly },
            }
        }
        self.missed(first)
    }

    /// Returns the result for a request without a rule.
    fn missed<'r>(&'r self, host: Option<&'r HostEntry>) -> FoundRoute<'r> {
        FoundRoute { host, matched: self.default.as_ref().map_or(Matched::Nothing, Matched::Default) }
    }

    /// Returns the number of hosts without their own number.
    #[must_use]
    pub fn unnumbered(&self) -> usize {
        self.unnumbered
    }

    /// Returns the hosts that have not got a number.
    #[must_use]
    pub fn unnumbered_hosts(&self) -> &Tree<HostPattern, ()> {
        &self.unasked
    }

    /// Iterates over the meters of all metered rules.
    pub fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.metered
            .keys()
            .filter_map(|pattern| self.entries.get(pattern))
            .flat_map(|entry| entry.meters())
            .map(Arc::as_ref)
    }

    /// Returns whether any host requests client certificates.
    #[must_use]
    pub fn ask_clients(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Returns whether any host uses TLS passthrough.
    #[must_use]
    pub fn pass_through(&self) -> bool {
        !self.passing.is_empty()
    }

    /// Returns the host that serves `name` (canonical form).
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&HostEntry> {
        self.entries.find(name).map(Arc::as_ref)
    }

    /// Returns whether `name` (canonical form) matches a host other than the one for every host.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.entries.find_named(name).is_some()
    }

    /// Iterates over all hosts, in no particular order.
    pub fn hosts(&self) -> impl Iterator<Item = &HostEntry> {
        self.entries.values().map(Arc::as_ref)
    }
}

// === impl Shares ===

impl Shares {
    /// Arranges `backends`, with numbers of upstreams from `upstream`.
    pub fn compile(backends: &WeightedBackends, mut upstream: impl FnMut(&UpstreamKey) -> UpstreamId) -> Self {
        let total = backends.total();
        let share = |backend: &WeightedBackend| {
            let WeightedBackend { weight, target, filters } = backend;
            let target = target.as_ref().map(&mut upstream).map_err(|why| *why);
            Share { weight: *weight, target, filters: filters.clone() }
        };
        let backends = backends.as_slice().iter().map(share).collect();
        Self { backends, total, sequence: EvenSpread::default() }
    }

    /// Returns the backend for the next request, or `None` if there are no backends.
    #[must_use]
    #[inline(never)]
    pub fn choose(&self) -> Option<&Share> {
        let Self { backends, total, sequence } = self;
        let mut left = sequence.below(*total);
        backends.iter().find(|share| {
            let is_chosen = left < share.weight;
            left = left.saturating_sub(share.weight);
            is_chosen
        })
    }
}

// === impl Branches ===

impl Branches {
    /// Returns the upstream that a client reaches by `chosen`: over TLS another one, if its pods are reached in the
    /// protocol of the client's scheme.
    #[must_use]
    pub fn reached(&self, chosen: UpstreamId, is_secure: bool) -> UpstreamId {
        self.over_tls
            .iter()
            .filter(|_| is_secure)
            .find(|(clear, _)| *clear == chosen)
            .map_or(chosen, |(_, upstream)| *upstream)
    }
}

// === impl Route ===

impl Route {
    /// Returns the namespace of the Ingress that the rule comes from.
    fn namespace(&self) -> &str {
        self.owner.split_once('/').map_or(&*self.owner, |(namespace, _)| namespace)
    }

    fn compile(rule: &Rule, meter: Option<Arc<Meter>>, upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId) -> Self {
        let Rule { path: _, conditions, owner, filters, action, forwarding } = rule;
        let conditional =
            conditions.as_deref().map(|conditions| Conditional { conditions: conditions.clone(), rest: Vec::new() });
        Self {
            owner: Arc::clone(owner),
            filters: filters.clone(),
            target: RouteTarget::compile(action, upstream),
            forwarding: Arc::clone(forwarding),
            meter,
            conditional: conditional.map(Box::new),
        }
    }

    /// Returns the first rule with this path for which all conditions hold.
    #[inline]
    fn accepting(&self, head: &RequestHead<'_>) -> Option<&Self> {
        if self.conditional.is_none() {
            return Some(self);
        }
        self.chain().find(|route| route.conditional.as_ref().is_none_or(|own| own.conditions.hold(head)))
    }

    /// Appends a rule with the same path, unless one without conditions goes before it.
    fn append(&mut self, make: impl FnOnce() -> Self) {
        let Some(Conditional { conditions: _, rest }) = self.conditional.as_deref_mut() else { return };
        if rest.last().is_none_or(|last| last.conditional.is_some()) {
            rest.push(make());
        }
    }

    /// Iterates over this rule and those with the same path after it.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.conditional.iter().flat_map(|own| &own.rest))
    }
}

impl RouteTarget {
    fn compile(action: &Action, upstream: &mut impl FnMut(&UpstreamKey) -> UpstreamId) -> Self {
        match action {
            Action::Forward(key) => Self::Forward(upstream(key)),
            Action::Refuse(why) => Self::Refuse(*why),
            Action::Redirect(redirect) => Self::Redirect(Arc::clone(redirect)),
            Action::Weighted(backends) => Self::Weighted(Arc::new(Shares::compile(backends, upstream))),
            Action::Split(split) => {
                let Split { main, canaries, over_tls } = &**split;
                let main = upstream(main);
                let canaries = canaries.iter().map(|Canary { when, upstream: key }| (when.clone(), upstream(key)));
                let canaries = canaries.collect();
                let over_tls = over_tls.iter().map(|(clear, key)| (upstream(clear), upstream(key))).collect();
                Self::Split(Arc::new(Branches { main, canaries, over_tls }))
            }
        }
    }
}

pub mod basic;
pub mod canary;
pub mod filter;
pub mod template;

pub use filter::Subject;

#[cfg(test)]
mod tests;
