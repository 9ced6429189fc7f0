//! Read-only lookups of one translation. Objects are reached only through the accessors here, so that all lookups are
//! recorded as dependencies.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    networking::v1::IngressClass,
};

use super::{
    Options,
    cluster_addresses::ClusterAddresses,
    compiled_expressions::KnownExpressions,
    destination::{Destination, Gathered},
    gateway::parent::ParentView,
    part::{Dependency, Part, PartTrace, Vicinity},
    tls_secret::TlsSecretContent,
    topology::NodeTopology,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    cluster::{Cluster, Store, Stored},
    gateway::{BackendTlsPolicy, Gateway, GatewayClass, ListenerSet},
    held_secret::HeldSecret,
    reference_grant::Grant,
    service::Service,
    slice::Slice,
};
use ingress_model::UpstreamKey;

/// Label that every Namespace has: its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Results that are shared by parts, and kept from one translation to the next.
#[derive(Default)]
pub(crate) struct Memo {
    pub(crate) cluster_addresses: Option<Arc<ClusterAddresses>>,
    pub(crate) upstreams: HashMap<UpstreamKey, (Arc<Destination>, Arc<Gathered>)>,
    /// Certificates by the Secret that holds them.
    pub(crate) certificates: HashMap<ObjectName, Arc<TlsSecretContent>>,
    pub(crate) expressions: KnownExpressions,
    /// The views that routes have of the Gateways of this controller.
    pub(crate) parents: HashMap<ObjectId, Arc<ParentView>>,
}

/// The inputs that all parts of one translation share.
pub(crate) struct Lookup<'c> {
    cluster: &'c Cluster,
    /// Options hold for all Ingresses alike, so reads are not recorded.
    pub(crate) options: &'c Options,
    topology: NodeTopology<'c>,
    memo: RefCell<Memo>,
    /// Entries made for the memo, and their traces.
    made: RefCell<Vec<(Part, PartTrace)>>,
    /// The lookups so far of the part that is being made.
    reads: RefCell<BTreeSet<Dependency>>,
}

// === impl Lookup ===

impl<'c> Lookup<'c> {
    pub(crate) fn new(cluster: &'c Cluster, options: &'c Options, memo: Memo) -> Self {
        let topology = NodeTopology::of(options, cluster);
        Self {
            cluster,
            options,
            topology,
            memo: RefCell::new(memo),
            made: RefCell::default(),
            reads: RefCell::default(),
        }
    }

    /// Records a lookup.
    pub(crate) fn read(&self, dependency: Dependency) {
        self.reads.borrow_mut().insert(dependency);
    }

    /// Continues with `reads`, and returns the lookups so far.
    pub(super) fn replace_reads(&self, reads: BTreeSet<Dependency>) -> BTreeSet<Dependency> {
        self.reads.replace(reads)
    }

    /// Adds an entry made for the memo, with its trace.
    pub(crate) fn add_made(&self, part: Part, trace: PartTrace) {
        self.made.borrow_mut().push((part, trace));
    }

    pub(crate) fn service(&self, name: &ObjectName) -> Option<&'c Stored<Service>> {
        let stored = self.cluster.services.get(name);
        self.note(Kind::Service, stored.map_or(name, |stored| &stored.object.name));
        stored
    }

    /// Returns the name of a Service as the Service itself has it, so that both share their allocations. This reads
    /// nothing: the name is the same.
    pub(crate) fn shared_name(&self, name: ObjectName) -> ObjectName {
        self.cluster.services.get(&name).map_or(name, |stored| stored.object.name.clone())
    }

    /// Returns the EndpointSlices of `service`, in order of their names.
    pub(crate) fn slices_of(
        &self,
        service: &ObjectName,
    ) -> impl Iterator<Item = (&'c ObjectName, &'c Stored<Slice>)> + use<'c> {
        self.read(Dependency::SlicesOf(service.clone()));
        self.cluster.slices_of(service)
    }

    /// Returns the ReferenceGrants of `namespace`, in order of their names.
    pub(crate) fn grants_of(&self, namespace: &Arc<str>) -> impl Iterator<Item = &'c Grant> + use<'c> {
        self.read(Dependency::GrantsOf(Arc::clone(namespace)));
        self.cluster.grants_of(namespace)
    }

    pub(crate) fn secret(&self, name: &ObjectName) -> Option<&'c Stored<HeldSecret>> {
        self.note(Kind::Secret, name);
        self.cluster.secrets.get(name)
    }

    pub(crate) fn config_map(&self, name: &ObjectName) -> Option<&'c Stored<ConfigMap>> {
        self.note(Kind::ConfigMap, name);
        self.cluster.config_maps.get(name)
    }

    pub(crate) fn class(&self, name: &str) -> Option<&'c Stored<IngressClass>> {
        let name = ObjectName::new("", name);
        self.note(Kind::IngressClass, &name);
        self.cluster.classes.get(&name)
    }

    /// Returns every IngressClass. A lookup by name has fewer dependencies.
    pub(crate) fn classes(&self) -> &'c Store<IngressClass> {
        self.read(Dependency::Classes);
        &self.cluster.classes
    }

    /// Returns every GatewayClass. Gateways depend on all of them together.
    pub(crate) fn gateway_classes(&self) -> &'c Store<GatewayClass> {
        self.read(Dependency::Gateways);
        self.cluster.gateway_classes()
    }

    /// Returns every Gateway.
    pub(crate) fn gateways(&self) -> &'c Store<Gateway> {
        self.read(Dependency::Gateways);
        self.cluster.gateways()
    }

    pub(crate) fn gateway(&self, name: &ObjectName) -> Option<&'c Stored<Gateway>> {
        self.note(Kind::Gateway, name);
        self.cluster.gateway(name)
    }

    /// Returns every ListenerSet.
    pub(crate) fn listener_sets(&self) -> &'c Store<ListenerSet> {
        self.read(Dependency::Gateways);
        self.cluster.listener_sets()
    }

    pub(crate) fn listener_set(&self, name: &ObjectName) -> Option<&'c Stored<ListenerSet>> {
        self.note(Kind::ListenerSet, name);
        self.cluster.listener_sets().get(name)
    }

    /// Returns the view that routes have of a Gateway or ListenerSet; `None` if it is not of this controller.
    pub(crate) fn parent(&self, id: &ObjectId) -> Option<Arc<ParentView>> {
        self.read(Dependency::Parent(id.clone()));
        self.with_memo(|memo| memo.parents.get(id).cloned())
    }

    /// Returns the BackendTLSPolicies that target `service`, in order of their names.
    pub(crate) fn policies_of(&self, service: &ObjectName) -> impl Iterator<Item = &'c BackendTlsPolicy> + use<'c> {
        self.read(Dependency::PoliciesOf(service.clone()));
        self.cluster.policies_of(service)
    }

    pub(crate) fn backend_tls_policy(&self, name: &ObjectName) -> Option<&'c Stored<BackendTlsPolicy>> {
        self.note(Kind::BackendTlsPolicy, name);
        self.cluster.backend_tls_policies().get(name)
    }

    /// Returns `true` if objects of the Gateway API in this namespace count: they do unless a selector leaves it out.
    pub(crate) fn selects(&self, namespace: &str) -> bool {
        if self.options.selects_namespaces {
            self.note(Kind::Namespace, &ObjectName::new("", namespace));
        }
        self.cluster.selects(namespace)
    }

    /// Returns the labels of a Namespace. One that is not known has the label with its name, as all have.
    pub(crate) fn namespace_labels(&self, namespace: &str) -> Cow<'c, BTreeMap<String, String>> {
        self.note(Kind::Namespace, &ObjectName::new("", namespace));
        match self.cluster.namespace_labels(namespace) {
            Some(labels) => Cow::Borrowed(labels),
            None => Cow::Owned([(NAME_LABEL.to_owned(), namespace.to_owned())].into()),
        }
    }

    /// Returns the addresses of `name`, a DNS name in canonical form. Returns `None` until the name is resolved, which
    /// this call requests.
    pub(crate) fn addresses(&self, name: &Arc<str>) -> Option<&'c [IpAddr]> {
        self.read(Dependency::Addresses(Arc::clone(name)));
        self.cluster.resolved.get(name).map(Vec::as_slice)
    }

    /// Returns node and zone of this process.
    pub(crate) fn topology(&self) -> NodeTopology<'c> {
        self.read(Dependency::Topology);
        self.topology
    }

    /// Returns the Unix time truncated to the hour; expiry is reported with that precision.
    pub(crate) fn hour(&self) -> Duration {
        self.read(Dependency::Hour);
        self.cluster.hour
    }

    pub(crate) fn nodes(&self) -> &'c Store<Node> {
        self.read(Dependency::Nodes);
        &self.cluster.nodes
    }

    /// Returns the number of Ready nodes; 1 if it is not known.
    pub(crate) fn ready_nodes(&self) -> u32 {
        let is_ready = |stored: &&Stored<Node>| {
            let mut conditions = stored.object.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        u32::try_from(self.nodes().values().filter(is_ready).count()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns `true` if `address` is the cluster IP of a Service.
    pub(crate) fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.read(Dependency::Taken(Vicinity::of(address)));
        !self.cluster.with_cluster_ip(address).is_empty()
    }

    pub(crate) fn own_addresses(&self) -> &'c BTreeSet<IpAddr> {
        self.read(Dependency::OwnAddresses);
        &self.cluster.own_addresses
    }

    /// Accesses the memo. An entry may be made while another one is, so `access` makes none.
    pub(crate) fn with_memo<T>(&self, access: impl FnOnce(&mut Memo) -> T) -> T {
        access(&mut self.memo.borrow_mut())
    }

    /// Returns the memo for the next translation.
    pub(crate) fn into_memo(self) -> Memo {
        self.memo.into_inner()
    }

    /// Returns the entries made for the memo since the last call, each with its trace.
    pub(crate) fn take_made(&self) -> Vec<(Part, PartTrace)> {
        self.made.take()
    }

    fn note(&self, kind: Kind, name: &ObjectName) {
        self.read(Dependency::Object(ObjectId { kind, name: name.clone() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Reason;

    #[test]
    fn lookups_are_recorded_as_dependencies_hit_or_miss() {
        let (cluster, options) = (Cluster::default(), Options::default());
        let lookup = Lookup::new(&cluster, &options, Memo::default());
        let name = ObjectName::new("n", "a");
        let object =
            |kind, namespace: &str| Dependency::Object(ObjectId { kind, name: ObjectName::new(namespace, "a") });
        let ((), outer) = lookup.traced(|context| {
            assert!(context.service(&name).is_none());
            let ((), inner) = context.traced(|context| {
                assert!(context.secret(&name).is_none());
                assert!(context.config_map(&name).is_none());
                assert!(context.class("a").is_none());
                assert!(context.classes().is_empty());
                assert!(context.nodes().is_empty());
                assert_eq!(context.slices_of(&name).count(), 0);
                assert_eq!(context.grants_of(&name.namespace).count(), 0);
                assert!(context.addresses(&"a.test".into()).is_none());
                context.topology();
                context.hour();
                context.cluster_addresses();
            });
            let expect = [
                object(Kind::IngressClass, ""),
                object(Kind::Secret, "n"),
                object(Kind::ConfigMap, "n"),
                Dependency::Classes,
                Dependency::Nodes,
                Dependency::SlicesOf(name.clone()),
                Dependency::GrantsOf("n".into()),
                Dependency::Addresses("a.test".into()),
                Dependency::Topology,
                Dependency::Hour,
                Dependency::ClusterAddresses,
            ];
            assert_eq!(inner.reads, expect.into());
            context.report(&name.refer(Kind::Service, &crate::Origin::Api), Reason::TooLarge, String::new());
        });
        assert_eq!((outer.reads, outer.outcomes.len()), ([object(Kind::Service, "n")].into(), 1));
        lookup.take_made();
        let (_, host) = lookup.traced(|context| context.certificate(&name));
        assert_eq!(host.reads, [Dependency::Certificate(name.clone())].into(), "not the Secret");
        let made: Vec<_> = lookup.take_made().into_iter().map(|(part, trace)| (part, trace.reads)).collect();
        assert_eq!(made, [(Part::Certificate(name), BTreeSet::from([object(Kind::Secret, "n")]))]);
    }
}
