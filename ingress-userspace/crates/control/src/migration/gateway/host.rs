//! Writes the rules of one host as parts of HTTPRoutes, one for each Ingress that has rules there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    guard::Guard,
    ingresses::{Ingresses, owner},
    rule::{CLIENTS, WrittenRule, write},
    write::section,
};
use crate::change::ObjectName;
use ingress_model::{Filter, HostPattern, HostRoutes, PathMatch, Rule};

/// The words for one host.
#[derive(Clone)]
pub(super) struct HostPlan {
    pub(super) pattern: HostPattern,
    /// Secret with the certificate, if a listener for HTTPS can have one.
    pub(super) certificate: Option<ObjectName>,
    /// Namespace of the listeners: that of the host's owner.
    pub(super) namespace: Arc<str>,
    pub(super) parts: Vec<RoutePart>,
    /// How paths of the host differ, with those paths.
    pub(super) differs: Vec<(String, &'static str)>,
    pub(super) words: Words,
}

/// The path of a route for each path of a host's Ingresses.
pub(super) type Words = BTreeMap<String, WrittenPath>;

/// A path in the words of routes.
#[derive(Clone, Debug)]
pub(super) struct WrittenPath {
    pub(super) path: PathMatch,
    /// Whether a filter of the route has the words for a `rewrite-target`.
    pub(super) is_rewritten: bool,
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

/// Largest number of paths of a host with expressions, since each is compared with all others.
const MAX_EXPRESSIONS: usize = 1000;
/// Largest length of the name of a listener.
const MAX_SECTION: usize = 253;

/// Writes a host.
///
/// # Errors
/// The reason why the host stays with the Ingresses.
pub(super) fn plan(pattern: &HostPattern, routes: &HostRoutes, ingresses: &Ingresses<'_>) -> Result<HostPlan, String> {
    // HTTP/3 serves no address of a Gateway.
    let HostRoutes { rules, fallback, clients, passthrough, refuses_http3: _ } = routes;
    let all = all_rules(rules, fallback.as_deref());
    if let Some(why) = ingresses.reason_to_stay(pattern, &all) {
        return Err(why);
    }
    if clients.is_some() {
        return Err(CLIENTS.to_owned());
    }
    if passthrough.is_some() {
        return Err("its TLS connections are passed through (`ssl-passthrough`); write a TLSRoute".to_owned());
    }
    if section("https", pattern).len() > MAX_SECTION {
        return Err("the name of its listener would be too long".to_owned());
    }
    let namespace = ingresses.oldest(&all).ok_or_else(|| "it has no rules".to_owned())?.namespace;
    let certificate = ingresses.certificate(pattern, &namespace).cloned();
    let guards: BTreeSet<String> = all.iter().map(|rule| guards(rule)).collect();
    let mut parts: BTreeMap<(ObjectName, Option<u16>), RoutePart> = BTreeMap::new();
    let (mut differs, mut words, mut taken) = (Vec::new(), Words::new(), BTreeSet::new());
    for rule in &all {
        let ingress = owner(rule);
        let written = write(rule, &ingress, ingresses).map_err(|why| format!("path `{}`: {why}", rule.path))?;
        let WrittenRule { path, rules, https_redirect, differs: how, written } = written;
        if !how.is_empty() {
            if guards.len() > 1 {
                let message = "is an expression, and paths of this host are protected differently; use `Exact` or `Prefix` \
                               in the Ingress";
                return Err(format!("path `{}` {message}", rule.path));
            }
            differs.push((rule.path.to_string(), how));
        }
        if !taken.insert(written.path.to_string()) {
            return Err(format!("path `{}`: another path of the host has the same words in routes", rule.path));
        }
        words.insert(rule.path.to_string(), written);
        if https_redirect.is_some() && certificate.is_none() {
            return Err(
                "plain HTTP is redirected, but no Ingress of its owner names a certificate; add `spec.tls`".to_owned()
            );
        }
        let part = parts.entry((ingress.clone(), https_redirect)).or_insert_with(|| RoutePart {
            ingress,
            https_redirect,
            rules: Vec::new(),
            paths: Vec::new(),
        });
        part.rules.extend(rules);
        part.paths.push(path);
    }
    if !differs.is_empty() {
        check_order(&all, &words)?;
    }
    let parts = parts.into_values().collect();
    Ok(HostPlan { pattern: pattern.clone(), certificate, namespace, parts, differs, words })
}

/// Checks that each request goes to the route of the same rule, as far as that route matches it. Ingresses try longer
/// expressions first, and routes longer paths.
fn check_order(all: &[&Rule], words: &Words) -> Result<(), String> {
    if all.len() > MAX_EXPRESSIONS {
        return Err(format!("it has expressions, and more than {MAX_EXPRESSIONS} paths; divide it"));
    }
    let mut written: Vec<&PathMatch> = words.values().map(|written| &written.path).collect();
    written.sort();
    for path in &written {
        let path = path.as_str().trim_end_matches('/');
        for request in ["", "/", "x", "/x"].map(|end| format!("{path}{end}")) {
            let before = all.iter().find(|rule| rule.path.matches(&request));
            let Some(expected) = before.and_then(|rule| words.get(&rule.path.to_string())) else { continue };
            let found = written.iter().find(|path| path.matches(&request));
            if expected.path.matches(&request) && found.is_some_and(|found| **found != expected.path) {
                let (rule, found) = (before.map(|rule| rule.path.to_string()), found.map(ToString::to_string));
                let (rule, found) = (rule.unwrap_or_default(), found.unwrap_or_default());
                return Err(format!(
                    "path `{rule}` serves `{request}`, which routes would send to `{found}`; use `Exact` or `Prefix` in the \
                     Ingress"
                ));
            }
        }
    }
    Ok(())
}

/// Returns all rules, with the fallback as one for `/` if no other is.
pub(super) fn all_rules<'r>(rules: &'r [Rule], fallback: Option<&'r Rule>) -> Vec<&'r Rule> {
    let is_everything = |rule: &Rule| matches!(&rule.path, PathMatch::Prefix(path) if &**path == "/");
    let fallback = fallback.filter(|_| !rules.iter().any(is_everything));
    rules.iter().chain(fallback).collect()
}

/// Returns the filters that protect a rule, as text.
pub(super) fn guards(rule: &Rule) -> String {
    let guards = rule.filters.iter().filter(|filter| Guard::of(filter).is_some());
    guards.map(|filter| unowned(filter).to_string() + " ").collect()
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
