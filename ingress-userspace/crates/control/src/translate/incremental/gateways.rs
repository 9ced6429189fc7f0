//! Keeps Gateways, their listeners and their routes up to date in the table and in the statuses. How each is made is
//! known to [`gateway`](crate::translate::gateway).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{PendingWork, Translator};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    cluster::Cluster,
    object_status::ObjectStatus,
    translate::{
        Context,
        features::Globals,
        few::{self, Few},
        gateway::{
            backend_tls::{self, Policy},
            class, grpc_route, http_route,
            parent::{self, Parent, ServedListener},
            placement::{self, Placement},
            route::MadeRoute,
            route_conflicts::RouteConflicts,
            stream_route,
        },
        lookup::Lookup,
        part::{Dependency, Part, PartTrace},
    },
};
use ingress_model::{HostPattern, HostRoutes, Listener, ListenerName, Rule, UpstreamKey, WeightedBackends};

/// State of the Gateway API, kept from one translation to the next.
#[derive(Default)]
pub(super) struct GatewayRecords {
    placement: Placement,
    parents: HashMap<ObjectId, Parent>,
    /// The Gateway or ListenerSet of each listener.
    owners: HashMap<ListenerName, ObjectId>,
    pub(super) routes: HashMap<ObjectId, Arc<MadeRoute>>,
    /// Routes of each listener by hostname, in order of precedence.
    pub(super) attached: HashMap<ListenerName, BTreeMap<HostPattern, Vec<Arc<MadeRoute>>>>,
    /// Routes by the Services that they name.
    users: HashMap<ObjectName, Few<ObjectId>>,
    policies: HashMap<ObjectName, Policy>,
    /// Policies by the Services that they target.
    policies_of: HashMap<ObjectName, BTreeSet<ObjectName>>,
    /// Number of routes of each listener by kind, with those that yield.
    pub(super) counts: HashMap<ListenerName, BTreeMap<Kind, u32>>,
    /// Routes of each listener that yield, with the older routes to which they do.
    pub(super) yielding: HashMap<ListenerName, BTreeMap<ObjectId, ObjectId>>,
    /// Matches of each hostname of a listener that get no requests.
    pub(super) route_conflicts: HashMap<ListenerName, HashMap<HostPattern, RouteConflicts>>,
}

/// Returns the parts for objects that came, changed or went.
pub(super) fn changed(known: &Cluster, cluster: &Cluster) -> BTreeSet<Part> {
    let classes = known.gateway_classes().differences(cluster.gateway_classes()).into_iter();
    let classes = classes.map(|difference| Part::GatewayClass(difference.key.clone()));
    let mut changed: BTreeSet<_> = classes.collect();
    macro_rules! routes {
        ($($kind:ident: $store:ident),*) => { $(
            let differences = known.$store().differences(cluster.$store()).into_iter();
            let id = |name: &ObjectName| ObjectId { kind: Kind::$kind, name: name.clone() };
            changed.extend(differences.map(|difference| Part::Route(id(difference.key))));
        )* };
    }
    routes!(HttpRoute: http_routes, GrpcRoute: grpc_routes, TlsRoute: tls_routes);
    routes!(TcpRoute: tcp_routes, UdpRoute: udp_routes);
    let policies = known.backend_tls_policies().differences(cluster.backend_tls_policies()).into_iter();
    changed.extend(policies.map(|difference| Part::Policy(difference.key.clone())));
    changed
}

/// Returns the parts of all routes that depend on the settings.
pub(super) fn routes(cluster: &Cluster) -> impl Iterator<Item = Part> {
    let part = |kind| move |name: &ObjectName| Part::Route(ObjectId { kind, name: name.clone() });
    let http = cluster.http_routes().keys().map(part(Kind::HttpRoute));
    http.chain(cluster.grpc_routes().keys().map(part(Kind::GrpcRoute)))
}

impl Translator {
    pub(super) fn make_gateway_class(&mut self, name: &ObjectName, cluster: &Cluster) -> PartTrace {
        let class = cluster.gateway_classes().get(name).filter(|stored| stored.object.is_ours());
        let status = class.map(|stored| class::status(&stored.object, &self.options).into());
        self.show(ObjectId { kind: Kind::GatewayClass, name: name.clone() }, status);
        PartTrace::default()
    }

    pub(super) fn make_placement(&mut self, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let (placement, trace) = lookup.traced(|context| placement::place(context.lookup));
        let before = std::mem::replace(&mut self.gateways.placement, placement);
        let Placement { parents, binds } = &self.gateways.placement;
        let ids: BTreeSet<_> = before.parents.keys().chain(parents.keys()).collect();
        let changed = ids.into_iter().filter(|id| before.parents.get(id) != parents.get(id));
        work.stale.extend(changed.cloned().map(Part::Parent));
        for bind in before.binds.keys().filter(|bind| !binds.contains_key(bind)) {
            self.table.binds.remove(bind);
        }
        for (bind, bound) in binds.iter().filter(|(bind, bound)| before.binds.get(bind) != Some(bound)) {
            self.table.binds.insert(*bind, Arc::new(bound.clone()));
        }
        trace
    }

    pub(super) fn make_parent(&mut self, id: &ObjectId, lookup: &Lookup<'_>, work: &mut PendingWork) -> PartTrace {
        let placed = self.gateways.placement.parents.get(id).cloned();
        let (made, trace) = lookup.traced(|context| parent::make(id, placed.as_deref()?, context));
        let view = made.as_ref().map(|parent| Arc::clone(&parent.view));
        let before = lookup.with_memo(|memo| match &view {
            Some(view) => memo.parents.insert(id.clone(), Arc::clone(view)),
            None => memo.parents.remove(id),
        });
        if before != view {
            work.stale.extend(self.records.dependents_of(&Dependency::Parent(id.clone())).cloned());
        }
        let before = self.gateways.parents.remove(id);
        let names = |parent: &Parent| -> BTreeSet<ListenerName> {
            parent.listeners.iter().map(|listener| listener.name.clone()).collect()
        };
        let (old, new) = (before.iter().flat_map(names), made.iter().flat_map(names).collect::<BTreeSet<_>>());
        for name in old.filter(|name| !new.contains(name)) {
            self.gateways.owners.remove(&name);
            self.serve(&name, None, work);
        }
        for listener in made.iter().flat_map(|parent| &parent.listeners) {
            self.gateways.owners.insert(listener.name.clone(), id.clone());
            self.serve(&listener.name, listener.served.as_ref(), work);
        }
        let gateways = before.iter().chain(&made).filter_map(|parent| parent.gateway.clone());
        let of = |parent: &Option<Parent>| parent.as_ref().and_then(|parent| parent.gateway.clone());
        if of(&before) != of(&made) {
            // Routes see no difference, but policies concern another Gateway.
            work.stale.extend(self.gateways.policies.keys().cloned().map(Part::Policy));
        }
        work.stale.extend(gateways.map(Part::ParentStatus));
        if let Some(made) = made {
            self.gateways.parents.insert(id.clone(), made);
        }
        work.stale.insert(Part::ParentStatus(id.clone()));
        trace
    }

    pub(super) fn make_route(
        &mut self,
        id: &ObjectId,
        cluster: &Cluster,
        lookup: &Lookup<'_>,
        work: &mut PendingWork,
    ) -> PartTrace {
        let (made, trace) = lookup.traced(|context| route(id, cluster, &self.globals, context));
        let before = self.gateways.routes.get(id).cloned();
        if before.as_deref() == made.as_ref() {
            return trace;
        }
        let made = made.map(Arc::new);
        work.stale.insert(Part::RouteStatus(id.clone()));
        if let Some(route) = before {
            self.detach(&route, work);
        }
        match made {
            None => drop(self.gateways.routes.remove(id)),
            Some(route) => {
                self.attach(&route, work);
                self.gateways.routes.insert(id.clone(), route);
            }
        }
        trace
    }

    pub(super) fn make_policy(&mut self, name: &ObjectName, lookup: &Lookup<'_>) -> PartTrace {
        let (made, trace) = lookup.traced(|context| backend_tls::make(name, context.lookup));
        let GatewayRecords { users, routes, owners, parents, policies, policies_of, yielding, .. } = &mut self.gateways;
        let stays = |listener: &ListenerName, id| yielding.get(listener).is_none_or(|routes| !routes.contains_key(id));
        for service in policies.remove(name).into_iter().flat_map(|policy| policy.services) {
            if let Some(known) = policies_of.get_mut(&service) {
                known.remove(name);
                if known.is_empty() {
                    policies_of.remove(&service);
                }
            }
        }
        let mut gateways = BTreeSet::new();
        for service in made.iter().flat_map(|policy| &policy.services) {
            policies_of.entry(service.clone()).or_default().insert(name.clone());
            let routes = users.get(service).into_iter().flat_map(Few::iter).filter_map(|id| routes.get(id));
            let listeners = routes
                .flat_map(|route| route.attachments.iter().map(move |(listener, _)| (listener, &route.precedence.id)))
                .filter(|(listener, id)| stays(listener, id));
            for owner in listeners.filter_map(|(listener, _)| owners.get(listener)) {
                let gateway = parents.get(owner).and_then(|parent| parent.gateway.as_ref()).unwrap_or(owner);
                gateways.insert(gateway.name.clone());
            }
        }
        let shown = made.as_ref().filter(|policy| policy.is_of_selected);
        let status = shown.and_then(|policy| policy.status(&gateways)).map(Arc::new);
        if let Some(made) = made {
            policies.insert(name.clone(), made);
        }
        self.show(ObjectId { kind: Kind::BackendTlsPolicy, name: name.clone() }, status);
        trace
    }

    pub(super) fn make_parent_status(&mut self, id: &ObjectId) -> PartTrace {
        let GatewayRecords { parents, counts, yielding, .. } = &self.gateways;
        let count = |name: &ListenerName| {
            let all: u32 = counts.get(name).into_iter().flat_map(BTreeMap::values).sum();
            let yielding = yielding.get(name).map_or(0, BTreeMap::len);
            all.saturating_sub(u32::try_from(yielding).unwrap_or(u32::MAX))
        };
        let is_accepted = |set: &ObjectId| parents.get(set).is_some_and(Parent::is_accepted);
        let status = parents.get(id).map(|parent| Arc::new(parent.status(count, is_accepted)));
        self.show(id.clone(), status);
        PartTrace::default()
    }

    /// Sets the status of an object. An unchanged one stays the same object.
    pub(super) fn show(&mut self, id: ObjectId, status: Option<Arc<ObjectStatus>>) {
        match status {
            None => drop(self.statuses.remove(&id)),
            Some(status) if self.statuses.get(&id) == Some(&status) => {}
            Some(status) => {
                // Most routes of a Gateway show the same.
                let status = self.shown_last.take().filter(|last| *last == status).unwrap_or(status);
                self.shown_last = Some(Arc::clone(&status));
                self.statuses.insert(id, status);
            }
        }
    }

    /// Sets a listener in the table, or removes it. Routes for its protocol do not stay at another one.
    fn serve(&mut self, name: &ListenerName, served: Option<&ServedListener>, work: &mut PendingWork) {
        let stays = |listener: &Arc<Listener>| served.is_some_and(|served| served.protocol == listener.protocol);
        let known = self.table.listeners.get(name).cloned().filter(stays);
        if known.is_none()
            && let Some(listener) = self.table.listeners.remove(name)
        {
            let streams = listener.streams.values().flatten();
            let old = listener.hosts.values().flat_map(|routes| upstreams(routes));
            let old = old.chain(streams.flat_map(|backends| targets(backends)));
            self.count(std::iter::empty(), old, work);
            let conflicts = self.gateways.route_conflicts.get(name).into_iter().flat_map(HashMap::keys);
            work.stale.extend(conflicts.map(|pattern| Part::ListenerHost(name.clone(), pattern.clone())));
        }
        let Some(ServedListener { protocol, certificates, clients }) = served else { return };
        let is_new = known.is_none();
        let before = known.unwrap_or_else(|| Listener::new(*protocol).into());
        let listener = Listener {
            protocol: *protocol,
            certificates: certificates.clone(),
            clients: clients.clone(),
            ..Listener::clone(&before)
        };
        if is_new || listener != *before {
            self.table.listeners.insert(name.clone(), Arc::new(listener));
        }
        if is_new {
            let hostnames = self.gateways.attached.get(name).into_iter().flat_map(BTreeMap::keys);
            work.stale.extend(hostnames.map(|pattern| Part::ListenerHost(name.clone(), pattern.clone())));
        }
    }

    fn attach(&mut self, route: &Arc<MadeRoute>, work: &mut PendingWork) {
        for service in &route.services {
            few::add(&mut self.gateways.users, service, route.precedence.id.clone());
        }
        self.look_at_policies(route, work);
        for (listener, patterns) in route.attachments.iter() {
            let counts = self.gateways.counts.entry(listener.clone()).or_default();
            *counts.entry(route.precedence.id.kind).or_default() += 1;
            self.recount(listener, work);
            work.stale.insert(Part::HostnameConflicts(listener.clone()));
            for pattern in patterns {
                let hosts = self.gateways.attached.entry(listener.clone()).or_default();
                let routes = hosts.entry(pattern.clone()).or_insert_with(|| Vec::with_capacity(1));
                let at = routes.partition_point(|other| other.precedence < route.precedence);
                routes.insert(at, Arc::clone(route));
                work.stale.insert(Part::ListenerHost(listener.clone(), pattern.clone()));
            }
        }
    }

    fn detach(&mut self, route: &MadeRoute, work: &mut PendingWork) {
        for service in &route.services {
            few::remove(&mut self.gateways.users, service, &route.precedence.id);
        }
        self.look_at_policies(route, work);
        for (listener, patterns) in route.attachments.iter() {
            self.gateways.count_down(listener, route.precedence.id.kind);
            self.recount(listener, work);
            work.stale.insert(Part::HostnameConflicts(listener.clone()));
            for pattern in patterns {
                let Some(hosts) = self.gateways.attached.get_mut(listener) else { continue };
                if let Some(routes) = hosts.get_mut(pattern) {
                    routes.retain(|other| other.precedence.id != route.precedence.id);
                    if routes.is_empty() {
                        hosts.remove(pattern);
                    }
                }
                if hosts.is_empty() {
                    self.gateways.attached.remove(listener);
                }
                work.stale.insert(Part::ListenerHost(listener.clone(), pattern.clone()));
            }
        }
    }

    /// Marks the policies of a route's Services as stale, because they may concern other Gateways now.
    pub(super) fn look_at_policies(&self, route: &MadeRoute, work: &mut PendingWork) {
        let policies = route.services.iter().filter_map(|service| self.gateways.policies_of.get(service)).flatten();
        work.stale.extend(policies.cloned().map(Part::Policy));
    }

    /// Marks the status with the count of a listener as stale.
    pub(super) fn recount(&self, listener: &ListenerName, work: &mut PendingWork) {
        work.stale.extend(self.gateways.owners.get(listener).cloned().map(Part::ParentStatus));
    }
}

// === impl GatewayRecords ===

impl GatewayRecords {
    fn count_down(&mut self, listener: &ListenerName, kind: Kind) {
        let Some(counts) = self.counts.get_mut(listener) else { return };
        if let Some(count) = counts.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&kind);
            }
        }
        if counts.is_empty() {
            self.counts.remove(listener);
        }
    }
}

fn route(id: &ObjectId, cluster: &Cluster, globals: &Globals, context: &mut Context<'_, '_>) -> Option<MadeRoute> {
    let name = &id.name;
    if !context.selects(&name.namespace) {
        return None;
    }
    match id.kind {
        Kind::HttpRoute => http_route::make(id, cluster.http_routes().get(name)?, globals, context),
        Kind::GrpcRoute => grpc_route::make(id, cluster.grpc_routes().get(name)?, globals, context),
        Kind::TlsRoute => stream_route::make(id, cluster.tls_routes().get(name)?, context),
        Kind::TcpRoute => stream_route::make(id, cluster.tcp_routes().get(name)?, context),
        Kind::UdpRoute => stream_route::make(id, cluster.udp_routes().get(name)?, context),
        _ => None,
    }
}

pub(super) fn upstreams(routes: &HostRoutes) -> impl Iterator<Item = &UpstreamKey> {
    routes.rules.iter().flat_map(Rule::upstreams)
}

pub(super) fn targets(backends: &WeightedBackends) -> impl Iterator<Item = &UpstreamKey> {
    backends.as_slice().iter().filter_map(|backend| backend.target.as_ref().ok())
}
