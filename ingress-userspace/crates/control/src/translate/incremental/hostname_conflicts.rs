//! Keeps up to date which HTTPRoutes and GRPCRoutes yield to older ones, and the statuses of routes. Which yield is known
//! to [`hostname_conflicts`](crate::translate::gateway::hostname_conflicts).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{PendingWork, Translator, gateways::GatewayRecords};
use crate::{
    change::{Kind, ObjectId},
    translate::{
        gateway::{
            hostname_conflicts::yielding,
            route::{MadeRoute, RoutePrecedence},
            route_conflicts::report,
        },
        lookup::Lookup,
        part::{Part, PartTrace},
    },
};
use ingress_model::{HostPattern, ListenerName};

impl Translator {
    /// The cost grows with the routes of the listener if it has both kinds; else there is nothing to compare.
    pub(super) fn make_hostname_conflicts(&mut self, listener: &ListenerName, work: &mut PendingWork) -> PartTrace {
        let now = self.conflicts(listener);
        let before = self.gateways.yielding.remove(listener).unwrap_or_default();
        let ids: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        for id in ids.into_iter().filter(|id| before.get(id) != now.get(id)) {
            let Some(route) = self.gateways.routes.get(id) else { continue };
            work.stale.insert(Part::RouteStatus(id.clone()));
            if before.contains_key(id) != now.contains_key(id) {
                let patterns = route.attachments.get(listener).into_iter().flatten();
                work.stale.extend(patterns.map(|pattern| Part::ListenerHost(listener.clone(), pattern.clone())));
                self.look_at_policies(route, work);
            }
        }
        if before.len() != now.len() {
            self.recount(listener, work);
        }
        if !now.is_empty() {
            self.gateways.yielding.insert(listener.clone(), now);
        }
        PartTrace::default()
    }

    pub(super) fn make_route_status(&mut self, id: &ObjectId, lookup: &Lookup<'_>) -> PartTrace {
        let GatewayRecords { yielding, route_conflicts, routes, .. } = &self.gateways;
        let yields_to = |listener: &ListenerName| yielding.get(listener)?.get(id);
        let conflicts = |listener: &ListenerName, pattern: &HostPattern| {
            let lost = route_conflicts.get(listener).and_then(|hosts| hosts.get(pattern)?.get(id));
            lost.map(Vec::as_slice).unwrap_or_default()
        };
        let (status, trace) = lookup.traced(|context| {
            let route = routes.get(id)?;
            report(route, conflicts, context.outcomes);
            Some(Arc::new(route.status(yields_to)))
        });
        self.show(id.clone(), status);
        trace
    }

    fn conflicts(&self, listener: &ListenerName) -> BTreeMap<ObjectId, ObjectId> {
        let counts = self.gateways.counts.get(listener);
        let has = |kind| counts.is_some_and(|counts| counts.contains_key(&kind));
        if !has(Kind::HttpRoute) || !has(Kind::GrpcRoute) {
            return BTreeMap::new();
        }
        let hosts = self.gateways.attached.get(listener).into_iter().flatten();
        let routes: BTreeMap<&RoutePrecedence, &Arc<MadeRoute>> =
            hosts.flat_map(|(_, routes)| routes).map(|route| (&route.precedence, route)).collect();
        yielding(routes.values().filter_map(|route| Some((&route.precedence.id, route.attachments.get(listener)?))))
    }
}
