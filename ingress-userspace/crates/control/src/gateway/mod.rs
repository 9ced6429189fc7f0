//! Kinds of the Gateway API (`gateway.networking.k8s.io`), release 1.7, standard channel. This module judges nothing.
//!
//! The types hold the fields that this controller reads or writes. Fields of the experimental channel are left out.
//! Defaults equal those of the custom resource definitions, because objects from files have passed no API server.
//! Enums are open: a value of a later release is kept as `Other`, so that one object never makes a whole list
//! unreadable. ReferenceGrants are in [`reference_grant`](crate::reference_grant).
//!
//! Lists and texts have no spare capacity, since a cluster may have tens of thousands of routes.

use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

mod backend_tls;
mod class;
mod duration;
mod listener;
mod listener_set;
mod metadata;
mod named;
mod object;
mod open_enum;
mod reference;
pub mod route;
mod selector;
mod status;
mod stores;
mod tls;
mod verbatim;

pub use backend_tls::{
    BackendTlsPolicy, BackendTlsPolicySpec, BackendTlsValidation, PolicyTarget, SubjectAltName, WellKnownCertificates,
};
pub use class::{GatewayClass, GatewayClassSpec, GatewayClassStatus, SupportedFeature};
pub use duration::GatewayDuration;
pub use listener::{AllowedRoutes, Listener, NamespacesFrom, Protocol, RouteKind, RouteNamespaces};
pub use listener_set::{ListenerSet, ListenerSetSpec, ListenerSetStatus};
pub use metadata::HeldMetadata;
pub use object::GatewayObject;
pub use reference::{BackendRef, Group, ObjectReference, ParentReference, ReferentKind};
pub use selector::selects;
pub use status::{AncestorStatus, Condition, ConditionStatus, ListenerStatus, ParentStatus, PolicyStatus, RouteStatus};
pub use stores::{GatewayApiObject, GatewayStores};
pub use tls::{
    FrontendTls, FrontendTlsPort, FrontendTlsValidation, FrontendValidation, FrontendValidationMode, GatewayBackendTls,
    GatewayTls, ListenerTls, TlsMode,
};
pub use verbatim::Verbatim;

pub(crate) use named::{extensions, named};
use object::gateway_object;
use open_enum::open_enum;
pub(crate) use stores::StoredKind;

/// API group of all kinds in this module.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The controller name of GatewayClasses that this controller serves.
pub const CONTROLLER_NAME: &str = "xdp-ingress.io/gateway-controller";

gateway_object! {
    /// Listeners at addresses, which routes attach to.
    Gateway = ("Gateway", "gateways", NamespaceResourceScope, GatewaySpec, GatewayStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    pub gateway_class_name: Box<str>,
    pub listeners: Box<[Listener]>,
    /// Requested addresses. Empty: the controller chooses.
    pub addresses: Box<[GatewayAddress]>,
    pub infrastructure: Option<Infrastructure>,
    pub allowed_listeners: AllowedListeners,
    pub tls: GatewayTls,
}

/// An address that a Gateway asks for, or has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayAddress {
    #[serde(rename = "type")]
    pub kind: AddressKind,
    /// Empty in a request for any address of this kind.
    pub value: Box<str>,
}

open_enum! {
    /// Kind of an address. `IPAddress` is the default.
    pub enum AddressKind {
        #[default]
        Ip = "IPAddress",
        Hostname = "Hostname",
        Named = "NamedAddress",
    }
}

/// Properties of objects that are created for a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    pub labels: BTreeMap<Box<str>, Box<str>>,
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// Settings of this Gateway, in its namespace.
    pub parameters_ref: Option<ObjectReference>,
}

/// ListenerSets that may add listeners.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedListeners {
    pub namespaces: ListenerNamespaces,
}

/// Namespaces of ListenerSets that may add listeners. None by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerNamespaces {
    pub from: NamespacesFrom,
    /// Labels of the namespaces, with [`NamespacesFrom::Selector`].
    pub selector: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Addresses at which the Gateway is served. They are input of the translation, too.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub addresses: Box<[GatewayAddress]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[Condition]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub listeners: Box<[ListenerStatus]>,
    /// Number of ListenerSets that the Gateway accepts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached_listener_sets: Option<i32>,
}

// === impl ListenerNamespaces ===

impl Default for ListenerNamespaces {
    fn default() -> Self {
        Self { from: NamespacesFrom::None, selector: None }
    }
}

#[cfg(test)]
mod tests;
