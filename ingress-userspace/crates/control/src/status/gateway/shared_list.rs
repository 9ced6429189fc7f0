//! Lists of a status that several controllers share: an entry for each parent of a route, or ancestor of a policy. The
//! API has no key for the entries, so the list is written as a whole, from the list as it was read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::conditions::{are_shown, dated, is_ours};
use crate::{
    gateway::{self, CONTROLLER_NAME, Verbatim},
    object_status::{ParentReference, ParentStatus},
};

/// An entry of a shared list.
pub(super) trait SharedEntry {
    /// Largest number of entries that the API takes.
    const LIMIT: usize;

    fn new(reference: gateway::ParentReference, conditions: Box<[gateway::Condition]>) -> Self;

    fn reference(&self) -> &gateway::ParentReference;

    /// Returns the name of the controller that wrote the entry.
    fn controller(&self) -> &str;

    fn conditions(&self) -> &[gateway::Condition];
}

/// Returns `true` if one of the entries is this controller's.
pub(super) fn has_ours<E: SharedEntry>(present: &[Verbatim<E>]) -> bool {
    present.iter().any(|entry| entry.controller() == CONTROLLER_NAME)
}

/// Returns the conditions that this controller shows for a parent.
pub(super) fn conditions_of<'e, E: SharedEntry>(
    present: &'e [Verbatim<E>],
    parent: &ParentReference,
) -> Option<&'e [gateway::Condition]> {
    let wanted = reference(parent);
    let ours = present.iter().filter(|entry| entry.controller() == CONTROLLER_NAME);
    ours.filter(|entry| *entry.reference() == wanted).map(|entry| entry.conditions()).next()
}

/// Returns the list to write: entries of others in content and place as they are, entries of this controller in place
/// or, if they are new, at the end. Entries of this controller for other references are removed. The result is `None`
/// if `present` says the same already.
///
/// A full list takes no further entries, as the API demands.
pub(super) fn merged<E: SharedEntry + Clone>(
    wanted: &[ParentStatus],
    generation: i64,
    present: &[Verbatim<E>],
    now: &Time,
) -> Option<Vec<Verbatim<E>>> {
    let mut missing: Vec<_> = wanted.iter().map(|status| (reference(&status.parent), &status.conditions)).collect();
    let mut list = Vec::with_capacity(present.len() + missing.len());
    let mut differs = false;
    for entry in present {
        if entry.controller() != CONTROLLER_NAME {
            list.push(entry.clone());
            continue;
        }
        let Some(index) = missing.iter().position(|(reference, _)| reference == entry.reference()) else {
            differs = true;
            continue;
        };
        let (reference, conditions) = missing.remove(index);
        let conditions = dated(conditions, generation, entry.conditions(), now);
        if are_shown(&conditions, entry.conditions()) {
            list.push(entry.clone());
            continue;
        }
        differs = true;
        let others = entry.conditions().iter().filter(|condition| !is_ours(condition)).cloned();
        list.push(E::new(reference, conditions.into_iter().chain(others).collect()).into());
    }
    let free = E::LIMIT.saturating_sub(list.len());
    differs |= free > 0 && !missing.is_empty();
    let new = missing.into_iter().take(free);
    list.extend(new.map(|(reference, conditions)| E::new(reference, dated(conditions, generation, &[], now)).into()));
    differs.then_some(list)
}

fn reference(parent: &ParentReference) -> gateway::ParentReference {
    let ParentReference { group, kind, namespace, name, section_name, port } = parent;
    gateway::ParentReference {
        group: group.clone(),
        kind: kind.clone(),
        namespace: namespace.as_deref().map(Into::into),
        name: (&**name).into(),
        section_name: section_name.as_deref().map(Into::into),
        port: *port,
    }
}

// === impl ParentStatus ===

impl SharedEntry for gateway::ParentStatus {
    const LIMIT: usize = 32;

    fn new(parent_ref: gateway::ParentReference, conditions: Box<[gateway::Condition]>) -> Self {
        Self { parent_ref, controller_name: CONTROLLER_NAME.into(), conditions }
    }

    fn reference(&self) -> &gateway::ParentReference {
        &self.parent_ref
    }

    fn controller(&self) -> &str {
        &self.controller_name
    }

    fn conditions(&self) -> &[gateway::Condition] {
        &self.conditions
    }
}

// === impl AncestorStatus ===

impl SharedEntry for gateway::AncestorStatus {
    const LIMIT: usize = 16;

    fn new(ancestor_ref: gateway::ParentReference, conditions: Box<[gateway::Condition]>) -> Self {
        Self { ancestor_ref, controller_name: CONTROLLER_NAME.into(), conditions }
    }

    fn reference(&self) -> &gateway::ParentReference {
        &self.ancestor_ref
    }

    fn controller(&self) -> &str {
        &self.controller_name
    }

    fn conditions(&self) -> &[gateway::Condition] {
        &self.conditions
    }
}
