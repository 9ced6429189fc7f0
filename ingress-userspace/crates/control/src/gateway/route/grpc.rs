//! GRPCRoute.

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use super::{Filter, MatchKind, ValueMatch};
use crate::gateway::{BackendRef, ParentReference, RouteStatus, object::gateway_object};

gateway_object! {
    /// Rules for gRPC requests.
    GrpcRoute = ("GRPCRoute", "grpcroutes", NamespaceResourceScope, GrpcRouteSpec, RouteStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    pub parent_refs: Box<[ParentReference]>,
    /// Names, or `*.` and a name. Empty: those of the listeners.
    pub hostnames: Box<[Box<str>]>,
    pub rules: Box<[GrpcRule]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRule {
    pub name: Option<Box<str>>,
    /// A request needs to meet one of these. Empty: all requests do.
    pub matches: Box<[GrpcMatch]>,
    pub filters: Box<[Filter]>,
    pub backend_refs: Box<[BackendRef]>,
}

/// Demands on a request, which must meet all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcMatch {
    /// `None`: any.
    pub method: Option<GrpcMethodMatch>,
    pub headers: Box<[ValueMatch]>,
}

/// Demand on the called method; at least one of its names is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcMethodMatch {
    #[serde(rename = "type")]
    pub kind: MatchKind,
    /// `None`: any.
    pub service: Option<Box<str>>,
    /// `None`: any.
    pub method: Option<Box<str>>,
}
