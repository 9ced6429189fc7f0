//! The outer form that all kinds of the Gateway API share: metadata, specification, status.

use k8s_openapi::{Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::Value;

use super::HeldMetadata;

/// An object of a kind of the Gateway API.
pub trait GatewayObject: Resource + Sized {
    type Spec: PartialEq;
    /// The object as the API server sends it, with all metadata.
    type Sent: Metadata<Ty = ObjectMeta> + Into<Self>;

    fn metadata(&self) -> &HeldMetadata;

    fn spec(&self) -> &Self::Spec;

    /// Returns `true` if two versions of an object differ at most in the status, and in metadata that no translation
    /// reads.
    fn differs_in_status(&self, other: &Self) -> bool {
        let (a, b) = (self.metadata(), other.metadata());
        a.uid == b.uid
            && a.generation == b.generation
            && a.creation_timestamp == b.creation_timestamp
            && a.deletion_timestamp == b.deletion_timestamp
            && a.annotations == b.annotations
            && self.spec() == other.spec()
    }
}

/// Defines the type of a kind: `Name = (kind, path segment, scope, specification, status)`.
macro_rules! gateway_object {
    ($($(#[$meta:meta])* $name:ident = ($kind:literal, $segment:literal, $scope:ty, $spec:ty, $status:ty);)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Deserialize)]
        #[serde(default)]
        pub struct $name<M = $crate::gateway::HeldMetadata> {
            pub metadata: M,
            pub spec: $spec,
            pub status: $status,
        }

        impl<M> ::k8s_openapi::Resource for $name<M> {
            const API_VERSION: &'static str = "gateway.networking.k8s.io/v1";
            const GROUP: &'static str = $crate::gateway::GROUP;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $segment;
            type Scope = $scope;
        }

        impl ::k8s_openapi::Metadata for $name<::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta> {
            type Ty = ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl $crate::gateway::GatewayObject for $name {
            type Spec = $spec;
            type Sent = $name<::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>;

            fn metadata(&self) -> &$crate::gateway::HeldMetadata {
                &self.metadata
            }

            fn spec(&self) -> &$spec {
                &self.spec
            }
        }

        impl From<$name<::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>> for $name {
            fn from(
                sent: $name<::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
            ) -> Self {
                let $name { metadata, spec, status } = sent;
                Self { metadata: metadata.into(), spec, status }
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self { metadata, spec, status } = self;
                $crate::gateway::object::write::<Self, _>(metadata, spec, Some(status), serializer)
            }
        }
    )* };
}

pub(in crate::gateway) use gateway_object;

/// Writes an object of the kind `K`, without the empty fields of its specification.
pub(super) fn write<K: Resource, S: Serializer>(
    metadata: &HeldMetadata,
    spec: &impl Serialize,
    status: Option<&impl Serialize>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let spec = serde_json::to_value(spec).map_err(serde::ser::Error::custom)?;
    let mut object = serializer.serialize_struct(K::KIND, 4 + usize::from(status.is_some()))?;
    object.serialize_field("apiVersion", K::API_VERSION)?;
    object.serialize_field("kind", K::KIND)?;
    object.serialize_field("metadata", metadata)?;
    object.serialize_field("spec", &filled(spec))?;
    if let Some(status) = status {
        object.serialize_field("status", status)?;
    }
    object.end()
}

/// Drops the fields that mean the same when they are absent.
fn filled(value: Value) -> Value {
    let is_filled = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        _ => true,
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, filled(value)));
            Value::Object(fields.filter(|(_, value)| is_filled(value)).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(filled).collect()),
        other => other,
    }
}
