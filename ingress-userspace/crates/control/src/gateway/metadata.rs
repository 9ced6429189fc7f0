//! Metadata of an object of the Gateway API, reduced to the fields in use. The Kubernetes type takes 360 bytes, most of
//! them for fields that are always empty here, and a cluster may have tens of thousands of routes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::{
    controller_names::{managers, own_key},
    object::ObjectName,
};

/// The used fields of [`ObjectMeta`].
///
/// Labels have no meaning here, nor have annotations other than this controller's own, and tools change them often. The
/// status writer needs the UID, the version and the managers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "ObjectMeta", into = "ObjectMeta")]
pub struct HeldMetadata {
    /// The namespace is empty for cluster-scoped kinds.
    pub name: ObjectName,
    pub uid: Option<Box<str>>,
    pub resource_version: Option<Box<str>>,
    pub generation: Option<i64>,
    pub creation_timestamp: Option<Time>,
    pub deletion_timestamp: Option<Box<Time>>,
    /// `None` if there are none of this controller.
    pub annotations: Option<Box<BTreeMap<String, String>>>,
    /// Managers of this controller that own fields of the status.
    pub managers: Box<[Box<str>]>,
}

// === impl HeldMetadata ===

impl From<ObjectMeta> for HeldMetadata {
    fn from(metadata: ObjectMeta) -> Self {
        let name = ObjectName::of(&metadata);
        let managers = managers(metadata.managed_fields);
        let own = metadata.annotations.into_iter().flatten().filter(|(name, _)| own_key(name).is_some());
        let annotations: BTreeMap<_, _> = own.collect();
        Self {
            name,
            uid: metadata.uid.map(Into::into),
            resource_version: metadata.resource_version.map(Into::into),
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp.map(Box::new),
            annotations: (!annotations.is_empty()).then(|| Box::new(annotations)),
            managers,
        }
    }
}

/// The form in which it is saved.
impl From<HeldMetadata> for ObjectMeta {
    fn from(metadata: HeldMetadata) -> Self {
        let HeldMetadata { name: ObjectName { namespace, name }, uid, resource_version, generation, .. } = metadata;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mark = |manager: &str| ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some("Apply".to_owned()),
            subresource: Some("status".to_owned()),
            ..ManagedFieldsEntry::default()
        };
        let marks: Vec<_> = metadata.managers.iter().map(|manager| mark(manager)).collect();
        Self {
            name: text(&name),
            namespace: text(&namespace),
            uid: uid.map(Into::into),
            resource_version: resource_version.map(Into::into),
            generation,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp.map(|time| *time),
            annotations: metadata.annotations.map(|annotations| *annotations),
            managed_fields: (!marks.is_empty()).then_some(marks),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_in_use_survive_being_saved() {
        let owner = |by, operation| json!({"manager": by, "operation": operation, "subresource": "status"});
        let held: HeldMetadata = serde_json::from_value(json!({"name": "r", "namespace": "n", "uid": "u",
            "resourceVersion": "7", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:05Z", "labels": {"a": "b"},
            "annotations": {"xdp-ingress.io/limit-rps": "1", "acme.test/a": ""},
            "managedFields": [owner("xdp-ingress", "Apply"), owner("xdp-ingress", "Update"), owner("kubectl", "Apply")]}))
        .expect("metadata");
        let annotations = BTreeMap::from([("xdp-ingress.io/limit-rps".to_owned(), "1".to_owned())]);
        assert_eq!(held.annotations.as_deref(), Some(&annotations), "of others they have no meaning");
        assert_eq!(held.managers, ["xdp-ingress".into()].into());
        let saved = serde_json::to_value(&held).expect("JSON");
        assert_eq!(serde_json::from_value::<HeldMetadata>(saved).expect("metadata"), held);
    }
}
