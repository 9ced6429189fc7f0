//! Everything a request needs to know, compiled from a route table: immutable, swapped as a whole. It watches nothing.
//!
//! ```text
//! RouteTable ──┐
//!              ├─ Snapshot::compile ──> Shared::publish (one atomic swap) ──> requests
//! previous ────┘  (ids, health and loaded keys carry over)
//! ```

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::{Forwarding, HostId, HostPattern, RouteTable, Settings, Upstream, UpstreamKey},
    route::{Routes, UpstreamId},
};

use super::{
    certificates::{CertificateProblem, Certificates},
    pick::UpstreamState,
    upstream::Limits,
};

/// One consistent state of the configuration. A request keeps the one it began with to its end.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// One more than that of the snapshot it was compiled after.
    pub generation: u64,
    pub routes: Routes,
    pub certificates: Certificates,
    pub settings: Settings,
    /// How requests are forwarded that no route names.
    pub(super) forwarding: Arc<Forwarding>,
    /// By [`UpstreamId`]; `None` for a number whose upstream is gone.
    upstreams: Vec<Option<Arc<UpstreamState>>>,
    ids: HashMap<UpstreamKey, UpstreamId>,
}

impl Snapshot {
    /// Compiles `table`, carrying over from `previous` what belongs to the same key: upstream numbers, endpoint health,
    /// and keys of certificates that did not change.
    ///
    /// Total: a certificate that cannot be used is reported and its names are served with the fallback certificate.
    pub fn compile(
        previous: Option<&Self>,
        table: &RouteTable,
        host_id: impl FnMut(&HostPattern) -> HostId,
    ) -> (Self, Vec<CertificateProblem>) {
        let (certificates, problems) = Certificates::load(
            previous.map(|snapshot| &snapshot.certificates),
            &table.certificates,
            table.fallback_certificate.as_ref(),
        );
        let mut numbering = Numbering::new(previous, table);
        let previous_routes = previous.map(|snapshot| &snapshot.routes);
        let routes = Routes::compile(previous_routes, table, |key| numbering.id(key), host_id);
        let Numbering { ids, upstreams, .. } = numbering;
        let generation = previous.map_or(1, |snapshot| snapshot.generation + 1);
        let (settings, forwarding) = (table.settings.clone(), Arc::clone(&table.forwarding));
        (Self { generation, routes, certificates, settings, forwarding, upstreams, ids }, problems)
    }

    /// What bounds an exchange with an endpoint.
    pub(super) fn limits(&self, forwarding: &Forwarding) -> Limits {
        let Forwarding { connect_timeout, read_timeout, send_timeout, response_head_max, .. } = *forwarding;
        Limits {
            connect_timeout,
            read_timeout,
            send_timeout,
            client_timeout: self.settings.stall_timeout,
            head_max: response_head_max,
            ..Limits::default()
        }
    }

    /// The upstream a route of this snapshot names.
    pub(super) fn upstream(&self, id: UpstreamId) -> Option<&UpstreamState> {
        self.upstreams.get(id.0 as usize)?.as_deref()
    }

    /// The number of `key`, the same in later snapshots for as long as the key is in the table.
    #[must_use]
    pub fn upstream_id(&self, key: &UpstreamKey) -> Option<UpstreamId> {
        self.ids.get(key).copied()
    }
}

/// Gives every upstream its number: the previous one, else one that is free.
struct Numbering<'p> {
    ids: HashMap<UpstreamKey, UpstreamId>,
    upstreams: Vec<Option<Arc<UpstreamState>>>,
    /// Numbers below the length that no key holds, and that no key of the previous snapshot held either.
    free: Vec<u32>,
    previous: Option<&'p Snapshot>,
}

impl<'p> Numbering<'p> {
    fn new(previous: Option<&'p Snapshot>, table: &RouteTable) -> Self {
        let previous_len = previous.map_or(0, |snapshot| snapshot.upstreams.len());
        let mut numbering = Self {
            ids: HashMap::with_capacity(table.upstreams.len()),
            upstreams: vec![None; previous_len],
            free: previous.map_or_else(Vec::new, |snapshot| {
                let free = snapshot.upstreams.iter().enumerate().filter(|(_, state)| state.is_none());
                free.filter_map(|(number, _)| u32::try_from(number).ok()).collect()
            }),
            previous,
        };
        for (key, upstream) in &table.upstreams {
            numbering.insert(key, upstream);
        }
        numbering
    }

    fn insert(&mut self, key: &UpstreamKey, upstream: &Upstream) -> UpstreamId {
        let previous = self.previous.and_then(|snapshot| {
            let id = snapshot.upstream_id(key)?;
            Some((id, snapshot.upstreams.get(id.0 as usize)?.as_ref()?))
        });
        let state = UpstreamState::carry(key, upstream, previous.map(|(_, state)| state));
        let number = previous.map(|(id, _)| id.0).or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.upstreams.push(None);
            u32::try_from(self.upstreams.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(slot) = self.upstreams.get_mut(number as usize) {
            *slot = Some(state);
        }
        self.ids.insert(key.clone(), UpstreamId(number));
        UpstreamId(number)
    }

    fn id(&mut self, key: &UpstreamKey) -> UpstreamId {
        match self.ids.get(key) {
            Some(id) => *id,
            // The table promises to hold every upstream it names; one it does not hold has no endpoints.
            None => self.insert(key, &Upstream::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, Endpoint, HostRoutes, PathMatch, Rule};

    fn table(services: &[(&str, u16)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (service, port) in services {
            let key = UpstreamKey::new("default", service, "80");
            let endpoints = vec![Endpoint { address: ([10, 0, 0, 1], *port).into() }];
            table.upstreams.insert(key.clone(), Upstream { endpoints, ..Upstream::default() });
            let rule = Rule {
                path: PathMatch::prefix("/").expect("valid path"),
                owner: (*service).into(),
                filters: Vec::new(),
                action: Action::Forward(key),
                forwarding: Arc::default(),
            };
            let pattern = HostPattern::parse(&format!("{service}.test")).expect("valid host");
            table.hosts.insert(pattern, Arc::new(HostRoutes { rules: vec![rule], fallback: None }));
        }
        table
    }

    fn compile(previous: Option<&Snapshot>, services: &[(&str, u16)]) -> Snapshot {
        Snapshot::compile(previous, &table(services), |_| HostId(1)).0
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
        // The number of `a` is not given away in the snapshot that drops it, only in a later one.
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
        let (snapshot, problems) = Snapshot::compile(None, &table, |_| HostId(1));
        assert!(problems.is_empty());
        let id = snapshot.upstream_id(&UpstreamKey::new("default", "a", "80")).expect("numbered");
        assert!(snapshot.upstream(id).is_some());
    }
}
