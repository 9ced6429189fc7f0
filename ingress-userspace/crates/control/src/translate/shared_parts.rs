//! Parts of a translation that other parts share: the upstreams, the certificates and the cluster's own addresses. Each
//! is made at its first lookup and kept in the memo; `context` has the lookups of objects.

use std::sync::Arc;

use super::{
    cluster_addresses::ClusterAddresses,
    context::Context,
    destination::{Destination, Gathered},
    gather::gather,
    part::{Dependency, Part, Vicinity},
    secret,
    tls_secret::Content,
};
use crate::object::ObjectName;
use ingress_model::UpstreamKey;

// === impl Context ===

impl Context<'_> {
    pub(crate) fn cluster_addresses(&mut self) -> Arc<ClusterAddresses> {
        self.read(Dependency::ClusterAddresses);
        self.known_cluster_addresses()
    }

    /// Like [`Context::cluster_addresses`], for questions about addresses in `vicinity` only, so that changes elsewhere
    /// do not matter.
    pub(crate) fn cluster_addresses_in(&mut self, vicinity: Vicinity) -> Arc<ClusterAddresses> {
        self.read(Dependency::Taken(vicinity));
        self.known_cluster_addresses()
    }

    fn known_cluster_addresses(&mut self) -> Arc<ClusterAddresses> {
        if let Some(known) = &self.memo.cluster_addresses {
            return Arc::clone(known);
        }
        let (cluster_addresses, trace) = self.traced(ClusterAddresses::of);
        let cluster_addresses = Arc::new(cluster_addresses);
        self.add_made(Part::ClusterAddresses, trace);
        self.memo.cluster_addresses = Some(Arc::clone(&cluster_addresses));
        cluster_addresses
    }

    /// Returns the upstream of `destination`, and its key. Callers must not look at the endpoints, because that read is
    /// not recorded.
    pub(crate) fn upstream(&mut self, destination: &Destination) -> (UpstreamKey, Arc<Gathered>) {
        let key = destination.key();
        self.read(Dependency::Upstream(key.clone()));
        if let Some((_, known)) = self.memo.upstreams.get(&key) {
            return (key, Arc::clone(known));
        }
        let (gathered, trace) = self.traced(|context| gather(destination, context));
        let gathered = Arc::new(gathered);
        self.add_made(Part::Upstream(key.clone()), trace);
        self.memo.upstreams.insert(key.clone(), (destination.clone(), Arc::clone(&gathered)));
        (key, gathered)
    }

    /// Returns the content of Secret `name` for TLS with clients. Callers must not look at chain and key, because that
    /// read is not recorded.
    pub(crate) fn certificate(&mut self, name: &ObjectName) -> Arc<Content> {
        self.read(Dependency::Certificate(name.clone()));
        if let Some(known) = self.memo.certificates.get(name) {
            return Arc::clone(known);
        }
        let (held, trace) = self.traced(|context| secret::hold(name, context));
        let held = Arc::new(held);
        self.add_made(Part::Certificate(name.clone()), trace);
        self.memo.certificates.insert(name.clone(), Arc::clone(&held));
        held
    }
}
