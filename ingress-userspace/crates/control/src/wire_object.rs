//! An object of any kind, as the API server sent it. Watches and lists are of this one type, and the text of each object
//! is decoded last, to the fields that are read. Otherwise the watcher, lists and events would be compiled for each kind.
//!
//! Events must have their `type` before their `object`, as all API servers write them (`WatchEvent` of apimachinery).

use std::{borrow::Cow, fmt, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;
use tokio::time::Instant;
use zeroize::Zeroize as _;

/// The text of an object. It may be that of a Secret, so nothing shows it, and it is zeroed when it is dropped;
/// kube's copies are not.
#[derive(Clone)]
pub(crate) struct WireObject {
    /// With name, namespace and resource version alone.
    metadata: ObjectMeta,
    text: String,
}

/// Reports the objects of a watch that cannot be decoded.
#[derive(Debug, Default)]
pub(crate) struct UnreadableLog {
    warned_at: Option<Instant>,
}

/// Time between two warnings about unreadable objects of one watch.
const QUIET: Duration = Duration::from_secs(60);

/// The part of an object that watches and lists need.
#[derive(Deserialize)]
struct Head {
    metadata: Option<HeadMeta>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMeta {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

// === impl UnreadableLog ===

impl UnreadableLog {
    /// Names an object that cannot be decoded, with a warning at most once a minute.
    pub(crate) fn report(&mut self, kind: &str, name: &dyn fmt::Display, error: &str) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= QUIET) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(%kind, %name, error, "an object cannot be read, so its last readable state stays in effect, if there was one; \
                 compare its fields with `kubectl explain`");
        } else {
            tracing::debug!(%kind, %name, error, "another object cannot be read");
        }
    }
}

// === impl WireObject ===

impl WireObject {
    /// Returns the API of kind `K` in a namespace; in all namespaces with `None`.
    pub(crate) fn api<K: Resource<DynamicType = ()>>(client: &Client, namespace: Option<&str>) -> Api<Self> {
        let resource = ApiResource::erase::<K>(&());
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// Decodes the object.
    ///
    /// # Errors
    /// If it has not the form of a `T`. The text of the error quotes values of the object.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for WireObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::from(Box::<str>::from(Box::<RawValue>::deserialize(deserializer)?));
        let Head { metadata } = serde_json::from_str(&text).map_err(D::Error::custom)?;
        let metadata = metadata.map_or_else(ObjectMeta::default, |HeadMeta { name, namespace, resource_version }| {
            ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }
        });
        Ok(Self { metadata, text })
    }
}

impl Drop for WireObject {
    fn drop(&mut self) {
        self.text.zeroize();
    }
}

impl fmt::Debug for WireObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireObject").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

impl Resource for WireObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    const SECRET: &str = r#"{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "n", "resourceVersion": "7"}, "data": {"a": "hunter2"}}"#;

    #[test]
    fn lists_and_events_hold_objects_of_any_kind() {
        let list = format!(r#"{{"kind": "SecretList", "metadata": {{"resourceVersion": "9"}}, "items": [{SECRET}]}}"#);
        let list: ObjectList<WireObject> = serde_json::from_str(&list).expect("a list");
        let event = format!(r#"{{"type": "MODIFIED", "object": {SECRET}}}"#);
        let event: WatchEvent<WireObject> = serde_json::from_str(&event).expect("an event");
        let WatchEvent::Modified(changed) = event else { panic!("{event:?}") };
        for object in list.items.iter().chain([&changed]) {
            assert_eq!(object.text, SECRET);
            let ObjectMeta { name, namespace, resource_version, .. } = object.meta();
            let expect = [Some("s"), Some("n"), Some("7")];
            assert_eq!([name, namespace, resource_version].map(Option::as_deref), expect);
            assert!(!format!("{object:?}").contains("hunter2"), "{object:?}");
        }
    }

    #[test]
    fn objects_without_metadata_have_no_version() {
        for text in ["{}", r#"{"metadata": null}"#, r#"{"metadata": {}}"#] {
            let object: WireObject = serde_json::from_str(text).expect("an object");
            assert_eq!(object.meta(), &ObjectMeta::default(), "{text}");
        }
        for wrong in ["7", r#"{"metadata": {"resourceVersion": 7}}"#] {
            assert!(serde_json::from_str::<WireObject>(wrong).is_err(), "{wrong}");
        }
    }
}
