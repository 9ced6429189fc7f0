//! The objects of a cluster as they are known now. It stores and finds; it does not judge.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::{Ingress, IngressClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    outcome::{ObjectRef, Origin},
};

/// Every object that matters, by kind and name.
///
/// Stores are ordered, so that whatever is computed from them does not depend on the order in which objects came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub ingresses: Store<Ingress>,
    pub classes: Store<IngressClass>,
    pub services: Store<Service>,
    pub secrets: Store<Secret>,
    pub config_maps: Store<ConfigMap>,
    pub nodes: Store<Node>,
    /// Addresses of the DNS names that Services of type ExternalName refer to, as far as they have been asked for.
    pub resolved: BTreeMap<Arc<str>, Vec<IpAddr>>,
    slices: Store<EndpointSlice>,
    /// Slices by the service that their label names.
    slices_by_service: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
}

pub type Store<T> = BTreeMap<ObjectName, Stored<T>>;

/// An object and where it came from. `Debug` shows the latter alone: the object may be a Secret.
#[derive(Clone, PartialEq)]
pub struct Stored<T> {
    pub object: Arc<T>,
    pub origin: Origin,
}

/// Label that ties an EndpointSlice to its Service (k8s.io/api/discovery/v1, `LabelServiceName`).
const SERVICE_NAME: &str = "kubernetes.io/service-name";

// === impl Stored ===

impl<T> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("origin", &self.origin).finish_non_exhaustive()
    }
}

// === impl Cluster ===

impl Cluster {
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Apply { object, origin } => self.insert(object, origin),
            Change::Remove(id) => self.remove(&id),
            Change::Resolve { name, addresses } => drop(self.resolved.insert(name, addresses)),
            Change::Forget { name } => drop(self.resolved.remove(&name)),
        }
    }

    /// The slices of a service, in order of their names.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = (&ObjectName, &Stored<EndpointSlice>)> {
        self.slices_by_service
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name).map(|stored| (name, stored)))
    }

    fn insert(&mut self, object: Object, origin: Origin) {
        let id = object.id();
        self.remove(&id);
        let ObjectId { kind: _, name } = id;
        match object {
            Object::Ingress(object) => drop(self.ingresses.insert(name, Stored { object, origin })),
            Object::IngressClass(object) => drop(self.classes.insert(name, Stored { object, origin })),
            Object::Service(object) => drop(self.services.insert(name, Stored { object, origin })),
            Object::Secret(object) => drop(self.secrets.insert(name, Stored { object, origin })),
            Object::ConfigMap(object) => drop(self.config_maps.insert(name, Stored { object, origin })),
            Object::Node(object) => drop(self.nodes.insert(name, Stored { object, origin })),
            Object::EndpointSlice(object) => {
                if let Some(service) = service_of(&object.metadata) {
                    self.slices_by_service.entry(service).or_default().insert(name.clone());
                }
                self.slices.insert(name, Stored { object, origin });
            }
        }
    }

    fn remove(&mut self, id: &ObjectId) {
        let ObjectId { kind, name } = id;
        match kind {
            Kind::Ingress => drop(self.ingresses.remove(name)),
            Kind::IngressClass => drop(self.classes.remove(name)),
            Kind::Service => drop(self.services.remove(name)),
            Kind::Secret => drop(self.secrets.remove(name)),
            Kind::ConfigMap => drop(self.config_maps.remove(name)),
            Kind::Node => drop(self.nodes.remove(name)),
            Kind::EndpointSlice => {
                let Some(stored) = self.slices.remove(name) else { return };
                let Some(service) = service_of(&stored.object.metadata) else { return };
                if let Some(slices) = self.slices_by_service.get_mut(&service) {
                    slices.remove(name);
                    if slices.is_empty() {
                        self.slices_by_service.remove(&service);
                    }
                }
            }
        }
    }
}

fn service_of(metadata: &ObjectMeta) -> Option<ObjectName> {
    let service = metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(ObjectName::new(metadata.namespace.as_deref().unwrap_or_default(), service))
}

// === impl Stored ===

impl<T> Stored<T> {
    #[must_use]
    pub fn refer(&self, kind: Kind, name: &ObjectName) -> ObjectRef {
        name.refer(kind, &self.origin)
    }
}
