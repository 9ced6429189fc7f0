//! The form of objects in the file: JSON with `apiVersion` and `kind`, as in the API.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Namespace, Secret, Service},
    discovery::v1::EndpointSlice,
};
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    change::{Kind, Object},
    gateway::GatewayApiObject,
    reference_grant::ReferenceGrant,
};

/// An object as JSON.
pub(super) struct Written<'c>(pub(super) &'c Object);

/// The fields that name a kind, as in the API.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// Reads the object `json`. Returns `None` for a kind that this program does not read.
pub(super) fn read_object(json: &str) -> Result<Option<Object>, serde_json::Error> {
    let TypeMeta { api_version, kind } = serde_json::from_str(json)?;
    let Some(kind) = Kind::parse(&api_version, &kind) else { return Ok(None) };
    Ok(Some(match kind {
        Kind::Ingress => Object::Ingress(serde_json::from_str(json).map(Arc::new)?),
        Kind::IngressClass => Object::IngressClass(serde_json::from_str(json).map(Arc::new)?),
        Kind::Service => {
            let object: Service = serde_json::from_str(json)?;
            Object::Service(Arc::new(object.into()))
        }
        Kind::EndpointSlice => {
            let object: EndpointSlice = serde_json::from_str(json)?;
            Object::EndpointSlice(Arc::new(object.into()))
        }
        Kind::Secret => {
            let object: Secret = serde_json::from_str(json)?;
            Object::Secret(Arc::new(object.into()))
        }
        Kind::ConfigMap => Object::ConfigMap(serde_json::from_str(json).map(Arc::new)?),
        Kind::Node => Object::Node(serde_json::from_str(json).map(Arc::new)?),
        Kind::Namespace => {
            let object: Namespace = serde_json::from_str(json)?;
            Object::Namespace(Arc::new(object.into()))
        }
        Kind::ReferenceGrant => {
            let object: ReferenceGrant = serde_json::from_str(json)?;
            Object::ReferenceGrant(Arc::new(object.into()))
        }
        Kind::GatewayClass
        | Kind::Gateway
        | Kind::ListenerSet
        | Kind::HttpRoute
        | Kind::GrpcRoute
        | Kind::TlsRoute
        | Kind::TcpRoute
        | Kind::UdpRoute
        | Kind::BackendTlsPolicy => match GatewayApiObject::read(kind, &mut serde_json::Deserializer::from_str(json)) {
            Some(object) => Object::GatewayApi(object?),
            None => return Ok(None),
        },
    }))
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Object::Ingress(object) => (**object).serialize(serializer),
            Object::IngressClass(object) => (**object).serialize(serializer),
            Object::Service(service) => Service::from(&**service).serialize(serializer),
            Object::EndpointSlice(slice) => EndpointSlice::from(&**slice).serialize(serializer),
            Object::Secret(secret) => (***secret).serialize(serializer),
            Object::ConfigMap(object) => (**object).serialize(serializer),
            Object::Node(object) => (**object).serialize(serializer),
            Object::Namespace(namespace) => Namespace::from(&**namespace).serialize(serializer),
            Object::ReferenceGrant(grant) => ReferenceGrant::from(&**grant).serialize(serializer),
            Object::GatewayApi(object) => object.serialize(serializer),
        }
    }
}
