//! Keeps the rules of each hostname of a listener up to date, and the conflicts there. How rules are merged is known to
//! [`host`](crate::translate::gateway::host).

use std::{collections::HashMap, sync::Arc};

use super::{
    PendingWork, Translator,
    gateways::{GatewayRecords, targets, upstreams},
};
use crate::translate::{
    gateway::{host, route::MadeRoute, route_conflicts::RouteConflicts},
    part::{Part, PartTrace},
};
use ingress_model::{HostPattern, Listener, ListenerName, ListenerProtocol, UpstreamKey};

impl Translator {
    pub(super) fn make_listener_host(
        &mut self,
        name: &ListenerName,
        pattern: &HostPattern,
        work: &mut PendingWork,
    ) -> PartTrace {
        let Some(listener) = self.table.listeners.get(name) else {
            self.set_route_conflicts(name, pattern, RouteConflicts::new(), work);
            return PartTrace::default();
        };
        let routes = self.gateways.staying(name, pattern);
        let mut changed = Listener::clone(listener);
        let conflicts = match changed.protocol {
            ListenerProtocol::Http | ListenerProtocol::Https => {
                let (merged, conflicts) = host::merge(name, &routes);
                match changed.hosts.get(pattern) {
                    _ if routes.is_empty() => drop(changed.hosts.remove(pattern)),
                    Some(known) if **known == merged => {}
                    _ => drop(changed.hosts.insert(pattern.clone(), Arc::new(merged))),
                }
                conflicts
            }
            _ => {
                let (backends, conflicts) = host::stream(name, &routes);
                match changed.streams.get(pattern) {
                    _ if routes.is_empty() => drop(changed.streams.remove(pattern)),
                    Some(known) if *known == backends => {}
                    _ => drop(changed.streams.insert(pattern.clone(), backends)),
                }
                conflicts
            }
        };
        let listener = Arc::clone(listener);
        self.set_route_conflicts(name, pattern, conflicts, work);
        if changed == *listener {
            return PartTrace::default();
        }
        let before = self.table.listeners.insert(name.clone(), Arc::new(changed.clone()));
        let before = before.iter().flat_map(|listener| upstreams_at(listener, pattern));
        self.count(upstreams_at(&changed, pattern), before, work);
        PartTrace::default()
    }

    /// Sets the conflicts at a hostname of a listener. Only routes with other conflicts than before are told.
    fn set_route_conflicts(
        &mut self,
        listener: &ListenerName,
        pattern: &HostPattern,
        now: RouteConflicts,
        work: &mut PendingWork,
    ) {
        let before = self.gateways.route_conflicts.get_mut(listener).and_then(|hosts| hosts.remove(pattern));
        let before = before.unwrap_or_default();
        let ids = now.iter().filter(|(id, conflicts)| before.get(*id) != Some(*conflicts)).map(|(id, _)| id);
        let gone = before.keys().filter(|id| !now.contains_key(*id));
        work.stale.extend(ids.chain(gone).cloned().map(Part::RouteStatus));
        if !now.is_empty() {
            self.gateways.route_conflicts.entry(listener.clone()).or_default().insert(pattern.clone(), now);
        } else if self.gateways.route_conflicts.get(listener).is_some_and(HashMap::is_empty) {
            self.gateways.route_conflicts.remove(listener);
        }
    }
}

// === impl GatewayRecords ===

impl GatewayRecords {
    /// Returns the routes for a hostname of a listener that do not yield.
    fn staying(&self, listener: &ListenerName, pattern: &HostPattern) -> Vec<Arc<MadeRoute>> {
        let yielding = self.yielding.get(listener);
        let stays = |route: &&Arc<MadeRoute>| yielding.is_none_or(|ids| !ids.contains_key(&route.precedence.id));
        let routes = self.attached.get(listener).and_then(|hosts| hosts.get(pattern));
        routes.into_iter().flatten().filter(stays).cloned().collect()
    }
}

/// Returns the upstreams of a hostname of a listener.
fn upstreams_at<'l>(listener: &'l Listener, pattern: &HostPattern) -> impl Iterator<Item = &'l UpstreamKey> + use<'l> {
    let routes = listener.hosts.get(pattern).into_iter().flat_map(|routes| upstreams(routes));
    let backends = listener.streams.get(pattern).into_iter().flatten();
    routes.chain(backends.flat_map(|backends| targets(backends)))
}
