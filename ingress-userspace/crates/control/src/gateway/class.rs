//! GatewayClass: the Gateways of one controller.

use k8s_openapi::ClusterResourceScope;
use serde::{Deserialize, Serialize};

use super::{Condition, ObjectReference, object::gateway_object};

gateway_object! {
    /// A class of Gateways, which names its controller.
    GatewayClass = ("GatewayClass", "gatewayclasses", ClusterResourceScope, GatewayClassSpec, GatewayClassStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    pub controller_name: Box<str>,
    /// Settings of all Gateways of the class.
    pub parameters_ref: Option<ObjectReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassStatus {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[Condition]>,
    /// Features of the controller, in order of their names.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub supported_features: Box<[SupportedFeature]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct SupportedFeature {
    pub name: Box<str>,
}

// === impl GatewayClass ===

impl GatewayClass {
    /// Returns `true` if this controller serves Gateways of the class.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        &*self.spec.controller_name == super::CONTROLLER_NAME
    }
}
