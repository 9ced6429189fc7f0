//! Changes that a source reports: objects that came, changed or went, in batches. This module keeps no state.

use std::{fmt, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, Secret},
        networking::v1::{Ingress, IngressClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    namespace::Namespace,
    outcome::{ObjectRef, Origin, Outcome},
    reference_grant::Grant,
    service::Service,
    slice::Slice,
};

/// Changes that belong together: all are applied before the next translation.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    /// All current remarks of the source; `None` leaves the earlier remarks in place.
    pub remarks: Option<Vec<Outcome>>,
    /// Objects that the source follows but has not been able to read yet, so that it is not known whether they exist.
    pub unread: Vec<ObjectId>,
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
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    Node(Arc<Node>),
    Namespace(Arc<Namespace>),
    ReferenceGrant(Arc<Grant>),
}

/// The supported kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Ingress,
    IngressClass,
    Service,
    EndpointSlice,
    Secret,
    ConfigMap,
    Node,
    Namespace,
    ReferenceGrant,
}

/// Name of an object within its kind. The namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub kind: Kind,
    pub name: ObjectName,
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
        })
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind().as_str(), self.name())
    }
}

// === impl Kind ===

impl Kind {
    /// Returns the kind of this name and API version, if it is supported.
    #[must_use]
    pub fn parse(api_version: &str, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            ("networking.k8s.io/v1", "Ingress") => Some(Self::Ingress),
            ("networking.k8s.io/v1", "IngressClass") => Some(Self::IngressClass),
            ("v1", "Service") => Some(Self::Service),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Self::EndpointSlice),
            ("v1", "Secret") => Some(Self::Secret),
            ("v1", "ConfigMap") => Some(Self::ConfigMap),
            ("v1", "Node") => Some(Self::Node),
            ("v1", "Namespace") => Some(Self::Namespace),
            ("gateway.networking.k8s.io/v1" | "gateway.networking.k8s.io/v1beta1", "ReferenceGrant") => {
                Some(Self::ReferenceGrant)
            }
            _ => None,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::IngressClass => "IngressClass",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::ReferenceGrant => "ReferenceGrant",
        }
    }

    /// Returns `true` if objects of this kind live in namespaces.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::IngressClass | Self::Node | Self::Namespace)
    }
}

// === impl ObjectName ===

impl ObjectName {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the name in `metadata`; missing parts are empty.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }

    #[must_use]
    pub fn refer(&self, kind: Kind, origin: &Origin) -> ObjectRef {
        ObjectRef {
            kind: kind.as_str().into(),
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
            origin: origin.clone(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::super::cluster::Cluster;
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let secret = Secret {
            metadata: ObjectMeta { name: Some("s".into()), namespace: Some("n".into()), ..ObjectMeta::default() },
            data: Some([("tls.key".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
            ..Secret::default()
        };
        let change = Change::Apply { object: Object::Secret(Arc::new(secret)), origin: Origin::Api };
        let mut cluster = Cluster::default();
        cluster.apply(change.clone());
        for debug in [format!("{change:?}"), format!("{cluster:?}")] {
            assert!(debug.contains('s') && !debug.contains("hunter2") && !debug.contains("aHVudGVyMg"), "{debug}");
            assert!(!debug.contains("104, 117, 110"), "{debug}");
        }
    }
}
