//! Merges the rules of all routes for one hostname of a listener.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    route::{Candidate, MadeRoute, RouteRules},
    route_conflicts::{LostMatch, RouteConflicts, by_loser},
};
use ingress_model::{HostRoutes, ListenerName, Rule, WeightedBackends};

/// Returns the rules for a hostname of `listener`, in order of precedence, and the matches that another rule has, too.
/// `routes` are those with the hostname, oldest first.
#[expect(clippy::mutable_key_type, reason = "neither patterns nor values of fields change what they are compared by")]
pub(crate) fn merge(listener: &ListenerName, routes: &[Arc<MadeRoute>]) -> (HostRoutes, RouteConflicts) {
    let numbered = routes.iter().enumerate();
    let mut candidates: Vec<(usize, &Candidate)> = numbered
        .flat_map(|(at, route)| candidates(route, listener).iter().map(move |candidate| (at, candidate)))
        .collect();
    candidates.sort_by(|(route, a), (other, b)| {
        a.rank().cmp(&b.rank()).then_with(|| (route, a.index).cmp(&(other, b.index)))
    });
    let (mut rules, mut lost): (Vec<Rule>, Vec<LostMatch>) = Default::default();
    // The number of the route of each rule, by the demands of the rule.
    let mut owners = HashMap::new();
    for (loser, Candidate { rule, index }) in candidates {
        // A request that meets the demands of this rule would never get past the other.
        match owners.entry((&rule.path, rule.conditions.as_deref())) {
            Entry::Occupied(winner) => lost.push(LostMatch { loser, winner: *winner.get(), index: *index }),
            Entry::Vacant(free) => {
                free.insert(loser);
                rules.push(rule.clone());
            }
        }
    }
    rules.shrink_to_fit();
    let conflicts = by_loser(lost, |route| &routes[route].precedence.id);
    (HostRoutes { rules, ..HostRoutes::default() }, conflicts)
}

fn candidates<'r>(route: &'r MadeRoute, listener: &ListenerName) -> &'r [Candidate] {
    match &route.rules {
        RouteRules::Requests(rules) => rules.at(listener).map(|candidates| &**candidates).unwrap_or_default(),
        RouteRules::Bytes(_) => &[],
    }
}

/// Returns the backends of connections for a hostname of `listener`, which are those of the oldest route, and the routes
/// that get none.
pub(crate) fn stream(
    listener: &ListenerName,
    routes: &[Arc<MadeRoute>],
) -> (Option<Arc<WeightedBackends>>, RouteConflicts) {
    let backends = routes.first().and_then(|route| match &route.rules {
        RouteRules::Bytes(backends) => backends.at(listener)?.clone(),
        RouteRules::Requests(_) => None,
    });
    let lost = (1..routes.len()).map(|loser| LostMatch { loser, winner: 0, index: (0, 0) }).collect();
    (backends, by_loser(lost, |route| &routes[route].precedence.id))
}
