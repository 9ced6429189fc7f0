//! A kind of objects that is watched: its objects in the API, and what becomes of them.

use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::{
    change::{Kind, Object, ObjectId, ObjectName},
    wire_object::WireObject,
};

/// A kind to watch: its objects in the API, and their conversion into this program's own type.
pub(super) struct WatchedKind {
    pub(super) api: Api<WireObject>,
    pub(super) kind: Kind,
    decode: Box<Decode>,
}

type Decode = dyn Fn(&WireObject) -> serde_json::Result<Object> + Send + Sync;

/// A type of the API whose objects can be watched.
pub(super) trait Watched: Resource<DynamicType = ()> + DeserializeOwned + 'static {}

impl<K: Resource<DynamicType = ()> + DeserializeOwned + 'static> Watched for K {}

// === impl WatchedKind ===

impl WatchedKind {
    /// Returns the kind `K` in a namespace; in all namespaces with `None`.
    pub(super) fn of<K: Watched>(
        client: &Client,
        namespace: Option<&str>,
        kind: Kind,
        convert: fn(K) -> Object,
    ) -> Self {
        debug_assert_eq!(kind.as_str(), K::kind(&()), "the kind is that of the objects");
        let api = WireObject::api::<K>(client, namespace);
        Self { api, kind, decode: Box::new(move |object| object.decode().map(convert)) }
    }

    /// # Errors
    /// If the object has not the form of this kind. The error shows no value of a Secret.
    pub(super) fn decode(&self, object: &WireObject) -> Result<Object, String> {
        (self.decode)(object).map_err(|error| match self.kind {
            // The text of the error quotes values.
            Kind::Secret => "a field has another form".to_owned(),
            _ => error.to_string(),
        })
    }

    pub(super) fn id(&self, object: &WireObject) -> ObjectId {
        ObjectId { kind: self.kind, name: ObjectName::of(object.meta()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::strip;

    #[tokio::test]
    async fn errors_show_no_values_of_secrets() {
        let service =
            tower::service_fn(async |_| Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty())));
        let client = Client::new(service, "default");
        let object = |text: &str| serde_json::from_str::<WireObject>(text).expect("an object");
        let secrets = WatchedKind::of(&client, Some("n"), Kind::Secret, strip::secret);
        for data in [r#"{"a": "hunter2"}"#, r#""hunter2""#] {
            let secret = format!(r#"{{"metadata": {{"name": "s"}}, "data": {data}}}"#);
            let error = secrets.decode(&object(&secret)).expect_err("no base64, or no map");
            assert_eq!(error, "a field has another form");
        }
        let nodes = WatchedKind::of(&client, None, Kind::Node, strip::node);
        let error = nodes.decode(&object(r#"{"kind": "Node", "apiVersion": "v1", "metadata": {}, "spec": 7}"#));
        let error = error.expect_err("a number");
        assert!(error.starts_with("invalid type: integer `7`"), "{error}");
    }
}
