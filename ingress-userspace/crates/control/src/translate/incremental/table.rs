//! Keeps the table up to date with the parts made. Unchanged entries stay the same objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{PendingWork, Translator};
use crate::{
    change::ObjectName,
    translate::{lookup::Memo, tls_secret::TlsSecretContent},
};
use ingress_model::{HostPattern, HostRoutes, Rule, StreamPort, StreamService, Transport, UpstreamKey};

impl Translator {
    /// Sets the routes of a host in the table. Unchanged routes stay the same object.
    pub(super) fn route(&mut self, pattern: &HostPattern, mut routes: Option<HostRoutes>, work: &mut PendingWork) {
        fn upstreams(routes: &HostRoutes) -> impl Iterator<Item = &UpstreamKey> {
            let HostRoutes { rules, fallback, clients: _, passthrough: _, refuses_http3: _ } = routes;
            rules.iter().chain(fallback.as_deref()).flat_map(Rule::upstreams)
        }
        if let Some(routes) = &mut routes {
            self.meters.silence(routes);
        }
        if self.table.hosts.get(pattern).map(Arc::as_ref) == routes.as_ref() {
            return;
        }
        // Other Ingresses may be in effect now.
        self.checks.touch();
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
    pub(super) fn stream(
        &mut self,
        transport: Transport,
        services: BTreeMap<StreamPort, StreamService>,
        work: &mut PendingWork,
    ) {
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

    /// Counts the upstreams of rules, and of the default, that entered the table or left it.
    pub(super) fn count<'a>(
        &mut self,
        new: impl Iterator<Item = &'a UpstreamKey>,
        old: impl Iterator<Item = &'a UpstreamKey>,
        work: &mut PendingWork,
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
    /// its upstream, which then is gathered but not used.
    pub(super) fn supply(&mut self, memo: &Memo, keys: BTreeSet<UpstreamKey>) {
        for key in keys {
            let gathered = memo.upstreams.get(&key).and_then(|(_, gathered)| gathered.upstream.as_ref());
            let gathered = gathered.filter(|_| self.uses.contains_key(&key));
            self.checks.set(&key, gathered.map(Arc::as_ref));
            match gathered {
                None => drop(self.table.upstreams.remove(&key)),
                Some(upstream) if self.table.upstreams.get(&key) == Some(upstream) => {}
                Some(upstream) => drop(self.table.upstreams.insert(key, Arc::clone(upstream))),
            }
        }
    }

    /// Brings the certificate of Secret `name` in the table up to date.
    pub(super) fn certify(&mut self, name: &ObjectName, memo: &Memo) {
        match memo.certificates.get(name).map(Arc::as_ref) {
            Some(TlsSecretContent::Certificate { certificate, names: _ }) => {
                self.table.certificates.insert(Arc::clone(&certificate.origin), Arc::clone(certificate));
            }
            Some(TlsSecretContent::Nothing | TlsSecretContent::Broken { .. }) | None => {
                self.table.certificates.remove(name.to_string().as_str());
            }
        }
    }
}
