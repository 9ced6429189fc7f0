//! The configuration that requests use, compiled from a route table: immutable, and swapped as a whole. It watches
//! nothing.
//!
//! ```text
//! RouteTable ──┐
//!              ├─ Snapshot::compile ──> Shared::publish (one atomic swap) ──> requests
//! previous ────┘  (ids, health and loaded keys carry over)
//! ```

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ingress_model::{
    Forwarding, HostId, HostName, HostPattern, Protocol, RouteTable, Settings, StreamPort, StreamService, Transport,
    Tree, Upstream, UpstreamKey, UpstreamTls, Verify,
    route::{HostEntry, Routes, UpstreamId},
    tree::Difference,
};

use crate::{
    alt_svc::{self, Withdrawn},
    auth::jwt::JwksCaches,
    listeners::Listeners,
    server::clock,
    tls::{
        certificates::{CertificateProblem, Certificates},
        ticket_keys::Seals,
    },
    upstream::{Connector, ExchangeLimits, balance::UpstreamState},
};

/// A consistent state of the configuration. A request keeps the snapshot it began with to its end.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The generation of the previous snapshot plus one.
    pub generation: u64,
    /// The hosts of Ingresses.
    pub routes: Routes,
    pub(crate) listeners: Listeners,
    pub certificates: Certificates,
    pub settings: Settings,
    /// Ticket keys from the configuration, if any; otherwise the process uses keys of its own.
    pub(crate) seals: Option<Arc<Seals>>,
    /// Forwarding of requests without a route.
    pub(crate) forwarding: Arc<Forwarding>,
    /// Hosts that HTTP/3 does not serve any more.
    pub(crate) withdrawn: Withdrawn,
    /// JWKS caches that rules use.
    pub(crate) jwks_caches: JwksCaches,
    /// Services of the non-HTTP ports.
    pub streams: Tree<StreamPort, StreamService>,
    /// Number under which each port of a TCP service is counted.
    stream_ids: BTreeMap<StreamPort, HostId>,
    upstreams: Upstreams,
}

impl Snapshot {
    /// Compiles `table`. State that belongs to the same key carries over from `previous`: upstream numbers, endpoint
    /// health, and keys of unchanged certificates.
    ///
    /// The cost is proportional to the difference from the table of `previous`.
    ///
    /// Total: an unusable certificate is reported, and its names are served with the fallback certificate.
    pub fn compile(
        previous: Option<&Self>,
        table: &RouteTable,
        mut host_id: impl FnMut(HostName<'_>) -> Option<HostId>,
    ) -> (Self, Vec<CertificateProblem>) {
        let (certificates, mut problems) = Certificates::load(previous.map(|snapshot| &snapshot.certificates), table);
        let mut upstreams = previous.map(|snapshot| snapshot.upstreams.clone()).unwrap_or_default();
        upstreams.update(&table.upstreams);
        problems.extend(upstreams.broken.values().cloned());
        let previous_routes = previous.map(|snapshot| &snapshot.routes);
        let of_ingresses = |pattern: &HostPattern| host_id(HostName { listener: None, pattern });
        let routes = Routes::compile(previous_routes, table, |key| upstreams.id(key), of_ingresses);
        let previous_listeners = previous.map(|snapshot| &snapshot.listeners);
        let listeners = Listeners::compile(previous_listeners, table, |key| upstreams.id(key), host_id);
        let mut jwks_caches = previous.map(|snapshot| snapshot.jwks_caches.clone()).unwrap_or_default();
        jwks_caches.update(&table.hosts);
        // The snapshot before the first configuration has served no host.
        let before = previous.filter(|snapshot| snapshot.generation > 0).map(|snapshot| &snapshot.settings);
        let withdrawn = previous.map(|snapshot| snapshot.withdrawn.clone()).unwrap_or_default();
        let withdrawn = withdrawn.next(before, table, clock::now());
        let generation = previous.map_or(1, |snapshot| snapshot.generation + 1);
        let (settings, forwarding) = (table.settings.clone(), Arc::clone(&table.forwarding));
        let streams = table.streams.clone();
        let seals = Seals::carry(previous.and_then(|snapshot| snapshot.seals.as_ref()), table.ticket_keys.as_ref());
        (
            Self {
                generation,
                routes,
                listeners,
                certificates,
                settings,
                seals,
                forwarding,
                withdrawn,
                jwks_caches,
                streams,
                stream_ids: BTreeMap::new(),
                upstreams,
            },
            problems,
        )
    }

    /// Returns the limits of an exchange with an endpoint.
    pub(crate) fn limits(&self, forwarding: &Forwarding) -> ExchangeLimits {
        let Forwarding { connect_timeout, read_timeout, send_timeout, response_head_max, .. } = *forwarding;
        ExchangeLimits {
            connect_timeout,
            read_timeout,
            send_timeout,
            client_timeout: self.settings.stall_timeout,
            head_max: response_head_max,
            ..ExchangeLimits::default()
        }
    }

    /// Returns how many hosts have no number of their own.
    #[must_use]
    pub fn unnumbered(&self) -> usize {
        self.routes.unnumbered() + self.listeners.unnumbered()
    }

    /// Returns the hosts of Ingresses that have no number of their own.
    #[must_use]
    pub fn unnumbered_hosts(&self) -> &Tree<HostPattern, ()> {
        self.routes.unnumbered_hosts()
    }

    /// Returns whether a TCP service or a Gateway has this port.
    #[must_use]
    pub fn has_tcp_port(&self, number: u16) -> bool {
        let port = StreamPort { transport: Transport::Tcp, number };
        self.streams.contains_key(&port) || self.listeners.has_port(port)
    }

    /// Returns the ports of TCP and UDP services and of Gateways.
    #[must_use]
    pub fn ports(&self) -> BTreeSet<StreamPort> {
        self.streams.keys().copied().chain(self.listeners.ports()).collect()
    }

    /// Returns whether HTTP/3 serves a host.
    pub(crate) fn serves_http3(&self, host: Option<&HostEntry>) -> bool {
        alt_svc::is_permitted(&self.settings) && host.is_none_or(HostEntry::takes_http3)
    }

    /// Returns the upstream that a route of this snapshot names.
    pub(crate) fn upstream(&self, id: UpstreamId) -> Option<&UpstreamState> {
        self.upstreams.get(id).map(Arc::as_ref)
    }

    /// Same as [`Self::upstream`], for owners that outlive the snapshot.
    pub(crate) fn shared_upstream(&self, id: UpstreamId) -> Option<&Arc<UpstreamState>> {
        self.upstreams.get(id)
    }

    /// Returns the upstreams with health checks.
    pub(crate) fn checked_upstreams(&self) -> impl Iterator<Item = &UpstreamState> {
        self.upstreams.checked.iter().filter_map(|(_, id)| self.upstream(*id))
    }

    /// Returns every upstream.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &UpstreamState> {
        self.upstreams.blocks.iter().flat_map(|block| block.iter().flatten()).map(Arc::as_ref)
    }

    /// Returns the service of a non-HTTP port, and its upstream.
    pub(crate) fn stream(&self, port: StreamPort) -> Option<(&StreamService, &Arc<UpstreamState>)> {
        let service = self.streams.get(&port)?;
        Some((service, self.upstreams.get(self.upstream_id(&service.upstream)?)?))
    }

    /// Assigns each TCP service the number under which its connections are counted, as `number` says. Connections of
    /// ports without one are unattributed.
    pub fn number_streams(&mut self, mut number: impl FnMut(StreamPort) -> HostId) {
        let ports = self.streams.keys().filter(|port| port.transport == Transport::Tcp);
        self.stream_ids = ports.map(|port| (*port, number(*port))).collect();
    }

    pub(crate) fn stream_id(&self, port: StreamPort) -> HostId {
        self.stream_ids.get(&port).copied().unwrap_or(HostId::UNATTRIBUTED)
    }

    /// Returns the number of `key`. It is the same in later snapshots for as long as the key is in the table.
    #[must_use]
    pub fn upstream_id<K: Ord + ?Sized>(&self, key: &K) -> Option<UpstreamId>
    where
        UpstreamKey: Borrow<K>,
    {
        self.upstreams.ids.get(key).copied()
    }
}

/// The upstreams of a snapshot by number. A key keeps its previous number or gets a free one.
///
/// Clones share unchanged state: states lie in blocks, and a change copies one block.
#[derive(Clone, Debug, Default)]
struct Upstreams {
    ids: Tree<UpstreamKey, UpstreamId>,
    /// States by number; `None` once the upstream is gone.
    blocks: Vec<Arc<[Option<Arc<UpstreamState>>; BLOCK]>>,
    /// Numbers below `next` that are unused in this snapshot and in the one before.
    free: Vec<u32>,
    next: u32,
    /// Connectors for endpoints with TLS but without a policy of their own, the common case. They share a connector and
    /// with it TLS sessions.
    plain: BTreeMap<Protocol, Arc<Connector>>,
    /// Upstreams with a policy that cannot be applied, so that no request may be sent to them.
    broken: BTreeMap<UpstreamKey, CertificateProblem>,
    /// Upstreams with health checks.
    checked: Tree<UpstreamKey, UpstreamId>,
    /// The table's upstreams that the states were made from.
    source: Tree<UpstreamKey, Arc<Upstream>>,
}

/// States in one block.
const BLOCK: usize = 256;

impl Upstreams {
    fn get(&self, UpstreamId(number): UpstreamId) -> Option<&Arc<UpstreamState>> {
        let number = number as usize;
        self.blocks.get(number / BLOCK)?[number % BLOCK].as_ref()
    }

    /// Updates the upstreams to those of `table`.
    fn update(&mut self, table: &Tree<UpstreamKey, Arc<Upstream>>) {
        let known = std::mem::replace(&mut self.source, table.clone());
        let mut freed = Vec::new();
        for Difference { key, old: _, new } in known.differences(table) {
            match new {
                Some(upstream) => drop(self.insert(key, upstream)),
                None => {
                    self.broken.remove(key);
                    self.checked.remove(key);
                    if let Some(id) = self.ids.remove(key) {
                        self.set(id, None);
                        freed.push(id.0);
                    }
                }
            }
        }
        self.free.extend(freed);
    }

    fn insert(&mut self, key: &UpstreamKey, upstream: &Upstream) -> UpstreamId {
        let known = self.ids.get(key).copied();
        let state = match self.connector(known.and_then(|id| self.get(id)), upstream) {
            Ok(connector) => {
                if let (None, Some(connector)) = (&upstream.tls, &connector) {
                    self.plain.entry(upstream.protocol).or_insert_with(|| Arc::clone(connector));
                }
                self.broken.remove(key);
                UpstreamState::carry(key, upstream, connector, known.and_then(|id| self.get(id)))
            }
            Err(problem) => {
                self.broken.insert(key.clone(), problem);
                UpstreamState::carry(key, &Upstream::default(), None, known.and_then(|id| self.get(id)))
            }
        };
        let id = known.unwrap_or_else(|| {
            let id = UpstreamId(self.free.pop().unwrap_or(self.next));
            self.next = self.next.max(id.0 + 1);
            self.ids.insert(key.clone(), id);
            id
        });
        if upstream.health_policy.as_ref().is_some_and(|health_policy| health_policy.check.is_some()) {
            self.checked.insert(key.clone(), id);
        } else {
            self.checked.remove(key);
        }
        self.set(id, Some(state));
        id
    }

    /// Returns the connector for `upstream`, reusing that of its `previous` state if the policy is unchanged. Returns
    /// `None` for upstreams without TLS.
    fn connector(
        &self,
        previous: Option<&Arc<UpstreamState>>,
        upstream: &Upstream,
    ) -> Result<Option<Arc<Connector>>, CertificateProblem> {
        let Upstream { protocol, tls, health_policy: _, proxy_header: _, endpoints: _ } = upstream;
        if !protocol.is_over_tls() {
            return Ok(None);
        }
        let known = previous.and_then(|state| state.connector(*protocol, tls.as_ref()));
        let known = known.or_else(|| self.plain.get(protocol).filter(|_| tls.is_none()));
        if let Some(known) = known {
            return Ok(Some(Arc::clone(known)));
        }
        match Connector::new(*protocol, tls.as_ref()) {
            Ok(connector) => Ok(Some(Arc::new(connector))),
            Err(error) => {
                let reason = format!("no connection can be made to pods with it, their rules answer 503: {error}");
                Err(CertificateProblem { origin: origin(tls.as_deref()), reason })
            }
        }
    }

    fn set(&mut self, UpstreamId(number): UpstreamId, state: Option<Arc<UpstreamState>>) {
        let number = number as usize;
        if self.blocks.len() <= number / BLOCK {
            self.blocks.resize_with(number / BLOCK + 1, || Arc::new([const { None }; BLOCK]));
        }
        Arc::make_mut(&mut self.blocks[number / BLOCK])[number % BLOCK] = state;
    }

    fn id(&mut self, key: &UpstreamKey) -> UpstreamId {
        match self.ids.get(key) {
            Some(id) => *id,
            // The table promises to hold every upstream it names; a missing one has no endpoints.
            None => self.insert(key, &Upstream::default()),
        }
    }
}

/// Returns the Secret that a policy is made from.
fn origin(tls: Option<&UpstreamTls>) -> Arc<str> {
    let origin = tls.and_then(|UpstreamTls { verify, certificate, server_name: _, versions: _ }| {
        let certificate = certificate.as_ref().map(|certificate| &certificate.origin);
        certificate.or(verify.as_ref().map(|Verify { authorities, names: _, depth: _ }| &authorities.origin))
    });
    origin.map_or_else(|| "TLS to pods".into(), Arc::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_model::{Action, Endpoint, HostRoutes, PathMatch, Rule};

    fn table(services: &[(&str, u16)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (service, port) in services {
            let key = UpstreamKey::new("default", service, "80");
            let endpoints = vec![Endpoint { address: ([10, 0, 0, 1], *port).into() }];
            table.upstreams.insert(key.clone(), Upstream { endpoints, ..Upstream::default() }.into());
            let rule = Rule {
                path: PathMatch::prefix("/").expect("valid path"),
                owner: (*service).into(),
                filters: Vec::new(),
                action: Action::Forward(key),
                forwarding: Arc::default(),
                conditions: None,
            };
            let pattern = HostPattern::parse(&format!("{service}.test")).expect("valid host");
            table.hosts.insert(pattern, Arc::new(HostRoutes { rules: vec![rule], ..HostRoutes::default() }));
        }
        table
    }

    fn compile(previous: Option<&Snapshot>, services: &[(&str, u16)]) -> Snapshot {
        Snapshot::compile(previous, &table(services), |_| Some(HostId(1))).0
    }

    fn number(snapshot: &Snapshot, service: &str) -> Option<u32> {
        snapshot.upstream_id(&UpstreamKey::new("default", service, "80")).map(|id| id.0)
    }

    #[test]
    fn an_upstream_keeps_its_number_while_it_is_in_the_table() {
        let first = compile(None, &[("a", 1), ("b", 1), ("c", 1)]);
        let second = compile(Some(&first), &[("b", 2), ("c", 1), ("d", 1)]);
        assert_eq!(second.generation, first.generation + 1);
        assert_eq!(number(&second, "a"), None);
        for service in ["b", "c"] {
            assert_eq!(number(&first, service), number(&second, service), "{service}");
        }
        // The number of `a` is reused only one snapshot after the one that drops it.
        assert_eq!(number(&second, "d"), Some(3));
        let third = compile(Some(&second), &[("b", 2), ("c", 1), ("d", 1), ("e", 1)]);
        assert_eq!(number(&third, "e"), Some(0));
    }

    #[test]
    fn state_carries_over_where_nothing_changed() {
        let first = compile(None, &[("a", 1), ("b", 1)]);
        let second = compile(Some(&first), &[("a", 1), ("b", 2)]);
        let same = |service: &str| {
            let of = |snapshot: &Snapshot| {
                let id = snapshot.upstream_id(&UpstreamKey::new("default", service, "80")).expect("known");
                std::ptr::from_ref(snapshot.upstream(id).expect("present"))
            };
            of(&first) == of(&second)
        };
        assert!(same("a"));
        assert!(!same("b"));
    }

    #[test]
    fn an_upstream_missing_from_the_table_has_no_endpoints() {
        let mut table = table(&[("a", 1)]);
        table.upstreams.clear();
        let (snapshot, problems) = Snapshot::compile(None, &table, |_| Some(HostId(1)));
        assert!(problems.is_empty());
        let id = snapshot.upstream_id(&UpstreamKey::new("default", "a", "80")).expect("numbered");
        assert!(snapshot.upstream(id).is_some());
    }
}
