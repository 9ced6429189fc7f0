//! Translates a cluster again and again, and each time only what has changed. It knows the parts and their order, not
//! how each is made.
//!
//! ```text
//! Cluster ──differences──> dependencies ──records──> stale parts ──┐
//!    ▲                                                             │ first to last
//!    └── as it was the last time                                   ▼
//! globals, machinery > upstreams, certificates > Ingresses > hosts > loans ──> Translation
//!                                 a part that comes out the same makes nothing behind it stale
//! ```

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Claims, HostClaim, Options, Translation,
    address::Machinery,
    class,
    context::{Context, Dependency, Memo},
    destination,
    expressions::Expressions,
    ingress,
    merge::{self, Merged, MergedHost},
    ownership::Broader,
    records::{Part, Records},
    secret::{self, Content},
    service,
    settings::{self, Globals},
    streams, tickets,
};
use crate::{
    control::{
        change::{Kind, ObjectId, ObjectName},
        cluster::{Cluster, Store, Stored},
    },
    model::{
        Action, Host, HostPattern, HostRoutes, RouteTable, Rule, StreamPort, StreamService, Transport, Tree,
        UpstreamKey,
    },
};

/// Translates one state of a cluster after the other. What it says of each is what [`translate`](super::translate) says
/// of it alone.
pub struct Translator {
    options: Arc<Options>,
    /// What was translated last; `None` before the first time.
    cluster: Option<Cluster>,
    globals: Globals,
    memo: Memo,
    records: Records,
    served: Tree<ObjectName, ()>,
    /// Of the Ingresses that are served.
    claims: HashMap<ObjectName, Arc<Claims>>,
    /// Who claims a host, in order of precedence.
    claimants: HashMap<HostPattern, Vec<Arc<Claims>>>,
    pub(super) expressions: Expressions,
    /// Hosts for challenges alone, which are settled together.
    borrowers: BTreeMap<HostPattern, MergedHost>,
    /// Hosts that they may borrow from: those that are not exact.
    lenders: BTreeMap<HostPattern, MergedHost>,
    /// How many rules of the table lead to an upstream, or ask there.
    uses: HashMap<UpstreamKey, usize>,
    table: RouteTable,
}

/// What is still to do.
#[derive(Default)]
struct Work {
    stale: BTreeSet<Part>,
    /// Hosts, other than exact ones, of which other things are claimed than before.
    less_specific: BTreeSet<HostPattern>,
    /// Upstreams that may be others in the table, or no more in it.
    upstreams: BTreeSet<UpstreamKey>,
}

// === impl Translator ===

impl Translator {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let globals = Globals::of(&options.classes);
        let forwarding = Arc::clone(&globals.forwarding);
        let table = RouteTable { settings: globals.settings.clone(), forwarding, ..RouteTable::default() };
        Self {
            globals,
            options: Arc::new(options),
            cluster: None,
            memo: Memo::default(),
            records: Records::default(),
            served: Tree::new(),
            claims: HashMap::new(),
            claimants: HashMap::new(),
            expressions: Expressions::default(),
            borrowers: BTreeMap::new(),
            lenders: BTreeMap::new(),
            uses: HashMap::new(),
            table,
        }
    }

    /// Translates `cluster`, which costs what differs from the one before.
    #[must_use]
    pub fn translate(&mut self, cluster: &Cluster) -> Translation {
        let options = Arc::clone(&self.options);
        let mut work = Work { stale: self.stale(cluster), ..Work::default() };
        let memo = std::mem::take(&mut self.memo);
        let mut context = Context::new(cluster, &options, self.globals.clone(), memo);
        while let Some(part) = work.stale.pop_first() {
            if matches!(part, Part::Host(_)) && !work.less_specific.is_empty() {
                // All Ingresses are read.
                work.stale.insert(part);
                self.look_below(&std::mem::take(&mut work.less_specific), &mut work);
                continue;
            }
            self.make(part, cluster, &mut context, &mut work);
            for (part, trace) in context.take_made() {
                if let Part::Certificate(name) = &part {
                    self.certify(name, &context.memo);
                }
                self.records.record(part, trace);
            }
        }
        self.supply(&context.memo, work.upstreams);
        self.tidy(&mut context.memo);
        let Context { globals, memo, .. } = context;
        (self.globals, self.memo, self.cluster) = (globals, memo, Some(cluster.clone()));
        Translation {
            table: self.table.clone(),
            outcomes: self.records.outcomes().clone(),
            served: self.served.clone(),
            external_names: self.records.external_names().clone(),
        }
    }

    /// The parts that were made from what is different now.
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
        for dependency in self.differences(known, cluster) {
            stale.extend(self.records.dependents_of(&dependency).cloned());
        }
        stale
    }

    /// What is different in `cluster`, apart from Ingresses.
    fn differences(&self, known: &Cluster, cluster: &Cluster) -> BTreeSet<Dependency> {
        fn names<T: PartialEq>(known: &Store<T>, now: &Store<T>) -> Vec<ObjectName> {
            known.differences(now).into_iter().map(|difference| difference.key.clone()).collect()
        }
        let Cluster { ingresses: _, classes, services, secrets, config_maps, nodes, resolved, slices, .. } = cluster;
        let mut found = BTreeSet::new();
        for (kind, names) in [
            (Kind::IngressClass, names(&known.classes, classes)),
            (Kind::Service, names(&known.services, services)),
            (Kind::Secret, names(&known.secrets, secrets)),
            (Kind::ConfigMap, names(&known.config_maps, config_maps)),
            (Kind::Node, names(&known.nodes, nodes)),
        ] {
            match kind {
                Kind::IngressClass if !names.is_empty() => drop(found.insert(Dependency::Classes)),
                Kind::Node if !names.is_empty() => {
                    found.insert(Dependency::Nodes);
                    let of_this = |name: &ObjectName| Some(&*name.name) == self.options.node.as_deref();
                    if names.iter().any(of_this) {
                        found.insert(Dependency::Place);
                    }
                }
                _ => {}
            }
            found.extend(names.into_iter().map(|name| Dependency::Object(ObjectId { kind, name })));
        }
        for difference in known.slices.differences(slices) {
            let services = [difference.old, difference.new].into_iter().flatten();
            let services = services.filter_map(|stored| stored.object.service.clone());
            found.extend(services.map(Dependency::SlicesOf));
        }
        if known.hour != cluster.hour {
            found.insert(Dependency::Hour);
        }
        let names = known.resolved.differences(resolved).into_iter();
        found.extend(names.map(|difference| Dependency::Addresses(Arc::clone(difference.key))));
        found
    }

    fn make(&mut self, part: Part, cluster: &Cluster, context: &mut Context<'_>, work: &mut Work) {
        let trace = match &part {
            Part::Globals => {
                let (globals, trace) = context.traced(settings::globals);
                if globals != context.globals {
                    context.globals = globals;
                    work.stale.extend(cluster.ingresses.keys().cloned().map(Part::Ingress));
                    work.stale.extend(self.claimants.keys().cloned().map(Part::Host));
                    self.table.settings = context.globals.settings.clone();
                    self.table.forwarding = Arc::clone(&context.globals.forwarding);
                }
                trace
            }
            Part::Machinery => {
                let (machinery, trace) = context.traced(Machinery::of);
                if context.memo.machinery.as_deref() != Some(&machinery) {
                    context.memo.machinery = Some(Arc::new(machinery));
                    work.stale.extend(self.records.dependents_of(&Dependency::Machinery).cloned());
                }
                trace
            }
            Part::Upstream(key) => {
                let Some((destination, known)) = context.memo.upstreams.get(key).cloned() else { return };
                let (gathered, trace) = context.traced(|context| destination::gather(&destination, context));
                if !gathered.looks_like(&known) {
                    work.stale.extend(self.records.dependents_of(&Dependency::Upstream(key.clone())).cloned());
                }
                context.memo.upstreams.insert(key.clone(), (destination, Arc::new(gathered)));
                work.upstreams.insert(key.clone());
                trace
            }
            Part::Certificate(name) => {
                let (held, trace) = context.traced(|context| secret::hold(name, context));
                match context.memo.certificates.get(name) {
                    // Read again because of the hour alone.
                    Some(known) if **known == held => {}
                    known => {
                        if known.is_none_or(|known| !held.looks_like(known)) {
                            let dependency = Dependency::Certificate(name.clone());
                            work.stale.extend(self.records.dependents_of(&dependency).cloned());
                        }
                        context.memo.certificates.insert(name.clone(), Arc::new(held));
                        self.certify(name, &context.memo);
                    }
                }
                trace
            }
            Part::Ingress(name) => {
                let stored = cluster.ingresses.get(name);
                let (claims, trace) = context.traced(|context| claims(name, stored?, context));
                self.claim(name, claims, work);
                trace
            }
            Part::DefaultBackend => {
                let name = self.options.default_backend.clone();
                let (default, trace) = context.traced(|context| service::default(name.as_ref()?, None, context));
                let before = std::mem::replace(&mut self.table.default, default.clone());
                let (new, old) =
                    (default.iter().flat_map(Action::upstreams), before.iter().flat_map(Action::upstreams));
                self.count(new, old, work);
                trace
            }
            Part::FallbackCertificate => {
                let name = self.options.default_certificate.clone();
                let (certificate, trace) = context.traced(|context| secret::fallback(name.as_ref()?, context));
                self.table.fallback_certificate = certificate;
                trace
            }
            Part::Streams(transport) => {
                let (services, trace) = context.traced(|context| streams::services(*transport, context));
                self.stream(*transport, services, work);
                trace
            }
            Part::TicketKeys => {
                let name = self.options.ticket_secret.clone();
                let (keys, trace) = context.traced(|context| tickets::keys(name.as_ref()?, context));
                self.table.ticket_keys = keys;
                trace
            }
            Part::Expressions => {
                let (changed, trace) = context.traced(|context| self.expressions.judge(context));
                let claims = changed.iter().filter_map(|name| self.claims.get(name));
                let hosts = claims.flat_map(|claims| &claims.hosts);
                work.stale.extend(hosts.map(|(pattern, _)| Part::Host(pattern.clone())));
                trace
            }
            Part::Host(pattern) => {
                let mut claims = Cow::from(self.claimants.get(pattern).map(Vec::as_slice).unwrap_or_default());
                if claims.iter().any(|claims| self.expressions.refuses(&claims.precedence.name)) {
                    claims.to_mut().retain(|claims| !self.expressions.refuses(&claims.precedence.name));
                }
                let broader = self.broader(pattern);
                let (merged, trace) = context.traced(|context| merge::merge(pattern, &claims, &broader, context));
                self.settle(pattern, merged, &context.globals, work);
                trace
            }
            Part::Loans => {
                let (settled, trace) = context.traced(|context| merge::lend(&self.borrowers, &self.lenders, context));
                for (pattern, routes) in settled {
                    self.route(&pattern, Some(routes), work);
                }
                trace
            }
        };
        self.records.record(part, trace);
    }

    /// Sets what the Ingress `name` claims: `None` if it is not ours, or no more there.
    fn claim(&mut self, name: &ObjectName, claims: Option<Claims>, work: &mut Work) {
        let before = self.claims.get(name);
        if before.map(Arc::as_ref) == claims.as_ref() {
            return;
        }
        let before = self.claims.remove(name);
        let claims = claims.map(Arc::new);
        let sizes = claims.as_deref().map(|claims| (&claims.precedence, &claims.object, claims.expressions));
        if self.expressions.set(before.as_deref().map(|claims| &claims.precedence), sizes) {
            work.stale.insert(Part::Expressions);
        }
        for (pattern, claim) in before.iter().chain(&claims).flat_map(|claims| &claims.hosts) {
            let reaches_below = match pattern {
                HostPattern::Exact(_) => false,
                HostPattern::Wildcard(_) => true,
                HostPattern::Any => claim.certificate.is_some(),
            };
            if reaches_below {
                work.less_specific.insert(pattern.clone());
            }
        }
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

    /// The claims on the hosts that are less specific than `pattern`.
    fn broader(&self, pattern: &HostPattern) -> Vec<Broader<'_>> {
        let any = (*pattern != HostPattern::Any).then_some(HostPattern::Any);
        let less_specific = wildcard_of(pattern).into_iter().chain(any);
        let claimed = |pattern| self.claimants.get_key_value(&pattern);
        less_specific.filter_map(claimed).map(|(pattern, claims)| Broader { pattern, claims }).collect()
    }

    /// Makes anew the hosts that are served by one of `less_specific` where they have nothing of their own.
    fn look_below(&self, less_specific: &BTreeSet<HostPattern>, work: &mut Work) {
        let is_below = |pattern: &&HostPattern| {
            **pattern != HostPattern::Any && less_specific.contains(&HostPattern::Any)
                || wildcard_of(pattern).is_some_and(|wildcard| less_specific.contains(&wildcard))
        };
        work.stale.extend(self.claimants.keys().filter(is_below).cloned().map(Part::Host));
    }

    /// Sets what the claims on a host have come to. A host that borrows waits for those it may borrow from.
    fn settle(&mut self, pattern: &HostPattern, merged: Merged, globals: &Globals, work: &mut Work) {
        let Merged { host, certificate } = merged;
        match certificate {
            None => drop(self.table.server_names.remove(pattern)),
            Some(origin) if self.table.server_names.get(pattern) == Some(&origin) => {}
            Some(origin) => drop(self.table.server_names.insert(pattern.clone(), origin)),
        }
        let is_exact = matches!(pattern, HostPattern::Exact(_));
        let is_borrower = is_exact && host.as_ref().is_some_and(MergedHost::is_for_solvers);
        if is_borrower || self.borrowers.contains_key(pattern) || (!is_exact && !self.borrowers.is_empty()) {
            work.stale.insert(Part::Loans);
        }
        let routes = host.as_ref().map(|host| host.settle(None, globals));
        match host {
            Some(host) if is_borrower => {
                self.borrowers.insert(pattern.clone(), host);
                return;
            }
            Some(host) if !is_exact => drop(self.lenders.insert(pattern.clone(), host)),
            Some(_) | None => drop(self.lenders.remove(pattern)),
        }
        self.borrowers.remove(pattern);
        self.route(pattern, routes, work);
    }

    /// Sets the routes of a host in the table. One that comes out the same stays the same object.
    fn route(&mut self, pattern: &HostPattern, routes: Option<HostRoutes>, work: &mut Work) {
        fn upstreams(routes: &HostRoutes) -> impl Iterator<Item = &UpstreamKey> {
            let HostRoutes { rules, fallback, clients: _, passthrough: _ } = routes;
            rules.iter().chain(fallback.as_deref()).flat_map(Rule::upstreams)
        }
        if self.table.hosts.get(pattern).map(Arc::as_ref) == routes.as_ref() {
            return;
        }
        let routes = routes.map(Arc::new);
        let before = match &routes {
            Some(routes) => self.table.hosts.insert(pattern.clone(), Arc::clone(routes)),
            None => self.table.hosts.remove(pattern),
        };
        let (new, old) =
            (routes.iter().flat_map(|routes| upstreams(routes)), before.iter().flat_map(|routes| upstreams(routes)));
        self.count(new, old, work);
    }

    /// Sets the services of all ports of `transport`.
    fn stream(&mut self, transport: Transport, services: BTreeMap<StreamPort, StreamService>, work: &mut Work) {
        let before = self.table.streams.iter().filter(|(port, _)| port.transport == transport);
        let before: BTreeMap<_, _> = before.map(|(port, service)| (*port, service.clone())).collect();
        for port in before.keys().filter(|port| !services.contains_key(port)) {
            self.table.streams.remove(port);
        }
        for (port, service) in services.iter().filter(|(port, service)| before.get(port) != Some(service)) {
            self.table.streams.insert(*port, service.clone());
        }
        let upstreams = |services| BTreeMap::values(services).map(|service: &StreamService| &service.upstream);
        self.count(upstreams(&services), upstreams(&before), work);
    }

    /// Counts the upstreams of rules, and of the default, that came into the table and went out of it.
    fn count<'a>(
        &mut self,
        new: impl Iterator<Item = &'a UpstreamKey>,
        old: impl Iterator<Item = &'a UpstreamKey>,
        work: &mut Work,
    ) {
        for key in new {
            let uses = self.uses.entry(key.clone()).or_default();
            *uses += 1;
            if *uses == 1 {
                work.upstreams.insert(key.clone());
            }
        }
        for key in old {
            let Some(uses) = self.uses.get_mut(key) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(key);
                work.upstreams.insert(key.clone());
            }
        }
    }

    /// Brings the upstreams of the table up to date. A rule that lost to an older one may have been the only one with
    /// its upstream, so that it is gathered and not used.
    fn supply(&mut self, memo: &Memo, keys: BTreeSet<UpstreamKey>) {
        for key in keys {
            let gathered = memo.upstreams.get(&key).and_then(|(_, gathered)| gathered.upstream.as_ref());
            match gathered.filter(|_| self.uses.contains_key(&key)) {
                None => drop(self.table.upstreams.remove(&key)),
                Some(upstream) if self.table.upstreams.get(&key) == Some(upstream) => {}
                Some(upstream) => drop(self.table.upstreams.insert(key, Arc::clone(upstream))),
            }
        }
    }

    /// Brings the certificate of Secret `name` in the table up to date.
    fn certify(&mut self, name: &ObjectName, memo: &Memo) {
        match memo.certificates.get(name).map(Arc::as_ref) {
            Some(Content::Certificate { certificate, names: _ }) => {
                self.table.certificates.insert(Arc::clone(&certificate.origin), Arc::clone(certificate));
            }
            Some(Content::Nothing | Content::Broken { .. }) | None => {
                self.table.certificates.remove(name.to_string().as_str());
            }
        }
    }

    /// Drops from `memo`, and certificates from the table, what nobody asks for any more.
    fn tidy(&mut self, memo: &mut Memo) {
        while let Some(orphan) = self.records.take_orphan() {
            match orphan {
                Dependency::Upstream(key) => {
                    memo.upstreams.remove(&key);
                    self.records.forget(Part::Upstream(key));
                }
                Dependency::Machinery => {
                    memo.machinery = None;
                    self.records.forget(Part::Machinery);
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
                | Dependency::Addresses(_)
                | Dependency::Place
                | Dependency::Hour => {}
            }
        }
    }
}

/// The wildcard that serves an exact host which nothing names.
fn wildcard_of(pattern: &HostPattern) -> Option<HostPattern> {
    let HostPattern::Exact(name) = pattern else { return None };
    name.parent().and_then(|parent| Host::parse(parent).ok()).map(HostPattern::Wildcard)
}

/// What an Ingress claims, if it is ours.
fn claims(
    name: &ObjectName,
    stored: &Stored<k8s_openapi::api::networking::v1::Ingress>,
    context: &mut Context<'_>,
) -> Option<Claims> {
    let object = stored.refer(Kind::Ingress, name);
    class::is_ours(&stored.object, &object, context).then(|| ingress::claims(name, &stored.object, object, context))
}
