//! Merges the rules of all routes for one hostname of a listener.

use std::{collections::HashMap, sync::Arc};

use super::route::{Candidate, MadeRoute, RouteRules};
use ingress_model::{HostRoutes, ListenerName, Rule, WeightedBackends};

/// Returns the rules for a hostname of `listener`, in order of precedence. `routes` are those with the hostname, oldest
/// first.
pub(crate) fn merge(listener: &ListenerName, routes: &[Arc<MadeRoute>]) -> HostRoutes {
    let numbered = routes.iter().enumerate();
    let mut candidates: Vec<(usize, &Candidate)> = numbered
        .flat_map(|(at, route)| candidates(route, listener).iter().map(move |candidate| (at, candidate)))
        .collect();
    candidates.sort_by(|(route, a), (other, b)| {
        a.rank().cmp(&b.rank()).then_with(|| (route, a.index).cmp(&(other, b.index)))
    });
    let mut rules: Vec<Rule> = Vec::new();
    // Rules of the current path by the text of their conditions, which seldom is the same for different ones.
    let mut by_text: HashMap<String, Vec<usize>> = HashMap::new();
    for (_, Candidate { rule, index: _ }) in candidates {
        match rules.last() {
            Some(last) if last.path == rule.path => {
                if last.conditions.is_none() {
                    continue;
                }
            }
            _ => by_text.clear(),
        }
        let text = rule.conditions.as_ref().map(ToString::to_string).unwrap_or_default();
        let alike = by_text.entry(text).or_default();
        // A request that meets the demands of this rule would never get past the other.
        if alike.iter().all(|at| rules[*at].conditions != rule.conditions) {
            alike.push(rules.len());
            rules.push(rule.clone());
        }
    }
    HostRoutes { rules, ..HostRoutes::default() }
}

fn candidates<'r>(route: &'r MadeRoute, listener: &ListenerName) -> &'r [Candidate] {
    match &route.rules {
        RouteRules::Requests(rules) => rules.at(listener).map(Vec::as_slice).unwrap_or_default(),
        RouteRules::Bytes(_) => &[],
    }
}

/// Returns the backends of connections for a hostname of `listener`: those of the oldest route.
pub(crate) fn stream(listener: &ListenerName, routes: &[Arc<MadeRoute>]) -> Option<Arc<WeightedBackends>> {
    match &routes.first()?.rules {
        RouteRules::Bytes(backends) => backends.at(listener)?.clone(),
        RouteRules::Requests(_) => None,
    }
}
