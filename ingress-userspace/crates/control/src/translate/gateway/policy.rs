//! The policies of a route's rules, from the annotations of the route and from the ConfigMaps that filters `ExtensionRef`
//! name. Where a field of the route says the same, the field goes first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::ConfigMap,
    networking::v1::{IngressBackend, IngressServiceBackend, ServiceBackendPort},
};

use super::{matches::Expressions, report::Flaw};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{BackendRef, HeldMetadata, route},
    outcome::Origin,
    translate::{
        Context, Options,
        annotation_reader::route::{RouteAnnotations, is_annotated, references, references_of_config_map, size},
        claims::MAX_ANNOTATION_BYTES,
        compiled_expressions::Cost,
        features::Globals,
        policy::Policy,
    },
};
use ingress_model::{Filter, Forwarding, PathMatch};

/// The policies of all rules of one route.
#[derive(Default)]
pub(super) struct RoutePolicies {
    /// For rules without ConfigMaps of their own; `None` without annotations.
    common: Option<Arc<Policy>>,
    /// Policies of rules with ConfigMaps, by the index of the rule.
    own: BTreeMap<usize, Result<Arc<Policy>, Flaw>>,
    /// Cost of the regular expressions. Rules that share a policy share its cost.
    expressions: Cost,
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
    metadata: &HeldMetadata,
    filters: impl Iterator<Item = &'r [route::Filter]>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Result<RoutePolicies, Flaw> {
    let named: BTreeMap<usize, Vec<ObjectName>> = filters
        .map(|filters| config_maps(id, filters))
        .enumerate()
        .filter(|(_, config_maps)| !config_maps.is_empty())
        .collect();
    let is_annotated = is_annotated(metadata);
    if !is_annotated && named.is_empty() {
        return Ok(RoutePolicies::default());
    }
    // Nothing is looked up for a route that names too much by itself.
    let direct = direct_references(id, metadata, named.values().flatten());
    check_number(direct.len(), context.options)?;
    let extensions: BTreeMap<usize, RuleExtensions<'_>> =
        named.into_iter().map(|(index, names)| (index, look_up(names, context))).collect();
    check_size(id, metadata, direct, extensions.values(), context)?;
    let object = id.name.refer(id.kind, origin);
    let annotations = RouteAnnotations { name: &id.name, object: &object, metadata };
    // Each is charged before the next one is compiled.
    let mut allowance = Expressions::new();
    let mut policies = RoutePolicies::default();
    if is_annotated {
        let common = annotations.policy(&[], globals, &mut context.reborrow());
        allowance.charge(common.expressions)?;
        policies.expressions += common.expressions;
        policies.common = Some(Arc::new(common));
    }
    // Rules with the same ConfigMaps share their policy.
    let mut made: BTreeMap<Vec<ObjectName>, Arc<Policy>> = BTreeMap::new();
    for (index, extensions) in extensions {
        let extensions = match extensions {
            Ok(extensions) => extensions,
            Err(flaw) => {
                policies.own.insert(index, Err(flaw));
                continue;
            }
        };
        let names: Vec<_> = extensions.iter().map(|(name, _)| name.clone()).collect();
        let policy = match made.get(&names) {
            Some(policy) => Arc::clone(policy),
            None => {
                let policy = annotations.policy(&extensions, globals, &mut context.reborrow());
                allowance.charge(policy.expressions)?;
                policies.expressions += policy.expressions;
                let policy = Arc::new(policy);
                made.insert(names, Arc::clone(&policy));
                policy
            }
        };
        policies.own.insert(index, Ok(policy));
    }
    Ok(policies)
}

/// Returns the names of the ConfigMaps of a rule.
fn config_maps(id: &ObjectId, filters: &[route::Filter]) -> Vec<ObjectName> {
    let names = filters.iter().filter_map(route::Filter::config_map);
    names.map(|name| ObjectName::new(&id.name.namespace, name)).collect()
}

fn look_up<'c>(names: Vec<ObjectName>, context: &Context<'_, 'c>) -> RuleExtensions<'c> {
    let config_map = |name: ObjectName| match context.config_map(&name) {
        Some(stored) => Ok((name, &*stored.object)),
        None => {
            let message = format!(
                "ConfigMap `{name}` of a filter `ExtensionRef` does not exist; its rules answer 500, create it"
            );
            Err(Flaw::new("ConfigMapNotFound", message))
        }
    };
    names.into_iter().map(config_map).collect()
}

/// Returns the Secrets and ConfigMaps that a route names by itself, whether they exist or not.
fn direct_references<'n>(
    id: &ObjectId,
    metadata: &HeldMetadata,
    config_maps: impl Iterator<Item = &'n ObjectName>,
) -> BTreeSet<ObjectId> {
    let mut named = references(metadata, &id.name.namespace);
    named.extend(config_maps.map(|name| ObjectId { kind: Kind::ConfigMap, name: name.clone() }));
    named
}

/// Bounds the number of Secrets and ConfigMaps that one route names, like those of an Ingress.
fn check_number(count: usize, options: &Options) -> Result<(), Flaw> {
    let limit = options.max_references;
    if count <= limit {
        return Ok(());
    }
    let message = format!(
        "it names {count} Secrets and ConfigMaps, also through its ConfigMaps, but {limit} are allowed; divide the route, \
         or raise `--max-references`"
    );
    Err(Flaw::unsupported(message))
}

/// Bounds what one route may say, like the annotations of an Ingress. `direct` are the objects that it names by itself.
fn check_size<'c>(
    id: &ObjectId,
    metadata: &HeldMetadata,
    mut direct: BTreeSet<ObjectId>,
    extensions: impl Iterator<Item = &'c RuleExtensions<'c>>,
    context: &Context<'_, '_>,
) -> Result<(), Flaw> {
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
    let through = |config_map: &&ConfigMap| references_of_config_map(config_map, &id.name.namespace);
    direct.extend(all.values().flat_map(through));
    check_number(direct.len(), context.options)
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

    /// Returns the cost of the regular expressions in all of them, each counted once.
    pub(super) const fn expressions(&self) -> Cost {
        self.expressions
    }
}
