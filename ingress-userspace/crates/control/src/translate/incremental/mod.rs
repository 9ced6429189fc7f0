//! Translates a cluster repeatedly, and each time only the changes. It knows the parts and their order, but not how
//! each is made.
//!
//! ```text
//! Cluster ──differences──> dependencies ──records──> stale parts ──┐
//!    ▲                                                             │ first to last
//!    └── as it was the last time                                   ▼
//! globals, machinery > upstreams, certificates > Ingresses > hosts > inherited routes ──> Translation
//!                                 a part that comes out the same makes nothing behind it stale
//! ```

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Options, Translation,
    budget::Holders,
    certificate_secret,
    checks::Checks,
    claims::{Claims, HostClaim},
    class,
    cluster_addresses::ClusterAddresses,
    compiled_expressions::Cost,
    context::Context,
    effects::Effects,
    expressions,
    features::Globals,
    gather::gather,
    ingress,
    lookup::{Lookup, Memo},
    merge::{self, Merged, MergedHost, wildcard_of},
    meters::Meters,
    ownership::Broader,
    part::{Dependency, Part},
    records::Records,
    service, settings,
    shares::{self, ClaimCounts},
    streams, tickets,
};
use crate::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
};
use ingress_model::{Action, HostPattern, RouteTable, Transport, Tree, UpstreamKey};

mod differences;
mod table;

use differences::differences;

/// Translates successive states of a cluster. Each result is the same as that of [`translate`](super::translate) for
/// this state alone.
pub struct Translator {
    options: Arc<Options>,
    /// The state translated last; `None` before the first time.
    cluster: Option<Cluster>,
    globals: Arc<Globals>,
    pub(super) memo: Memo,
    records: Records,
    served: Tree<ObjectName, ()>,
    effects: Effects,
    /// Claims of the Ingresses that are served.
    claims: HashMap<ObjectName, Arc<Claims>>,
    /// Claims by host, in order of precedence.
    claimants: HashMap<HostPattern, Vec<Arc<Claims>>>,
    pub(super) expressions: Holders<Cost>,
    meters: Meters,
    shares: Holders<ClaimCounts>,
    checks: Checks,
    /// Hosts for challenges only, which are settled together.
    challenge_hosts: BTreeMap<HostPattern, MergedHost>,
    /// Hosts that they may inherit from: those that are not exact.
    ancestors: BTreeMap<HostPattern, MergedHost>,
    /// Number of rules in the table that lead to an upstream, or send requests of their own there.
    uses: HashMap<UpstreamKey, usize>,
    table: RouteTable,
}

/// The work that is still to do.
#[derive(Default)]
struct PendingWork {
    stale: BTreeSet<Part>,
    /// Hosts, other than exact ones, with changed claims.
    less_specific: BTreeSet<HostPattern>,
    /// Upstreams that may have changed in the table, or left it.
    upstreams: BTreeSet<UpstreamKey>,
}

// === impl Translator ===

impl Translator {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let globals = Arc::new(Globals::of(&options.classes));
        let forwarding = Arc::clone(&globals.forwarding);
        let table = RouteTable { settings: globals.settings.clone(), forwarding, ..RouteTable::default() };
        Self {
            globals,
            cluster: None,
            memo: Memo::default(),
            records: Records::default(),
            served: Tree::new(),
            effects: Effects::default(),
            claims: HashMap::new(),
            claimants: HashMap::new(),
            expressions: expressions::holders(),
            meters: Meters::new(&options),
            shares: shares::holders(&options),
            checks: Checks::default(),
            challenge_hosts: BTreeMap::new(),
            ancestors: BTreeMap::new(),
            uses: HashMap::new(),
            table,
            options: Arc::new(options),
        }
    }

    /// Translates `cluster`. The cost grows with the differences from the one before.
    #[must_use]
    pub fn translate(&mut self, cluster: &Cluster) -> Translation {
        let options = Arc::clone(&self.options);
        let mut work = PendingWork { stale: self.stale(cluster), ..PendingWork::default() };
        // The last of all. Its cost depends on the changes that the others have made.
        work.stale.insert(Part::Checks);
        let memo = std::mem::take(&mut self.memo);
        let lookup = Lookup::new(cluster, &options, memo);
        while let Some(part) = work.stale.pop_first() {
            if matches!(part, Part::Host(_)) && !work.less_specific.is_empty() {
                // All Ingresses are read by now.
                work.stale.insert(part);
                self.look_below(&std::mem::take(&mut work.less_specific), &mut work);
                continue;
            }
            self.make(part, cluster, &lookup, &mut work);
            for (part, trace) in lookup.take_made() {
                if let Part::Certificate(name) = &part {
                    lookup.with_memo(|memo| self.certify(name, memo));
                }
                self.records.record(part, trace);
            }
        }
        let mut memo = lookup.into_memo();
        self.tidy(&mut memo);
        (self.memo, self.cluster) = (memo, Some(cluster.clone()));
        Translation {
            table: self.table.clone(),
            outcomes: self.records.outcomes().clone(),
            served: self.served.clone(),
            in_effect: self.in_effect(),
            external_names: self.records.external_names().clone(),
        }
    }

    /// Returns the parts with changed dependencies.
    fn stale(&self, cluster: &Cluster) -> BTreeSet<Part> {
        let nothing = Cluster::default();
        let known = self.cluster.as_ref().unwrap_or(&nothing);
        let changed = |name: &ObjectName| Part::Ingress(name.clone());
        let mut stale: BTreeSet<Part> =
            known.ingresses.differences(&cluster.ingresses).iter().map(|difference| changed(difference.key)).collect();
        if self.cluster.is_none() {
            stale.extend([Part::Globals, Part::DefaultBackend, Part::FallbackCertificate, Part::TicketKeys]);
            stale.extend([Transport::Tcp, Transport::Udp].map(Part::Streams));
        }
        for dependency in differences(known, cluster, self.options.node.as_deref()) {
            stale.extend(self.records.dependents_of(&dependency).cloned());
        }
        stale
    }

    fn make(&mut self, part: Part, cluster: &Cluster, lookup: &Lookup<'_>, work: &mut PendingWork) {
        let trace = match &part {
            Part::Globals => {
                let (globals, trace) = lookup.traced(settings::globals);
                if globals != *self.globals {
                    self.globals = Arc::new(globals);
                    work.stale.extend(cluster.ingresses.keys().cloned().map(Part::Ingress));
                    work.stale.extend(self.claimants.keys().cloned().map(Part::Host));
                    self.table.settings = self.globals.settings.clone();
                    self.table.forwarding = Arc::clone(&self.globals.forwarding);
                }
                trace
            }
            Part::ClusterAddresses => {
                let (cluster_addresses, trace) = lookup.traced(|context| ClusterAddresses::of(context.lookup));
                let known = lookup.with_memo(|memo| memo.cluster_addresses.take()).unwrap_or_default();
                if *known != cluster_addresses {
                    let changed = cluster_addresses.changes_since(&known).into_iter().map(Dependency::Taken);
                    for dependency in changed.chain([Dependency::ClusterAddresses]) {
                        work.stale.extend(self.records.dependents_of(&dependency).cloned());
                    }
                }
                lookup.with_memo(|memo| memo.cluster_addresses = Some(Arc::new(cluster_addresses)));
                trace
            }
            Part::Upstream(key) => {
                let known = lookup.with_memo(|memo| memo.upstreams.get(key).cloned());
                let Some((destination, known)) = known else { return };
                let (gathered, trace) = lookup.traced(|context| gather(&destination, context));
                if !gathered.looks_like(&known) {
                    work.stale.extend(self.records.dependents_of(&Dependency::Upstream(key.clone())).cloned());
                }
                let entry = (destination, Arc::new(gathered));
                lookup.with_memo(|memo| memo.upstreams.insert(key.clone(), entry));
                work.upstreams.insert(key.clone());
                trace
            }
            Part::Certificate(name) => {
                let (held, trace) = lookup.traced(|context| certificate_secret::hold(name, context));
                match lookup.with_memo(|memo| memo.certificates.get(name).cloned()) {
                    // Read again because of the hour alone.
                    Some(known) if *known == held => {}
                    known => {
                        if known.is_none_or(|known| !held.looks_like(&known)) {
                            let dependency = Dependency::Certificate(name.clone());
                            work.stale.extend(self.records.dependents_of(&dependency).cloned());
                        }
                        lookup.with_memo(|memo| {
                            memo.certificates.insert(name.clone(), Arc::new(held));
                            self.certify(name, memo);
                        });
                    }
                }
                trace
            }
            Part::Ingress(name) => {
                let stored = cluster.ingresses.get(name);
                let (claims, trace) = lookup.traced(|context| claims(name, stored?, &self.globals, context));
                self.claim(name, claims, work);
                trace
            }
            Part::DefaultBackend => {
                let name = self.options.default_backend.clone();
                let (default, trace) = lookup.traced(|context| service::default(name.as_ref()?, None, context));
                let before = std::mem::replace(&mut self.table.default, default.clone());
                let (new, old) =
                    (default.iter().flat_map(Action::upstreams), before.iter().flat_map(Action::upstreams));
                self.count(new, old, work);
                trace
            }
            Part::FallbackCertificate => {
                let name = self.options.default_certificate.clone();
                let (certificate, trace) =
                    lookup.traced(|context| certificate_secret::fallback(name.as_ref()?, context));
                self.table.fallback_certificate = certificate;
                trace
            }
            Part::Streams(transport) => {
                let (services, trace) = lookup.traced(|context| streams::services(*transport, context));
                self.stream(*transport, services, work);
                trace
            }
            Part::TicketKeys => {
                let name = self.options.ticket_secret.clone();
                let (keys, trace) = lookup.traced(|context| tickets::keys(name.as_ref()?, context));
                self.table.ticket_keys = keys;
                trace
            }
            Part::Expressions => {
                let (changed, trace) =
                    lookup.traced(|context| expressions::judge(&mut self.expressions, context.outcomes));
                self.look_at_claims_of(&changed, work);
                trace
            }
            Part::Meters => {
                let (changed, trace) = lookup.traced(|context| self.meters.judge(context.outcomes));
                self.look_at_hosts_of(&changed, work);
                trace
            }
            Part::Shares => {
                let (changed, trace) = lookup.traced(|context| shares::judge(&mut self.shares, context.outcomes));
                self.look_at_claims_of(&changed, work);
                trace
            }
            Part::Host(pattern) => {
                let claims = self.standing_claims(pattern);
                let broader = self.broader(pattern);
                let (merged, trace) =
                    lookup.traced(|context| merge::merge(pattern, &claims, &broader, &self.globals, context));
                let claimants = self.claimants.get(pattern).into_iter().flatten().map(|claims| &claims.precedence.name);
                let vain = claimants.filter(|name| !merged.in_effect.contains(name)).cloned().collect();
                self.effects.set(pattern, vain);
                self.settle(pattern, merged, work);
                trace
            }
            Part::InheritedRoutes => {
                let (settled, trace) = lookup.traced(|context| {
                    merge::inherit_routes(&self.challenge_hosts, &self.ancestors, &self.globals, context.outcomes)
                });
                for (pattern, routes) in settled {
                    self.route(&pattern, Some(routes), work);
                }
                trace
            }
            Part::Checks => {
                lookup.with_memo(|memo| self.supply(memo, std::mem::take(&mut work.upstreams)));
                if !self.checks.take_stale() {
                    return;
                }
                let in_effect = self.in_effect();
                lookup.traced(|context| self.checks.judge(&self.claims, &in_effect, context.outcomes)).1
            }
        };
        self.records.record(part, trace);
    }

    /// Returns the Ingresses with a claim in the table.
    fn in_effect(&mut self) -> Tree<ObjectName, ()> {
        self.effects.settle(|name| self.claims.get(name).map_or(0, |claims| claims.hosts.len()))
    }

    /// Returns `true` if an Ingress exceeds a budget that it shares with others.
    fn refuses(&self, name: &ObjectName) -> bool {
        self.expressions.refuses(name) || self.shares.refuses(name)
    }

    /// Returns the claims on a host that are not refused, in order of precedence.
    fn standing_claims(&self, pattern: &HostPattern) -> Cow<'_, [Arc<Claims>]> {
        let mut claims = Cow::from(self.claimants.get(pattern).map(Vec::as_slice).unwrap_or_default());
        if claims.iter().any(|claims| self.refuses(&claims.precedence.name)) {
            claims.to_mut().retain(|claims| !self.refuses(&claims.precedence.name));
        }
        claims
    }

    /// Marks the hosts that these Ingresses claim, and those below, as stale, because the Ingresses are refused now or
    /// no longer.
    fn look_at_claims_of(&self, names: &BTreeSet<ObjectName>, work: &mut PendingWork) {
        self.look_at_hosts_of(names, work);
        let claims = names.iter().filter_map(|name| self.claims.get(name));
        let is_any_certified = self.is_any_certified();
        work.less_specific.extend(claims.flat_map(|claims| claims.reaching_below(is_any_certified).cloned()));
    }

    /// Returns `true` if an Ingress claims a certificate for all hosts.
    fn is_any_certified(&self) -> bool {
        let is_certified = |claims: &Arc<Claims>| claims.of(&HostPattern::Any).is_some_and(|c| c.certificate.is_some());
        self.claimants.get(&HostPattern::Any).is_some_and(|claimants| claimants.iter().any(is_certified))
    }

    /// Marks the hosts that these Ingresses claim as stale.
    fn look_at_hosts_of(&self, names: &BTreeSet<ObjectName>, work: &mut PendingWork) {
        let claims = names.iter().filter_map(|name| self.claims.get(name));
        let hosts = claims.flat_map(|claims| &claims.hosts);
        work.stale.extend(hosts.map(|(pattern, _)| Part::Host(pattern.clone())));
    }

    /// Sets the claims of the Ingress `name`; `None` if it belongs to another controller, or is gone.
    fn claim(&mut self, name: &ObjectName, claims: Option<Claims>, work: &mut PendingWork) {
        let before = self.claims.get(name);
        if before.map(Arc::as_ref) == claims.as_ref() {
            return;
        }
        let before = self.claims.remove(name);
        self.effects.touch(name);
        self.checks.touch();
        let claims = claims.map(Arc::new);
        if self.expressions.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Expressions);
        }
        if self.shares.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Shares);
        }
        if self.meters.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Meters);
        }
        let is_any_certified = self.is_any_certified();
        let reaching = before.iter().chain(&claims).flat_map(|claims| claims.reaching_below(is_any_certified));
        work.less_specific.extend(reaching.cloned());
        for (pattern, _) in before.iter().flat_map(|claims| &claims.hosts) {
            if let Some(claimants) = self.claimants.get_mut(pattern) {
                claimants.retain(|claims| claims.precedence.name != *name);
                if claimants.is_empty() {
                    self.claimants.remove(pattern);
                }
            }
            work.stale.insert(Part::Host(pattern.clone()));
        }
        match claims {
            None => drop(self.served.remove(name)),
            Some(claims) => {
                for (pattern, HostClaim { .. }) in &claims.hosts {
                    let claimants = self.claimants.entry(pattern.clone()).or_default();
                    let at = claimants.partition_point(|other| other.precedence < claims.precedence);
                    claimants.insert(at, Arc::clone(&claims));
                    work.stale.insert(Part::Host(pattern.clone()));
                }
                if before.is_none() {
                    self.served.insert(name.clone(), ());
                }
                self.claims.insert(name.clone(), claims);
            }
        }
    }

    /// Returns the claims on the hosts that are less specific than `pattern`.
    fn broader(&self, pattern: &HostPattern) -> Vec<Broader<'_>> {
        let any = (*pattern != HostPattern::Any).then_some(HostPattern::Any);
        let less_specific = wildcard_of(pattern).into_iter().chain(any);
        let claimed = |pattern| self.claimants.get_key_value(&pattern);
        let broader = |(pattern, _)| Broader { pattern, claims: self.standing_claims(pattern) };
        less_specific.filter_map(claimed).map(broader).collect()
    }

    /// Marks the hosts as stale that one of `less_specific` serves where they have no rules of their own.
    fn look_below(&self, less_specific: &BTreeSet<HostPattern>, work: &mut PendingWork) {
        let is_below = |pattern: &&HostPattern| {
            **pattern != HostPattern::Any && less_specific.contains(&HostPattern::Any)
                || wildcard_of(pattern).is_some_and(|wildcard| less_specific.contains(&wildcard))
        };
        work.stale.extend(self.claimants.keys().filter(is_below).cloned().map(Part::Host));
    }

    /// Sets the merged claims on a host. A host with inherited rules waits for the hosts that it may inherit from.
    fn settle(&mut self, pattern: &HostPattern, merged: Merged, work: &mut PendingWork) {
        let Merged { host, certificate, in_effect: _ } = merged;
        match certificate {
            None => drop(self.table.server_names.remove(pattern)),
            Some(origin) if self.table.server_names.get(pattern) == Some(&origin) => {}
            Some(origin) => drop(self.table.server_names.insert(pattern.clone(), origin)),
        }
        let is_exact = matches!(pattern, HostPattern::Exact(_));
        let is_borrower = is_exact && host.as_ref().is_some_and(MergedHost::is_for_solvers);
        if is_borrower || self.challenge_hosts.contains_key(pattern) || (!is_exact && !self.challenge_hosts.is_empty())
        {
            work.stale.insert(Part::InheritedRoutes);
        }
        let routes = host.as_ref().map(|host| host.settle(None, &self.globals));
        match host {
            Some(host) if is_borrower => {
                self.challenge_hosts.insert(pattern.clone(), host);
                return;
            }
            Some(host) if !is_exact => drop(self.ancestors.insert(pattern.clone(), host)),
            Some(_) | None => drop(self.ancestors.remove(pattern)),
        }
        self.challenge_hosts.remove(pattern);
        self.route(pattern, routes, work);
    }

    /// Drops unused entries from `memo`, and unused certificates from the table.
    fn tidy(&mut self, memo: &mut Memo) {
        while let Some(orphan) = self.records.take_orphan() {
            match orphan {
                Dependency::Upstream(key) => {
                    memo.upstreams.remove(&key);
                    self.records.forget(Part::Upstream(key));
                }
                Dependency::Certificate(name) => {
                    memo.certificates.remove(&name);
                    self.certify(&name, memo);
                    self.records.forget(Part::Certificate(name));
                }
                Dependency::Object(_)
                | Dependency::Classes
                | Dependency::Nodes
                | Dependency::SlicesOf(_)
                | Dependency::GrantsOf(_)
                // A lookup in a vicinity depends on it, too.
                | Dependency::ClusterAddresses
                | Dependency::Taken(_)
                | Dependency::OwnAddresses
                | Dependency::Addresses(_)
                | Dependency::Topology
                | Dependency::Hour => {}
            }
        }
    }
}

/// Returns the claims of an Ingress, if it belongs to this controller.
fn claims(
    name: &ObjectName,
    stored: &Stored<k8s_openapi::api::networking::v1::Ingress>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Option<Claims> {
    let object = stored.refer(Kind::Ingress, name);
    let ours = class::ours(&stored.object, &object, context)?;
    Some(ingress::claims(name, &stored.object, object, ours, globals, context))
}
