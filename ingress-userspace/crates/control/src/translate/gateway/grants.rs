//! References to objects of other namespaces, which need a ReferenceGrant there.

use super::report::Flaw;
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Group, ReferentKind},
    translate::lookup::Lookup,
};

/// Checks that `owner` may refer to an object.
///
/// # Errors
/// The flaw `RefNotPermitted`, whether the object exists or not.
pub(super) fn check(owner: &ObjectId, kind: Kind, name: &ObjectName, lookup: &Lookup<'_>) -> Result<(), Flaw> {
    if owner.name.namespace == name.namespace {
        return Ok(());
    }
    let (source, target) = (ReferentKind::from(owner.kind.as_str()), ReferentKind::from(kind.as_str()));
    let from = (&Group::Gateway, &source, &*owner.name.namespace);
    if lookup.grants_of(&name.namespace).any(|grant| grant.permits(from, (&Group::Core, &target, &name.name))) {
        return Ok(());
    }
    let message = format!(
        "{} `{name}` is in another namespace; add a ReferenceGrant there for {} of `{}`",
        kind.as_str(),
        owner.kind.as_str(),
        owner.name.namespace
    );
    Err(Flaw::new("RefNotPermitted", message))
}
