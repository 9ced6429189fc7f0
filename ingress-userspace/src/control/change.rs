//! What a source tells of the cluster: objects that came, changed or went, in batches. It keeps nothing.

use std::{fmt, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, Secret},
        networking::v1::{Ingress, IngressClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    outcome::{ObjectRef, Origin, Outcome},
    service::Service,
    slice::Slice,
};

/// Changes that belong together: all are applied before the next translation.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    /// Everything the source has to remark at present; `None` leaves the earlier remarks standing.
    pub remarks: Option<Vec<Outcome>>,
    /// Objects that the source follows and has not been able to read yet: whether they are there is not known.
    pub unread: Vec<ObjectId>,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// The object is now this.
    Apply { object: Object, origin: Origin },
    /// The object is gone.
    Remove(ObjectId),
    /// A DNS name has these addresses now; none if it has none.
    Resolve { name: Arc<str>, addresses: Vec<IpAddr> },
    /// A DNS name is of no interest any more.
    Forget { name: Arc<str> },
}

/// An object of a kind that matters here. `Debug` shows its kind and name alone: it may be a Secret.
#[derive(Clone, PartialEq)]
pub enum Object {
    Ingress(Arc<Ingress>),
    IngressClass(Arc<IngressClass>),
    Service(Arc<Service>),
    EndpointSlice(Arc<Slice>),
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    Node(Arc<Node>),
}

/// The kinds that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Ingress,
    IngressClass,
    Service,
    EndpointSlice,
    Secret,
    ConfigMap,
    Node,
}

/// Name of an object within its kind. The namespace is empty for kinds that live outside namespaces.
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
    /// The kind of this name and API version, if it matters here.
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
        }
    }

    /// Whether objects of this kind live in namespaces.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::IngressClass | Self::Node)
    }
}

// === impl ObjectName ===

impl ObjectName {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The name in `metadata`; parts that are missing are empty.
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
