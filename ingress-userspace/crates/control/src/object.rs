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
    GatewayClass,
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
    BackendTlsPolicy,
}

/// Name of an object within its kind. The namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Returns the kind of this name and API version, if it is supported. The Gateway API serves some kinds in
    /// `v1beta1`, too, with the same fields.
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
            ("gateway.networking.k8s.io/v1" | "gateway.networking.k8s.io/v1beta1", "GatewayClass") => {
                Some(Self::GatewayClass)
            }
            ("gateway.networking.k8s.io/v1" | "gateway.networking.k8s.io/v1beta1", "Gateway") => Some(Self::Gateway),
            ("gateway.networking.k8s.io/v1" | "gateway.networking.k8s.io/v1beta1", "HTTPRoute") => {
                Some(Self::HttpRoute)
            }
            ("gateway.networking.k8s.io/v1", "ListenerSet") => Some(Self::ListenerSet),
            ("gateway.networking.k8s.io/v1", "GRPCRoute") => Some(Self::GrpcRoute),
            ("gateway.networking.k8s.io/v1", "TLSRoute") => Some(Self::TlsRoute),
            ("gateway.networking.k8s.io/v1", "TCPRoute") => Some(Self::TcpRoute),
            ("gateway.networking.k8s.io/v1", "UDPRoute") => Some(Self::UdpRoute),
            ("gateway.networking.k8s.io/v1", "BackendTLSPolicy") => Some(Self::BackendTlsPolicy),
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
            Self::GatewayClass => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::ListenerSet => "ListenerSet",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TlsRoute => "TLSRoute",
            Self::TcpRoute => "TCPRoute",
            Self::UdpRoute => "UDPRoute",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
        }
    }

    /// Returns `true` if objects of this kind live in namespaces.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::IngressClass | Self::Node | Self::Namespace | Self::GatewayClass)
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
