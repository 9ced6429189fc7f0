//! HTTPRoute.

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use super::Filter;
use crate::gateway::{
    BackendRef, GatewayDuration, ParentReference, RouteStatus, object::gateway_object, open_enum::open_enum,
};

gateway_object! {
    /// Rules for HTTP requests.
    HttpRoute = ("HTTPRoute", "httproutes", NamespaceResourceScope, HttpRouteSpec, RouteStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRouteSpec {
    pub parent_refs: Box<[ParentReference]>,
    /// Names, or `*.` and a name. Empty: those of the listeners.
    pub hostnames: Box<[Box<str>]>,
    /// Empty: one rule for all requests, without a backend.
    pub rules: Box<[HttpRule]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRule {
    pub name: Option<Box<str>>,
    /// A request needs to meet one of these. Empty: all requests do.
    pub matches: Box<[HttpMatch]>,
    pub filters: Box<[Filter]>,
    pub backend_refs: Box<[BackendRef]>,
    pub timeouts: Timeouts,
    /// `None`: the controller decides.
    pub retry: Option<Retry>,
}

/// Demands on a request, which must meet all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpMatch {
    pub path: PathMatch,
    pub headers: Box<[ValueMatch]>,
    pub query_params: Box<[ValueMatch]>,
    /// `None`: any.
    pub method: Option<Box<str>>,
}

/// Demand on the path. The default is the prefix `/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathMatch {
    #[serde(rename = "type")]
    pub kind: PathMatchKind,
    pub value: Box<str>,
}

open_enum! {
    pub enum PathMatchKind {
        Exact = "Exact",
        /// Whole segments of the path.
        #[default]
        Prefix = "PathPrefix",
        RegularExpression = "RegularExpression",
    }
}

/// Demand on a header field or query parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ValueMatch {
    #[serde(rename = "type")]
    pub kind: MatchKind,
    pub name: Box<str>,
    pub value: Box<str>,
}

open_enum! {
    /// Form of a demand on a text.
    pub enum MatchKind {
        #[default]
        Exact = "Exact",
        RegularExpression = "RegularExpression",
    }
}

/// Deadlines. Zero means none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    /// From the request to the end of the response. `None`: the controller decides.
    pub request: Option<GatewayDuration>,
    /// The same for one attempt at a backend.
    pub backend_request: Option<GatewayDuration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Retry {
    /// Status codes after which a request is repeated.
    pub codes: Box<[u16]>,
    /// Maximum number of repetitions. The default is 1; 0 disables them.
    pub attempts: u32,
    /// Minimum pause before a repetition. `None`: the controller decides.
    pub backoff: Option<GatewayDuration>,
}

// === impl PathMatch ===

impl Default for PathMatch {
    fn default() -> Self {
        Self { kind: PathMatchKind::Prefix, value: "/".into() }
    }
}

// === impl Retry ===

impl Default for Retry {
    fn default() -> Self {
        Self { codes: Box::default(), attempts: 1, backoff: None }
    }
}
