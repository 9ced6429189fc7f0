//! HTTPRoutes and GRPCRoutes at one listener. Their rules are never merged, so routes of both kinds share no hostname: the
//! older route stays, and the younger yields. Listeners are judged one by one.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
};

use super::report::{ACCEPTED, Flaw, met};
use crate::{
    change::{Kind, ObjectId},
    object_status::Condition,
};
use ingress_model::{HostPattern, ListenerName};

/// Hostnames of the routes of one kind that stay, each with the first route that has it.
#[derive(Default)]
struct Hostnames<'r> {
    exact: HashMap<&'r str, &'r ObjectId>,
    suffixes: HashMap<&'r str, &'r ObjectId>,
    /// Names of which hosts below are matched.
    above: HashMap<&'r str, &'r ObjectId>,
    /// The route of all hosts.
    any: Option<&'r ObjectId>,
    first: Option<&'r ObjectId>,
}

/// Returns the routes of a listener that yield, each with an older route to which it does. `routes` are in order of
/// precedence, with their hostnames at the listener. A route that yields takes no hostname from others.
pub(crate) fn yielding<'r>(
    routes: impl IntoIterator<Item = (&'r ObjectId, &'r [HostPattern])>,
) -> BTreeMap<ObjectId, ObjectId> {
    let (mut http, mut grpc) = (Hostnames::default(), Hostnames::default());
    let mut yielding = BTreeMap::new();
    for (id, hostnames) in routes {
        let (same, other) = match id.kind {
            Kind::HttpRoute => (&mut http, &grpc),
            Kind::GrpcRoute => (&mut grpc, &http),
            _ => continue,
        };
        match hostnames.iter().find_map(|hostname| other.holder(hostname)) {
            Some(older) => drop(yielding.insert(id.clone(), older.clone())),
            None => hostnames.iter().for_each(|hostname| same.add(hostname, id)),
        }
    }
    yielding
}

/// Returns the condition of a route that attaches to `listeners` by one reference, if it does not yield there.
pub(super) fn accepted<'r>(
    listeners: &[ListenerName],
    yields_to: impl Fn(&ListenerName) -> Option<&'r ObjectId>,
) -> Condition {
    let lost: Vec<_> = listeners.iter().filter_map(|name| Some((name, yields_to(name)?))).collect();
    let Some((_, ObjectId { kind, name })) = lost.first() else { return met(ACCEPTED) };
    let kind = kind.as_str();
    if lost.len() == listeners.len() {
        let message = format!(
            "{kind} `{}/{}` is older or first by name, and has a hostname of this route; give one of them other hostnames",
            name.namespace, name.name
        );
        return Flaw::new("HostnameConflict", message).unmet(ACCEPTED);
    }
    let lost: Vec<_> = lost.iter().map(|(listener, _)| format!("`{listener}`")).collect();
    let message = format!(
        "not attached to {}: {kind} `{}/{}` is older or first by name, and has a hostname of this route there; give one of them other hostnames",
        lost.join(", "),
        name.namespace,
        name.name
    );
    Condition { message, ..met(ACCEPTED) }
}

/// Returns the names above `name`, the longest first.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(name.split_once('.'), |(_, rest)| rest.split_once('.')).map(|(_, rest)| rest)
}

// === impl Hostnames ===

impl<'r> Hostnames<'r> {
    /// Returns a route that matches a host of `hostname`.
    fn holder(&self, hostname: &HostPattern) -> Option<&'r ObjectId> {
        let matching = |name| self.suffixes.get(name).copied();
        self.any.or_else(|| match hostname {
            HostPattern::Any => self.first,
            HostPattern::Exact(host) => {
                let exact = self.exact.get(host.as_str()).copied();
                exact.or_else(|| ancestors(host.as_str()).find_map(matching))
            }
            HostPattern::Suffix(base) | HostPattern::Wildcard(base) => {
                let below = self.above.get(base.as_str()).copied();
                below.or_else(|| ancestors(base.as_str()).find_map(matching))
            }
        })
    }

    fn add(&mut self, hostname: &'r HostPattern, id: &'r ObjectId) {
        self.first.get_or_insert(id);
        let mut above = |name| {
            self.above.entry(name).or_insert(id);
        };
        match hostname {
            HostPattern::Any => {
                self.any.get_or_insert(id);
            }
            HostPattern::Exact(host) => {
                self.exact.entry(host.as_str()).or_insert(id);
                ancestors(host.as_str()).for_each(above);
            }
            HostPattern::Suffix(base) | HostPattern::Wildcard(base) => {
                self.suffixes.entry(base.as_str()).or_insert(id);
                above(base.as_str());
                ancestors(base.as_str()).for_each(above);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::listener::intersect, *};
    use crate::change::ObjectName;

    fn id(kind: Kind, name: &str) -> ObjectId {
        ObjectId { kind, name: ObjectName::new("n", name) }
    }

    fn pattern(hostname: &str) -> HostPattern {
        if hostname.is_empty() { HostPattern::Any } else { HostPattern::parse_suffix(hostname).expect("a hostname") }
    }

    #[test]
    fn a_younger_route_of_the_other_kind_yields_if_hostnames_intersect() {
        let names = ["", "test", "a.test", "b.test", "*.test", "*.a.test", "x.a.test", "y.x.a.test", "*.x.a.test"];
        for (older, younger) in names.iter().flat_map(|older| names.map(|younger| (older, younger))) {
            let (one, other) = ([pattern(older)], [pattern(younger)]);
            let (http, grpc) = (id(Kind::HttpRoute, "a"), id(Kind::GrpcRoute, "b"));
            for (first, second) in [(&http, &grpc), (&grpc, &http)] {
                let expect = intersect(&one[0], &other[0]).then(|| (second.clone(), first.clone()));
                let yields = yielding([(first, &one[..]), (second, &other[..])]);
                assert_eq!(yields, expect.into_iter().collect(), "{older} and {younger}");
            }
            let same = id(Kind::HttpRoute, "b");
            assert!(yielding([(&http, &one[..]), (&same, &other[..])]).is_empty(), "{older} and {younger}");
        }
    }

    #[test]
    fn a_route_that_yields_takes_no_hostname() {
        let (first, second, third) = (id(Kind::HttpRoute, "a"), id(Kind::GrpcRoute, "b"), id(Kind::HttpRoute, "c"));
        let (one, both, other) = ([pattern("a.test")], ["a.test", "b.test"].map(pattern), [pattern("b.test")]);
        let yields = yielding([(&first, &one[..]), (&second, &both[..]), (&third, &other[..])]);
        assert_eq!(yields, BTreeMap::from([(second, first)]));
    }
}
