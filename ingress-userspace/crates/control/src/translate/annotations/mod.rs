//! Reads the annotations that change how an Ingress is served, and converts them into the policy of its rules.
//!
//! ```text
//! annotations ──keys──> ParsedAnnotations ──policy──> Policy ──> filters and forwarding of each rule
//! ConfigMaps ──settings──┘  (the defaults)
//! ```
//!
//! Keys are data: a key outside the tables here is reported as unsupported and has no effect.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::Ingress;

use super::{
    Context,
    parsed_annotations::{Limits, ParsedAnnotations},
    policy::{Policy, Service},
    text::{own_object, shorten},
};
use crate::{
    change::{ObjectId, ObjectName},
    outcome::{ObjectRef, Reason},
};
use row::{Key, Otherwise};

mod authentication;
mod clients;
mod compression;
mod error_pages;
mod ext_authz;
mod health_policy;
mod keys;
mod mirror;
mod others;
mod policy;
mod row;
mod token;
mod upstream_tls;
mod url;

pub(super) use compression::ParsedCompression;
pub(super) use health_policy::ParsedHealthPolicy;
use others::Other;
pub(super) use upstream_tls::backend_tls;
pub(crate) use url::service_of as service_of_url;

/// This controller's own prefix, which takes precedence over the one for compatibility.
const PREFIX: &str = "xdp-ingress.io";

/// An annotation with one of the prefixes.
struct Annotation<'i> {
    /// The name as it is written, with its prefix.
    name: &'i str,
    value: &'i str,
}

/// Reads every annotation of `ingress` with a known prefix.
pub(super) fn read(ingress: &Ingress, object: &ObjectRef, context: &mut Context<'_>) -> Policy {
    let mut parsed = context.globals.parsed.clone();
    let mut service = Service::Full;
    for (key, Annotation { name, value }) in by_key(ingress, &context.options.annotations_prefix) {
        if let Some(key) = keys::find(key) {
            let Key { name: _, default, meaning, names: _, otherwise, read } = key;
            let Err(expected) = read(value, &mut parsed) else { continue };
            let consequence = match otherwise {
                Otherwise::Default if default.is_empty() => "it is as if not set".to_owned(),
                Otherwise::Default => format!("the default, `{default}`, applies"),
                Otherwise::Refuse => {
                    service = service.max(Service::Refuse);
                    "its rules answer 503 until then".to_owned()
                }
            };
            let value = shorten(value);
            let message = format!("annotation `{name}` ({meaning}) is `{value}`; write {expected}, {consequence}");
            context.report(object, Reason::InvalidAnnotation, message);
            continue;
        }
        let (reason, message) = match others::find(key) {
            Some(Other::Protective { .. }) if others::is_off(value) => continue,
            Some(Other::Protective { instead }) => {
                service = service.max(Service::Refuse);
                let message = format!(
                    "annotation `{name}` is not supported; its rules answer 503, because without it they would be \
                     unprotected; {instead}"
                );
                (Reason::UnsupportedAnnotation, message)
            }
            Some(Other::Ineffective { because }) => (
                Reason::IneffectiveAnnotation,
                format!(
                    "annotation `{name}` has no effect, because {because}; remove \
                 it"
                ),
            ),
            None => {
                let message = format!("annotation `{name}` is not supported and has no effect; remove it");
                (Reason::UnsupportedAnnotation, message)
            }
        };
        context.report(object, reason, message);
    }
    policy::make(parsed, service, &ObjectName::of(&ingress.metadata), object, context)
}

/// Returns the objects, other than Services and certificates, that the annotations of `ingress` name. Objects outside
/// its namespace are left out, because an Ingress may not name them.
pub(crate) fn references(ingress: &Ingress, prefix: &str) -> BTreeSet<ObjectId> {
    let ObjectName { namespace, name: _ } = ObjectName::of(&ingress.metadata);
    let annotations = by_key(ingress, prefix);
    let named = annotations.iter().filter_map(|(key, Annotation { name: _, value })| {
        let kind = keys::find(key)?.names?;
        Some(ObjectId { kind, name: own_object(value, &namespace)? })
    });
    named.collect()
}

/// Returns the Services that the annotations of `ingress` lead to: those for authorization, for token keys, for error
/// pages, and for mirrored requests.
pub(crate) fn services_of(ingress: &Ingress, prefix: &str) -> impl Iterator<Item = ObjectName> {
    let annotations = by_key(ingress, prefix);
    let value = |key| annotations.get(key).map(|Annotation { name: _, value }| *value);
    let ObjectName { namespace, name: _ } = ObjectName::of(&ingress.metadata);
    let own = value("default-backend").and_then(|value| own_object(value, &namespace));
    let mirror = value("mirror-target").and_then(|value| mirror::service_of(value, &namespace));
    let parsed = ["auth-url", "jwt-jwks-url"].map(|key| value(key).and_then(service_of_url));
    parsed.into_iter().chain([own, mirror]).flatten()
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
