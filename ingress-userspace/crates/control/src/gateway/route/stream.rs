//! Routes of whole connections: TLSRoute, TCPRoute, UDPRoute. They have one form.

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use crate::gateway::{BackendRef, ParentReference, RouteStatus, object::gateway_object};

gateway_object! {
    /// Backends of TLS connections, by the name that the client asks for.
    TlsRoute = ("TLSRoute", "tlsroutes", NamespaceResourceScope, StreamRouteSpec, RouteStatus);
    /// Backends of TCP connections.
    TcpRoute = ("TCPRoute", "tcproutes", NamespaceResourceScope, StreamRouteSpec, RouteStatus);
    /// Backends of UDP sessions.
    UdpRoute = ("UDPRoute", "udproutes", NamespaceResourceScope, StreamRouteSpec, RouteStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamRouteSpec {
    pub parent_refs: Box<[ParentReference]>,
    /// Names, or `*.` and a name. Only TLSRoutes have them, and need them.
    pub hostnames: Box<[Box<str>]>,
    /// The API allows one.
    pub rules: Box<[StreamRule]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StreamRule {
    pub name: Option<Box<str>>,
    pub backend_refs: Box<[BackendRef]>,
}
