//! Finds the differences between a cluster and the one that was translated last. The parts made from it are not known
//! here.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    change::{Kind, ObjectId, ObjectName},
    cluster::{Cluster, Store},
    translate::part::{Dependency, Vicinity},
};

/// Returns the differences of what Gateways are made from. Routes are parts themselves.
fn gateway_differences(known: &Cluster, cluster: &Cluster) -> BTreeSet<Dependency> {
    let mut found = BTreeSet::new();
    let object = |kind, name| Dependency::Object(ObjectId { kind, name });
    let gateways = known.gateways().differences(cluster.gateways()).into_iter();
    found.extend(gateways.map(|difference| object(Kind::Gateway, difference.key.clone())));
    let sets = known.listener_sets().differences(cluster.listener_sets()).into_iter();
    found.extend(sets.map(|difference| object(Kind::ListenerSet, difference.key.clone())));
    if !found.is_empty() || !known.gateway_classes().differences(cluster.gateway_classes()).is_empty() {
        found.insert(Dependency::Gateways);
    }
    for difference in known.backend_tls_policies().differences(cluster.backend_tls_policies()) {
        let policies = [difference.old, difference.new].into_iter().flatten();
        found.extend(policies.flat_map(|stored| stored.object.services()).map(Dependency::PoliciesOf));
        found.insert(object(Kind::BackendTlsPolicy, difference.key.clone()));
    }
    let namespaces = known.namespace_labels.differences(&cluster.namespace_labels).into_iter();
    found.extend(namespaces.map(|difference| object(Kind::Namespace, ObjectName::new("", difference.key))));
    found
}

/// Returns the differences of `cluster`, apart from Ingresses and routes. `node` is the node of this process.
pub(super) fn differences(known: &Cluster, cluster: &Cluster, node: Option<&str>) -> BTreeSet<Dependency> {
    fn names<T: PartialEq>(known: &Store<T>, now: &Store<T>) -> Vec<ObjectName> {
        known.differences(now).into_iter().map(|difference| difference.key.clone()).collect()
    }
    let Cluster { ingresses: _, classes, services, secrets, config_maps, nodes, resolved, slices, grants, .. } =
        cluster;
    let mut found = BTreeSet::new();
    for (kind, names) in [
        (Kind::IngressClass, names(&known.classes, classes)),
        (Kind::Service, names(&known.services, services)),
        (Kind::Secret, names(&known.secrets, secrets)),
        (Kind::ConfigMap, names(&known.config_maps, config_maps)),
        (Kind::Node, names(&known.nodes, nodes)),
    ] {
        match kind {
            Kind::IngressClass if !names.is_empty() => drop(found.insert(Dependency::Classes)),
            Kind::Node if !names.is_empty() => {
                found.insert(Dependency::Nodes);
                let of_this = |name: &ObjectName| Some(&*name.name) == node;
                if names.iter().any(of_this) {
                    found.insert(Dependency::Topology);
                }
            }
            _ => {}
        }
        found.extend(names.into_iter().map(|name| Dependency::Object(ObjectId { kind, name })));
    }
    for difference in known.slices.differences(slices) {
        let services = [difference.old, difference.new].into_iter().flatten();
        let services = services.filter_map(|stored| stored.object.service.clone());
        found.extend(services.map(Dependency::SlicesOf));
    }
    let grants = known.grants.differences(grants).into_iter();
    found.extend(grants.map(|difference| Dependency::GrantsOf(Arc::clone(&difference.key.namespace))));
    found.extend(gateway_differences(known, cluster));
    let cluster_ips = known.cluster_ips.differences(&cluster.cluster_ips).into_iter();
    found.extend(cluster_ips.map(|difference| Dependency::Taken(Vicinity::of(*difference.key))));
    if known.own_addresses != cluster.own_addresses {
        found.insert(Dependency::OwnAddresses);
    }
    if known.hour != cluster.hour {
        found.insert(Dependency::Hour);
    }
    let names = known.resolved.differences(resolved).into_iter();
    found.extend(names.map(|difference| Dependency::Addresses(Arc::clone(difference.key))));
    found
}
