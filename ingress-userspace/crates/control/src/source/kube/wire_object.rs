//! An object of any kind, as the API server sent it. Each watch is of this one type and decodes the text last. Otherwise
//! the watcher, lists and events would be compiled for each kind.
//!
//! Events must have their `type` before their `object`, as all API servers write them (`WatchEvent` of apimachinery).

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;
use zeroize::Zeroize as _;

use super::{Watched, tracker::Version};
use crate::change::{Kind, Object, ObjectId, ObjectName};

/// The text of an object. It may be that of a Secret, so nothing shows it, and it is zeroed when it is dropped;
/// kube's copies are not.
#[derive(Clone)]
pub(super) struct WireObject {
    /// With name, namespace and resource version alone.
    metadata: ObjectMeta,
    text: String,
}

/// The part of an object that watches need.
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

/// A kind to watch: its objects in the API, and their conversion into this program's own type.
pub(super) struct Source {
    pub(super) api: Api<WireObject>,
    pub(super) kind: Kind,
    decode: Box<Decode>,
}

type Decode = dyn Fn(&str) -> serde_json::Result<Object> + Send + Sync;

// === impl Source ===

impl Source {
    /// Returns the source for a namespace; for all namespaces with `None`.
    pub(super) fn of<K: Watched>(
        client: &Client,
        namespace: Option<&str>,
        kind: Kind,
        convert: fn(K) -> Object,
    ) -> Self {
        let resource = ApiResource::erase::<K>(&());
        debug_assert_eq!(kind.as_str(), resource.kind, "the kind is that of the objects");
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        Self { api, kind, decode: Box::new(move |text| serde_json::from_str(text).map(convert)) }
    }

    /// # Errors
    /// If the object has not the form of this kind. The error shows no value of a Secret.
    pub(super) fn decode(&self, object: &WireObject) -> Result<Object, String> {
        (self.decode)(&object.text).map_err(|error| match self.kind {
            // The text of the error quotes values.
            Kind::Secret => "a field has another form".to_owned(),
            _ => error.to_string(),
        })
    }

    pub(super) fn id(&self, object: &WireObject) -> ObjectId {
        ObjectId { kind: self.kind, name: ObjectName::of(&object.metadata) }
    }
}

// === impl WireObject ===

impl WireObject {
    pub(super) fn version(&self) -> Version {
        Version::of(self.metadata.resource_version.as_deref())
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
    use crate::source::strip;

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

    #[tokio::test]
    async fn errors_show_no_values_of_secrets() {
        let service =
            tower::service_fn(async |_| Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty())));
        let client = Client::new(service, "default");
        let object = |text: &str| serde_json::from_str::<WireObject>(text).expect("an object");
        let secrets = Source::of(&client, Some("n"), Kind::Secret, strip::secret);
        for text in [SECRET.to_owned(), SECRET.replace(r#"{"a": "hunter2"}"#, r#""hunter2""#)] {
            let error = secrets.decode(&object(&text)).expect_err("no base64, or no map");
            assert_eq!(error, "a field has another form");
        }
        let nodes = Source::of(&client, None, Kind::Node, strip::node);
        let error = nodes.decode(&object(r#"{"kind": "Node", "apiVersion": "v1", "metadata": {}, "spec": 7}"#));
        let error = error.expect_err("a number");
        assert!(error.starts_with("invalid type: integer `7`"), "{error}");
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
