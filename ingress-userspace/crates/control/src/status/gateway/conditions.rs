//! Conditions in the form of the API: with the generation that they are about, and the time of their last transition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{controller_names::own_key, gateway, object_status::Condition};

/// Types of conditions that this controller states, apart from those with its own prefix. Conditions of other types
/// belong to other writers.
const TYPES: [&str; 8] = [
    "Accepted",
    "AttachedListenerSets",
    "Conflicted",
    "InsecureFrontendValidationMode",
    "OverlappingTLSConfig",
    "PartiallyInvalid",
    "Programmed",
    "ResolvedRefs",
];

/// Returns `true` if the condition is of a type that this controller states.
pub(super) fn is_ours(condition: &gateway::Condition) -> bool {
    TYPES.contains(&&*condition.kind) || own_key(&condition.kind).is_some()
}

/// Returns `wanted` in the form of the API. A condition keeps the time of its last transition in `present` if its
/// status is the same there; otherwise the time is `now`.
pub(super) fn dated(
    wanted: &[Condition],
    generation: i64,
    present: &[gateway::Condition],
    now: &Time,
) -> Box<[gateway::Condition]> {
    let date = |wanted: &Condition| {
        let Condition { kind, status, reason, message } = wanted;
        let status = gateway::ConditionStatus::from(status.as_str());
        let since = present.iter().find(|shown| *shown.kind == **kind && shown.status == status);
        let since = since.and_then(|shown| shown.last_transition_time.clone());
        gateway::Condition {
            kind: (*kind).into(),
            status,
            observed_generation: Some(generation),
            last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
            reason: (*reason).into(),
            message: message.as_str().into(),
        }
    };
    wanted.iter().map(date).collect()
}

/// Returns `true` if `present` has exactly `conditions`, apart from those of other writers, in any order.
pub(super) fn are_shown(conditions: &[gateway::Condition], present: &[gateway::Condition]) -> bool {
    present.iter().filter(|shown| is_ours(shown)).count() == conditions.len()
        && conditions.iter().all(|condition| present.contains(condition))
}
