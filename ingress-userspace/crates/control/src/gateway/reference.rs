//! References between objects. Their defaults differ by field, as in the API.

use serde::{Deserialize, Serialize};

use super::{open_enum::open_enum, route::Filter};
use crate::object::{Kind, ObjectId, ObjectName};

open_enum! {
    /// API group of a referent.
    pub enum Group {
        /// Services, Secrets, ConfigMaps.
        #[default]
        Core = "",
        Gateway = "gateway.networking.k8s.io",
        /// Ingresses.
        Networking = "networking.k8s.io",
    }
}

open_enum! {
    /// Kind of a referent. It means an object only together with the [`Group`].
    pub enum ReferentKind {
        #[default]
        Service = "Service",
        Secret = "Secret",
        ConfigMap = "ConfigMap",
        Ingress = "Ingress",
        Gateway = "Gateway",
        ListenerSet = "ListenerSet",
        HttpRoute = "HTTPRoute",
        GrpcRoute = "GRPCRoute",
        TlsRoute = "TLSRoute",
        TcpRoute = "TCPRoute",
        UdpRoute = "UDPRoute",
    }
}

/// The Gateway, ListenerSet or Service that a route attaches to. The default kind is `Gateway`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentReference {
    pub group: Group,
    pub kind: ReferentKind,
    /// `None`: that of the object with the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Box<str>>,
    pub name: Box<str>,
    /// Name of a listener. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<Box<str>>,
    /// Port of listeners. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A backend of a rule, or of a mirror, which has neither weight nor filters. The default kind is `Service`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendRef {
    pub group: Group,
    pub kind: ReferentKind,
    /// `None`: that of the route.
    pub namespace: Option<Box<str>>,
    pub name: Box<str>,
    /// Port of the Service, which needs one.
    pub port: Option<u16>,
    /// Share of the requests, in proportion to the sum of all weights. The default is 1.
    pub weight: u32,
    /// Filters for the requests to this backend. Only HTTPRoutes and GRPCRoutes have them.
    pub filters: Box<[Filter]>,
}

/// A Secret, ConfigMap, or another object, for certificates and settings. The default kind is `Secret`, which only
/// references to certificates use: others always name their kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectReference {
    pub group: Group,
    pub kind: ReferentKind,
    /// `None`: that of the object with the reference.
    pub namespace: Option<Box<str>>,
    pub name: Box<str>,
}

// === impl ObjectReference ===

impl ObjectReference {
    /// Returns `true` if it names a ConfigMap of the namespace of the object with the reference.
    #[must_use]
    pub fn is_own_config_map(&self) -> bool {
        (&self.group, &self.kind) == (&Group::Core, &ReferentKind::ConfigMap) && self.namespace.is_none()
    }
}

// === impl ParentReference ===

impl ParentReference {
    /// Returns the Gateway or ListenerSet that an object of `namespace` refers to. Returns `None` for other kinds.
    pub(crate) fn referent(&self, namespace: &str) -> Option<ObjectId> {
        let kind = match (&self.group, &self.kind) {
            (Group::Gateway, ReferentKind::Gateway) => Kind::Gateway,
            (Group::Gateway, ReferentKind::ListenerSet) => Kind::ListenerSet,
            _ => return None,
        };
        Some(ObjectId { kind, name: ObjectName::new(self.namespace.as_deref().unwrap_or(namespace), &self.name) })
    }
}

impl Default for ParentReference {
    fn default() -> Self {
        Self {
            group: Group::Gateway,
            kind: ReferentKind::Gateway,
            namespace: None,
            name: "".into(),
            section_name: None,
            port: None,
        }
    }
}

// === impl BackendRef ===

impl Default for BackendRef {
    fn default() -> Self {
        Self {
            group: Group::Core,
            kind: ReferentKind::Service,
            namespace: None,
            name: "".into(),
            port: None,
            weight: 1,
            filters: Box::default(),
        }
    }
}

// === impl ObjectReference ===

impl Default for ObjectReference {
    fn default() -> Self {
        Self { group: Group::Core, kind: ReferentKind::Secret, namespace: None, name: "".into() }
    }
}
