//! ReferenceGrant of the Gateway API (`gateway.networking.k8s.io`), and its reduced form: the references to Services
//! that the owner of a namespace allows. This module decides nothing.
//!
//! The Kubernetes types do not include it, because a cluster may lack the resource. Groups and kinds are open: a grant
//! for unknown ones is read and allows nothing.

use std::sync::Arc;

use k8s_openapi::{Metadata, NamespaceResourceScope, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::change::ObjectName;

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

/// Reduced form of a ReferenceGrant: the Services that Ingresses may refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub name: ObjectName,
    /// Namespaces of Ingresses.
    pub from: Box<[Arc<str>]>,
    pub to: Box<[Granted]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    AllServices,
    Service(Arc<str>),
}

const GROUP: &str = "gateway.networking.k8s.io";
const KIND: &str = "ReferenceGrant";
const INGRESS: (&str, &str) = ("networking.k8s.io", "Ingress");
const SERVICE: (&str, &str) = ("", "Service");

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
    /// Returns `true` if Ingresses in `namespace` may refer to `service`, which is in the namespace of the grant.
    pub(super) fn allows(&self, namespace: &str, service: &str) -> bool {
        self.from.iter().any(|from| **from == *namespace)
            && self.to.iter().any(|to| match to {
                Granted::AllServices => true,
                Granted::Service(name) => **name == *service,
            })
    }
}

impl<const BETA: bool> From<ReferenceGrant<BETA>> for Grant {
    fn from(object: ReferenceGrant<BETA>) -> Self {
        let ReferenceGrant { api_version: _, kind: _, metadata, spec: ReferenceGrantSpec { from, to } } = object;
        let from = from.into_iter().filter(|from| (&*from.group, &*from.kind) == INGRESS);
        let to = to.into_iter().filter(|to| (&*to.group, &*to.kind) == SERVICE);
        let granted = |to: ReferenceGrantTo| match to.name {
            None => Granted::AllServices,
            Some(name) => Granted::Service(name.into()),
        };
        Self {
            name: ObjectName::of(&metadata),
            from: from.map(|from| from.namespace.into()).collect(),
            to: to.map(granted).collect(),
        }
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
        let from = from.iter().map(|namespace| ReferenceGrantFrom {
            group: INGRESS.0.to_owned(),
            kind: INGRESS.1.to_owned(),
            namespace: (**namespace).to_owned(),
        });
        let to = to.iter().map(|to| ReferenceGrantTo {
            group: SERVICE.0.to_owned(),
            kind: SERVICE.1.to_owned(),
            name: match to {
                Granted::AllServices => None,
                Granted::Service(name) => Some((**name).to_owned()),
            },
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
            let found = (grant.allows("a", "s"), grant.allows("b", "s"), grant.allows("a", "t"));
            assert_eq!(found, (of_a, of_another, other_service), "{from} {to}");
        }
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
