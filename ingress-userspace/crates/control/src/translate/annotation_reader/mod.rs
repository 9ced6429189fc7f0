//! Reads the annotations of an Ingress or a route, and has `features` make the policy of its rules.
//!
//! A key outside the tables of features is reported: as unsupported, or as one that has no effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::api::networking::v1::Ingress;

use super::{
    Context,
    features::{
        self, Globals, ParsedAnnotations,
        row::{Key, Otherwise},
        scope::Scope,
    },
    policy::Policy,
    text::{own_object, shorten},
};
use crate::{
    change::{ObjectId, ObjectName},
    controller_names::{PREFIX, own_key},
    outcome::{ObjectRef, Reason},
    verdict::Verdict,
};
use others::Other;

mod others;
pub(super) mod route;

/// Returns the verdict on the annotation `name` of ingress-nginx, without its prefix. Names of this controller alone
/// have one, too; `None` for unknown ones.
pub(crate) fn verdict(name: &str) -> Option<Verdict> {
    features::annotation(name).map(Key::verdict).or_else(|| others::find(name).map(Other::verdict))
}

/// Returns `true` if the tables have a row for the annotation `name`, without its prefix.
pub(crate) fn is_annotation(name: &str) -> bool {
    features::annotation(name).is_some()
}

/// Returns what does the same as an annotation on routes, if it has no effect there.
pub(crate) fn instead_on_routes(name: &str) -> Option<&'static str> {
    features::annotation(name)?.instead_on_routes
}

/// Returns the annotations of `ingress` by their names without a prefix, each with its whole name and value.
pub(crate) fn entries<'i>(ingress: &'i Ingress, prefix: &str) -> BTreeMap<&'i str, (&'i str, &'i str)> {
    by_key(ingress, prefix).into_iter().map(|(key, Annotation { name, value })| (key, (name, value))).collect()
}

/// A value, and where it is written.
type Entry<'i> = (Title<'i>, &'i str);

/// Keys with their values, and where each is written.
type Entries<'i> = BTreeMap<&'i str, Entry<'i>>;

/// Where a value is written, for messages.
#[derive(Clone, Copy)]
enum Title<'i> {
    /// An annotation, by its whole name.
    Annotation(&'i str),
    /// A key of a ConfigMap that a filter of a route names.
    Key(&'i str, &'i ObjectName),
}

/// An annotation with one of the prefixes.
struct Annotation<'i> {
    /// The name as it is written, with its prefix.
    name: &'i str,
    value: &'i str,
}

/// Reads every annotation of `ingress` with a known prefix.
pub(super) fn read(ingress: &Ingress, object: &ObjectRef, globals: &Globals, context: &mut Context<'_, '_>) -> Policy {
    let name = ObjectName::of(&ingress.metadata);
    let annotations = by_key(ingress, &context.options.annotations_prefix);
    let entries =
        annotations.into_iter().map(|(key, Annotation { name, value })| (key, (Title::Annotation(name), value)));
    let mut parsed = globals.parsed.clone();
    let mut scope = Scope::new(&name, object, name.to_string().into(), context);
    let entries = united(entries.collect(), &mut scope);
    read_entries(entries, &mut parsed, &mut scope);
    parsed.policy(globals, &mut scope)
}

/// Returns entries of which no two mean the same, and reports those that go. The rest have the key that counts.
fn united<'i>(mut entries: Entries<'i>, scope: &mut Scope<'_, '_>) -> Entries<'i> {
    let same = |key: &&'i str| Some((*key, features::annotation(key)?.same_as?));
    let pairs: Vec<_> = entries.keys().filter_map(same).collect();
    for (key, counts) in pairs {
        let Some((title, value)) = entries.remove(key) else { continue };
        let chosen = entries.entry(counts).or_insert((title, value));
        let mut dropped = (title, value);
        // This controller's own prefix goes first, also before a key that means the same.
        if title.is_own() && !chosen.0.is_own() {
            std::mem::swap(chosen, &mut dropped);
        }
        if chosen.1 != dropped.1 {
            let message =
                format!("{} has no effect, because {} means the same; remove one of them", dropped.0, chosen.0);
            scope.report(Reason::IneffectiveAnnotation, message);
        }
    }
    entries
}

/// Reads keys with their values, and reports those without an effect.
fn read_entries<'i>(
    entries: impl IntoIterator<Item = (&'i str, Entry<'i>)>,
    parsed: &mut ParsedAnnotations,
    scope: &mut Scope<'_, '_>,
) {
    for (key, (title, value)) in entries {
        if let Some(row) = features::annotation(key) {
            read_row(row, title, value, parsed, scope);
            continue;
        }
        let (reason, message) = match others::find(key) {
            Some(Other::Protective { .. }) if others::is_off(value) => continue,
            Some(Other::Protective { instead }) => {
                let message = format!(
                    "{title} is not supported; its rules answer 503, because without it they would be \
                     unprotected; {instead}"
                );
                scope.refuse((Reason::UnsupportedAnnotation, message));
                continue;
            }
            Some(Other::Fixed { same, .. }) if same.contains(&value) => continue,
            Some(Other::Ineffective { because } | Other::Fixed { because, .. }) => {
                (Reason::IneffectiveAnnotation, format!("{title} has no effect, because {because}; remove it"))
            }
            None => (Reason::UnsupportedAnnotation, format!("{title} is not supported and has no effect; remove it")),
        };
        scope.report(reason, message);
    }
}

fn read_row(row: &Key, title: Title<'_>, value: &str, parsed: &mut ParsedAnnotations, scope: &mut Scope<'_, '_>) {
    let Key { name, default, meaning, otherwise, notes, note_reason, instead_on_routes, .. } = row;
    if let Some(instead) = instead_on_routes.filter(|_| scope.is_of_route()) {
        // A feature that is switched off is as one that is not asked for.
        if others::is_off(value) {
            return;
        }
        let message = |effect| format!("{title} {effect}; {instead}, and remove it");
        match otherwise {
            Otherwise::Default => {
                scope.report(Reason::UnsupportedAnnotation, message("has no effect on routes"));
            }
            Otherwise::Refuse => {
                let effect = "has no effect on routes, and the rules answer 503 until then";
                scope.refuse((Reason::UnsupportedAnnotation, message(effect)));
            }
        }
        return;
    }
    let Err(expected) = parsed.read(name, value) else {
        if let Some(note) = notes.and_then(|notes| notes(value)) {
            let message = format!("{title} is `{}`: {note}", shorten(value));
            scope.report(*note_reason, message);
        }
        return;
    };
    let consequence = match otherwise {
        Otherwise::Default if default.is_empty() => "it is as if not set".to_owned(),
        Otherwise::Default => format!("the default, `{default}`, applies"),
        Otherwise::Refuse => "its rules answer 503 until then".to_owned(),
    };
    let value = shorten(value);
    let message = format!("{title} ({meaning}) is `{value}`; write {expected}, {consequence}");
    match otherwise {
        Otherwise::Default => scope.report(Reason::InvalidAnnotation, message),
        Otherwise::Refuse => scope.refuse((Reason::InvalidAnnotation, message)),
    }
}

/// Returns the objects, other than Services and certificates, that the annotations of `ingress` name. Objects outside
/// its namespace are left out, because an Ingress may not name them. `prefix` is that of annotations besides this
/// controller's own.
#[must_use]
pub fn references(ingress: &Ingress, prefix: &str) -> BTreeSet<ObjectId> {
    let ObjectName { namespace, name: _ } = ObjectName::of(&ingress.metadata);
    let annotations = by_key(ingress, prefix);
    let named = annotations.iter().filter_map(|(key, Annotation { name: _, value })| {
        let kind = features::annotation(key)?.names?;
        Some(ObjectId { kind, name: own_object(value, &namespace)? })
    });
    named.collect()
}

/// Returns the Services that the annotations of `ingress` lead to: those for authorization, for token keys, for error
/// pages, and for mirrored requests.
pub(crate) fn services_of(ingress: &Ingress, prefix: &str) -> impl Iterator<Item = ObjectName> {
    let ObjectName { namespace, name: _ } = ObjectName::of(&ingress.metadata);
    let annotations = by_key(ingress, prefix).into_iter();
    annotations
        .filter_map(move |(key, Annotation { name: _, value })| features::annotation(key)?.leads_to?(value, &namespace))
}

/// Returns the annotations with a known prefix, by the rest of their names. If a key has both prefixes, this
/// controller's own counts.
fn by_key<'i>(ingress: &'i Ingress, prefix: &str) -> BTreeMap<&'i str, Annotation<'i>> {
    let mut found = BTreeMap::new();
    for prefix in [prefix.trim_end_matches('/'), PREFIX] {
        for (name, value) in ingress.metadata.annotations.iter().flatten() {
            if let Some(key) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')) {
                found.insert(key, Annotation { name, value: value.trim() });
            }
        }
    }
    found
}

// === impl Title ===

impl Title<'_> {
    /// Returns whether it is written for this controller alone.
    fn is_own(self) -> bool {
        match self {
            Self::Annotation(name) => own_key(name).is_some(),
            Self::Key(..) => true,
        }
    }
}

impl fmt::Display for Title<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(name) => write!(f, "annotation `{name}`"),
            Self::Key(key, config_map) => write!(f, "key `{key}` of ConfigMap `{config_map}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_references_contain_no_paths() {
        let own = |name: &str| Some(ObjectName::new("mine", name));
        for (value, expect) in [
            ("users", own("users")),
            ("mine/users", own("users")),
            ("other/users", None),
            ("../other/users", None),
            ("/users", None),
            ("mine/", None),
            ("", None),
            // A name that no object can have.
            ("mine/../other/users", own("../other/users")),
        ] {
            assert_eq!(own_object(value, "mine"), expect, "{value}");
        }
    }
}
