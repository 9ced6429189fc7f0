//! Converts one Ingress into its claims: rules by host, default backends, certificates. Other Ingresses are not known
//! here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::networking::v1::{Ingress, IngressRule, IngressSpec, IngressTLS};

use super::{
    Context, Options, alias, annotation_reader,
    claims::{Claims, HostClaim, MAX_ANNOTATION_BYTES, MAX_METERED, MAX_PATHS, RulesClaim},
    class::Ours,
    compiled_expressions::{Allowance, MAX_OF_INGRESS},
    features::Globals,
    ingress_role::IngressRole,
    named::named,
    options::CatchAll,
    outcomes::Outcomes,
    policy::Policy,
    text::shorten_error,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
};
use ingress_model::HostPattern;

mod rules;

pub(super) use rules::Builder;

/// Returns the claims of `ingress`. Claims that cannot be met are reported on `object`.
pub(super) fn claims(
    name: &ObjectName,
    ingress: &Ingress,
    object: ObjectRef,
    Ours { class }: Ours,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Claims {
    let mut claims = Claims::without_hosts(name, ingress, class, object);
    let object = &claims.object;
    let Some(spec) = &ingress.spec else {
        context.report(object, Reason::NoBackend, "there is no `spec`; add rules or a default backend".into());
        return claims;
    };
    if let Some(message) = too_large(ingress, spec, context.options) {
        context.report(object, Reason::TooLarge, message);
        return claims;
    }
    let mut policy = match claims.precedence.role {
        // The response to a challenge is public by nature, and the annotations are meant for other controllers.
        IngressRole::Solver => Policy::of_solver(),
        IngressRole::Ordinary => annotation_reader::read(ingress, object, globals, context),
    };
    // `ingress_class_name` is handled in `class`.
    let IngressSpec { default_backend, ingress_class_name: _, rules, tls } = spec;
    let rules = rules.as_deref().unwrap_or_default();
    let tls = tls.as_deref().unwrap_or_default();
    if let Some(message) = too_many_expressions(rules, &policy) {
        context.report(object, Reason::TooLarge, message);
        return claims;
    }
    let metered = metered(spec, &mut policy, object, context);
    let (tls_hosts, certificates) = tls_claims(name, tls, rules, object, context.outcomes);
    (claims.redirect, claims.passes, claims.clients) = (policy.redirect, policy.passes, policy.clients.clone());
    claims.refuses_http3 = policy.refuses_http3;
    claims.canary = policy.canary.clone().map(Box::new);
    claims.shares_with = Arc::clone(&policy.shares_with);
    let allowance = Allowance::new();
    let (owner, context) = (name.to_string().into(), context.reborrow());
    let mut builder = Builder { name, owner, policy, allowance, object, globals, context };
    let hosts = builder.hosts(rules, default_backend.as_ref());
    if builder.allowance.is_exhausted {
        let message = format!(
            "the regular expressions of its paths need more than the {} KiB allowed; it is not served, split the Ingress or write shorter ones",
            MAX_OF_INGRESS.bytes / 1024
        );
        builder.context.report(object, Reason::TooLarge, message);
        return claims;
    }
    (claims.expressions, claims.metered) = (builder.allowance.used(), metered);
    claims.expressions += builder.policy.expressions;
    claims.hosts = hosts_of_claims(hosts, &tls_hosts, certificates, claims.canary.is_some(), &mut builder);
    claims
}

/// Returns the claims by host, with aliases and without those that are refused.
fn hosts_of_claims(
    hosts: Vec<(HostPattern, RulesClaim)>,
    tls_hosts: &BTreeSet<HostPattern>,
    certificates: Vec<(HostPattern, ObjectName)>,
    is_canary: bool,
    builder: &mut Builder<'_, '_>,
) -> Vec<(HostPattern, HostClaim)> {
    let first = hosts.iter().map(|(pattern, _)| pattern).find(|pattern| **pattern != HostPattern::Any).cloned();
    let mut by_host = by_host(hosts, tls_hosts, certificates);
    if builder.context.options.catch_all == CatchAll::Refuse
        && by_host.remove(&HostPattern::Any).is_some_and(|claim| claim.rules.is_some() || claim.certificate.is_some())
    {
        let message = "it claims all hosts, which `--disable-catch-all` refuses; give its rules a host".to_owned();
        builder.context.report(builder.object, Reason::CatchAllRefused, message);
    }
    if is_canary {
        for claim in by_host.values_mut() {
            (claim.has_tls, claim.certificate) = (false, None);
        }
    }
    alias::add(&mut by_host, first.as_ref(), builder);
    by_host.into_iter().collect()
}

/// Returns the message that more of its paths are regular expressions than one Ingress may have.
fn too_many_expressions(rules: &[IngressRule], policy: &Policy) -> Option<String> {
    let paths = rules.iter().flat_map(|rule| rule.http.iter().flat_map(|http| &http.paths));
    let expressions = paths.filter(|path| policy.has_patterns(&path.path_type)).count();
    (expressions > MAX_OF_INGRESS.count).then(|| {
        format!(
            "rules contain {expressions} regular expressions, but {} are allowed; split the Ingress or use prefixes",
            MAX_OF_INGRESS.count
        )
    })
}

/// Returns the number of its rules that are counted separately. If they are too many, none is, which is reported.
fn metered(spec: &IngressSpec, policy: &mut Policy, object: &ObjectRef, context: &mut Context<'_, '_>) -> usize {
    let metered = paths_of(spec) * (1 + policy.aliases.names.len());
    if metered > MAX_METERED && policy.stop_metering() {
        let message = format!(
            "`metrics-per-path` would count {metered} rules, but {MAX_METERED} are allowed; it has no effect, split \
             the Ingress"
        );
        context.report(object, Reason::TooLarge, message);
    }
    if policy.is_metered() { metered } else { 0 }
}

/// Combines the claims by host.
fn by_host(
    hosts: Vec<(HostPattern, RulesClaim)>,
    tls: &BTreeSet<HostPattern>,
    certificates: Vec<(HostPattern, ObjectName)>,
) -> BTreeMap<HostPattern, HostClaim> {
    let mut claims: BTreeMap<HostPattern, HostClaim> = BTreeMap::new();
    for (pattern, RulesClaim { rules, fallback, has_expressions }) in hosts {
        let has_tls = is_covered(&pattern, tls);
        let claim = claims.entry(pattern).or_default();
        claim.has_tls = has_tls;
        let all = claim.rules.get_or_insert_default();
        all.rules.extend(rules);
        all.has_expressions |= has_expressions;
        // Two rules for the same host share the one default backend.
        all.fallback = all.fallback.take().or(fallback);
    }
    for pattern in tls {
        claims.entry(pattern.clone()).or_default().has_tls = true;
    }
    for (pattern, name) in certificates {
        claims.entry(pattern).or_default().certificate.get_or_insert(name);
    }
    // The claims are kept, and most hold one rule in an allocation for four.
    claims.values_mut().filter_map(|claim| claim.rules.as_mut()).for_each(|claim| claim.rules.shrink_to_fit());
    claims
}

/// Returns `true` if one of the hosts of `tls` covers every host of `pattern`.
fn is_covered(pattern: &HostPattern, tls: &BTreeSet<HostPattern>) -> bool {
    tls.iter().any(|tls| match (tls, pattern) {
        (HostPattern::Any, _) => true,
        (HostPattern::Wildcard(_), HostPattern::Exact(host)) => tls.matches(host.as_str()),
        _ => tls == pattern,
    })
}

/// Returns the number of paths, where a rule without any counts as one.
fn paths_of(spec: &IngressSpec) -> usize {
    let of_rule = |rule: &IngressRule| rule.http.as_ref().map_or(1, |http| http.paths.len().max(1));
    spec.rules.iter().flatten().map(of_rule).sum()
}

/// Returns the limit that `ingress` exceeds by its size alone.
pub(super) fn too_large(ingress: &Ingress, spec: &IngressSpec, options: &Options) -> Option<String> {
    let annotations = ingress.metadata.annotations.iter().flatten();
    let bytes: usize = annotations.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        return Some(format!(
            "annotations contain {bytes} bytes, but {MAX_ANNOTATION_BYTES} are allowed; shorten them"
        ));
    }
    let paths = paths_of(spec);
    if paths > MAX_PATHS {
        return Some(format!("rules contain {paths} paths, but {MAX_PATHS} are allowed; split the Ingress"));
    }
    let hosts: usize =
        spec.tls.iter().flatten().map(|tls| tls.hosts.as_ref().map_or(1, |hosts| hosts.len().max(1))).sum();
    if hosts > MAX_PATHS {
        return Some(format!("`spec.tls` contains {hosts} hosts, but {MAX_PATHS} are allowed; split the Ingress"));
    }
    let limit = options.max_references;
    let at_most = spec.tls.iter().flatten().count() + ingress.metadata.annotations.iter().flatten().count();
    let named = if at_most > limit { named(ingress, spec, options).len() } else { at_most };
    (named > limit).then(|| {
        format!(
            "it names {named} Secrets and ConfigMaps, but {limit} are allowed; none is read; split the Ingress, or \
             raise `--max-references`"
        )
    })
}

/// Returns the hosts that `tls` names, and their Secrets.
fn tls_claims(
    name: &ObjectName,
    tls: &[IngressTLS],
    rules: &[IngressRule],
    object: &ObjectRef,
    outcomes: &mut Outcomes,
) -> (BTreeSet<HostPattern>, Vec<(HostPattern, ObjectName)>) {
    let (mut patterns, mut certificates) = (BTreeSet::new(), Vec::new());
    for IngressTLS { hosts, secret_name } in tls {
        let hosts = match hosts.as_deref().unwrap_or_default() {
            [] => hosts_of(rules),
            hosts => hosts
                .iter()
                .filter_map(|host| match HostPattern::parse(host) {
                    Ok(pattern) => Some(pattern),
                    Err(error) => {
                        outcomes.report(
                            object,
                            Reason::InvalidHost,
                            format!("in `spec.tls`: {}", shorten_error(&error)),
                        );
                        None
                    }
                })
                .collect(),
        };
        for pattern in hosts {
            // Without a Secret, the default certificate serves the host.
            if let Some(secret) = secret_name.as_deref().filter(|secret| !secret.is_empty()) {
                certificates.push((pattern.clone(), ObjectName::new(&name.namespace, secret)));
            }
            patterns.insert(pattern);
        }
    }
    (patterns, certificates)
}

/// Returns the hosts that the rules name; every host if they name none.
fn hosts_of(rules: &[IngressRule]) -> Vec<HostPattern> {
    let hosts = rules.iter().filter_map(|rule| HostPattern::parse(rule.host.as_deref().unwrap_or_default()).ok());
    let mut hosts: Vec<_> = hosts.filter(|pattern| *pattern != HostPattern::Any).collect();
    if hosts.is_empty() {
        hosts.push(HostPattern::Any);
    }
    hosts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        change::{Change, Object},
        cluster::Cluster,
        outcome::Origin,
        translate::{Options, Translator, translate},
    };

    #[test]
    fn metered_rules_of_an_ingress_are_limited() {
        for (count, is_metered) in [(MAX_METERED, true), (MAX_METERED + 1, false)] {
            let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
            let path = |number| json!({"path": format!("/{number}"), "pathType": "Exact", "backend": backend});
            let paths: Vec<_> = (0..count).map(path).collect();
            let annotations = json!({"xdp-ingress.io/metrics-per-path": "true", "kubernetes.io/ingress.class": "xdp"});
            let ingress = serde_json::from_value(json!({
                "metadata": {"namespace": "n", "name": "i", "annotations": annotations},
                "spec": {"rules": [{"host": "a.test", "http": {"paths": paths}}]},
            }));
            let object = Object::Ingress(Arc::new(ingress.expect("an Ingress")));
            let mut cluster = Cluster::default();
            cluster.apply(Change::Apply { object, origin: Origin::Api });
            let translation = translate(&cluster, &Options::default());
            let mut rules = translation.table.hosts.values().flat_map(|routes| &routes.rules);
            assert!(rules.all(|rule| rule.forwarding.metered == is_metered), "{count}");
            let reported = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::TooLarge).count();
            assert_eq!(reported, usize::from(!is_metered), "{count}");
        }
    }

    /// Returns the hosts with rules that are counted separately.
    fn metered(translation: &crate::Translation) -> Vec<String> {
        let hosts = translation.table.hosts.iter();
        let hosts = hosts.filter(|(_, routes)| routes.rules.iter().any(|rule| rule.forwarding.metered));
        hosts.map(|(host, _)| host.to_string()).collect()
    }

    #[test]
    fn metered_rule_limits_refuse_the_youngest_ingresses() {
        let options = Options { max_metered_rules: 51, max_metered_rules_per_namespace: 20, ..Options::default() };
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(options.clone()));
        let apply = |cluster: &mut Cluster, namespace: &str, age: usize, rules: usize| {
            let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
            let path = |number| json!({"path": format!("/{number}"), "pathType": "Exact", "backend": backend});
            let paths: Vec<_> = (0..rules).map(path).collect();
            let annotations = json!({"xdp-ingress.io/metrics-per-path": "true", "kubernetes.io/ingress.class": "xdp"});
            let (name, created) = (format!("i{age}"), format!("2026-01-01T00:00:{age:02}Z"));
            let metadata = json!({
                "namespace": namespace, "name": name, "annotations": annotations, "creationTimestamp": created,
            });
            let host = format!("{name}.{namespace}.test");
            let spec = json!({"rules": [{"host": host, "http": {"paths": paths}}]});
            let ingress = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("an Ingress");
            cluster.apply(Change::Apply { object: Object::Ingress(Arc::new(ingress)), origin: Origin::Api });
        };
        for namespace in ["n1", "n2", "n3", "n4"] {
            for age in 1..=3 {
                apply(&mut cluster, namespace, age, 10);
                // The result does not depend on the earlier state.
                drop(translator.translate(&cluster));
            }
        }
        let translation = translator.translate(&cluster);
        assert!(translation == translate(&cluster, &options), "what is brought up to date equals what is made anew");
        assert_eq!(translation.table.hosts.len(), 12, "all are served");
        assert_eq!(metered(&translation), ["i1.n1.test", "i1.n2.test", "i1.n3.test", "i1.n4.test", "i2.n1.test"]);
        let reported = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::TooLarge);
        let reported: Vec<_> = reported.map(|outcome| (&*outcome.object.name, outcome.message.as_str())).collect();
        assert_eq!(reported.len(), 7, "{reported:?}");
        for (scope, flag) in [
            ("its namespace", "raise `--max-metered-rules-per-namespace`"),
            ("all namespaces", "raise `--max-metered-rules`"),
        ] {
            assert!(
                reported.iter().any(|(_, reported)| reported.contains(scope) && reported.ends_with(flag)),
                "{scope}: {reported:?}"
            );
        }
        // An Ingress with only a single rule left makes room for the next one in age.
        apply(&mut cluster, "n1", 1, 0);
        let hosts = metered(&translator.translate(&cluster));
        assert_eq!(hosts, ["i1.n2.test", "i1.n3.test", "i1.n4.test", "i2.n1.test", "i2.n2.test"]);
    }
}
