//! The part of a status that tells which nodes serve an object: the condition [`SERVED`], and `Programmed`. This module asks
//! no node.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    inquiry::{Inquiry, Verdict},
    wire::fingerprint,
};
use crate::{
    NODES_PORT,
    change::ObjectId,
    gateway,
    object_status::{Condition, ConditionStatus, ObjectStatus, ParentStatus, StatusBody},
    status::gateway::{bearer::Bearer, patch::Present, shared_list::conditions_of},
};

/// Type of the condition that all nodes serve the object.
pub(super) const SERVED: &str = "xdp-ingress.io/Served";

/// Most nodes that a message names.
const NAMES: usize = 3;

/// Knowledge about other nodes.
#[derive(Debug)]
pub(in crate::status::gateway) enum Knowledge<'a> {
    /// This process does not ask, and statuses do not tell.
    Nothing,
    /// Statuses stay as they are in this respect.
    AsShown,
    /// The questions of this process, with their answers.
    Asked(&'a mut Inquiry),
}

/// Requirement of a status concerning nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::status::gateway) enum Need {
    /// The object is not served anyway.
    Nothing,
    /// All nodes serve this generation, as the status shows already in these words.
    Shown(String),
    /// The nodes must be asked about the object in this state.
    Verdict { fingerprint: u64 },
}

/// Returns the requirement of the status `wanted` of an object.
pub(in crate::status::gateway) fn need(wanted: &ObjectStatus, bearer: &Bearer<'_>) -> Need {
    if !is_served(wanted) {
        return Need::Nothing;
    }
    match shown(wanted, bearer.present) {
        Some(message) => Need::Shown(message),
        None => Need::Verdict { fingerprint: fingerprint(bearer.uid, wanted) },
    }
}

/// Returns `true` if the status says that clients reach the object.
pub(in crate::status::gateway) fn is_served(status: &ObjectStatus) -> bool {
    match &status.body {
        StatusBody::Gateway { conditions, .. } | StatusBody::ListenerSet { conditions, .. } => {
            is_true(conditions, "Programmed")
        }
        StatusBody::Route { parents } => parents.iter().any(|parent| is_true(&parent.conditions, "Accepted")),
        StatusBody::GatewayClass { .. } | StatusBody::Policy { .. } => false,
    }
}

fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.kind == kind && condition.status == ConditionStatus::True)
}

/// Returns the message of [`SERVED`] that `present` shows for the generation of `wanted`, at all parents of a route.
fn shown(wanted: &ObjectStatus, present: Present<'_>) -> Option<String> {
    let of = |conditions: &[gateway::Condition]| {
        let shown = conditions.iter().find(|shown| {
            *shown.kind == *SERVED
                && shown.status == gateway::ConditionStatus::True
                && shown.observed_generation == Some(wanted.generation)
        });
        shown.map(|shown| shown.message.to_string())
    };
    match (&wanted.body, present) {
        (StatusBody::Gateway { .. }, Present::Gateway(present)) => of(&present.conditions),
        (StatusBody::ListenerSet { .. }, Present::ListenerSet(present)) => of(&present.conditions),
        (StatusBody::Route { parents }, Present::Route(present)) => {
            let served = parents.iter().filter(|parent| is_true(&parent.conditions, "Accepted"));
            let messages = served.map(|parent| of(conditions_of(&present.parents, &parent.parent)?));
            messages.reduce(|first, message| first.filter(|_| message.is_some())).flatten()
        }
        _ => None,
    }
}

/// Returns `status` with the verdict about nodes.
pub(in crate::status::gateway) fn with_served(mut status: Arc<ObjectStatus>, verdict: &Verdict) -> Arc<ObjectStatus> {
    let served = match verdict {
        Verdict::Served { nodes, took } => Condition { message: confirmed(*nodes, *took), ..met() },
        Verdict::Behind { serving, nodes, behind } => {
            let message = format!(
                "{serving} of {nodes} nodes; {} another state of this object; look at the log there",
                have(behind, "serves", "serve")
            );
            Condition::unmet(SERVED, "NodesBehind", message)
        }
        Verdict::Silent { serving, nodes, silent } => {
            let message = format!(
                "{serving} of {nodes} nodes; {} on UDP port {NODES_PORT}; let it in from other nodes (firewalls, network policies)",
                have(silent, "does not answer", "do not answer")
            );
            Condition::unmet(SERVED, "NodesSilent", message)
        }
        Verdict::Unknown => return status,
    };
    let body = &mut Arc::make_mut(&mut status).body;
    if let StatusBody::Gateway { conditions, .. } | StatusBody::ListenerSet { conditions, .. } = body
        && let Some(programmed) = conditions.iter_mut().find(|condition| condition.kind == "Programmed")
        && programmed.status == ConditionStatus::True
        && served.status == ConditionStatus::False
    {
        programmed.message.clone_from(&served.message);
        if let Verdict::Behind { .. } = verdict {
            (programmed.status, programmed.reason) = (ConditionStatus::False, "Pending");
        }
    }
    add(body, served);
    status
}

/// Returns `status` with the message of [`SERVED`] that the object shows already.
pub(in crate::status::gateway) fn with_shown(mut status: Arc<ObjectStatus>, message: String) -> Arc<ObjectStatus> {
    add(&mut Arc::make_mut(&mut status).body, Condition { message, ..met() });
    status
}

fn add(body: &mut StatusBody, served: Condition) {
    match body {
        StatusBody::Gateway { conditions, .. } | StatusBody::ListenerSet { conditions, .. } => conditions.push(served),
        StatusBody::Route { parents } => {
            let accepted = parents.iter_mut().filter(|parent| is_true(&parent.conditions, "Accepted"));
            accepted.for_each(|ParentStatus { conditions, .. }| conditions.push(served.clone()));
        }
        StatusBody::GatewayClass { .. } | StatusBody::Policy { .. } => {}
    }
}

fn met() -> Condition {
    Condition::met(SERVED, "Served")
}

/// Returns a text such as `3 of 3 nodes, 4 ms`.
fn confirmed(nodes: usize, took: Option<Duration>) -> String {
    let plural = if nodes == 1 { "" } else { "s" };
    let took = took.map(|took| format!(", {} ms", took.as_millis())).unwrap_or_default();
    format!("{nodes} of {nodes} node{plural}{took}")
}

/// Returns a text such as `` `a` and `b` serve ``.
fn have(nodes: &BTreeSet<Arc<str>>, one: &str, many: &str) -> String {
    let mut names: Vec<String> = nodes.iter().take(NAMES).map(|node| format!("`{node}`")).collect();
    if nodes.len() > NAMES {
        names.push(format!("{} more", nodes.len() - NAMES));
    }
    let verb = if nodes.len() == 1 { one } else { many };
    match names.split_last() {
        Some((last, [])) => format!("{last} {verb}"),
        Some((last, rest)) => format!("{} and {last} {verb}", rest.join(", ")),
        None => verb.to_owned(),
    }
}

// === impl Knowledge ===

impl Knowledge<'_> {
    /// Forgets the questions about an object.
    pub(in crate::status::gateway) fn dismiss(&mut self, id: &ObjectId) {
        if let Self::Asked(inquiry) = self {
            inquiry.dismiss(id);
        }
    }
}
