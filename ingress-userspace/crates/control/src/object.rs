//! Names of objects: the supported kinds, and an object of a kind by its namespace and name.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::outcome::{ObjectRef, Origin};

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
