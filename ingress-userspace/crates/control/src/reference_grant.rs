//! ReferenceGrant of the Gateway API (`gateway.networking.k8s.io`), and its reduced form: the references that the owner
//! of a namespace allows. This module looks up no referent.
//!
//! The Kubernetes types do not include it, because a cluster may lack the resource. Groups and kinds are open: a grant
//! for unknown ones is read and allows nothing.

use std::sync::Arc;

use k8s_openapi::{Metadata, NamespaceResourceScope, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::{
    change::ObjectName,
    gateway::{GROUP, Group, ReferentKind},
};

/// The object in version `v1`, or in `v1beta1`, which differs only in its name. Releases of the Gateway API before 1.5
/// serve only the latter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferenceGrant<const BETA: bool = false> {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ReferenceGrantSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReferenceGrantSpec {
    /// Sources that may refer: any of these.
    #[serde(default)]
    pub from: Vec<ReferenceGrantFrom>,
    /// Targets in the namespace of the grant: any of these.
    #[serde(default)]
    pub to: Vec<ReferenceGrantTo>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReferenceGrantFrom {
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub namespace: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReferenceGrantTo {
    /// Empty for the core group.
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub kind: String,
    /// `None` means all objects of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Reduced form of a ReferenceGrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub name: ObjectName,
    pub from: Box<[GrantSource]>,
    pub to: Box<[GrantTarget]>,
}

/// Objects that may refer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantSource {
    pub group: Group,
    pub kind: ReferentKind,
    pub namespace: Arc<str>,
}

/// Objects in the namespace of the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantTarget {
    pub group: Group,
    pub kind: ReferentKind,
    /// `None`: all objects of the kind.
    pub name: Option<Arc<str>>,
}

const KIND: &str = "ReferenceGrant";

// === impl ReferenceGrant ===

impl<const BETA: bool> Resource for ReferenceGrant<BETA> {
    const API_VERSION: &'static str =
        if BETA { "gateway.networking.k8s.io/v1beta1" } else { "gateway.networking.k8s.io/v1" };
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = KIND;
    const VERSION: &'static str = if BETA { "v1beta1" } else { "v1" };
    const URL_PATH_SEGMENT: &'static str = "referencegrants";
    type Scope = NamespaceResourceScope;
}

impl<const BETA: bool> Metadata for ReferenceGrant<BETA> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl Grant ===

impl Grant {
    /// Returns `true` if objects of the kind and namespace in `from` may refer to the object of the kind and name in
    /// `to`, which is in the namespace of the grant.
    #[must_use]
    pub fn permits(&self, from: (&Group, &ReferentKind, &str), to: (&Group, &ReferentKind, &str)) -> bool {
        let is_source = |source: &GrantSource| (&source.group, &source.kind, &*source.namespace) == from;
        let is_target = |target: &GrantTarget| {
            (&target.group, &target.kind) == (to.0, to.1) && target.name.as_ref().is_none_or(|name| **name == *to.2)
        };
        self.from.iter().any(is_source) && self.to.iter().any(is_target)
    }
}

impl<const BETA: bool> From<ReferenceGrant<BETA>> for Grant {
    fn from(object: ReferenceGrant<BETA>) -> Self {
        let ReferenceGrant { api_version: _, kind: _, metadata, spec: ReferenceGrantSpec { from, to } } = object;
        let from = from.into_iter().map(|ReferenceGrantFrom { group, kind, namespace }| GrantSource {
            group: group.as_str().into(),
            kind: kind.as_str().into(),
            namespace: namespace.into(),
        });
        let to = to.into_iter().map(|ReferenceGrantTo { group, kind, name }| GrantTarget {
            group: group.as_str().into(),
            kind: kind.as_str().into(),
            name: name.map(Into::into),
        });
        Self { name: ObjectName::of(&metadata), from: from.collect(), to: to.collect() }
    }
}

/// The form in which it is saved.
impl From<&Grant> for ReferenceGrant {
    fn from(grant: &Grant) -> Self {
        let Grant { name: ObjectName { namespace, name }, from, to } = grant;
        let metadata = ObjectMeta {
            name: Some((**name).to_owned()),
            namespace: Some((**namespace).to_owned()),
            ..ObjectMeta::default()
        };
        let from = from.iter().map(|GrantSource { group, kind, namespace }| ReferenceGrantFrom {
            group: group.to_string(),
            kind: kind.to_string(),
            namespace: (**namespace).to_owned(),
        });
        let to = to.iter().map(|GrantTarget { group, kind, name }| ReferenceGrantTo {
            group: group.to_string(),
            kind: kind.to_string(),
            name: name.as_deref().map(str::to_owned),
        });
        Self {
            api_version: <Self as Resource>::API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata,
            spec: ReferenceGrantSpec { from: from.collect(), to: to.collect() },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grant(from: &serde_json::Value, to: &serde_json::Value) -> Grant {
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"name": "g", "namespace": "b", "uid": "u"}, "spec": {"from": from, "to": to}});
        Grant::from(serde_json::from_value::<ReferenceGrant>(object).expect("a ReferenceGrant"))
    }

    #[test]
    fn a_grant_allows_only_what_it_names() {
        let ingress = json!({"group": "networking.k8s.io", "kind": "Ingress", "namespace": "a"});
        let service = json!({"group": "", "kind": "Service"});
        let named = json!({"group": "", "kind": "Service", "name": "s"});
        let route = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "a"});
        for (from, to, of_a, of_another, other_service) in [
            (json!([ingress]), json!([service]), true, false, true),
            (json!([ingress]), json!([named]), true, false, false),
            (json!([route, ingress]), json!([{"group": "", "kind": "Secret"}, named]), true, false, false),
            (json!([route]), json!([service]), false, false, false),
            (json!([ingress]), json!([{"group": "", "kind": "Secret"}]), false, false, false),
            (json!([ingress]), json!([{"group": "other.test", "kind": "Service"}]), false, false, false),
            (json!([ingress]), json!([{"group": "", "kind": "Service", "name": ""}]), false, false, false),
            (json!([{"group": "", "kind": "Ingress", "namespace": "a"}]), json!([service]), false, false, false),
            (json!([{"group": "networking.k8s.io", "kind": "Ingress"}]), json!([service]), false, false, false),
            (json!([]), json!([service]), false, false, false),
            (json!([ingress]), json!([]), false, false, false),
        ] {
            let grant = grant(&from, &to);
            let allows = |namespace: &str, service: &str| {
                let to = (&Group::Core, &ReferentKind::Service, service);
                grant.permits((&Group::Networking, &ReferentKind::Ingress, namespace), to)
            };
            let found = (allows("a", "s"), allows("b", "s"), allows("a", "t"));
            assert_eq!(found, (of_a, of_another, other_service), "{from} {to}");
        }
    }

    #[test]
    fn a_grant_permits_each_pair_of_a_source_and_a_target() {
        let from = json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "a"},
            {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "c"}]);
        let grant = grant(&from, &json!([{"group": "", "kind": "Service"}, {"kind": "Secret", "name": "s"}]));
        let (route, gateway) = (ReferentKind::HttpRoute, ReferentKind::Gateway);
        let (service, secret) = (ReferentKind::Service, ReferentKind::Secret);
        for (kind, namespace, to, name, is_permitted) in [
            (&route, "a", &service, "x", true),
            (&route, "a", &secret, "s", true),
            (&route, "a", &secret, "x", false),
            (&route, "c", &service, "x", false),
            (&gateway, "c", &secret, "s", true),
            (&gateway, "a", &secret, "s", false),
            (&ReferentKind::GrpcRoute, "a", &service, "x", false),
            (&route, "a", &ReferentKind::ConfigMap, "x", false),
        ] {
            let found = grant.permits((&Group::Gateway, kind, namespace), (&Group::Core, to, name));
            assert_eq!(found, is_permitted, "{kind} {namespace} {to} {name}");
        }
        assert!(!grant.permits((&Group::Networking, &route, "a"), (&Group::Core, &service, "x")));
        assert!(!grant.permits((&Group::Gateway, &route, "a"), (&Group::Gateway, &service, "x")));
    }

    #[test]
    fn the_saved_object_equals_the_kept_one() {
        let from = json!([{"group": "networking.k8s.io", "kind": "Ingress", "namespace": "a"}]);
        let to = json!([{"group": "", "kind": "Service"}, {"group": "", "kind": "Service", "name": "s"}]);
        let grant = grant(&from, &to);
        let saved = serde_json::to_value(ReferenceGrant::from(&grant)).expect("JSON");
        assert_eq!(
            saved,
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
                "metadata": {"name": "g", "namespace": "b"}, "spec": {"from": from, "to": to}})
        );
        assert_eq!(Grant::from(serde_json::from_value::<ReferenceGrant>(saved).expect("a ReferenceGrant")), grant);
    }
}
