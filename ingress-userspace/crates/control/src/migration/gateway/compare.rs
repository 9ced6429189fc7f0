//! Compares a host of Ingresses with its routes, by path and scheme. Names of the objects do not count.

use std::{collections::BTreeMap, sync::Arc};

use super::host::{all_rules, guards, is_guard, unowned};
use ingress_model::{Action, Canary, CanaryRule, CanaryValue, Filter, HeaderEdits, HostRoutes, PathMatch, Rule, Split};

/// A path of a host with another effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) path: String,
    pub(super) text: String,
    /// Whether the route protects less, or does not serve: then the host stays with the Ingresses.
    pub(super) is_unsafe: bool,
}

/// The effect of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deed {
    guards: String,
    filters: String,
    action: String,
}

type View = BTreeMap<String, Deed>;

/// Returns the differences at plain HTTP, or over HTTPS. Rules for paths that have other words in routes are left out:
/// `is_known` tells them.
pub(super) fn compare(
    ingresses: &HostRoutes,
    routes: Option<&HostRoutes>,
    is_secure: bool,
    is_known: impl Fn(&str) -> bool,
) -> Vec<Difference> {
    let before = of_ingresses(ingresses, is_secure);
    let after = routes.map(of_routes).unwrap_or_default();
    let scheme = if is_secure { "https" } else { "http" };
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut differences = Vec::new();
    for path in paths.into_iter().filter(|path| !is_known(path)) {
        let (old, new) = (before.get(path), after.get(path));
        if old == new {
            continue;
        }
        let (text, is_unsafe) = match (old, new) {
            (Some(old), Some(new)) if old.guards != new.guards => {
                (format!("`{}` becomes `{}`", old.guards.trim(), new.guards.trim()), true)
            }
            (Some(old), Some(new)) if old.action != new.action => {
                (format!("`{}` becomes `{}`", old.action, new.action), true)
            }
            (Some(old), Some(new)) => (format!("`{}` becomes `{}`", old.filters.trim(), new.filters.trim()), false),
            (Some(_), None) => ("no route serves it".to_owned(), true),
            (None, _) => ("only a route serves it".to_owned(), true),
        };
        differences.push(Difference { path: format!("{scheme} {path}"), text, is_unsafe });
    }
    differences
}

fn of_ingresses(HostRoutes { rules, fallback, .. }: &HostRoutes, is_secure: bool) -> View {
    let mut view = View::new();
    for rule in all_rules(rules, fallback.as_deref()) {
        let redirect = rule.filters.iter().find_map(|filter| match filter {
            Filter::RedirectHttps { status, .. } => Some(*status),
            _ => None,
        });
        let text = path(&rule.path);
        if let Some(status) = redirect.filter(|_| !is_secure) {
            let action = format!("-> redirect({status}) https://$host$request_uri");
            // The redirect itself needs no protection, and has no other effect.
            view.insert(text, Deed { guards: String::new(), filters: String::new(), action });
            continue;
        }
        let filters = rule.filters.iter().filter(|filter| !matches!(filter, Filter::RedirectHttps { .. }));
        let filters: Vec<_> = filters.cloned().map(in_words_of_routes).collect();
        let rule = Rule { filters, ..rule.clone() };
        match &rule.action {
            Action::Split(split) => divided(&text, split, &rule, &mut view),
            action => drop(view.insert(text, deed(&rule, &action_text(action)))),
        }
    }
    view
}

fn of_routes(routes: &HostRoutes) -> View {
    let deeds = routes.rules.iter().map(|rule| {
        let mut text = path(&rule.path);
        if let Some(conditions) = &rule.conditions {
            text += &format!(" if({conditions})");
        }
        let is_redirect = matches!(&rule.action, Action::Redirect(redirect)
            if redirect.location.to_string() == "https://$host$request_uri" && rule.filters.is_empty());
        let deed = match is_redirect {
            true => Deed { guards: String::new(), filters: String::new(), action: rule.action.to_string() },
            false => deed(rule, &action_text(&rule.action)),
        };
        (text, deed)
    });
    deeds.collect()
}

fn path(path: &PathMatch) -> String {
    match path {
        PathMatch::Prefix(text) if text.len() > 1 => text.trim_end_matches('/').to_owned(),
        other => other.to_string(),
    }
}

fn deed(rule: &Rule, action: &str) -> Deed {
    let mut filters: Vec<_> =
        rule.filters.iter().filter(|filter| !is_guard(filter)).map(|filter| unowned(filter).to_string()).collect();
    filters.sort();
    let mut forwarding = Arc::clone(&rule.forwarding);
    if forwarding.metered {
        Arc::make_mut(&mut forwarding).metered = false;
    }
    let filters = format!("{}{forwarding}", filters.iter().map(|filter| format!("{filter} ")).collect::<String>());
    Deed { guards: guards(rule), filters, action: action.to_owned() }
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
fn divided(path: &str, Split { main, canaries }: &Split, rule: &Rule, view: &mut View) {
    for Canary { when: CanaryRule { header, weight, total, .. }, upstream } in canaries {
        let weight = (*weight).min(*total);
        let action = if weight == 0 {
            format!("-> {main}")
        } else {
            format!("-> {} x {main} | {weight} x {upstream}", total - weight)
        };
        view.insert(path.to_owned(), deed(rule, &action));
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
            view.insert(format!("{path} if({condition})"), deed(rule, &format!("-> {key}")));
        }
    }
}
