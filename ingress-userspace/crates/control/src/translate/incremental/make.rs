//! Makes one part, and marks the parts as stale that depend on its result if that has changed.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::Ingress;

use super::{PendingWork, Translator, gateways};
use crate::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
    translate::{
        certificate_secret,
        claims::Claims,
        class,
        cluster_addresses::ClusterAddresses,
        context::Context,
        expressions,
        features::Globals,
        gather::gather,
        ingress,
        lookup::Lookup,
        merge,
        part::{Dependency, Part, PartTrace},
        service, settings, shares, streams, tickets,
    },
};
use ingress_model::{Action, HostPattern, Transport, UpstreamKey};

impl Translator {
    pub(super) fn make(&mut self, part: Part, cluster: &Cluster, lookup: &Lookup<'_>, work: &mut PendingWork) {
        let trace = match &part {
            Part::Globals => Some(self.make_globals(cluster, lookup, work)),
            Part::ClusterAddresses => Some(self.make_cluster_addresses(lookup, work)),
            Part::Upstream(key) => self.make_upstream(key, lookup, work),
            Part::Certificate(name) => Some(self.make_certificate(name, lookup, work)),
            Part::Ingress(name) => Some(self.make_ingress(name, cluster, lookup, work)),
            Part::DefaultBackend => Some(self.make_default_backend(lookup, work)),
            Part::FallbackCertificate => Some(self.make_fallback_certificate(lookup)),
            Part::Streams(transport) => Some(self.make_streams(*transport, lookup, work)),
            Part::TicketKeys => Some(self.make_ticket_keys(lookup)),
            Part::Expressions => Some(self.make_expressions(lookup, work)),
            Part::Shares => Some(self.make_shares(lookup, work)),
            Part::Meters => Some(self.make_meters(lookup, work)),
            Part::Host(pattern) => Some(self.make_host(pattern, lookup, work)),
            Part::InheritedRoutes => Some(self.make_inherited_routes(lookup, work)),
            Part::GatewayClass(name) => Some(self.make_gateway_class(name, cluster)),
            Part::Placement => Some(self.make_placement(lookup, work)),
            Part::Parent(id) => Some(self.make_parent(id, lookup, work)),
            Part::Route(id) => Some(self.make_route(id, cluster, lookup, work)),
            Part::HostnameConflicts(listener) => Some(self.make_hostname_conflicts(listener, work)),
            Part::Policy(name) => Some(self.make_policy(name, lookup)),
            Part::ListenerHost(listener, pattern) => Some(self.make_listener_host(listener, pattern, work)),
            Part::RouteStatus(id) => Some(self.make_route_status(id, lookup)),
            Part::ParentStatus(id) => Some(self.make_parent_status(id)),
            Part::Checks => self.make_checks(lookup, work),
        };
        if let Some(trace) = trace {
            self.records.record(part, trace);
        }
    }

    fn make_globals(&mut self, cluster: &Cluster, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (globals, trace) = lookup.traced(settings::globals);
        if globals != *self.globals {
            self.globals = Arc::new(globals);
            work.stale.extend(cluster.ingresses.keys().cloned().map(Part::Ingress));
            work.stale.extend(self.claimants.keys().cloned().map(Part::Host));
            work.stale.extend(gateways::routes(cluster));
            self.table.settings = self.globals.settings.clone();
            self.table.forwarding = Arc::clone(&self.globals.forwarding);
        }
        trace
    }

    fn make_cluster_addresses(&self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
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

    /// Returns `None` if the upstream is not used.
    fn make_upstream(&self, key: &UpstreamKey, lookup: &Lookup<'_>, work: &mut PendingWork) -> Option<PartTrace> {
        let (destination, known) = lookup.with_memo(|memo| memo.upstreams.get(key).cloned())?;
        let (gathered, trace) = lookup.traced(|context| gather(&destination, context));
        if !gathered.looks_like(&known) {
            work.stale.extend(self.records.dependents_of(&Dependency::Upstream(key.clone())).cloned());
        }
        let entry = (destination, Arc::new(gathered));
        lookup.with_memo(|memo| memo.upstreams.insert(key.clone(), entry));
        work.upstreams.insert(key.clone());
        Some(trace)
    }

    fn make_certificate(&mut self, name: &ObjectName, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
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

    fn make_ingress(
        &mut self,
        name: &ObjectName,
        cluster: &Cluster,
        lookup: &Lookup<'_>,
        work: &mut PendingWork,
    ) -> PartTrace {
        let stored = cluster.ingresses.get(name);
        let (claims, trace) = lookup.traced(|context| claims(name, stored?, &self.globals, context));
        self.claim(name, claims, work);
        trace
    }

    fn make_default_backend(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let name = self.options.default_backend.clone();
        let (default, trace) = lookup.traced(|context| service::default(name.as_ref()?, None, context));
        let before = std::mem::replace(&mut self.table.default, default.clone());
        let (new, old) = (default.iter().flat_map(Action::upstreams), before.iter().flat_map(Action::upstreams));
        self.count(new, old, work);
        trace
    }

    fn make_fallback_certificate(&mut self, lookup: &Lookup<'_>) -> PartTrace {
        let name = self.options.default_certificate.clone();
        let (certificate, trace) = lookup.traced(|context| certificate_secret::fallback(name.as_ref()?, context));
        self.table.fallback_certificate = certificate;
        trace
    }

    fn make_streams(&mut self, transport: Transport, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (services, trace) = lookup.traced(|context| streams::services(transport, context));
        self.stream(transport, services, work);
        trace
    }

    fn make_ticket_keys(&mut self, lookup: &Lookup<'_>) -> PartTrace {
        let name = self.options.ticket_secret.clone();
        let (keys, trace) = lookup.traced(|context| tickets::keys(name.as_ref()?, context));
        self.table.ticket_keys = keys;
        trace
    }

    fn make_expressions(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (changed, trace) = lookup.traced(|context| expressions::judge(&mut self.expressions, context.outcomes));
        self.look_at_claims_of(&changed, work);
        trace
    }

    fn make_shares(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (changed, trace) = lookup.traced(|context| shares::judge(&mut self.shares, context.outcomes));
        self.look_at_claims_of(&changed, work);
        trace
    }

    fn make_meters(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (changed, trace) = lookup.traced(|context| self.meters.judge(context.outcomes));
        self.look_at_hosts_of(&changed, work);
        trace
    }

    fn make_host(&mut self, pattern: &HostPattern, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let claims = self.standing_claims(pattern);
        let broader = self.broader(pattern);
        let (merged, trace) = lookup.traced(|context| merge::merge(pattern, &claims, &broader, &self.globals, context));
        let claimants = self.claimants.get(pattern).into_iter().flatten().map(|claims| &claims.precedence.name);
        let vain = claimants.filter(|name| !merged.in_effect.contains(name)).cloned().collect();
        self.effects.set(pattern, vain);
        self.settle(pattern, merged, work);
        trace
    }

    fn make_inherited_routes(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (settled, trace) = lookup.traced(|context| {
            merge::inherit_routes(&self.challenge_hosts, &self.ancestors, &self.globals, context.outcomes)
        });
        for (pattern, routes) in settled {
            self.route(&pattern, Some(routes), work);
        }
        trace
    }

    /// Returns `None` if nothing has changed that concerns the checks.
    fn make_checks(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> Option<PartTrace> {
        lookup.with_memo(|memo| self.supply(memo, std::mem::take(&mut work.upstreams)));
        if !self.checks.take_stale() {
            return None;
        }
        let in_effect = self.in_effect();
        let (_, trace) = lookup.traced(|context| self.checks.judge(&self.claims, &in_effect, context.outcomes));
        Some(trace)
    }
}

/// Returns the claims of an Ingress, if it belongs to this controller.
fn claims(
    name: &ObjectName,
    stored: &Stored<Ingress>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Option<Claims> {
    let object = stored.refer(Kind::Ingress, name);
    let ours = class::ours(&stored.object, &object, context)?;
    Some(ingress::claims(name, &stored.object, object, ours, globals, context))
}
