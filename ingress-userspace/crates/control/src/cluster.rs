//! The known objects of a cluster. This module stores and finds objects; it does not judge them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::Hash,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    networking::v1::{Ingress, IngressClass},
};

use super::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    gateway::{BackendTlsPolicy, GatewayApiObject, GatewayStores},
    held_secret::HeldSecret,
    namespace::{LeftOut, Namespace},
    outcome::{ObjectRef, Origin},
    reference_grant::Grant,
    service::Service,
    slice::Slice,
};
use ingress_model::Tree;

/// Every relevant object, by kind and name.
///
/// Stores are ordered, so that results do not depend on the order in which objects arrived. A copy is cheap, and the
/// cost of finding the changes since a copy was made depends only on their number ([`Tree::differences`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Leaves out the Ingresses of Namespaces that are being deleted, or not selected.
    pub ingresses: Store<Ingress>,
    pub classes: Store<IngressClass>,
    pub services: Store<Service>,
    pub secrets: Store<HeldSecret>,
    pub config_maps: Store<ConfigMap>,
    pub nodes: Store<Node>,
    /// Addresses of the DNS names that Services of type ExternalName refer to, as far as they have been looked up.
    pub resolved: Tree<Arc<str>, Vec<IpAddr>>,
    pub slices: Store<Slice>,
    pub grants: Store<Grant>,
    pub gateway_api: GatewayStores,
    /// Unix time truncated to the hour, e.g. for the expiry of OCSP responses. Zero disables expiry.
    pub hour: Duration,
    /// Addresses of this node's interfaces; empty if they are not read.
    pub own_addresses: Arc<BTreeSet<IpAddr>>,
    /// Services by their cluster IPs.
    pub(super) cluster_ips: Tree<IpAddr, Vec<ObjectName>>,
    left_out: LeftOut,
    /// Labels of the known Namespaces.
    pub(super) namespace_labels: Tree<Arc<str>, Arc<BTreeMap<String, String>>>,
    /// Slices by the service that their label names, in order; mostly one.
    slices_by_service: Tree<ObjectName, Vec<ObjectName>>,
    /// Grants by their namespace, in order.
    grants_by_namespace: Tree<Arc<str>, Vec<ObjectName>>,
    /// Policies for TLS by the Services that they target, in order.
    policies_by_service: Tree<ObjectName, Vec<ObjectName>>,
}

pub type Store<T> = Tree<ObjectName, Stored<T>>;

/// An object and its origin. `Debug` shows only the origin, because the object may be a Secret.
pub struct Stored<T> {
    pub object: Arc<T>,
    pub origin: Origin,
}

// === impl Stored ===

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self { object: Arc::clone(&self.object), origin: self.origin.clone() }
    }
}

impl<T: PartialEq> PartialEq for Stored<T> {
    fn eq(&self, other: &Self) -> bool {
        let Self { object, origin } = self;
        // Objects are large, and nearly always both sides are the same allocation.
        (Arc::ptr_eq(object, &other.object) || *object == other.object) && *origin == other.origin
    }
}

impl<T> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("origin", &self.origin).finish_non_exhaustive()
    }
}

// === impl Cluster ===

impl Cluster {
    /// Makes an empty cluster. With `selects_namespaces`, an Ingress counts only while its Namespace is known.
    #[must_use]
    pub fn new(selects_namespaces: bool) -> Self {
        Self { left_out: LeftOut::new(selects_namespaces), ..Self::default() }
    }

    /// Changes the cluster so that an Ingress counts only while its Namespace is known. The Namespaces of present
    /// Ingresses are known, besides those that are present themselves.
    pub fn select_namespaces(&mut self) {
        let of_ingresses = self.ingresses.keys().map(|name| Arc::clone(&name.namespace));
        self.left_out.select(of_ingresses.chain(self.namespace_labels.keys().cloned()));
    }

    /// Returns `true` if an Ingress does not count, because its Namespace is being deleted or is not selected.
    pub(super) fn leaves_out(&self, ingress: &Ingress) -> bool {
        self.left_out.takes(ingress)
    }

    /// Returns `true` unless only selected Namespaces count, and this one is not selected.
    #[must_use]
    pub fn selects(&self, namespace: &str) -> bool {
        self.left_out.selects(namespace)
    }

    /// Applies a change. Returns `true` if it makes a difference to translations.
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Apply { object, origin } => {
                let is_new = !self.holds(&object, &origin);
                let matters = is_new && !self.differs_in_status(&object, &origin) && !self.stays_away(&object);
                if is_new {
                    self.insert(object, origin);
                }
                matters
            }
            Change::Remove(id) => self.remove(&id),
            Change::Resolve { name, addresses } => {
                self.resolved.insert(name, addresses.clone()).is_none_or(|before| before != addresses)
            }
            Change::Forget { name } => self.resolved.remove(&name).is_some(),
        }
    }

    /// Returns a Secret or ConfigMap; these are followed one by one, by name.
    pub(super) fn named(&self, id: &ObjectId) -> Option<Object> {
        let ObjectId { kind, name } = id;
        match kind {
            Kind::Secret => Some(Object::Secret(Arc::clone(&self.secrets.get(name)?.object))),
            Kind::ConfigMap => Some(Object::ConfigMap(Arc::clone(&self.config_maps.get(name)?.object))),
            Kind::Ingress
            | Kind::IngressClass
            | Kind::Service
            | Kind::EndpointSlice
            | Kind::Node
            | Kind::Namespace
            | Kind::ReferenceGrant
            | Kind::GatewayClass
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute
            | Kind::BackendTlsPolicy => None,
        }
    }

    /// Returns the slices of a service, in order of their names.
    pub fn slices_of<'c>(
        &'c self,
        service: &ObjectName,
    ) -> impl Iterator<Item = (&'c ObjectName, &'c Stored<Slice>)> + use<'c> {
        self.slices_by_service
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name).map(|stored| (name, stored)))
    }

    /// Returns the Services with this cluster IP; a real cluster has at most one.
    pub(super) fn with_cluster_ip(&self, address: IpAddr) -> &[ObjectName] {
        self.cluster_ips.get(&address).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the grants of a namespace, in order of their names.
    pub fn grants_of<'c>(&'c self, namespace: &str) -> impl Iterator<Item = &'c Grant> + use<'c> {
        let names = self.grants_by_namespace.get(namespace).into_iter().flatten();
        names.filter_map(|name| self.grants.get(name).map(|stored| &*stored.object))
    }

    /// Returns the policies for TLS with a Service, in order of their names.
    pub fn policies_of<'c>(&'c self, service: &ObjectName) -> impl Iterator<Item = &'c BackendTlsPolicy> + use<'c> {
        let names = self.policies_by_service.get(service).into_iter().flatten();
        names.filter_map(|name| self.gateway_api.backend_tls_policies.get(name).map(|stored| &*stored.object))
    }

    /// Returns `true` if the stored object differs only in fields that no translation reads. This controller writes
    /// statuses itself, and translation uses only the addresses of Gateways.
    fn differs_in_status(&self, object: &Object, origin: &Origin) -> bool {
        let new = match object {
            Object::Ingress(new) => new,
            Object::GatewayApi(new) => return self.gateway_api.differ_in_status(new, origin),
            // Only Gateways and ListenerSets ask for labels.
            Object::Namespace(new) => return self.left_out.knows(new) && self.gateway_api.is_empty(),
            _ => return false,
        };
        let Some(Stored { object: old, origin: known }) = self.ingresses.get(&ObjectName::of(&new.metadata)) else {
            return false;
        };
        let (a, b) = (&old.metadata, &new.metadata);
        known == origin
            && old.spec == new.spec
            && a.uid == b.uid
            && a.creation_timestamp == b.creation_timestamp
            && a.labels == b.labels
            && a.annotations == b.annotations
    }

    /// Returns `true` if this is an Ingress that did not count before and does not count now.
    fn stays_away(&self, object: &Object) -> bool {
        let Object::Ingress(ingress) = object else { return false };
        self.left_out.takes(ingress) && !self.ingresses.contains_key(&ObjectName::of(&ingress.metadata))
    }

    /// Returns `true` if the store has an equal object. Many events of a server change only fields that are not stored.
    fn holds(&self, object: &Object, origin: &Origin) -> bool {
        fn same<T: PartialEq>(store: &Store<T>, name: &ObjectName, object: &T, origin: &Origin) -> bool {
            store.get(name).is_some_and(|stored| *stored.object == *object && stored.origin == *origin)
        }
        let ObjectId { kind: _, name } = object.id();
        match object {
            Object::Ingress(object) => {
                let leaves = |known: &Stored<Ingress>| *known.object == **object && known.origin == *origin;
                same(&self.ingresses, &name, object, origin) || self.left_out.get(&name).is_some_and(leaves)
            }
            Object::IngressClass(object) => same(&self.classes, &name, object, origin),
            Object::Service(object) => same(&self.services, &name, object, origin),
            Object::Secret(object) => same(&self.secrets, &name, object, origin),
            Object::ConfigMap(object) => same(&self.config_maps, &name, object, origin),
            Object::Node(object) => same(&self.nodes, &name, object, origin),
            Object::Namespace(new) => self.left_out.knows(new) && self.knows_labels(new),
            Object::EndpointSlice(object) => same(&self.slices, &name, object, origin),
            Object::ReferenceGrant(object) => same(&self.grants, &name, object, origin),
            Object::GatewayApi(object) => self.gateway_api.hold(object, origin),
        }
    }

    fn knows_labels(&self, Namespace { name, labels, .. }: &Namespace) -> bool {
        self.namespace_labels.get(&name.name).map_or(labels.is_empty(), |known| known == labels)
    }

    fn insert(&mut self, object: Object, origin: Origin) {
        let leaves = matches!(&object, Object::Ingress(ingress) if self.left_out.takes(ingress));
        let id = object.id();
        self.remove(&id);
        let ObjectId { kind: _, name } = id;
        match object {
            Object::Ingress(object) if leaves => self.left_out.insert(name, Stored { object, origin }),
            Object::Ingress(object) => drop(self.ingresses.insert(name, Stored { object, origin })),
            Object::IngressClass(object) => drop(self.classes.insert(name, Stored { object, origin })),
            Object::Service(object) => {
                object.cluster_ips.iter().for_each(|ip| enlist(&mut self.cluster_ips, ip, &name));
                self.services.insert(name, Stored { object, origin });
            }
            Object::Secret(object) => drop(self.secrets.insert(name, Stored { object, origin })),
            Object::ConfigMap(object) => drop(self.config_maps.insert(name, Stored { object, origin })),
            Object::Node(object) => drop(self.nodes.insert(name, Stored { object, origin })),
            Object::Namespace(namespace) => {
                self.left_out.set(&namespace, &mut self.ingresses);
                if !namespace.labels.is_empty() {
                    self.namespace_labels.insert(name.name, Arc::clone(&namespace.labels));
                }
            }
            Object::EndpointSlice(object) => {
                if let Some(service) = &object.service {
                    enlist(&mut self.slices_by_service, service, &name);
                }
                self.slices.insert(name, Stored { object, origin });
            }
            Object::ReferenceGrant(object) => {
                enlist(&mut self.grants_by_namespace, &name.namespace, &name);
                self.grants.insert(name, Stored { object, origin });
            }
            Object::GatewayApi(object) => {
                if let GatewayApiObject::BackendTlsPolicy(policy) = &object {
                    policy.services().iter().for_each(|of| enlist(&mut self.policies_by_service, of, &name));
                }
                self.gateway_api.insert(object, origin);
            }
        }
    }

    fn remove(&mut self, id: &ObjectId) -> bool {
        let ObjectId { kind, name } = id;
        match kind {
            Kind::Ingress => {
                self.left_out.remove(name);
                self.ingresses.remove(name).is_some()
            }
            Kind::IngressClass => self.classes.remove(name).is_some(),
            Kind::Service => {
                let Some(stored) = self.services.remove(name) else { return false };
                stored.object.cluster_ips.iter().for_each(|ip| delist(&mut self.cluster_ips, ip, name));
                true
            }
            Kind::Secret => self.secrets.remove(name).is_some(),
            Kind::ConfigMap => self.config_maps.remove(name).is_some(),
            Kind::Node => self.nodes.remove(name).is_some(),
            Kind::Namespace => {
                let had_labels = self.namespace_labels.remove(&name.name).is_some();
                self.left_out.forget(name, &mut self.ingresses) || had_labels && !self.gateway_api.is_empty()
            }
            Kind::EndpointSlice => {
                let Some(stored) = self.slices.remove(name) else { return false };
                if let Some(service) = &stored.object.service {
                    delist(&mut self.slices_by_service, service, name);
                }
                true
            }
            Kind::ReferenceGrant => {
                let was_there = self.grants.remove(name).is_some();
                delist(&mut self.grants_by_namespace, &name.namespace, name);
                was_there
            }
            Kind::BackendTlsPolicy => {
                let Some(stored) = self.backend_tls_policies().get(name) else { return false };
                for service in stored.object.services() {
                    delist(&mut self.policies_by_service, &service, name);
                }
                self.gateway_api.remove(*kind, name)
            }
            Kind::GatewayClass
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute => self.gateway_api.remove(*kind, name),
        }
    }
}

/// Adds `name` to the names of `key`, in order.
fn enlist<K: Clone + Ord + Hash>(index: &mut Tree<K, Vec<ObjectName>>, key: &K, name: &ObjectName) {
    match index.get_mut(key) {
        Some(names) => names.insert(names.partition_point(|other| other < name), name.clone()),
        None => drop(index.insert(key.clone(), vec![name.clone()])),
    }
}

/// Removes `name` from the names of `key`. The last one removes the key.
fn delist<K: Clone + Ord + Hash>(index: &mut Tree<K, Vec<ObjectName>>, key: &K, name: &ObjectName) {
    let Some(names) = index.get_mut(key) else { return };
    names.retain(|other| other != name);
    if names.is_empty() {
        index.remove(key);
    }
}

// === impl Stored ===

impl<T> Stored<T> {
    #[must_use]
    pub fn refer(&self, kind: Kind, name: &ObjectName) -> ObjectRef {
        name.refer(kind, &self.origin)
    }
}
