//! Reads the annotations of a route and the ConfigMaps that its filters name. Only this controller's own prefix counts:
//! the annotations of other controllers have no effect on routes.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;

use super::{Entries, Title, read_entries, united};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    controller_names::own_key,
    gateway::HeldMetadata,
    outcome::ObjectRef,
    translate::{
        Context,
        features::{self, Globals, ParsedAnnotations, scope::Scope},
        policy::Policy,
        text::own_object,
    },
};

/// The route whose rules get a policy.
#[derive(Clone, Copy)]
pub(crate) struct RouteAnnotations<'r> {
    pub(crate) name: &'r ObjectName,
    pub(crate) object: &'r ObjectRef,
    pub(crate) metadata: &'r HeldMetadata,
}

// === impl RouteAnnotations ===

impl RouteAnnotations<'_> {
    /// Returns the policy of rules with `config_maps`, whose keys take precedence over the annotations, and those of later
    /// ones over earlier ones.
    pub(crate) fn policy(
        self,
        config_maps: &[(ObjectName, &ConfigMap)],
        globals: &Globals,
        context: &mut Context<'_, '_>,
    ) -> Policy {
        let Self { name, object, metadata } = self;
        // Rules with other limits have counters of their own.
        let own = config_maps.iter().map(|(name, _)| format!(" {}", name.name)).collect::<String>();
        let counters: Arc<str> = format!("{} {name}{own}", object.kind).into();
        let told = context.outcomes.len();
        let mut scope = Scope::new(name, object, counters, context);
        // A key goes before one of an earlier source, also before one that means the same.
        let mut entries = united(of_metadata(metadata), &mut scope);
        for (name, config_map) in config_maps {
            entries.extend(united(of_config_map(name, config_map), &mut scope));
        }
        let mut parsed = ParsedAnnotations::of_routes(globals);
        read_entries(entries, &mut parsed, &mut scope);
        let policy = parsed.policy(globals, &mut scope);
        if !config_maps.is_empty() {
            context.outcomes.entitle(told, object, &title(config_maps));
        }
        policy
    }
}

/// Returns a text such as `` rules with ConfigMaps `a` and `b` ``.
fn title(config_maps: &[(ObjectName, &ConfigMap)]) -> String {
    let names: Vec<_> = config_maps.iter().map(|(name, _)| format!("`{}`", name.name)).collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("rules with ConfigMap{plural} {}", names.join(" and "))
}

/// Returns `true` if annotations of this controller have an effect on objects of this kind of the Gateway API.
pub(crate) const fn is_annotatable(kind: Kind) -> bool {
    matches!(kind, Kind::HttpRoute | Kind::GrpcRoute)
}

/// Returns `true` if the metadata of a route hold annotations of this controller.
pub(crate) fn is_annotated(metadata: &HeldMetadata) -> bool {
    !of_metadata(metadata).is_empty()
}

/// Returns the number of bytes in these annotations and in the keys of `config_maps`.
pub(crate) fn size<'c>(metadata: &HeldMetadata, config_maps: impl IntoIterator<Item = &'c ConfigMap>) -> usize {
    let of_annotations = of_metadata(metadata).iter().map(|(key, (_, value))| key.len() + value.len()).sum::<usize>();
    let data = config_maps.into_iter().flat_map(|config_map| config_map.data.iter().flatten());
    of_annotations + data.map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

/// Returns the Secrets and ConfigMaps that annotations of a route name. Objects outside `namespace`, that of the route,
/// are left out, because a route may not name them.
pub(crate) fn references(metadata: &HeldMetadata, namespace: &str) -> BTreeSet<ObjectId> {
    let entries = of_metadata(metadata);
    named(entries.iter().map(|(key, (_, value))| (*key, *value)), namespace)
}

/// Returns the Secrets and ConfigMaps that the keys of a ConfigMap in `namespace` name, for filters of routes.
pub(crate) fn references_of_config_map(config_map: &ConfigMap, namespace: &str) -> BTreeSet<ObjectId> {
    let data = config_map.data.iter().flatten();
    named(data.map(|(key, value)| (key.as_str(), value.trim())), namespace)
}

/// Returns the Services that annotations of a route, or the keys of its ConfigMaps, lead to.
pub(crate) fn services<'c>(
    metadata: &HeldMetadata,
    config_maps: impl IntoIterator<Item = &'c ConfigMap>,
    namespace: &str,
) -> BTreeSet<ObjectName> {
    let service = |key: &str, value: &str| effective(key)?.leads_to?(value, namespace);
    let of_annotations = of_metadata(metadata).into_iter().filter_map(|(key, (_, value))| service(key, value));
    let data = config_maps.into_iter().flat_map(|config_map| config_map.data.iter().flatten());
    of_annotations.chain(data.filter_map(|(key, value)| service(key, value.trim()))).collect()
}

fn named<'i>(entries: impl Iterator<Item = (&'i str, &'i str)>, namespace: &str) -> BTreeSet<ObjectId> {
    let id = |(key, value)| Some(ObjectId { kind: effective(key)?.names?, name: own_object(value, namespace)? });
    entries.filter_map(id).collect()
}

/// Returns the row of a key that has an effect on routes.
fn effective(key: &str) -> Option<&'static features::row::Key> {
    features::annotation(key).filter(|row| row.instead_on_routes.is_none())
}

fn of_metadata(metadata: &HeldMetadata) -> Entries<'_> {
    let mut entries = Entries::new();
    for (name, value) in metadata.annotations.iter().flat_map(|all| all.iter()) {
        if let Some(key) = own_key(name) {
            entries.insert(key, (Title::Annotation(name), value.trim()));
        }
    }
    entries
}

fn of_config_map<'c>(name: &'c ObjectName, config_map: &'c ConfigMap) -> Entries<'c> {
    let data = config_map.data.iter().flatten();
    data.map(|(key, value)| (key.as_str(), (Title::Key(key, name), value.trim()))).collect()
}
