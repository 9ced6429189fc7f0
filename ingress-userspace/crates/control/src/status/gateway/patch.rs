//! Patches that make an object show a status. They are computed from the status that it shows now, and hold only fields
//! of this controller. This module sends nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    conditions::{are_shown, dated, is_ours},
    shared_list::merged,
};
use crate::{
    gateway,
    object_status::{ListenerStatus, ObjectStatus, StatusBody},
};

/// The status that an object shows now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Present<'a> {
    GatewayClass(&'a gateway::GatewayClassStatus),
    Gateway(&'a gateway::GatewayStatus),
    ListenerSet(&'a gateway::ListenerSetStatus),
    Route(&'a gateway::RouteStatus),
    Policy(&'a gateway::PolicyStatus),
}

/// Change of a status.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatusPatch {
    /// Server-side apply of this status: its lists have keys, so entries of other writers stay. Without a status, this
    /// controller gives up its fields.
    Apply(Option<Value>),
    /// JSON merge patch of this status, which replaces a shared list. It needs the version from which it was made.
    Replace(Value),
}

/// Returns the patch after which an object shows `wanted`, or `None` if it does already. `present` must be of the same
/// kind.
pub(super) fn patch(wanted: &ObjectStatus, present: Present<'_>, now: &Time) -> Option<StatusPatch> {
    let ObjectStatus { generation, body } = wanted;
    let generation = *generation;
    match (body, present) {
        (StatusBody::GatewayClass { conditions, supported_features }, Present::GatewayClass(present)) => {
            let feature = |name: &&str| gateway::SupportedFeature { name: (*name).into() };
            let status = gateway::GatewayClassStatus {
                conditions: dated(conditions, generation, &present.conditions, now),
                supported_features: supported_features.iter().map(feature).collect(),
            };
            let mut features = present.supported_features.clone();
            features.sort();
            let is_shown = are_shown(&status.conditions, &present.conditions) && features == status.supported_features;
            apply(&status, is_shown)
        }
        (
            StatusBody::Gateway { conditions, listeners, addresses, attached_listener_sets },
            Present::Gateway(present),
        ) => {
            let status = gateway::GatewayStatus {
                addresses: addresses.iter().map(Into::into).collect(),
                conditions: dated(conditions, generation, &present.conditions, now),
                listeners: of_listeners(listeners, generation, &present.listeners, now),
                attached_listener_sets: attached_listener_sets.map(count),
            };
            let is_shown = status.addresses == present.addresses
                && are_shown(&status.conditions, &present.conditions)
                && are_listed(&status.listeners, &present.listeners)
                && status.attached_listener_sets == present.attached_listener_sets;
            apply(&status, is_shown)
        }
        (StatusBody::ListenerSet { conditions, listeners }, Present::ListenerSet(present)) => {
            let status = gateway::ListenerSetStatus {
                conditions: dated(conditions, generation, &present.conditions, now),
                listeners: of_listeners(listeners, generation, &present.listeners, now),
            };
            let is_shown =
                are_shown(&status.conditions, &present.conditions) && are_listed(&status.listeners, &present.listeners);
            apply(&status, is_shown)
        }
        (StatusBody::Route { parents }, Present::Route(present)) => {
            let parents = merged(parents, generation, &present.parents, now)?;
            Some(StatusPatch::Replace(json!({ "parents": parents })))
        }
        (StatusBody::Policy { ancestors }, Present::Policy(present)) => {
            let ancestors = merged(ancestors, generation, &present.ancestors, now)?;
            Some(StatusPatch::Replace(json!({ "ancestors": ancestors })))
        }
        _ => None,
    }
}

fn apply(status: &impl Serialize, is_shown: bool) -> Option<StatusPatch> {
    if is_shown {
        return None;
    }
    Some(StatusPatch::Apply(Some(serde_json::to_value(status).ok()?)))
}

fn of_listeners(
    wanted: &[ListenerStatus],
    generation: i64,
    present: &[gateway::ListenerStatus],
    now: &Time,
) -> Box<[gateway::ListenerStatus]> {
    let of_listener = |wanted: &ListenerStatus| {
        let ListenerStatus { name, supported_kinds, attached_routes, conditions } = wanted;
        let shown = present.iter().find(|shown| *shown.name == **name);
        let shown = shown.map(|shown| &*shown.conditions).unwrap_or_default();
        let kind = |kind: &&str| gateway::RouteKind {
            group: gateway::Group::Gateway,
            kind: gateway::ReferentKind::from(*kind),
        };
        gateway::ListenerStatus {
            name: (&**name).into(),
            supported_kinds: supported_kinds.iter().map(kind).collect(),
            attached_routes: count(*attached_routes),
            conditions: dated(conditions, generation, shown, now),
        }
    };
    wanted.iter().map(of_listener).collect()
}

/// Returns `true` if `present` has exactly `listeners`, apart from additions of other writers.
fn are_listed(listeners: &[gateway::ListenerStatus], present: &[gateway::ListenerStatus]) -> bool {
    let is_shown = |listener: &gateway::ListenerStatus| {
        present.iter().find(|shown| shown.name == listener.name).is_some_and(|shown| {
            let gateway::ListenerStatus { name: _, supported_kinds, attached_routes, conditions } = listener;
            *supported_kinds == shown.supported_kinds
                && *attached_routes == shown.attached_routes
                && are_shown(conditions, &shown.conditions)
        })
    };
    let is_known = |shown: &gateway::ListenerStatus| listeners.iter().any(|listener| listener.name == shown.name);
    listeners.iter().all(is_shown)
        && present.iter().all(|shown| is_known(shown) || !shown.conditions.iter().any(is_ours))
}

/// Returns a count in the type of the API.
fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

// === impl StatusPatch ===

impl StatusPatch {
    /// Returns the patch with which this controller gives up its part of a status; `None` if it has none.
    pub(super) fn withdrawal(present: Present<'_>, now: &Time) -> Option<Self> {
        let nothing = |body| ObjectStatus { generation: 0, body };
        match present {
            Present::GatewayClass(gateway::GatewayClassStatus { conditions, .. })
            | Present::Gateway(gateway::GatewayStatus { conditions, .. })
            | Present::ListenerSet(gateway::ListenerSetStatus { conditions, .. }) => {
                conditions.iter().any(is_ours).then_some(Self::Apply(None))
            }
            Present::Route(_) => patch(&nothing(StatusBody::Route { parents: Vec::new() }), present, now),
            Present::Policy(_) => patch(&nothing(StatusBody::Policy { ancestors: Vec::new() }), present, now),
        }
    }
}
