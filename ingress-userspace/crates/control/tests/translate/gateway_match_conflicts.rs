//! Routes with the same matches: each match is served or told, and a conflict ends with its cause.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use ingress_control::{
    Origin, Reason,
    change::{Change, Kind, ObjectId, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translation, Translator},
};

const BASE: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp}\n\
    spec: {controllerName: xdp-ingress.io/gateway-controller}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: a, name: g}\n\
    spec: {gatewayClassName: xdp, listeners: [{name: http, port: 80, protocol: HTTP}, {name: tcp, port: 90, protocol: TCP}]}\n";

/// A cluster, and its translations one after the other.
struct Site {
    cluster: Cluster,
    translator: Translator,
}

impl Site {
    fn new() -> Self {
        let mut site = Self { cluster: Cluster::default(), translator: Translator::new(Options::default()) };
        site.apply(BASE);
        site
    }

    fn apply(&mut self, text: &str) -> Translation {
        for object in parse(&Path::new("in.yaml").into(), text).objects {
            self.cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
        self.translator.translate(&self.cluster)
    }

    fn remove(&mut self, kind: Kind, name: &str) -> Translation {
        self.cluster.apply(Change::Remove(ObjectId { kind, name: ObjectName::new("a", name) }));
        self.translator.translate(&self.cluster)
    }
}

/// An HTTPRoute `a/NAME`, created on this day, for host `a.test`.
fn route(name: &str, day: u8, rules: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{namespace: a, name: {name}, creationTimestamp: 2026-01-0{day}T00:00:00Z}}\n\
         spec: {{parentRefs: [{{name: g, sectionName: http}}], hostnames: [a.test], rules: [{rules}]}}\n"
    )
}

fn tcp_route(name: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {{namespace: a, name: {name}}}\n\
         spec: {{parentRefs: [{{name: g, sectionName: tcp}}], rules: [{{}}]}}\n"
    )
}

/// Returns kind and name of the routes that are told about a conflict.
fn told(translation: &Translation) -> Vec<String> {
    let outcomes = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::RouteConflict);
    outcomes.map(|outcome| format!("{} {}", outcome.object.kind, outcome.object.name)).collect()
}

const SAME: &str = "{matches: [{path: {value: /x}}]}";
const OTHER: &str = "{matches: [{path: {value: /y}}]}";

/// Matches that differ from each other.
const MATCHES: [&str; 8] = [
    "{path: {value: /}}",
    "{path: {value: /x}}",
    "{path: {type: Exact, value: /x}}",
    "{path: {value: /x}, method: GET}",
    "{path: {value: /x}, headers: [{name: a, value: b}]}",
    "{path: {value: /x}, headers: [{name: a, value: b, type: RegularExpression}]}",
    "{path: {value: /x}, queryParams: [{name: a, value: b}]}",
    "{path: {value: /x}, method: GET, headers: [{name: a, value: b}]}",
];

#[test]
fn every_match_is_served_or_told() {
    let rule = |matches: &[&str]| format!("{{matches: [{}]}}", matches.join(", "));
    for (at, one) in MATCHES.iter().enumerate() {
        for (other_at, other) in MATCHES.iter().enumerate() {
            let is_same = at == other_at;
            // Of another route, of another rule, and of the same rule.
            let routes = route("older", 1, &rule(&[one])) + &route("younger", 2, &rule(&[other]));
            let rules = route("older", 1, &format!("{}, {}", rule(&[one]), rule(&[other])));
            let both = route("older", 1, &rule(&[one, other]));
            for (text, loser) in [(routes, "younger"), (rules, "older"), (both, "older")] {
                let translation = Site::new().apply(&text);
                let served: usize = translation
                    .table
                    .listeners
                    .values()
                    .flat_map(|listener| listener.hosts.values())
                    .map(|routes| routes.rules.len())
                    .sum();
                assert_eq!(served, if is_same { 1 } else { 2 }, "{text}");
                let expect = if is_same { vec![format!("HTTPRoute {loser}")] } else { Vec::new() };
                assert_eq!(told(&translation), expect, "{text}");
            }
        }
    }
}

#[test]
fn a_conflict_ends_with_its_cause() {
    let begun = || {
        let mut site = Site::new();
        let translation = site.apply(&(route("older", 1, SAME) + &route("younger", 2, SAME)));
        assert_eq!(told(&translation), ["HTTPRoute younger"]);
        site
    };
    assert!(told(&begun().remove(Kind::HttpRoute, "older")).is_empty());
    assert!(told(&begun().remove(Kind::HttpRoute, "younger")).is_empty());
    assert!(told(&begun().remove(Kind::Gateway, "g")).is_empty());
    assert!(told(&begun().apply(&route("older", 1, OTHER))).is_empty());
    assert!(told(&begun().apply(&route("younger", 2, OTHER))).is_empty());
    // The listener has another protocol, and then none of this name is left.
    assert!(told(&begun().apply(&BASE.replace("80, protocol: HTTP}", "80, protocol: TCP}"))).is_empty());
    assert!(told(&begun().apply(&BASE.replace("name: http", "name: web"))).is_empty());
    assert_eq!(told(&begun().apply(&route("younger", 2, SAME))), ["HTTPRoute younger"]);
    // The other becomes the older one.
    assert_eq!(told(&begun().apply(&route("older", 3, SAME))), ["HTTPRoute older"]);
    let mut site = Site::new();
    assert_eq!(told(&site.apply(&(tcp_route("a") + &tcp_route("b")))), ["TCPRoute b"]);
    assert!(told(&site.remove(Kind::TcpRoute, "a")).is_empty());
}

#[test]
fn a_conflict_changes_no_status() {
    let mut site = Site::new();
    let id = ObjectId { kind: Kind::HttpRoute, name: ObjectName::new("a", "younger") };
    let before = site.apply(&route("younger", 2, SAME));
    let after = site.apply(&route("older", 1, SAME));
    assert_eq!(told(&after), ["HTTPRoute younger"]);
    let status = |translation: &Translation| translation.statuses.get(&id).cloned().expect("a status");
    assert!(Arc::ptr_eq(&status(&before), &status(&after)));
}

#[test]
fn one_cause_is_told_once() {
    let hosts = |name: &str, day| {
        route(name, day, SAME)
            .replace("[a.test]", "[a.test, b.test, c.test]")
            .replace(", sectionName: http", ", port: 80")
    };
    let translation = Site::new().apply(&(hosts("older", 1) + &hosts("younger", 2)));
    let messages: BTreeSet<_> = translation.outcomes.keys().map(|outcome| outcome.message.as_str()).collect();
    let told: Vec<_> = messages.into_iter().filter(|message| message.contains("has the same")).collect();
    assert_eq!(
        told,
        [
            "match `/x` of `rules[0]` gets no requests for host `a.test` at listener `a/g/http`, and in 2 more places, because the \
          older HTTPRoute `a/older` has the same; remove one of the two"
        ]
    );
}

/// Each process keeps the outcomes of all routes.
#[test]
fn a_route_with_many_conflicts_is_told_the_first_ones() {
    let path = |number: usize| format!("{{path: {{value: /{number:02}}}}}");
    let older = |number: usize| route(&format!("older-{number:02}"), 1, &format!("{{matches: [{}]}}", path(number)));
    for (count, expect) in [(9, 9), (10, 10), (11, 11), (30, 11)] {
        let all: Vec<_> = (0..count).map(path).collect();
        let text = (0..count).map(older).collect::<String>()
            + &route("younger", 2, &format!("{{matches: [{}]}}", all.join(", ")));
        let translation = Site::new().apply(&text);
        assert_eq!(told(&translation), vec!["HTTPRoute younger"; expect], "{count} conflicts");
        let more =
            translation.outcomes.keys().filter(|outcome| outcome.message.contains("more conflicts than")).count();
        assert_eq!(more, usize::from(count > 10), "{count} conflicts");
    }
}

/// The text of these conditions is the same, and their meaning is not.
#[test]
fn conditions_that_only_read_alike_do_not_conflict() {
    let one = "{headers: [{name: a, value: \"1 b=1\"}]}";
    let other = "{headers: [{name: a, value: \"1\"}, {name: b, value: \"1\"}]}";
    let rule = |one: &str| format!("{{matches: [{one}]}}");
    assert!(told(&Site::new().apply(&(route("older", 1, &rule(one)) + &route("younger", 2, &rule(other))))).is_empty());
}
