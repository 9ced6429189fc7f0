//! Keeps the rules of each hostname of a listener up to date. How those of several routes are merged is known to
//! [`host`](crate::translate::gateway::host).

use std::sync::Arc;

use super::{
    PendingWork, Translator,
    gateways::{GatewayRecords, targets, upstreams},
};
use crate::translate::{
    gateway::{host, route::MadeRoute},
    part::PartTrace,
};
use ingress_model::{HostPattern, Listener, ListenerName, ListenerProtocol, UpstreamKey};

impl Translator {
    pub(super) fn make_listener_host(
        &mut self,
        name: &ListenerName,
        pattern: &HostPattern,
        work: &mut PendingWork,
    ) -> PartTrace {
        let Some(listener) = self.table.listeners.get(name) else { return PartTrace::default() };
        let routes = self.gateways.staying(name, pattern);
        let mut changed = Listener::clone(listener);
        match changed.protocol {
            ListenerProtocol::Http | ListenerProtocol::Https => match routes.map(|routes| host::merge(name, &routes)) {
                None => drop(changed.hosts.remove(pattern)),
                Some(merged) if changed.hosts.get(pattern).map(Arc::as_ref) == Some(&merged) => {}
                Some(merged) => drop(changed.hosts.insert(pattern.clone(), Arc::new(merged))),
            },
            _ => match routes.map(|routes| host::stream(name, &routes)) {
                None => drop(changed.streams.remove(pattern)),
                Some(backends) if changed.streams.get(pattern) == Some(&backends) => {}
                Some(backends) => drop(changed.streams.insert(pattern.clone(), backends)),
            },
        }
        if changed == **listener {
            return PartTrace::default();
        }
        let before = self.table.listeners.insert(name.clone(), Arc::new(changed.clone()));
        let before = before.iter().flat_map(|listener| upstreams_at(listener, pattern));
        self.count(upstreams_at(&changed, pattern), before, work);
        PartTrace::default()
    }
}

// === impl GatewayRecords ===

impl GatewayRecords {
    /// Returns the routes for a hostname of a listener that do not yield; `None` if there are none.
    fn staying(&self, listener: &ListenerName, pattern: &HostPattern) -> Option<Vec<Arc<MadeRoute>>> {
        let yielding = self.yielding.get(listener);
        let stays = |route: &&Arc<MadeRoute>| yielding.is_none_or(|ids| !ids.contains_key(&route.precedence.id));
        let routes: Vec<_> = self.attached.get(listener)?.get(pattern)?.iter().filter(stays).cloned().collect();
        (!routes.is_empty()).then_some(routes)
    }
}

/// Returns the upstreams of a hostname of a listener.
fn upstreams_at<'l>(listener: &'l Listener, pattern: &HostPattern) -> impl Iterator<Item = &'l UpstreamKey> + use<'l> {
    let routes = listener.hosts.get(pattern).into_iter().flat_map(|routes| upstreams(routes));
    let backends = listener.streams.get(pattern).into_iter().flatten();
    routes.chain(backends.flat_map(|backends| targets(backends)))
}
