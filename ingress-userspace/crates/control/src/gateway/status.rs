//! Statuses, and the conditions in them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{ParentReference, RouteKind, Verbatim, open_enum::open_enum};

/// A statement of a controller about an object, or about a part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: Box<str>,
    pub status: ConditionStatus,
    /// Generation of the object that the statement is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    pub reason: Box<str>,
    pub message: Box<str>,
}

open_enum! {
    pub enum ConditionStatus {
        True = "True",
        False = "False",
        #[default]
        Unknown = "Unknown",
    }
}

/// Status of a listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerStatus {
    pub name: Box<str>,
    /// Kinds of routes that may attach.
    pub supported_kinds: Box<[RouteKind]>,
    /// Number of routes that are accepted by the listener.
    pub attached_routes: i32,
    pub conditions: Box<[Condition]>,
}

/// Status of a route: an entry for each parent and controller. The API has no key for entries, so the list is written
/// as a whole, with the entries of other controllers as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteStatus {
    pub parents: Box<[Verbatim<ParentStatus>]>,
}

/// Statement of a controller about a route at one of its parents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentStatus {
    pub parent_ref: ParentReference,
    pub controller_name: Box<str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[Condition]>,
}

/// Status of a policy: an entry for each ancestor and controller. It is written as [`RouteStatus`] is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyStatus {
    pub ancestors: Box<[Verbatim<AncestorStatus>]>,
}

/// Statement of a controller about a policy at one of its ancestors, mostly a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AncestorStatus {
    pub ancestor_ref: ParentReference,
    pub controller_name: Box<str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub conditions: Box<[Condition]>,
}
