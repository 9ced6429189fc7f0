//! The objects of a cluster as they are known now. It stores and finds; it does not judge.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Secret},
    networking::v1::{Ingress, IngressClass},
};

use super::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    outcome::{ObjectRef, Origin},
    service::Service,
    slice::Slice,
};
use crate::model::Tree;

/// Every object that matters, by kind and name.
///
/// Stores are ordered, so that whatever is computed from them does not depend on the order in which objects came. A copy
/// costs nothing, and what has changed since it was made is found at the cost of what has ([`Tree::differences`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub ingresses: Store<Ingress>,
    pub classes: Store<IngressClass>,
    pub services: Store<Service>,
    pub secrets: Store<Secret>,
    pub config_maps: Store<ConfigMap>,
    pub nodes: Store<Node>,
    /// Addresses of the DNS names that Services of type ExternalName refer to, as far as they have been asked for.
    pub resolved: Tree<Arc<str>, Vec<IpAddr>>,
    pub slices: Store<Slice>,
    /// The time since 1970, in whole hours; zero where nobody looks at a clock, and nothing is out of date.
    pub hour: Duration,
    /// Slices by the service that their label names, in order: one for most.
    slices_by_service: Tree<ObjectName, Vec<ObjectName>>,
}

pub type Store<T> = Tree<ObjectName, Stored<T>>;

/// An object and where it came from. `Debug` shows the latter alone: the object may be a Secret.
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
        // Objects are large, and it is the same one nearly always.
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
    /// Takes a change up, and says whether anything is different from before.
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Apply { object, origin } => {
                let is_new = !self.holds(&object, &origin);
                let matters = is_new && !self.differs_in_status(&object, &origin);
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

    /// A Secret or ConfigMap; these are followed each by its name.
    pub(super) fn named(&self, id: &ObjectId) -> Option<Object> {
        let ObjectId { kind, name } = id;
        match kind {
            Kind::Secret => Some(Object::Secret(Arc::clone(&self.secrets.get(name)?.object))),
            Kind::ConfigMap => Some(Object::ConfigMap(Arc::clone(&self.config_maps.get(name)?.object))),
            Kind::Ingress | Kind::IngressClass | Kind::Service | Kind::EndpointSlice | Kind::Node => None,
        }
    }

    /// The slices of a service, in order of their names.
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

    /// Whether this Ingress is there but for its status, which is what we write ourselves and translate to nothing.
    fn differs_in_status(&self, object: &Object, origin: &Origin) -> bool {
        let Object::Ingress(new) = object else { return false };
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

    /// Whether this very object is there. Much of what a server tells changes nothing that is kept of an object.
    fn holds(&self, object: &Object, origin: &Origin) -> bool {
        fn same<T: PartialEq>(store: &Store<T>, name: &ObjectName, object: &T, origin: &Origin) -> bool {
            store.get(name).is_some_and(|stored| *stored.object == *object && stored.origin == *origin)
        }
        let ObjectId { kind: _, name } = object.id();
        match object {
            Object::Ingress(object) => same(&self.ingresses, &name, object, origin),
            Object::IngressClass(object) => same(&self.classes, &name, object, origin),
            Object::Service(object) => same(&self.services, &name, object, origin),
            Object::Secret(object) => same(&self.secrets, &name, object, origin),
            Object::ConfigMap(object) => same(&self.config_maps, &name, object, origin),
            Object::Node(object) => same(&self.nodes, &name, object, origin),
            Object::EndpointSlice(object) => same(&self.slices, &name, object, origin),
        }
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
                if let Some(service) = &object.service {
                    match self.slices_by_service.get_mut(service) {
                        Some(slices) => slices.insert(slices.partition_point(|other| *other < name), name.clone()),
                        None => drop(self.slices_by_service.insert(service.clone(), vec![name.clone()])),
                    }
                }
                self.slices.insert(name, Stored { object, origin });
            }
        }
    }

    fn remove(&mut self, id: &ObjectId) -> bool {
        let ObjectId { kind, name } = id;
        match kind {
            Kind::Ingress => self.ingresses.remove(name).is_some(),
            Kind::IngressClass => self.classes.remove(name).is_some(),
            Kind::Service => self.services.remove(name).is_some(),
            Kind::Secret => self.secrets.remove(name).is_some(),
            Kind::ConfigMap => self.config_maps.remove(name).is_some(),
            Kind::Node => self.nodes.remove(name).is_some(),
            Kind::EndpointSlice => {
                let Some(stored) = self.slices.remove(name) else { return false };
                let Some(service) = &stored.object.service else { return true };
                if let Some(slices) = self.slices_by_service.get_mut(service) {
                    slices.retain(|slice| slice != name);
                    if slices.is_empty() {
                        self.slices_by_service.remove(service);
                    }
                }
                true
            }
        }
    }
}

// === impl Stored ===

impl<T> Stored<T> {
    #[must_use]
    pub fn refer(&self, kind: Kind, name: &ObjectName) -> ObjectRef {
        name.refer(kind, &self.origin)
    }
}
