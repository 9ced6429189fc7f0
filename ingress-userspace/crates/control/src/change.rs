//! Changes that a source reports: objects that came, changed or went, in batches. This module keeps no state.

use std::{fmt, net::IpAddr, sync::Arc};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    networking::v1::{Ingress, IngressClass},
};
use tokio::time::Instant;

use super::{
    gateway::GatewayApiObject,
    held_secret::HeldSecret,
    namespace::Namespace,
    outcome::{Origin, Outcome},
    reference_grant::Grant,
    service::Service,
    slice::Slice,
};
pub use crate::object::{Kind, ObjectId, ObjectName};

/// Changes that belong together: all are applied before the next translation.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    /// All current remarks of the source; `None` leaves the earlier remarks in place.
    pub remarks: Option<Vec<Outcome>>,
    /// Objects that the source follows but has not been able to read yet, so that it is not known whether they exist.
    pub unread: Vec<ObjectId>,
    /// Time at which the source received the first of the changes; `None` stands for the time of the batch itself.
    pub received: Option<Instant>,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// The object now has this content.
    Apply { object: Object, origin: Origin },
    /// The object is gone.
    Remove(ObjectId),
    /// A DNS name now has these addresses, which may be none.
    Resolve { name: Arc<str>, addresses: Vec<IpAddr> },
    /// A DNS name is not needed any more.
    Forget { name: Arc<str> },
}

/// An object of a supported kind. `Debug` shows only its kind and name, because it may be a Secret.
#[derive(Clone, PartialEq)]
pub enum Object {
    Ingress(Arc<Ingress>),
    IngressClass(Arc<IngressClass>),
    Service(Arc<Service>),
    EndpointSlice(Arc<Slice>),
    Secret(Arc<HeldSecret>),
    ConfigMap(Arc<ConfigMap>),
    Node(Arc<Node>),
    Namespace(Arc<Namespace>),
    ReferenceGrant(Arc<Grant>),
    GatewayApi(GatewayApiObject),
}

// === impl Object ===

impl Object {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Ingress(_) => Kind::Ingress,
            Self::IngressClass(_) => Kind::IngressClass,
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Secret(_) => Kind::Secret,
            Self::ConfigMap(_) => Kind::ConfigMap,
            Self::Node(_) => Kind::Node,
            Self::Namespace(_) => Kind::Namespace,
            Self::ReferenceGrant(_) => Kind::ReferenceGrant,
            Self::GatewayApi(object) => object.kind(),
        }
    }

    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId { kind: self.kind(), name: self.name() }
    }

    fn name(&self) -> ObjectName {
        ObjectName::of(match self {
            Self::Service(service) => return service.name.clone(),
            Self::EndpointSlice(slice) => return slice.name.clone(),
            Self::Namespace(namespace) => return namespace.name.clone(),
            Self::ReferenceGrant(grant) => return grant.name.clone(),
            Self::Ingress(object) => &object.metadata,
            Self::IngressClass(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
            Self::ConfigMap(object) => &object.metadata,
            Self::Node(object) => &object.metadata,
            Self::GatewayApi(object) => return object.metadata().name.clone(),
        })
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind().as_str(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    use super::super::cluster::Cluster;
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let secret = Secret {
            metadata: ObjectMeta { name: Some("s".into()), namespace: Some("n".into()), ..ObjectMeta::default() },
            data: Some([("tls.key".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
            ..Secret::default()
        };
        let change = Change::Apply { object: Object::Secret(Arc::new(secret.into())), origin: Origin::Api };
        let mut cluster = Cluster::default();
        cluster.apply(change.clone());
        for debug in [format!("{change:?}"), format!("{cluster:?}")] {
            assert!(debug.contains('s') && !debug.contains("hunter2") && !debug.contains("aHVudGVyMg"), "{debug}");
            assert!(!debug.contains("104, 117, 110"), "{debug}");
        }
    }
}
