//! Writes the rules of one host as parts of HTTPRoutes, one for each Ingress that has rules there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    annotations::IngressAnnotations,
    rule::{WrittenRule, write},
};
use crate::change::ObjectName;
use ingress_model::{Filter, HostPattern, HostRoutes, PathMatch, Rule};

/// The words for one host.
#[derive(Clone)]
pub(super) struct HostPlan {
    pub(super) pattern: HostPattern,
    /// Secret with the certificate, if a listener for HTTPS can have one.
    pub(super) certificate: Option<ObjectName>,
    /// Namespace of the listeners.
    pub(super) namespace: Arc<str>,
    pub(super) parts: Vec<RoutePart>,
    /// How paths of the host differ, with those paths.
    pub(super) differs: Vec<(String, &'static str)>,
}

/// Rules of one Ingress, which are alike at plain HTTP.
#[derive(Clone)]
pub(super) struct RoutePart {
    pub(super) ingress: ObjectName,
    /// Status of the redirect of plain HTTP.
    pub(super) https_redirect: Option<u16>,
    pub(super) rules: Vec<Value>,
    /// The demands on the path, for the redirect.
    pub(super) paths: Vec<Value>,
}

/// Writes a host. `certificate` is the one that Ingresses name for it.
///
/// # Errors
/// The reason why the host stays with the Ingresses.
pub(super) fn plan(
    pattern: &HostPattern,
    routes: &HostRoutes,
    certificate: Option<ObjectName>,
    annotations: &BTreeMap<ObjectName, IngressAnnotations>,
) -> Result<HostPlan, String> {
    // HTTP/3 serves no address of a Gateway.
    let HostRoutes { rules, fallback, clients, passthrough, refuses_http3: _ } = routes;
    if clients.is_some() {
        return Err("clients need certificates; set `spec.tls.frontend` of a Gateway for this host".to_owned());
    }
    if passthrough.is_some() {
        return Err("its TLS connections are passed through; write a TLSRoute".to_owned());
    }
    let all = all_rules(rules, fallback.as_deref());
    let guards: BTreeSet<String> = all.iter().map(|rule| guards(rule)).collect();
    let mut parts: BTreeMap<(ObjectName, Option<u16>), RoutePart> = BTreeMap::new();
    let (mut differs, mut oldest) = (Vec::new(), None);
    for rule in all {
        let (namespace, name) = rule.owner.split_once('/').unwrap_or_default();
        let ingress = ObjectName::new(namespace, name);
        let is_sent_elsewhere = annotations.get(&ingress).is_some_and(|annotations| annotations.is_sent_elsewhere);
        let written = write(rule, &ingress, is_sent_elsewhere).map_err(|why| format!("path `{}`: {why}", rule.path))?;
        let WrittenRule { path, rules, https_redirect, differs: how } = written;
        if !how.is_empty() {
            if guards.len() > 1 {
                let message = "is an expression, and paths of this host are protected differently; use `Exact` or `Prefix` \
                               in the Ingress";
                return Err(format!("path `{}` {message}", rule.path));
            }
            differs.push((rule.path.to_string(), how));
        }
        if https_redirect.is_some() && certificate.is_none() {
            return Err("plain HTTP is redirected, but no Ingress names a certificate; add `spec.tls`".to_owned());
        }
        oldest.get_or_insert_with(|| Arc::clone(&ingress.namespace));
        let part = parts.entry((ingress.clone(), https_redirect)).or_insert_with(|| RoutePart {
            ingress,
            https_redirect,
            rules: Vec::new(),
            paths: Vec::new(),
        });
        part.rules.extend(rules);
        part.paths.push(path);
    }
    let namespace = certificate.as_ref().map(|name| Arc::clone(&name.namespace)).or(oldest);
    let namespace = namespace.ok_or_else(|| "it has no rules".to_owned())?;
    Ok(HostPlan { pattern: pattern.clone(), certificate, namespace, parts: parts.into_values().collect(), differs })
}

/// Returns all rules, with the fallback as one for `/` if no other is.
pub(super) fn all_rules<'r>(rules: &'r [Rule], fallback: Option<&'r Rule>) -> Vec<&'r Rule> {
    let is_everything = |rule: &Rule| matches!(&rule.path, PathMatch::Prefix(path) if &**path == "/");
    let fallback = fallback.filter(|_| !rules.iter().any(is_everything));
    rules.iter().chain(fallback).collect()
}

/// Returns the filters that protect a rule, as text.
pub(super) fn guards(rule: &Rule) -> String {
    let guards = rule.filters.iter().filter(|filter| is_guard(filter));
    guards.map(|filter| unowned(filter).to_string() + " ").collect()
}

pub(super) const fn is_guard(filter: &Filter) -> bool {
    matches!(
        filter,
        Filter::ClientCertificate(_)
            | Filter::Access(_)
            | Filter::RequestRules(_)
            | Filter::Limit(_)
            | Filter::Authentication(_)
    )
}

/// Returns a filter without the name of the object that it is of.
pub(super) fn unowned(filter: &Filter) -> Filter {
    let mut filter = filter.clone();
    match &mut filter {
        Filter::Limit(limit) => Arc::make_mut(limit).owner = "".into(),
        Filter::ErrorPages(pages) => Arc::make_mut(pages).owner = "".into(),
        _ => {}
    }
    filter
}
