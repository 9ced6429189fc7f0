//! Merges the rules of all routes for one hostname of a listener.

use std::{collections::HashMap, sync::Arc};

use super::{
    match_conflicts::{LostMatch, MatchConflicts, by_loser},
    route::{Candidate, MadeRoute, RouteRules},
};
use ingress_model::{HostRoutes, ListenerName, Rule, WeightedBackends};

/// Returns the rules for a hostname of `listener`, in order of precedence, and the matches that another rule has, too.
/// `routes` are those with the hostname, oldest first.
pub(crate) fn merge(listener: &ListenerName, routes: &[Arc<MadeRoute>]) -> (HostRoutes, MatchConflicts) {
    let numbered = routes.iter().enumerate();
    let mut candidates: Vec<(usize, &Candidate)> = numbered
        .flat_map(|(at, route)| candidates(route, listener).iter().map(move |candidate| (at, candidate)))
        .collect();
    candidates.sort_by(|(route, a), (other, b)| {
        a.rank().cmp(&b.rank()).then_with(|| (route, a.index).cmp(&(other, b.index)))
    });
    let mut rules: Vec<Rule> = Vec::new();
    // The number of the route of each rule.
    let mut owners: Vec<usize> = Vec::new();
    let mut lost: Vec<LostMatch> = Vec::new();
    // Rules of the current path by the text of their conditions, which seldom is the same for different ones.
    let mut by_text: HashMap<String, Vec<usize>> = HashMap::new();
    for (loser, Candidate { rule, index }) in candidates {
        let lose = |winner| LostMatch { loser, winner, index: *index };
        match rules.last().zip(owners.last()) {
            Some((last, owner)) if last.path == rule.path => {
                if last.conditions.is_none() {
                    lost.push(lose(*owner));
                    continue;
                }
            }
            _ => by_text.clear(),
        }
        let text = rule.conditions.as_ref().map(ToString::to_string).unwrap_or_default();
        let alike = by_text.entry(text).or_default();
        // A request that meets the demands of this rule would never get past the other.
        match alike.iter().find(|at| rules[**at].conditions == rule.conditions) {
            Some(at) => lost.push(lose(owners[*at])),
            None => {
                alike.push(rules.len());
                owners.push(loser);
                rules.push(rule.clone());
            }
        }
    }
    let conflicts = by_loser(lost, |route| &routes[route].precedence.id);
    (HostRoutes { rules, ..HostRoutes::default() }, conflicts)
}

fn candidates<'r>(route: &'r MadeRoute, listener: &ListenerName) -> &'r [Candidate] {
    match &route.rules {
        RouteRules::Requests(rules) => rules.at(listener).map(Vec::as_slice).unwrap_or_default(),
        RouteRules::Bytes(_) => &[],
    }
}

/// Returns the backends of connections for a hostname of `listener`, which are those of the oldest route, and the routes
/// that get none.
pub(crate) fn stream(
    listener: &ListenerName,
    routes: &[Arc<MadeRoute>],
) -> (Option<Arc<WeightedBackends>>, MatchConflicts) {
    let backends = routes.first().and_then(|route| match &route.rules {
        RouteRules::Bytes(backends) => backends.at(listener)?.clone(),
        RouteRules::Requests(_) => None,
    });
    let lost = (1..routes.len()).map(|loser| LostMatch { loser, winner: 0, index: (0, 0) }).collect();
    (backends, by_loser(lost, |route| &routes[route].precedence.id))
}
