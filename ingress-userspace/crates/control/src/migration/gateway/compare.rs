//! Compares a host of Ingresses with its routes, by path and scheme. Names of the objects do not count. A path with
//! other words in routes is compared under those.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    guard::Guard,
    host::{Words, all_rules, unowned},
};
use crate::change::ObjectName;
use ingress_model::{Action, Canary, CanaryRule, CanaryValue, Filter, HeaderEdits, HostRoutes, PathMatch, Rule, Split};

/// A path of a host with another effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) path: String,
    pub(super) text: String,
    /// Whether the route protects less, serves other requests, or does not serve: then the host stays with the
    /// Ingresses.
    pub(super) is_unsafe: bool,
    /// The protections that differ, and the Ingress that asks for them.
    pub(super) guards: BTreeSet<Guard>,
    pub(super) owner: Option<ObjectName>,
}

/// The effect of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deed {
    guards: BTreeMap<Guard, String>,
    /// The request that pods get, and the pod that gets it.
    request: String,
    filters: String,
    action: String,
}

/// Effects by path, each with the Ingress or route that it is of.
type View = BTreeMap<String, (Deed, Arc<str>)>;

/// Returns the differences at plain HTTP, or over HTTPS. `words` has the paths of the routes.
pub(super) fn compare(
    ingresses: &HostRoutes,
    routes: Option<&HostRoutes>,
    is_secure: bool,
    words: &Words,
) -> Vec<Difference> {
    let before = of_ingresses(ingresses, is_secure, words);
    let rewritten = words.values().filter(|written| written.is_rewritten).map(|written| path(&written.path)).collect();
    let after = routes.map(|routes| of_routes(routes, &rewritten)).unwrap_or_default();
    let scheme = if is_secure { "https" } else { "http" };
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut differences = Vec::new();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        let (old, new, of) = (old.map(|(deed, _)| deed), new.map(|(deed, _)| deed), old.map(|(_, owner)| owner));
        if old == new {
            continue;
        }
        let becomes = |old: &str, new: &str| format!("`{}` becomes `{}`", old.trim(), new.trim());
        let mut lost = BTreeSet::new();
        let (text, is_unsafe) = match (old, new) {
            (Some(old), Some(new)) if old.guards != new.guards => {
                let kinds = old.guards.keys().chain(new.guards.keys()).copied();
                lost.extend(kinds.filter(|kind| old.guards.get(kind) != new.guards.get(kind)));
                let text =
                    |deed: &Deed| lost.iter().filter_map(|kind| deed.guards.get(kind)).cloned().collect::<String>();
                (becomes(&text(old), &text(new)), true)
            }
            (Some(old), Some(new)) if old.action != new.action => (becomes(&old.action, &new.action), true),
            (Some(old), Some(new)) if old.request != new.request => (becomes(&old.request, &new.request), true),
            (Some(old), Some(new)) => (becomes(&old.filters, &new.filters), false),
            (Some(_), None) => ("no route serves it".to_owned(), true),
            (None, _) => ("only a route serves it".to_owned(), true),
        };
        let owner = of.and_then(|of| of.split_once('/')).map(|(namespace, name)| ObjectName::new(namespace, name));
        differences.push(Difference { path: format!("{scheme} {path}"), text, is_unsafe, guards: lost, owner });
    }
    differences
}

fn of_ingresses(HostRoutes { rules, fallback, .. }: &HostRoutes, is_secure: bool, words: &Words) -> View {
    let mut view = View::new();
    for rule in all_rules(rules, fallback.as_deref()) {
        let redirect = rule.filters.iter().find_map(|filter| match filter {
            Filter::RedirectHttps { status, .. } => Some(*status),
            _ => None,
        });
        let written = words.get(&rule.path.to_string());
        let text = path(written.map_or(&rule.path, |written| &written.path));
        if let Some(status) = redirect.filter(|_| !is_secure) {
            let action = format!("-> redirect({status}) https://$host$request_uri");
            // The redirect itself needs no protection, and has no other effect.
            add(&mut view, text, Deed { action, ..Deed::default() }, &rule.owner);
            continue;
        }
        let is_rewritten = written.is_some_and(|written| written.is_rewritten);
        let filters = rule.filters.iter().filter(|filter| !matches!(filter, Filter::RedirectHttps { .. }));
        let filters = filters.filter(|filter| !(is_rewritten && matches!(filter, Filter::Rewrite(_))));
        let filters: Vec<_> = filters.cloned().map(in_words_of_routes).collect();
        let rule = Rule { filters, ..rule.clone() };
        match &rule.action {
            Action::Split(split) => divided(&text, split, &rule, &mut view),
            action => add(&mut view, text, deed(&rule, &action_text(action)), &rule.owner),
        }
    }
    view
}

fn of_routes(routes: &HostRoutes, rewritten: &BTreeSet<String>) -> View {
    let mut view = View::new();
    for rule in &routes.rules {
        let mut text = path(&rule.path);
        let is_redirect = matches!(&rule.action, Action::Redirect(redirect)
            if redirect.location.to_string() == "https://$host$request_uri" && rule.filters.is_empty());
        let deed = if is_redirect {
            Deed { action: rule.action.to_string(), ..Deed::default() }
        } else if rewritten.contains(&text) {
            let filters = rule.filters.iter().filter(|filter| !matches!(filter, Filter::Rewrite(_)));
            deed(&Rule { filters: filters.cloned().collect(), ..rule.clone() }, &action_text(&rule.action))
        } else {
            deed(rule, &action_text(&rule.action))
        };
        if let Some(conditions) = &rule.conditions {
            text += &format!(" if({conditions})");
        }
        add(&mut view, text, deed, &rule.owner);
    }
    view
}

/// Adds an effect, unless a rule that goes before has the path.
fn add(view: &mut View, path: String, deed: Deed, owner: &Arc<str>) {
    view.entry(path).or_insert_with(|| (deed, Arc::clone(owner)));
}

fn path(path: &PathMatch) -> String {
    match path {
        PathMatch::Prefix(text) if text.len() > 1 => text.trim_end_matches('/').to_owned(),
        other => other.to_string(),
    }
}

fn deed(rule: &Rule, action: &str) -> Deed {
    let mut deed = Deed { action: action.to_owned(), ..Deed::default() };
    let mut filters = Vec::new();
    for filter in &rule.filters {
        let text = unowned(filter).to_string() + " ";
        match filter {
            filter if let Some(guard) = Guard::of(filter) => *deed.guards.entry(guard).or_default() += &text,
            Filter::Rewrite(_) | Filter::UpstreamHost(_) | Filter::RequestHeaders(_) => deed.request += &text,
            _ => filters.push(text),
        }
    }
    filters.sort();
    let mut forwarding = Arc::clone(&rule.forwarding);
    if forwarding.metered {
        Arc::make_mut(&mut forwarding).metered = false;
    }
    if let Some(affinity) = &forwarding.affinity {
        deed.request += &format!("{affinity:?}");
    }
    deed.filters = format!("{}{forwarding}", filters.concat());
    deed
}

/// Returns a filter of an Ingress in the form that a filter of a route has.
fn in_words_of_routes(filter: Filter) -> Filter {
    match &filter {
        Filter::StrictTransportSecurity(value) => {
            let value = value.to_str().unwrap_or_default();
            let none = || std::iter::empty::<(&str, &str)>();
            match HeaderEdits::literal([("Strict-Transport-Security", value)], none(), std::iter::empty::<&str>()) {
                Ok(edits) => Filter::ResponseHeaders(Arc::new(edits)),
                Err(_) => filter,
            }
        }
        _ => filter,
    }
}

fn action_text(action: &Action) -> String {
    match action {
        Action::Redirect(redirect) => {
            let location = redirect.location.to_string();
            let location = if location.starts_with('/') { format!("$scheme://$host{location}") } else { location };
            format!("-> redirect({}) {location}", redirect.status)
        }
        other => other.to_string(),
    }
}

/// Adds a rule with a canary, as a route writes it.
fn divided(path: &str, Split { main, canaries, over_tls: _ }: &Split, rule: &Rule, view: &mut View) {
    for Canary { when: CanaryRule { header, weight, total, .. }, upstream } in canaries {
        let weight = (*weight).min(*total);
        let action = if weight == 0 {
            format!("-> {main}")
        } else {
            format!("-> {} x {main} | {weight} x {upstream}", total - weight)
        };
        add(view, path.to_owned(), deed(rule, &action), &rule.owner);
        let words: Vec<_> = match header {
            Some((name, CanaryValue::Word)) => {
                [("always", upstream), ("never", main)].map(|(word, key)| (format!("{name}={word}"), key)).into()
            }
            Some((name, CanaryValue::Exactly(value))) => {
                vec![(format!("{name}={}", value.to_str().unwrap_or_default()), upstream)]
            }
            _ => Vec::new(),
        };
        for (condition, key) in words {
            add(view, format!("{path} if({condition})"), deed(rule, &format!("-> {key}")), &rule.owner);
        }
    }
}
