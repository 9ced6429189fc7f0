//! The objects of the Gateway API that are saved: the classes of this controller, and what belongs to their Gateways.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;

use crate::{
    change::{Kind, Object, ObjectId, ObjectName},
    cluster::{Cluster, Store},
    gateway::{
        BackendRef, GatewayApiObject, GatewayClass, Group, ParentReference, ReferentKind, StoredKind, extensions,
        named, route::Route,
    },
    namespace::Namespace,
    translate::{is_annotatable, references_of_config_map, route_references, route_services},
};

/// Finds the objects, and the Services and Secrets that they name.
struct Finder<'c> {
    cluster: &'c Cluster,
    /// Gateways and ListenerSets that are saved.
    parents: BTreeSet<ObjectId>,
    services: &'c mut BTreeSet<ObjectName>,
    found: Vec<GatewayApiObject>,
}

/// Returns the objects, and adds the Services and Secrets that they name. ConfigMaps are saved anyway.
pub(super) fn objects(
    cluster: &Cluster,
    services: &mut BTreeSet<ObjectName>,
    secrets: &mut BTreeSet<ObjectName>,
) -> Vec<Object> {
    let mut finder = Finder { cluster, parents: BTreeSet::new(), services, found: Vec::new() };
    finder.find_parents();
    finder.find_routes(cluster.http_routes());
    finder.find_routes(cluster.grpc_routes());
    finder.find_routes(cluster.tls_routes());
    finder.find_routes(cluster.tcp_routes());
    finder.find_routes(cluster.udp_routes());
    finder.find_policies();
    let Finder { found, .. } = finder;
    let named = found.iter().flat_map(|object| named(object, usize::MAX).into_iter().chain(annotated(object, cluster)));
    secrets.extend(named.filter(|id| id.kind == Kind::Secret).map(|id| id.name));
    services.extend(found.iter().flat_map(|object| led_to(object, cluster)));
    let namespaces: BTreeSet<_> = found.iter().map(|object| Arc::clone(&object.metadata().name.namespace)).collect();
    let namespaces = namespaces.into_iter().filter_map(|name| {
        let labels = Arc::clone(cluster.namespace_labels.get(&name)?);
        let name = ObjectName { namespace: "".into(), name };
        Some(Object::Namespace(Arc::new(Namespace { name, deleted: None, labels })))
    });
    namespaces.chain(found.into_iter().map(Object::GatewayApi)).collect()
}

/// Returns the objects that annotations of a route, or the ConfigMaps of its filters, name.
fn annotated(object: &GatewayApiObject, cluster: &Cluster) -> BTreeSet<ObjectId> {
    let ObjectName { namespace, name: _ } = &object.metadata().name;
    if !is_annotatable(object.kind()) {
        return BTreeSet::new();
    }
    let mut named = route_references(object.metadata(), namespace);
    let config_maps = config_maps(object, cluster);
    named.extend(config_maps.flat_map(|config_map| references_of_config_map(config_map, namespace)));
    named
}

/// Returns the Services that they lead to.
fn led_to(object: &GatewayApiObject, cluster: &Cluster) -> BTreeSet<ObjectName> {
    let ObjectName { namespace, name: _ } = &object.metadata().name;
    if !is_annotatable(object.kind()) {
        return BTreeSet::new();
    }
    route_services(object.metadata(), config_maps(object, cluster), namespace)
}

fn config_maps<'c>(object: &GatewayApiObject, cluster: &'c Cluster) -> impl Iterator<Item = &'c ConfigMap> {
    let config_map = |id: ObjectId| cluster.config_maps.get(&id.name).map(|stored| &*stored.object);
    extensions(object).into_iter().filter_map(config_map)
}

fn any<K: StoredKind>(object: &Arc<K>) -> GatewayApiObject {
    K::any(Arc::clone(object))
}

// === impl Finder ===

impl Finder<'_> {
    /// Finds classes, Gateways and ListenerSets.
    fn find_parents(&mut self) {
        let Self { cluster, parents, services: _, found } = self;
        let classes = cluster.gateway_classes();
        found.extend(
            classes.values().map(|stored| &stored.object).filter(|class| class.is_ours()).map(any::<GatewayClass>),
        );
        for (name, stored) in cluster.gateways().iter() {
            let class = classes.get(&ObjectName::new("", &stored.object.spec.gateway_class_name));
            if class.is_some_and(|class| class.object.is_ours()) && cluster.selects(&name.namespace) {
                parents.insert(ObjectId { kind: Kind::Gateway, name: name.clone() });
                found.push(any(&stored.object));
            }
        }
        for (name, stored) in cluster.listener_sets().iter() {
            let gateway = stored.object.spec.parent_ref.referent(&name.namespace);
            let is_attached = gateway.is_some_and(|parent| parent.kind == Kind::Gateway && parents.contains(&parent));
            if is_attached && cluster.selects(&name.namespace) {
                parents.insert(ObjectId { kind: Kind::ListenerSet, name: name.clone() });
                found.push(any(&stored.object));
            }
        }
    }

    fn find_routes<K: StoredKind + Route>(&mut self, routes: &Store<K>) {
        for (name, stored) in routes.iter() {
            let route = &stored.object;
            let is_attached = route.parent_refs().iter().any(|reference| self.is_parent(reference, &name.namespace));
            if is_attached && self.cluster.selects(&name.namespace) {
                let backends = route.backends().into_iter();
                self.services.extend(backends.filter_map(|backend| service(backend, &name.namespace)));
                self.found.push(any(route));
            }
        }
    }

    fn is_parent(&self, reference: &ParentReference, namespace: &str) -> bool {
        reference.referent(namespace).is_some_and(|parent| self.parents.contains(&parent))
    }

    /// Finds policies for saved Services.
    fn find_policies(&mut self) {
        for (name, stored) in self.cluster.backend_tls_policies().iter() {
            let mut targets = stored.object.spec.target_refs.iter();
            if targets.any(|target| self.services.contains(&ObjectName::new(&name.namespace, &target.name))) {
                self.found.push(any(&stored.object));
            }
        }
    }
}

/// Returns the Service that a backend of a route in `namespace` is.
fn service(backend: &BackendRef, namespace: &str) -> Option<ObjectName> {
    let is_service = (&backend.group, &backend.kind) == (&Group::Core, &ReferentKind::Service);
    is_service.then(|| ObjectName::new(backend.namespace.as_deref().unwrap_or(namespace), &backend.name))
}
