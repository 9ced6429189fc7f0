//! Paths as ingress-nginx matches them, for classes that are taken over from it. `merge::host` decides where they apply.

use std::{collections::BTreeSet, sync::Arc};

use ingress_model::{
    Action, Location, LocationParts, PathMatch, PathModifier, Redirect, ReplacementPath, Rule, Unavailable, path,
};

/// Returns the match of `path` on a host with regular expressions. The path `/` itself stays: nginx would prefer its
/// default backend for that.
pub(super) fn as_expression(path: &PathMatch) -> PathMatch {
    match path {
        PathMatch::Exact(text) | PathMatch::Prefix(text) if **text != *"/" => PathMatch::Beginning(Arc::clone(text)),
        other => other.clone(),
    }
}

/// Adds redirects (301) to paths that end in a slash, for requests that lack it, unless another rule is for these.
/// `rules` are in order of precedence, and stay so.
pub(super) fn add_slashes(rules: &mut Vec<Rule>) {
    let has_slash = |path: &PathMatch| match path {
        PathMatch::Exact(text) | PathMatch::Prefix(text) => text.len() > 1 && text.ends_with('/'),
        PathMatch::Pattern(_) | PathMatch::Beginning(_) => false,
    };
    if !rules.iter().any(|rule| has_slash(&rule.path)) {
        return;
    }
    let known: BTreeSet<Arc<str>> = rules
        .iter()
        .filter_map(|rule| match &rule.path {
            PathMatch::Exact(text) | PathMatch::Prefix(text) => Some(Arc::clone(text)),
            PathMatch::Pattern(_) | PathMatch::Beginning(_) => None,
        })
        .collect();
    let mut added = BTreeSet::new();
    // Rules that lack their protection answer nothing else.
    let is_served = |rule: &Rule| !matches!(rule.action, Action::Refuse(Unavailable::Policy | Unavailable::NoRule));
    let redirects: Vec<_> = rules
        .iter()
        .filter(|rule| has_slash(&rule.path) && is_served(rule))
        .filter_map(|rule| {
            let bare: Arc<str> = path::elements(rule.path.as_str()).into();
            (!known.contains(&bare) && added.insert(Arc::clone(&bare))).then(|| redirect(rule, bare))?
        })
        .collect();
    rules.extend(redirects);
    rules.sort_by(|a, b| a.path.cmp(&b.path));
}

/// Returns a rule that redirects `bare` to the path of `rule`, with the same filters.
fn redirect(rule: &Rule, bare: Arc<str>) -> Option<Rule> {
    let replacement = ReplacementPath::parse(rule.path.as_str()).ok()?;
    let parts = LocationParts { path: Some(PathModifier::Full(replacement)), ..LocationParts::default() };
    let action = Action::Redirect(Arc::new(Redirect { status: 301, location: Location::Parts(parts) }));
    let mut new = Rule { path: PathMatch::Exact(bare), action, ..rule.clone() };
    if new.forwarding.metered {
        // The redirect is no path of the Ingress.
        Arc::make_mut(&mut new.forwarding).metered = false;
    }
    Some(new)
}
