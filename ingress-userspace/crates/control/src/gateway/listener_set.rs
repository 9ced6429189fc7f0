//! ListenerSet: further listeners of a Gateway.

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use super::{Condition, Listener, ListenerStatus, ParentReference, object::gateway_object};

gateway_object! {
    /// Listeners that are added to a Gateway which allows it.
    ListenerSet = ("ListenerSet", "listenersets", NamespaceResourceScope, ListenerSetSpec, ListenerSetStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// The Gateway. It has neither a section name nor a port.
    pub parent_ref: ParentReference,
    pub listeners: Box<[Listener]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetStatus {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[Condition]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub listeners: Box<[ListenerStatus]>,
}
