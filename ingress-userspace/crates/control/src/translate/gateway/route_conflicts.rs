//! Matches of routes that get no requests, because an older route or an earlier match of the same route has the same, and
//! routes whose connections or sessions go to an older one. The specification keeps such a route accepted, so an outcome
//! tells its owner.

use std::collections::{BTreeMap, HashMap};

use super::route::{MadeRoute, RouteRules};
use crate::{
    change::{Kind, ObjectId},
    outcome::Reason,
    translate::{outcomes::Outcomes, text::shorten},
};
use ingress_model::{HostPattern, ListenerName};

/// Maximum number of conflicts of one route that are told. Without it, routes of one tenant could make outcomes by the
/// million, which each process keeps.
const TOLD_MAX: usize = 10;

/// The conflicts at a hostname of a listener, by the route that loses: at most one more than [`TOLD_MAX`] of each.
pub(crate) type RouteConflicts = HashMap<ObjectId, Vec<RouteConflict>>;

/// Matches of one route that another has, too. A route of connections or sessions has one match.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteConflict {
    /// The older route, or the same route if an earlier rule has the match.
    winner: ObjectId,
    /// Index of the first rule that loses, and of the match in that rule.
    first: MatchIndex,
    /// Number of matches that lose.
    count: usize,
}

/// A match that loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LostMatch {
    /// Number of its route among those with the hostname.
    pub(super) loser: usize,
    /// Number of the route with the rule that wins.
    pub(super) winner: usize,
    pub(super) index: MatchIndex,
}

/// Index of a rule in its route, and of a match in that rule.
pub(super) type MatchIndex = (usize, usize);

/// Returns the conflicts of `routes`.
pub(super) fn by_loser<'r>(mut lost: Vec<LostMatch>, routes: impl Fn(usize) -> &'r ObjectId) -> RouteConflicts {
    lost.sort_unstable();
    let mut conflicts = RouteConflicts::new();
    for alike in lost.chunk_by(|a, b| (a.loser, a.winner) == (b.loser, b.winner)) {
        let [LostMatch { loser, winner, index }, ..] = *alike else { continue };
        let of_loser = conflicts.entry(routes(loser).clone()).or_default();
        if of_loser.len() <= TOLD_MAX {
            of_loser.push(RouteConflict { winner: routes(winner).clone(), first: index, count: alike.len() });
        }
    }
    conflicts
}

/// Reports the conflicts that `route` loses: one outcome for the same conflict at several hostnames and listeners.
/// `conflicts` returns those at a hostname of a listener.
pub(crate) fn report<'c>(
    route: &MadeRoute,
    conflicts: impl Fn(&ListenerName, &HostPattern) -> &'c [RouteConflict],
    outcomes: &mut Outcomes,
) {
    let mut places: BTreeMap<&RouteConflict, Vec<(&ListenerName, &HostPattern)>> = BTreeMap::new();
    for (listener, hostnames) in route.attachments.iter() {
        for hostname in hostnames {
            for conflict in conflicts(listener, hostname) {
                places.entry(conflict).or_default().push((listener, hostname));
            }
        }
    }
    let id = &route.precedence.id;
    let object = id.name.refer(id.kind, &route.origin);
    if places.len() > TOLD_MAX {
        let message =
            format!("this route has more conflicts than the {TOLD_MAX} that are told; end those to see the others");
        outcomes.report(&object, Reason::RouteConflict, message);
    }
    for (conflict, places) in places.into_iter().take(TOLD_MAX) {
        let [(listener, hostname), others @ ..] = &*places else { continue };
        let place = match id.kind {
            Kind::TcpRoute | Kind::UdpRoute => format!("at listener `{listener}`"),
            _ => format!("for host `{hostname}` at listener `{listener}`"),
        };
        let others = match others.len() {
            0 => String::new(),
            1 => ", and in 1 more place".to_owned(),
            count => format!(", and in {count} more places"),
        };
        let (what, same) = conflict.describe(route, listener);
        let message = format!("{what} {place}{others}, because {same}; remove one of the two");
        outcomes.report(&object, Reason::RouteConflict, message);
    }
}

// === impl RouteConflict ===

impl RouteConflict {
    /// Returns the loss of `route` in words, and its cause.
    fn describe(&self, route: &MadeRoute, listener: &ListenerName) -> (String, String) {
        let Self { winner, first, count } = self;
        let older = format!("the older {} `{}`", winner.kind.as_str(), winner.name);
        let RouteRules::Requests(rules) = &route.rules else {
            let units = if winner.kind == Kind::UdpRoute { "sessions" } else { "connections" };
            return (format!("this route gets no {units}"), format!("{older} gets them"));
        };
        let candidates = rules.at(listener).map(|candidates| &**candidates).unwrap_or_default();
        let found = candidates.binary_search_by_key(first, |candidate| candidate.index).ok();
        let text = found.and_then(|at| candidates.get(at)).map(|candidate| candidate.to_string()).unwrap_or_default();
        let (rule, _) = first;
        let what = match count {
            1 => format!("match `{}` of `rules[{rule}]` gets no requests", shorten(&text)),
            _ => format!("match `{}` of `rules[{rule}]`, and {} more, get no requests", shorten(&text), count - 1),
        };
        let same = if *winner == route.precedence.id {
            "an earlier match of this route is the same".to_owned()
        } else {
            format!("{older} has the same")
        };
        (what, same)
    }
}
