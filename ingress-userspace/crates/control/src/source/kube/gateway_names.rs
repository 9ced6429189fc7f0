//! Keeps the objects of the Gateway API that name Secrets and ConfigMaps, and finds those whose names count: the names
//! of Gateways of other controllers do not. This module watches nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    gateway::{self, Gateway, GatewayApiObject, ListenerSet},
};

/// An object, and the Secrets and ConfigMaps that it names now.
pub(super) type Named = (ObjectId, BTreeSet<ObjectId>);

#[derive(Default)]
pub(super) struct GatewayNames {
    /// Names of the GatewayClasses of this controller.
    classes: BTreeSet<Arc<str>>,
    /// Objects that name others, and all Gateways.
    objects: BTreeMap<ObjectId, GatewayApiObject>,
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
                (ObjectId { kind: object.kind(), name: ObjectName::of(object.metadata()) }, Some(object))
            }
            Change::Remove(id) if is_kind_with_names(id.kind) => (id.clone(), None),
            _ => return None,
        };
        let had_gateway = self.is_our_gateway(&id);
        match object {
            Some(object) if id.kind == Kind::Gateway || !gateway::named(object, 1).is_empty() => {
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
        let has_changed_gateway = self.is_our_gateway(&id) != had_gateway;
        let others = self.objects.iter().filter(|(other, object)| {
            **other != id
                && (has_changed_classes
                    || has_changed_gateway
                        && matches!(object, GatewayApiObject::ListenerSet(set) if gateway_of(set, other) == id))
        });
        let named = |(id, object): (&ObjectId, &GatewayApiObject)| (id.clone(), self.named(id, object, &counts));
        let mut changed: Vec<_> = others.map(named).collect();
        let of_this = object.map(|object| self.named(&id, object, &counts)).unwrap_or_default();
        changed.push((id, of_this));
        Some(changed)
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
            GatewayApiObject::ListenerSet(set) => self.is_our_gateway(&gateway_of(set, id)),
            // Whether a route or policy concerns a Gateway of ours is left to the translation.
            _ => !self.classes.is_empty(),
        };
        let is_of_us = is_of_us && (id.name.namespace.is_empty() || counts(&id.name.namespace));
        if is_of_us { gateway::named(object, self.max) } else { BTreeSet::new() }
    }

    fn is_our_gateway(&self, id: &ObjectId) -> bool {
        matches!(self.objects.get(id), Some(GatewayApiObject::Gateway(gateway)) if self.is_ours(gateway))
    }

    fn is_ours(&self, gateway: &Gateway) -> bool {
        self.classes.contains(&*gateway.spec.gateway_class_name)
    }
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

/// Returns the Gateway of a ListenerSet.
fn gateway_of(set: &ListenerSet, id: &ObjectId) -> ObjectId {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_deref().unwrap_or(&id.name.namespace);
    ObjectId { kind: Kind::Gateway, name: ObjectName::new(namespace, &parent.name) }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        gateway::{GatewayClass, StoredKind, route::HttpRoute},
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
        let extension =
            json!({"type": "ExtensionRef", "extensionRef": {"group": "", "kind": "ConfigMap", "name": "keys"}});
        let route = apply::<HttpRoute>("r", &json!({"rules": [{"filters": [extension]}]}));
        let mut names = GatewayNames::new(9);
        // The order in which objects arrive makes no difference in the end.
        assert_eq!(learn(&mut names, &set), ["set: "]);
        assert_eq!(learn(&mut names, &route), ["r: "]);
        assert_eq!(learn(&mut names, &gateway("xdp")), ["g: "]);
        assert_eq!(learn(&mut names, &class(ours)), ["g: of-gateway", "r: keys", "set: of-set", "xdp: "]);
        assert_eq!(learn(&mut names, &class(ours)), ["xdp: "], "nothing is new");
        assert_eq!(learn(&mut names, &gateway("other")), ["g: ", "set: "]);
        assert_eq!(learn(&mut names, &gateway("xdp")), ["g: of-gateway", "set: of-set"]);
        let gone = Change::Remove(ObjectId { kind: Kind::Gateway, name: ObjectName::new("n", "g") });
        assert_eq!(learn(&mut names, &gone), ["g: ", "set: "]);
        learn(&mut names, &gateway("xdp"));
        assert_eq!(learn(&mut names, &class("acme.test/controller")), ["g: ", "r: ", "set: ", "xdp: "]);
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
