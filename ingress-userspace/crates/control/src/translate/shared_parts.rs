//! Parts of a translation that other parts share: the upstreams, the certificates and the cluster's own addresses. Each
//! is made at its first lookup and kept in the memo; `lookup` has the lookups of objects.

use std::sync::Arc;

use super::{
    certificate_secret,
    cluster_addresses::ClusterAddresses,
    destination::{Destination, Gathered},
    gather::gather,
    lookup::Lookup,
    part::{Dependency, Part, Vicinity},
    tls_secret::TlsSecretContent,
};
use crate::object::ObjectName;
use ingress_model::UpstreamKey;

// === impl Lookup ===

impl Lookup<'_> {
    pub(crate) fn cluster_addresses(&self) -> Arc<ClusterAddresses> {
        self.read(Dependency::ClusterAddresses);
        self.known_cluster_addresses()
    }

    /// Like [`Lookup::cluster_addresses`], for questions about addresses in `vicinity` only, so that changes elsewhere
    /// do not matter.
    pub(crate) fn cluster_addresses_in(&self, vicinity: Vicinity) -> Arc<ClusterAddresses> {
        self.read(Dependency::Taken(vicinity));
        self.known_cluster_addresses()
    }

    fn known_cluster_addresses(&self) -> Arc<ClusterAddresses> {
        if let Some(known) = self.with_memo(|memo| memo.cluster_addresses.clone()) {
            return known;
        }
        let (cluster_addresses, trace) = self.traced(|context| ClusterAddresses::of(context.lookup));
        let cluster_addresses = Arc::new(cluster_addresses);
        self.add_made(Part::ClusterAddresses, trace);
        self.with_memo(|memo| memo.cluster_addresses = Some(Arc::clone(&cluster_addresses)));
        cluster_addresses
    }

    /// Returns the upstream of `destination`, and its key. Callers must not look at the endpoints, because that read is
    /// not recorded.
    pub(crate) fn upstream(&self, destination: &Destination) -> (UpstreamKey, Arc<Gathered>) {
        let key = destination.key();
        self.read(Dependency::Upstream(key.clone()));
        let known = self.with_memo(|memo| memo.upstreams.get(&key).map(|(_, known)| Arc::clone(known)));
        if let Some(known) = known {
            return (key, known);
        }
        let (gathered, trace) = self.traced(|context| gather(destination, context));
        let gathered = Arc::new(gathered);
        self.add_made(Part::Upstream(key.clone()), trace);
        let entry = (Arc::new(destination.clone()), Arc::clone(&gathered));
        self.with_memo(|memo| memo.upstreams.insert(key.clone(), entry));
        (key, gathered)
    }

    /// Returns the content of Secret `name` for TLS with clients. Callers must not look at chain and key, because that
    /// read is not recorded.
    pub(crate) fn certificate(&self, name: &ObjectName) -> Arc<TlsSecretContent> {
        self.read(Dependency::Certificate(name.clone()));
        if let Some(known) = self.with_memo(|memo| memo.certificates.get(name).cloned()) {
            return known;
        }
        let (held, trace) = self.traced(|context| certificate_secret::hold(name, context));
        let held = Arc::new(held);
        self.add_made(Part::Certificate(name.clone()), trace);
        self.with_memo(|memo| memo.certificates.insert(name.clone(), Arc::clone(&held)));
        held
    }
}
