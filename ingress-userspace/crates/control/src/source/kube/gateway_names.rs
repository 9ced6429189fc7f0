//! Keeps the objects of the Gateway API that name Secrets and ConfigMaps, and finds those whose names count. Names in
//! Gateways of other controllers do not count. This module opens no watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    gateway::{self, Gateway, GatewayApiObject, ParentReference, route::Route},
    translate::{is_annotatable, references_of_config_map, route_references},
};

/// An object, and the Secrets and ConfigMaps that it names now.
pub(super) type Named = (ObjectId, BTreeSet<ObjectId>);

#[derive(Default)]
pub(super) struct GatewayNames {
    /// Names of the GatewayClasses of this controller.
    classes: BTreeSet<Arc<str>>,
    /// Objects that name others, and all Gateways and ListenerSets.
    objects: BTreeMap<ObjectId, GatewayApiObject>,
    /// Objects that the keys of known ConfigMaps name, if they are annotations of a route. Most name none.
    of_config_maps: BTreeMap<ObjectId, BTreeSet<ObjectId>>,
    /// Maximum number of Secrets and ConfigMaps that an object may name.
    max: usize,
}

// === impl GatewayNames ===

impl GatewayNames {
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Applies a change. Returns the objects whose names may differ from before, and always the changed object. Returns
    /// `None` if the change is of another API. `counts` tells whether objects of a namespace count.
    pub(super) fn learn(&mut self, change: &Change, counts: impl Fn(&str) -> bool) -> Option<Vec<Named>> {
        let (id, object) = match change {
            Change::Apply { object: Object::GatewayApi(object), origin: _ } => {
                (ObjectId { kind: object.kind(), name: object.metadata().name.clone() }, Some(object))
            }
            Change::Remove(id) if is_kind_with_names(id.kind) => (id.clone(), None),
            _ => return None,
        };
        let was_parent = self.is_our_parent(&id);
        match object {
            Some(object) if matches!(id.kind, Kind::Gateway | Kind::ListenerSet) || names_anything(object) => {
                self.objects.insert(id.clone(), object.clone());
            }
            _ => drop(self.objects.remove(&id)),
        }
        let is_our_class = matches!(object, Some(GatewayApiObject::GatewayClass(class)) if class.is_ours());
        let has_changed_classes = id.kind == Kind::GatewayClass
            && match is_our_class {
                true => self.classes.insert(Arc::clone(&id.name.name)),
                false => self.classes.remove(&id.name.name),
            };
        let has_changed_parent = self.is_our_parent(&id) != was_parent;
        // Most changes are of routes and concern no other object.
        let objects = (has_changed_classes || has_changed_parent).then_some(&self.objects).into_iter().flatten();
        let others = objects
            .filter(|(other, object)| **other != id && (has_changed_classes || self.attaches(other, object, &id)));
        let named = |(id, object): (&ObjectId, &GatewayApiObject)| (id.clone(), self.named(id, object, &counts));
        let mut changed: Vec<_> = others.map(named).collect();
        let of_this = object.map(|object| self.named(&id, object, &counts)).unwrap_or_default();
        changed.push((id, of_this));
        Some(changed)
    }

    /// Applies a change of a ConfigMap. Returns the routes that name other objects through it than before.
    pub(super) fn learn_config_map(&mut self, change: &Change, counts: impl Fn(&str) -> bool) -> Vec<Named> {
        let (id, named) = match change {
            Change::Apply { object: Object::ConfigMap(config_map), origin: _ } => {
                let name = ObjectName::of(&config_map.metadata);
                let named = references_of_config_map(config_map, &name.namespace);
                (ObjectId { kind: Kind::ConfigMap, name }, named)
            }
            Change::Remove(id) if id.kind == Kind::ConfigMap => (id.clone(), BTreeSet::new()),
            _ => return Vec::new(),
        };
        let before = if named.is_empty() {
            self.of_config_maps.remove(&id)
        } else {
            self.of_config_maps.insert(id.clone(), named.clone())
        };
        if before.unwrap_or_default() == named {
            return Vec::new();
        }
        let routes = self.objects.iter().filter(|(_, object)| gateway::extensions(object).contains(&id));
        routes.map(|(route, object)| (route.clone(), self.named(route, object, &counts))).collect()
    }

    /// Returns the objects that routes of this controller name through a ConfigMap.
    pub(super) fn named_through(&self, id: &ObjectId, counts: impl Fn(&str) -> bool) -> BTreeSet<ObjectId> {
        let Some(of_this) = self.of_config_maps.get(id) else { return BTreeSet::new() };
        let routes = self.objects.iter().filter(|(_, object)| gateway::extensions(object).contains(id));
        let named = routes.flat_map(|(route, object)| self.named(route, object, &counts));
        named.filter(|named| of_this.contains(named)).collect()
    }

    /// Returns the objects of a namespace, or of all, with what they name now.
    pub(super) fn of(&self, namespace: Option<&str>, counts: impl Fn(&str) -> bool) -> Vec<Named> {
        let objects = self.objects.iter().filter(|(id, _)| namespace.is_none_or(|it| *id.name.namespace == *it));
        objects.map(|(id, object)| (id.clone(), self.named(id, object, &counts))).collect()
    }

    fn named(&self, id: &ObjectId, object: &GatewayApiObject, counts: impl Fn(&str) -> bool) -> BTreeSet<ObjectId> {
        let is_of_us = match object {
            GatewayApiObject::GatewayClass(class) => class.is_ours(),
            GatewayApiObject::Gateway(gateway) => self.is_ours(gateway),
            GatewayApiObject::ListenerSet(_) | GatewayApiObject::HttpRoute(_) | GatewayApiObject::GrpcRoute(_) => {
                parents(id, object).any(|parent| self.is_our_parent(&parent))
            }
            // Whether a policy concerns a Gateway of ours is left to the translation.
            _ => !self.classes.is_empty(),
        };
        let is_of_us = is_of_us && (id.name.namespace.is_empty() || counts(&id.name.namespace));
        if !is_of_us {
            return BTreeSet::new();
        }
        if !is_annotatable(id.kind) {
            return gateway::named(object, self.max);
        }
        // As in the translation, a route that names too much has no effect, so nothing is read for it.
        let mut direct = gateway::named(object, usize::MAX);
        direct.extend(route_references(object.metadata(), &id.name.namespace));
        if direct.len() > self.max {
            return BTreeSet::new();
        }
        let extensions = gateway::extensions(object);
        let through = extensions.iter().filter_map(|id| self.of_config_maps.get(id)).flatten();
        let all: BTreeSet<_> = direct.iter().chain(through).cloned().collect();
        // The ConfigMaps stay known, because a change of them may be the remedy.
        if all.len() > self.max { direct } else { all }
    }

    /// Returns `true` for Gateways of this controller, and ListenerSets for them.
    fn is_our_parent(&self, id: &ObjectId) -> bool {
        match self.objects.get(id) {
            Some(GatewayApiObject::Gateway(gateway)) => self.is_ours(gateway),
            Some(GatewayApiObject::ListenerSet(set)) => {
                let gateway = set.spec.parent_ref.referent(&id.name.namespace);
                gateway.is_some_and(|gateway| gateway.kind == Kind::Gateway && self.is_our_parent(&gateway))
            }
            _ => false,
        }
    }

    /// Returns `true` if an object attaches to a parent, or to a ListenerSet of it.
    fn attaches(&self, id: &ObjectId, object: &GatewayApiObject, to: &ObjectId) -> bool {
        parents(id, object).any(|parent| {
            let set = self.objects.get_key_value(&parent).filter(|_| parent.kind == Kind::ListenerSet);
            parent == *to || set.is_some_and(|(id, set)| parents(id, set).any(|gateway| gateway == *to))
        })
    }

    fn is_ours(&self, gateway: &Gateway) -> bool {
        self.classes.contains(&*gateway.spec.gateway_class_name)
    }
}

fn names_anything(object: &GatewayApiObject) -> bool {
    let by_annotations = || {
        let metadata = object.metadata();
        is_annotatable(object.kind()) && !route_references(metadata, &metadata.name.namespace).is_empty()
    };
    !gateway::named(object, 1).is_empty() || by_annotations()
}

/// Returns `true` if objects of this kind of the Gateway API may name Secrets or ConfigMaps.
pub(super) fn is_kind_with_names(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::GatewayClass
            | Kind::Gateway
            | Kind::ListenerSet
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::BackendTlsPolicy
    )
}

/// Returns the Gateways and ListenerSets that an object attaches to.
fn parents<'o>(id: &'o ObjectId, object: &'o GatewayApiObject) -> impl Iterator<Item = ObjectId> + 'o {
    let references: &[ParentReference] = match object {
        GatewayApiObject::ListenerSet(set) => std::slice::from_ref(&set.spec.parent_ref),
        GatewayApiObject::HttpRoute(route) => route.parent_refs(),
        GatewayApiObject::GrpcRoute(route) => route.parent_refs(),
        _ => &[],
    };
    references.iter().filter_map(|reference| reference.referent(&id.name.namespace))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        gateway::{BackendTlsPolicy, GatewayClass, ListenerSet, StoredKind, route::HttpRoute},
        outcome::Origin,
    };

    fn apply<K: StoredKind + DeserializeOwned>(name: &str, spec: &Value) -> Change {
        let object = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        let object: K = serde_json::from_value(object).expect("an object");
        Change::Apply { object: Object::GatewayApi(K::any(object.into())), origin: Origin::Api }
    }

    /// Returns the names of the objects that are named after `change`, each with the object that names it.
    fn learn(names: &mut GatewayNames, change: &Change) -> Vec<String> {
        let learnt = names.learn(change, |namespace| namespace == "n").expect("of the Gateway API");
        let mut found: Vec<_> = learnt
            .iter()
            .map(|(id, named)| {
                let named: Vec<_> = named.iter().map(|named| &*named.name.name).collect();
                format!("{}: {}", id.name.name, named.join(" "))
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn names_count_while_the_class_is_of_this_controller() {
        let class = |controller: &str| {
            let object = json!({"metadata": {"name": "xdp"}, "spec": {"controllerName": controller}});
            let class: GatewayClass = serde_json::from_value(object).expect("a class");
            Change::Apply { object: Object::GatewayApi(GatewayClass::any(class.into())), origin: Origin::Api }
        };
        let ours = "xdp-ingress.io/gateway-controller";
        let listeners = |secret: &str| json!([{"tls": {"certificateRefs": [{"name": secret}]}}]);
        let gateway = |class: &str| {
            apply::<Gateway>("g", &json!({"gatewayClassName": class, "listeners": listeners("of-gateway")}))
        };
        let set = apply::<ListenerSet>("set", &json!({"parentRef": {"name": "g"}, "listeners": listeners("of-set")}));
        let authority = json!({"group": "", "kind": "ConfigMap", "name": "ca"});
        let policy = apply::<BackendTlsPolicy>("p", &json!({"validation": {"caCertificateRefs": [authority]}}));
        let mut names = GatewayNames::new(9);
        // The order in which objects arrive makes no difference in the end.
        assert_eq!(learn(&mut names, &set), ["set: "]);
        assert_eq!(learn(&mut names, &policy), ["p: "]);
        assert_eq!(learn(&mut names, &gateway("xdp")), ["g: "]);
        assert_eq!(learn(&mut names, &class(ours)), ["g: of-gateway", "p: ca", "set: of-set", "xdp: "]);
        assert_eq!(learn(&mut names, &class(ours)), ["xdp: "], "nothing is new");
        assert_eq!(learn(&mut names, &gateway("other")), ["g: ", "set: "]);
        assert_eq!(learn(&mut names, &gateway("xdp")), ["g: of-gateway", "set: of-set"]);
        let gone = Change::Remove(ObjectId { kind: Kind::Gateway, name: ObjectName::new("n", "g") });
        assert_eq!(learn(&mut names, &gone), ["g: ", "set: "]);
        learn(&mut names, &gateway("xdp"));
        assert_eq!(learn(&mut names, &class("acme.test/controller")), ["g: ", "p: ", "set: ", "xdp: "]);
    }

    #[test]
    fn names_of_routes_count_while_they_attach_to_our_gateways() {
        let settings =
            json!({"type": "ExtensionRef", "extensionRef": {"group": "", "kind": "ConfigMap", "name": "keys"}});
        let route = |name: &str, parent: &Value| {
            apply::<HttpRoute>(name, &json!({"parentRefs": [parent], "rules": [{"filters": [settings]}]}))
        };
        let gateway = |class: &str| apply::<Gateway>("g", &json!({"gatewayClassName": class}));
        let set = |gateway: &str| apply::<ListenerSet>("s", &json!({"parentRef": {"name": gateway}}));
        let mut names = GatewayNames::new(9);
        names.classes.insert("xdp".into());
        assert_eq!(learn(&mut names, &route("a", &json!({"name": "g"}))), ["a: "]);
        assert_eq!(learn(&mut names, &route("b", &json!({"kind": "ListenerSet", "name": "s"}))), ["b: "]);
        assert_eq!(learn(&mut names, &route("c", &json!({"name": "another"}))), ["c: "]);
        assert_eq!(learn(&mut names, &set("g")), ["s: "]);
        assert_eq!(learn(&mut names, &gateway("xdp")), ["a: keys", "b: keys", "g: ", "s: "]);
        assert_eq!(learn(&mut names, &set("another")), ["b: ", "s: "]);
        assert_eq!(learn(&mut names, &set("g")), ["b: keys", "s: "]);
        assert_eq!(learn(&mut names, &gateway("other")), ["a: ", "b: ", "g: ", "s: "]);
    }

    #[test]
    fn routes_name_what_their_annotations_and_config_maps_name() {
        let route = |annotations: Value, extension: &str| {
            let filter =
                json!({"type": "ExtensionRef", "extensionRef": {"group": "", "kind": "ConfigMap", "name": extension}});
            let filters = if extension.is_empty() { json!([]) } else { json!([filter]) };
            let object: HttpRoute = serde_json::from_value(json!({
                "metadata": {"name": "r", "namespace": "n", "annotations": annotations},
                "spec": {"parentRefs": [{"name": "g"}], "rules": [{"filters": filters}]},
            }))
            .expect("a route");
            Change::Apply { object: Object::GatewayApi(HttpRoute::any(object.into())), origin: Origin::Api }
        };
        let config_map = |name: &str, data: Value| {
            let object = json!({"metadata": {"name": name, "namespace": "n"}, "data": data});
            let object = serde_json::from_value(object).expect("a ConfigMap");
            Change::Apply { object: Object::ConfigMap(Arc::new(object)), origin: Origin::Api }
        };
        let through = |names: &mut GatewayNames, change: &Change| {
            let routes = names.learn_config_map(change, |_| true).into_iter();
            routes.map(|(id, named)| format!("{}: {}", id.name, named.len())).collect::<Vec<_>>()
        };
        let mut names = GatewayNames::new(3);
        names.classes.insert("xdp".into());
        learn(&mut names, &apply::<Gateway>("g", &json!({"gatewayClassName": "xdp"})));
        let annotations = json!({
            "xdp-ingress.io/auth-secret": "users", "xdp-ingress.io/custom-headers": "other/fields",
            "nginx.ingress.kubernetes.io/auth-secret": "of-nginx", "xdp-ingress.io/auth-tls-secret": "clients",
        });
        assert_eq!(learn(&mut names, &route(annotations, "")), ["r: users"]);
        assert_eq!(learn(&mut names, &route(json!({}), "keys")), ["r: keys"]);
        let keys = json!({"auth-secret": "n/users", "limit-rps": "1"});
        assert_eq!(through(&mut names, &config_map("keys", keys.clone())), ["n/r: 2"]);
        assert_eq!(through(&mut names, &config_map("keys", keys)), [""; 0], "nothing is new");
        // The ConfigMap may be known before the route.
        assert_eq!(learn(&mut names, &route(json!({}), "")), ["r: "]);
        assert_eq!(learn(&mut names, &route(json!({}), "keys")), ["r: users keys"]);
        let gone = Change::Remove(ObjectId { kind: Kind::ConfigMap, name: ObjectName::new("n", "keys") });
        assert_eq!(through(&mut names, &gone), ["n/r: 1"]);
        let many =
            json!({"auth-secret": "a", "jwt-jwks-secret": "b", "jwt-jwks-ca-secret": "c", "custom-headers": "d"});
        assert_eq!(through(&mut names, &config_map("keys", many)), ["n/r: 1"], "too many, so none but the ConfigMap");
        assert_eq!(through(&mut names, &config_map("another", json!({"auth-secret": "a"}))), [""; 0]);
    }

    #[test]
    fn a_route_that_names_too_much_by_itself_has_nothing_read() {
        let filter = |name: &str| json!({"type": "ExtensionRef", "extensionRef": {"group": "", "kind": "ConfigMap", "name": name}});
        let route = |count: usize| {
            let filters: Vec<_> = (0..count).map(|number| filter(&format!("c{number}"))).collect();
            apply::<HttpRoute>("r", &json!({"parentRefs": [{"name": "g"}], "rules": [{"filters": filters}]}))
        };
        let mut names = GatewayNames::new(3);
        names.classes.insert("xdp".into());
        learn(&mut names, &apply::<Gateway>("g", &json!({"gatewayClassName": "xdp"})));
        assert_eq!(learn(&mut names, &route(3)), ["r: c0 c1 c2"]);
        assert_eq!(learn(&mut names, &route(4)), ["r: "]);
    }

    #[test]
    fn names_count_while_their_namespace_does() {
        let mut names = GatewayNames::new(9);
        names.classes.insert("xdp".into());
        let spec = json!({"gatewayClassName": "xdp", "listeners": [{"tls": {"certificateRefs": [{"name": "s"}]}}]});
        assert_eq!(learn(&mut names, &apply::<Gateway>("g", &spec)), ["g: s"]);
        let named = |namespace: Option<&str>, counts: bool| {
            names.of(namespace, |_| counts).iter().map(|(_, named)| named.len()).collect::<Vec<_>>()
        };
        assert_eq!(
            (named(Some("n"), true), named(Some("n"), false), named(Some("m"), true)),
            (vec![1], vec![0], vec![])
        );
        assert_eq!(named(None, true), [1]);
    }
}
