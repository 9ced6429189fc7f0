//! The matcher against the documentation's examples and against a naive oracle.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::{HeaderCondition, ListenerProtocol, PathMatch, PathPattern};

fn rule(path: PathMatch, owner: &str) -> Rule {
    let action = Action::Forward(UpstreamKey::new("default", owner, "80"));
    Rule { path, owner: owner.into(), filters: Vec::new(), action, forwarding: Arc::default(), conditions: None }
}

fn table(hosts: Vec<(HostPattern, Vec<PathMatch>, bool)>) -> RouteTable {
    let mut table = RouteTable::default();
    for (pattern, mut paths, fallback) in hosts {
        paths.sort();
        paths.dedup();
        let owner = |path: &dyn std::fmt::Display| format!("{pattern} {path}");
        let rules = paths.iter().map(|path| rule(path.clone(), &owner(path))).collect();
        let fallback = fallback.then(|| Box::new(rule(PathMatch::Prefix("/".into()), &owner(&"fallback"))));
        table.hosts.insert(
            pattern,
            Arc::new(HostRoutes { rules, fallback, clients: None, passthrough: None, refuses_http3: false }),
        );
    }
    table
}

fn compile(table: &RouteTable) -> Routes {
    Routes::compile(None, table, |_| UpstreamId(0), |_| Some(HostId(1)))
}

fn found(routes: &Routes, host: &str, path: &str) -> Option<String> {
    match routes.find(host, path, &RequestHead::bare()).matched {
        Matched::Route(route) => Some(route.owner.to_string()),
        Matched::Default(_) | Matched::Nothing | Matched::Costly => None,
    }
}

/// Tries every pattern and every rule in order of precedence.
fn oracle(table: &RouteTable, host: &str, path: &str) -> Option<String> {
    let (_, routes) = table.hosts.iter().find(|(pattern, _)| pattern.matches(host))?;
    let HostRoutes { rules, fallback, clients: _, passthrough: _, refuses_http3: _ } = &**routes;
    let rule = rules.iter().find(|rule| rule.path.matches(path)).or(fallback.as_deref())?;
    Some(rule.owner.to_string())
}

fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).expect("valid pattern")
}

fn prefix(text: &str) -> PathMatch {
    PathMatch::prefix(text).expect("valid path")
}

fn exact(text: &str) -> PathMatch {
    PathMatch::exact(text).expect("valid path")
}

fn check(paths: &[PathMatch], path: &str, expect: Option<&str>) {
    let routes = compile(&table(vec![(HostPattern::Any, paths.to_vec(), false)]));
    assert_eq!(found(&routes, "a.test", path).as_deref(), expect.map(|e| format!("* {e}")).as_deref(), "{path}");
}

#[test]
fn longest_prefix_wins() {
    let paths = [prefix("/"), prefix("/aaa"), prefix("/aaa/bbb")];
    check(&paths, "/aaa/bbb", Some("/aaa/bbb"));
    check(&paths, "/aaa/ccc", Some("/aaa"));
    check(&paths, "/aaab", Some("/"));
    check(&paths, "/ccc", Some("/"));
    check(&[prefix("/aaa")], "/ccc", None);
}

#[test]
fn exact_path_beats_prefix() {
    check(&[prefix("/foo"), exact("/foo")], "/foo", Some("= /foo"));
    check(&[prefix("/foo/"), exact("/foo")], "/foo", Some("= /foo"));
    check(&[prefix("/foo"), exact("/foo")], "/foo/", Some("/foo"));
}

#[test]
fn any_number_of_paths_can_be_matched() {
    for count in [1, 8, 9, 20] {
        let paths = |number| [exact(&format!("/e{number}")), prefix(&format!("/p{number}"))];
        let paths: Vec<_> = (0..count).flat_map(paths).collect();
        for number in 0..count {
            check(&paths, &format!("/e{number}"), Some(&format!("= /e{number}")));
            check(&paths, &format!("/p{number}/x"), Some(&format!("/p{number}")));
        }
        check(&paths, &format!("/e{count}"), None);
        check(&paths, &format!("/p{count}"), None);
    }
}

#[test]
fn a_prefix_with_a_trailing_slash_takes_precedence() {
    check(&[prefix("/foo"), prefix("/foo/")], "/foo/bar", Some("/foo/"));
    check(&[prefix("/foo"), prefix("/foo/")], "/foo", Some("/foo/"));
}

#[test]
fn a_request_does_not_fall_through_to_a_less_specific_host() {
    let routes = compile(&table(vec![
        (pattern("a.b.test"), vec![prefix("/x")], false),
        (pattern("*.b.test"), vec![prefix("/y")], false),
        (HostPattern::Any, vec![prefix("/")], true),
    ]));
    assert_eq!(found(&routes, "a.b.test", "/x").as_deref(), Some("a.b.test /x"));
    assert_eq!(found(&routes, "a.b.test", "/y"), None);
    assert_eq!(found(&routes, "c.b.test", "/y").as_deref(), Some("*.b.test /y"));
    assert_eq!(found(&routes, "c.b.test", "/z"), None);
    assert_eq!(found(&routes, "d.c.b.test", "/y").as_deref(), Some("* /"));
    assert_eq!(found(&routes, "b.test", "/y").as_deref(), Some("* /"));
}

#[test]
fn longer_paths_take_precedence_whether_expression_or_prefix() {
    let pattern = |text| PathMatch::pattern(text).expect("valid");
    let paths = [pattern("/a.*"), pattern("/a/b/c.*"), prefix("/a/bcd"), prefix("/"), exact("/a/x")];
    check(&paths, "/a/b/cd", Some("~ /a/b/c.*"));
    check(&paths, "/a/bcd/e", Some("/a/bcd"));
    check(&paths, "/ax", Some("~ /a.*"));
    check(&paths, "/a/x", Some("= /a/x"));
    check(&paths, "/b", Some("/"));
}

#[test]
fn a_confined_expression_is_ranked_by_its_common_prefix() {
    let confined = |text| {
        PathMatch::Pattern(Arc::new(PathPattern::parse(text, usize::MAX).expect("valid").confined().expect("one")))
    };
    let paths =
        [prefix("/"), prefix("/login"), prefix("/api"), confined("/log((((((((.*))))))))"), confined("/api/.*")];
    check(&paths, "/login", Some("/login"));
    check(&paths, "/login/x", Some("/login"));
    check(&paths, "/logout", Some("~ /log((((((((.*))))))))"));
    check(&paths, "/api/x", Some("/api"));
    check(&paths, "/", Some("/"));
}

#[test]
fn the_fallback_serves_unmatched_paths() {
    let routes = compile(&table(vec![(pattern("a.test"), vec![exact("/x")], true)]));
    assert_eq!(found(&routes, "a.test", "/y").as_deref(), Some("a.test fallback"));
}

#[test]
fn paths_are_not_searched_beyond_the_longest_prefix() {
    let routes = compile(&table(vec![(HostPattern::Any, vec![prefix("/a/b"), prefix("/")], false)]));
    assert_eq!(found(&routes, "a.test", &"/a/b".repeat(5000)).as_deref(), Some("* /a/b"));
    assert_eq!(found(&routes, "a.test", &"/é".repeat(5000)).as_deref(), Some("* /"));
}

fn any_pattern() -> impl Strategy<Value = HostPattern> {
    prop_oneof![Just(String::new()), "[ab]\\.[ab]\\.t", "[ab]\\.t", "\\*\\.[ab]\\.t", "\\*\\.t"]
        .prop_map(|text| pattern(&text))
}

fn any_path() -> impl Strategy<Value = PathMatch> {
    let plain = ("(/[ab]{1,2}){0,3}/?", any::<bool>()).prop_filter_map("empty", |(text, is_exact)| {
        if is_exact { PathMatch::exact(&text).ok() } else { PathMatch::prefix(&text).ok() }
    });
    let pattern = prop::sample::select(vec!["/", "/a", "/a(.*)", "/[ab]/.*a", "/A/b$", "/.*/b{2}", "/a(/|$)(.*)"]);
    let pattern = (pattern, any::<bool>()).prop_map(|(text, is_confined)| {
        let pattern = PathPattern::parse(text, usize::MAX).expect("valid");
        let pattern = pattern.confined().filter(|_| is_confined).unwrap_or(pattern);
        PathMatch::Pattern(Arc::new(pattern))
    });
    let beginning = "(/[abAB]{0,2}){1,3}".prop_map(|text| PathMatch::Beginning(text.into()));
    prop_oneof![3 => plain, 1 => pattern, 1 => beginning]
}

proptest! {
    // Includes hosts with more exact paths, or prefixes, than are found by comparison.
    #[test]
    fn matcher_equals_the_naive_oracle(
        hosts in prop::collection::vec((any_pattern(), prop::collection::vec(any_path(), 0..40), any::<bool>()), 0..5),
        requests in prop::collection::vec(("([ab]\\.){0,3}t", "(/[ab]{0,2}){1,4}"), 1..20),
    ) {
        let table = table(hosts);
        let routes = compile(&table);
        for (host, path) in requests {
            prop_assert_eq!(found(&routes, &host, &path), oracle(&table, &host, &path), "{} {}", host, path);
        }
    }

    #[test]
    fn specificity_is_a_total_order(mut paths in prop::collection::vec(any_path(), 3)) {
        use std::cmp::Ordering;
        let [a, b, c] = [&paths[0], &paths[1], &paths[2]];
        prop_assert_eq!(a.cmp(b), b.cmp(a).reverse());
        prop_assert_eq!(a.cmp(b) == Ordering::Equal, a == b);
        if a <= b && b <= c { prop_assert!(a <= c); }
        paths.sort();
        prop_assert!(paths.is_sorted());
    }
}

#[test]
fn unchanged_hosts_keep_their_entries() {
    let first =
        table(vec![(pattern("a.test"), vec![prefix("/")], false), (pattern("b.test"), vec![prefix("/")], false)]);
    let second =
        table(vec![(pattern("a.test"), vec![prefix("/")], false), (pattern("b.test"), vec![prefix("/new")], false)]);
    let before = compile(&first);
    let mut asked = Vec::new();
    let after = Routes::compile(
        Some(&before),
        &second,
        |_| UpstreamId(0),
        |pattern| {
            asked.push(pattern.to_string());
            Some(HostId(7))
        },
    );
    assert_eq!(asked, ["b.test"]);
    let same = |host: &str| {
        let of = |routes: &Routes| std::ptr::from_ref(routes.host(host).expect("known"));
        of(&before) == of(&after)
    };
    assert!(same("a.test") && !same("b.test"));
    assert_eq!(found(&after, "b.test", "/new").as_deref(), Some("b.test /new"));
}

#[test]
fn host_ids_are_requested_again_only_without_an_answer() {
    let table =
        table(vec![(pattern("a.test"), vec![prefix("/")], false), (pattern("b.test"), vec![prefix("/")], false)]);
    for (answer, asked_again) in [(None, 2), (Some(HostId::UNATTRIBUTED), 0)] {
        let before = Routes::compile(None, &table, |_| UpstreamId(0), |_| answer);
        assert_eq!(before.unnumbered(), 2, "{answer:?}");
        let mut count = 0;
        let mut number = |_: &HostPattern| {
            count += 1;
            Some(HostId(1))
        };
        let after = Routes::compile(Some(&before), &table, |_| UpstreamId(0), &mut number);
        assert_eq!((after.unnumbered(), count), (2 - asked_again, asked_again), "{answer:?}");
        let gone = Routes::compile(Some(&after), &RouteTable::default(), |_| UpstreamId(0), |_| None);
        assert_eq!(gone.unnumbered(), 0, "{answer:?}");
    }
}

/// There may be a hundred thousand of them.
#[test]
fn hosts_without_a_number_are_left_once_one_of_them_gets_none() {
    let hosts = ["a.test", "b.test", "c.test", "d.test"];
    let table = table(hosts.map(|host| (pattern(host), vec![prefix("/")], false)).into());
    let none = Routes::compile(None, &table, |_| UpstreamId(0), |_| None);
    let mut routes = none;
    for (free, asked, left) in [(0, 1, 4), (2, 3, 2), (0, 1, 2), (2, 2, 0), (0, 0, 0)] {
        let (mut free, mut count) = (free, 0);
        let mut number = |_: &HostPattern| {
            count += 1;
            free -= 1;
            (free >= 0).then_some(HostId(1))
        };
        let next = Routes::compile(Some(&routes), &table, |_| UpstreamId(0), &mut number);
        assert_eq!((count, next.unnumbered(), next.unnumbered_hosts().len()), (asked, left, left));
        routes = next;
    }
}

#[test]
fn a_fallback_behind_a_catch_all_prefix_has_no_duplicate_meter() {
    let metered = |path, owner| {
        let forwarding = Arc::new(Forwarding { metered: true, ..Forwarding::default() });
        Rule { forwarding, ..rule(path, owner) }
    };
    for (path, owner, count) in [(prefix("/"), "a", 1), (prefix("/"), "b", 2), (prefix("/x"), "a", 2)] {
        let mut table = RouteTable::default();
        let (rules, fallback) = (vec![metered(path, "a")], Some(Box::new(metered(prefix("/"), owner))));
        table.hosts.insert(HostPattern::Any, Arc::new(HostRoutes { rules, fallback, ..HostRoutes::default() }));
        assert_eq!(compile(&table).meters().count(), count, "{owner}");
        assert!(found(&compile(&table), "a.test", "*").is_some(), "it is there all the same");
    }
}

/// Conditions by which the rules of one path differ.
fn any_conditions() -> impl Strategy<Value = Option<Box<Conditions>>> {
    let method = prop::option::of(prop::sample::select(vec![Method::GET, Method::POST]));
    let header = prop::option::of(prop::sample::select(vec!["1", "2"]));
    (method, header).prop_map(|(method, header)| {
        let header = header
            .map(|value| (HeaderName::from_static("x-a"), HeaderCondition::Exactly(HeaderValue::from_static(value))));
        let conditions = Conditions { method, headers: header.into_iter().collect(), parameters: Vec::new() };
        (!conditions.is_empty()).then(|| Box::new(conditions))
    })
}

type ConditionalPath = (PathMatch, Option<Box<Conditions>>);

/// Hosts of a listener, with the rules of each in order of precedence.
fn listener(hosts: Vec<(String, Vec<ConditionalPath>)>) -> Listener {
    let mut listener = Listener::new(ListenerProtocol::Http);
    for (text, mut rules) in hosts {
        let pattern = HostPattern::parse_suffix(&text).expect("valid pattern");
        rules.sort_by(|(one, _), (other, _)| one.cmp(other));
        let rules = rules
            .into_iter()
            .enumerate()
            .map(|(number, (path, conditions))| Rule { conditions, ..rule(path, &format!("{pattern} {number}")) })
            .collect();
        listener.hosts.insert(pattern, Arc::new(HostRoutes { rules, ..HostRoutes::default() }));
    }
    listener
}

fn compile_listener(listener: &Listener) -> Routes {
    Routes::of_listener(None, listener, |_| UpstreamId(0), |_| Some(HostId(1)))
}

/// Tries every host from the most specific one, and every rule in order of precedence.
fn listener_oracle(listener: &Listener, host: &str, path: &str, head: &RequestHead<'_>) -> Option<String> {
    let mut hosts: Vec<_> = listener.hosts.iter().filter(|(pattern, _)| pattern.matches(host)).collect();
    hosts.sort_by_key(|(pattern, _)| match pattern {
        HostPattern::Exact(_) => (0, 0),
        HostPattern::Wildcard(_) | HostPattern::Any => (2, 0),
        HostPattern::Suffix(base) => (1, usize::MAX - base.as_str().len()),
    });
    let fits = |rule: &&Rule| {
        rule.path.matches(path) && rule.conditions.as_ref().is_none_or(|conditions| conditions.hold(head))
    };
    let rule = hosts.into_iter().flat_map(|(_, routes)| &routes.rules).find(fits)?;
    Some(rule.owner.to_string())
}

proptest! {
    #[test]
    fn a_listener_equals_the_naive_oracle(
        hosts in prop::collection::vec(
            (
                prop_oneof![Just(String::new()), "[ab]\\.[ab]\\.t", "[ab]\\.t", "\\*\\.[ab]\\.t", "\\*\\.t"],
                prop::collection::vec((
                    ("(/[ab]{1,2}){0,2}/?", any::<bool>()).prop_filter_map("empty", |(text, is_exact)| {
                        if is_exact { PathMatch::exact(&text).ok() } else { PathMatch::prefix(&text).ok() }
                    }),
                    any_conditions(),
                ), 0..20),
            ),
            0..6,
        ),
        requests in prop::collection::vec(
            (
                "([ab]\\.){0,3}t",
                "(/[ab]{0,2}){1,3}",
                prop::sample::select(vec![Method::GET, Method::POST, Method::PUT]),
                prop::option::of(prop::sample::select(vec!["1", "2", "3"])),
            ),
            1..20,
        ),
    ) {
        let listener = listener(hosts);
        let routes = compile_listener(&listener);
        for (host, path, method, value) in requests {
            let mut headers = HeaderMap::new();
            value.map(|value| headers.insert("x-a", HeaderValue::from_static(value)));
            let head = RequestHead { method: &method, headers: &headers, target: None };
            let found = match routes.find(&host, &path, &head).matched {
                Matched::Route(route) => Some(route.owner.to_string()),
                Matched::Default(_) | Matched::Nothing | Matched::Costly => None,
            };
            prop_assert_eq!(found, listener_oracle(&listener, &host, &path, &head), "{} {} {:?}", host, path, head);
        }
    }
}

#[test]
fn a_listener_falls_through_to_less_specific_hosts() {
    let prefixes = |paths: &[&str]| paths.iter().map(|path| (prefix(path), None)).collect();
    let listener = listener(vec![
        ("a.b.test".into(), prefixes(&["/x"])),
        ("*.b.test".into(), prefixes(&["/y"])),
        ("*.test".into(), prefixes(&["/z"])),
        (String::new(), prefixes(&["/any"])),
    ]);
    let routes = compile_listener(&listener);
    for (host, path, expect) in [
        ("a.b.test", "/x", Some("a.b.test 0")),
        ("a.b.test", "/y", Some("*.b.test 0")),
        ("a.b.test", "/z", Some("*.test 0")),
        ("a.b.test", "/any", Some("* 0")),
        ("a.b.test", "/none", None),
        ("d.c.b.test", "/y", Some("*.b.test 0")),
        ("b.test", "/y", None),
        ("b.test", "/z", Some("*.test 0")),
    ] {
        assert_eq!(found(&routes, host, path).as_deref(), expect, "{host} {path}");
    }
    let missed = routes.find("a.b.test", "/none", &RequestHead::bare()).host.map(|host| host.pattern.to_string());
    assert_eq!(missed.as_deref(), Some("a.b.test"), "a request without a rule counts for the most specific host");
}

#[test]
fn weighted_backends_share_requests_exactly() {
    let backend = |weight, target| WeightedBackend { weight, target, filters: Vec::new() };
    let key = |name| Ok(UpstreamKey::new("default", name, "80"));
    let backends = [backend(70, key("a")), backend(0, key("b")), backend(30, Err(Unavailable::InvalidReference))];
    assert!(WeightedBackends::new([backend(0, key("a"))]).is_none());
    let action = Action::Weighted(Arc::new(WeightedBackends::new(backends).expect("two")));
    let RouteTarget::Weighted(shares) = RouteTarget::compile(&action, &mut |_| UpstreamId(7)) else {
        panic!("weighted")
    };
    let chosen: Vec<_> = (0..1_000).map(|_| shares.choose().expect("one").target).collect();
    let taken = chosen.iter().filter(|target| **target == Ok(UpstreamId(7))).count();
    assert!((695..=705).contains(&taken), "{taken}");
    assert!(chosen.iter().all(|target| matches!(target, Ok(UpstreamId(7)) | Err(Unavailable::InvalidReference))));
}
