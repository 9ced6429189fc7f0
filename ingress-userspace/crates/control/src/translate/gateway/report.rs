//! Conditions of the Gateway API, with the types and reasons that its specification names.

use crate::{
    gateway,
    object_status::{Condition, ConditionStatus, ParentReference},
};

pub(super) const ACCEPTED: &str = "Accepted";
pub(super) const CONFLICTED: &str = "Conflicted";
pub(super) const PROGRAMMED: &str = "Programmed";
pub(super) const RESOLVED_REFS: &str = "ResolvedRefs";

/// Reason and explanation of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

// === impl Flaw ===

impl Flaw {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A value that this controller does not support, or that is not valid at all.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new("UnsupportedValue", message)
    }

    /// Returns the condition `kind` with status `False`.
    pub(super) fn unmet(&self, kind: &'static str) -> Condition {
        Condition::unmet(kind, self.reason, self.message.clone())
    }
}

/// Returns a condition that is true for the reason of the same name.
pub(super) fn met(kind: &'static str) -> Condition {
    Condition::met(kind, kind)
}

/// Returns the condition `kind`: false with the flaw, if there is one.
pub(super) fn unless(kind: &'static str, flaw: Option<&Flaw>) -> Condition {
    flaw.map_or_else(|| met(kind), |flaw| flaw.unmet(kind))
}

/// Returns the condition that names the conflict of a listener with another.
pub(super) fn conflicted(flaw: Option<&Flaw>) -> Condition {
    match flaw {
        None => Condition {
            kind: CONFLICTED,
            status: ConditionStatus::False,
            reason: "NoConflicts",
            message: String::new(),
        },
        Some(Flaw { reason, message }) => {
            Condition { kind: CONFLICTED, status: ConditionStatus::True, reason, message: message.clone() }
        }
    }
}

/// Returns the fields of a reference that identify an entry of a status.
pub(super) fn parent_of(reference: &gateway::ParentReference) -> ParentReference {
    let gateway::ParentReference { group, kind, namespace, name, section_name, port } = reference;
    ParentReference {
        group: group.clone(),
        kind: kind.clone(),
        namespace: namespace.as_deref().map(Into::into),
        name: (**name).into(),
        section_name: section_name.as_deref().map(Into::into),
        port: *port,
    }
}
