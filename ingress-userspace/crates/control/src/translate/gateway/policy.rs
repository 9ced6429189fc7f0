//! The policies of a route's rules, from the annotations of the route and from the ConfigMaps that filters `ExtensionRef`
//! name. Where a field of the route says the same, the field goes first.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::ConfigMap,
        networking::v1::{IngressBackend, IngressServiceBackend, ServiceBackendPort},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::report::Flaw;
use crate::{
    change::{ObjectId, ObjectName},
    gateway::{BackendRef, route},
    outcome::Origin,
    translate::{
        Context,
        annotation_reader::route::{RouteAnnotations, is_annotated, references, references_of_config_map, size},
        claims::MAX_ANNOTATION_BYTES,
        compiled_expressions::Cost,
        features::Globals,
        policy::Policy,
    },
};
use ingress_model::{Filter, Forwarding, PathMatch};

/// The policies of all rules of one route.
pub(super) struct RoutePolicies {
    /// For rules without ConfigMaps of their own; `None` without annotations.
    common: Option<Arc<Policy>>,
    /// Of rules with ConfigMaps, by the index of the rule.
    own: BTreeMap<usize, Result<Arc<Policy>, Flaw>>,
}

/// The ConfigMaps of a rule, by name, or the flaw of the first that does not exist.
type RuleExtensions<'c> = Result<Vec<(ObjectName, &'c ConfigMap)>, Flaw>;

/// Reads the policies of a route of `origin`. `filters` are those of each rule.
///
/// # Errors
/// The flaw of a route with too many or too large values.
pub(super) fn read<'r>(
    id: &ObjectId,
    origin: &Origin,
    metadata: &ObjectMeta,
    filters: impl Iterator<Item = &'r [route::Filter]>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Result<RoutePolicies, Flaw> {
    let extensions: BTreeMap<usize, RuleExtensions<'_>> = filters
        .enumerate()
        .filter(|(_, filters)| filters.iter().any(|filter| filter.config_map().is_some()))
        .map(|(index, filters)| (index, config_maps(id, filters, context)))
        .collect();
    let is_annotated = is_annotated(metadata);
    if !is_annotated && extensions.is_empty() {
        return Ok(RoutePolicies { common: None, own: BTreeMap::new() });
    }
    check_size(id, metadata, extensions.values(), context)?;
    let object = id.name.refer(id.kind, origin);
    let annotations = RouteAnnotations { name: &id.name, object: &object, metadata };
    // Rules with the same ConfigMaps share their policy.
    let mut made: BTreeMap<Vec<ObjectName>, Arc<Policy>> = BTreeMap::new();
    let own = extensions.into_iter().map(|(index, extensions)| {
        let policy = extensions.map(|extensions| {
            let names = extensions.iter().map(|(name, _)| name.clone()).collect();
            let make = || Arc::new(annotations.policy(&extensions, globals, &mut context.reborrow()));
            Arc::clone(made.entry(names).or_insert_with(make))
        });
        (index, policy)
    });
    let own = own.collect();
    let common = is_annotated.then(|| Arc::new(annotations.policy(&[], globals, context)));
    Ok(RoutePolicies { common, own })
}

fn config_maps<'c>(id: &ObjectId, filters: &[route::Filter], context: &Context<'_, 'c>) -> RuleExtensions<'c> {
    let names = filters.iter().filter_map(route::Filter::config_map);
    let config_map = |name| {
        let name = ObjectName::new(&id.name.namespace, name);
        match context.config_map(&name) {
            Some(stored) => Ok((name, &*stored.object)),
            None => {
                let message = format!(
                    "ConfigMap `{name}` of a filter `ExtensionRef` does not exist; its rules answer 500, create it"
                );
                Err(Flaw::new("ConfigMapNotFound", message))
            }
        }
    };
    names.map(config_map).collect()
}

/// Bounds what one route may say, like the annotations of an Ingress.
fn check_size<'c>(
    id: &ObjectId,
    metadata: &ObjectMeta,
    extensions: impl Iterator<Item = &'c RuleExtensions<'c>> + Clone,
    context: &Context<'_, '_>,
) -> Result<(), Flaw> {
    let namespace = &id.name.namespace;
    let all: BTreeMap<&ObjectName, &ConfigMap> =
        extensions.flatten().flatten().map(|(name, config_map)| (name, *config_map)).collect();
    let bytes = size(metadata, all.values().copied());
    if bytes > MAX_ANNOTATION_BYTES {
        let message = format!(
            "annotations and ConfigMaps of filters contain {bytes} bytes, but {MAX_ANNOTATION_BYTES} are allowed; shorten \
             them"
        );
        return Err(Flaw::unsupported(message));
    }
    let mut named = references(metadata, namespace);
    named.extend(all.values().flat_map(|config_map| references_of_config_map(config_map, namespace)));
    let (count, limit) = (named.len() + all.len(), context.options.max_references);
    if count > limit {
        let message = format!(
            "it names {count} Secrets and ConfigMaps, but {limit} are allowed; divide the route, or raise \
             `--max-references`"
        );
        return Err(Flaw::unsupported(message));
    }
    Ok(())
}

/// Returns the filters of a rule for `path`: those of `policy`, and `fields` from the route itself, in the order of
/// [`Filter`]'s variants. Edits of fields come last, so that they have the last word.
pub(super) fn filters(
    policy: &Policy,
    path: &PathMatch,
    route: &ObjectName,
    backends: &[BackendRef],
    fields: Vec<Filter>,
) -> Vec<Filter> {
    let backend = the_backend(backends);
    let mut all = policy.filters(path, route, backend.as_ref());
    let has = |wanted: fn(&Filter) -> bool| fields.iter().any(wanted);
    let (has_cors, has_host) =
        (has(|filter| matches!(filter, Filter::Cors(_))), has(|filter| matches!(filter, Filter::UpstreamHost(_))));
    all.retain(|filter| match filter {
        Filter::Cors(_) => !has_cors,
        Filter::UpstreamHost(_) => !has_host,
        _ => true,
    });
    all.extend(fields);
    all.sort_by_key(rank);
    all
}

/// Returns the only backend, which a text with variables may name.
fn the_backend(backends: &[BackendRef]) -> Option<IngressBackend> {
    let [BackendRef { name, port, .. }] = backends else { return None };
    let port = port.map(|port| ServiceBackendPort { name: None, number: Some(port.into()) });
    let service = IngressServiceBackend { name: name.to_string(), port };
    Some(IngressBackend { resource: None, service: Some(service) })
}

/// Returns the place of a filter: that of its variant.
const fn rank(filter: &Filter) -> u8 {
    match filter {
        Filter::RedirectHttps { .. } => 0,
        Filter::ClientCertificate(_) => 1,
        Filter::Access(_) => 2,
        Filter::RequestRules(_) => 3,
        Filter::Limit(_) => 4,
        Filter::Cors(_) => 5,
        Filter::Authentication(_) => 6,
        Filter::Rewrite(_) => 7,
        Filter::UpstreamHost(_) => 8,
        Filter::RequestHeaders(_) => 9,
        Filter::Mirror(_) => 10,
        Filter::ErrorPages(_) => 11,
        Filter::ResponseHeaders(_) => 12,
        Filter::Compression(_) => 13,
        Filter::StrictTransportSecurity(_) => 14,
    }
}

// === impl RoutePolicies ===

impl RoutePolicies {
    /// Returns the policy of a rule, if it has one.
    ///
    /// # Errors
    /// The flaw of a ConfigMap without which the rule must not be served.
    pub(super) fn of(&self, index: usize) -> Result<Option<&Policy>, &Flaw> {
        match self.own.get(&index) {
            Some(own) => own.as_deref().map(Some),
            None => Ok(self.common.as_deref()),
        }
    }

    /// Returns the forwarding of a rule without fields of its own.
    pub(super) fn forwarding<'g>(&'g self, index: usize, globals: &'g Globals) -> &'g Arc<Forwarding> {
        self.of(index).ok().flatten().map_or(&globals.forwarding, |policy| &policy.forwarding)
    }

    /// Returns the cost of the regular expressions in all of them.
    pub(super) fn expressions(&self) -> Cost {
        let mut cost = Cost::default();
        for policy in self.own.values().flatten().chain(&self.common) {
            cost += policy.expressions;
        }
        cost
    }
}
