//! Cost of the rule lookup for a request: host and path in normal form, and the rule among those of many hosts.

use std::{cell::LazyCell, hint::black_box, sync::Arc};

use criterion::{BenchmarkId, Criterion};
use ingress_model::request_path::normalise;
use ingress_model::route::{Matched, Routes, UpstreamId};
use ingress_model::{Action, HostId, HostPattern, HostRoutes, PathMatch, RequestHead, RouteTable, Rule, UpstreamKey};
use ingress_proxy::Authority;

use super::{counts, scattered};

/// Name of a case, the host and path of the request with a number, and whether a rule exists for it.
type Case = (&'static str, fn(usize) -> (String, String), bool);

const CASES: [Case; 4] = [
    ("exact host", |number| (format!("h{number}.bench.test"), "/items/7".to_owned()), true),
    ("wildcard host", |number| (format!("a.w{}.bench.test", number / 10), "/items/7".to_owned()), true),
    (
        "deep path",
        |number| ("paths.bench.test".to_owned(), format!("/team{}/v1/items/7/of/this/year", number % TEAMS)),
        true,
    ),
    ("unknown host", |number| (format!("u{number}.bench.test"), "/items/7".to_owned()), false),
];

/// Number of teams, each with two prefixes at the host with many paths.
const TEAMS: usize = 50;

pub(crate) fn bench(criterion: &mut Criterion) {
    normal_forms(criterion);
    patterns(criterion);
    let mut group = criterion.benchmark_group("find");
    for &count in counts() {
        let routes = LazyCell::new(|| compile(count));
        for (name, request, is_known) in CASES {
            // Hosts alternate, so that with many of them their entries are not cached, as with most real requests.
            let requests = LazyCell::new(|| {
                let requests: Vec<_> = (0..count).map(|turn| request(scattered(turn, count))).collect();
                for (host, path) in &requests {
                    let is_found = matches!(routes.find(host, path, &RequestHead::bare()).matched, Matched::Route(_));
                    assert_eq!(is_found, is_known, "{host}{path}");
                }
                requests
            });
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                let routes: &Routes = &routes;
                let mut requests = requests.iter().cycle();
                bencher.iter(|| {
                    let (host, path) = requests.next().expect("another one");
                    routes.find(host, path, &RequestHead::bare()).matched
                });
            });
        }
    }
    group.finish();
}

fn normal_forms(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("normal form");
    for (name, text) in [("host", "shop.bench.test"), ("host to be changed", "Shop.Bench.Test:8080")] {
        group.bench_function(name, |bencher| bencher.iter(|| Authority::parse(black_box(text))));
    }
    for (name, text) in [("path", "/team7/v1/items/7"), ("path to be changed", "/team7//v1/%69tems/all/../7")] {
        group.bench_function(name, |bencher| bencher.iter(|| normalise(black_box(text))));
    }
    group.finish();
}

/// Compiles `count` hosts, a wildcard for every tenth, and one host with many paths.
fn compile(count: usize) -> Routes {
    let (owner, forwarding): (Arc<str>, _) = ("bench/i".into(), Arc::default());
    let action = Action::Forward(UpstreamKey::new("bench", "s", "80"));
    let rule = |path: PathMatch| Rule {
        path,
        owner: Arc::clone(&owner),
        conditions: None,
        filters: Vec::new(),
        action: action.clone(),
        forwarding: Arc::clone(&forwarding),
    };
    let mut table = RouteTable::default();
    let mut add = |pattern: &str, paths: &[String]| {
        let mut paths: Vec<_> = paths.iter().map(|path| PathMatch::prefix(path).expect("a path")).collect();
        paths.sort();
        let routes = HostRoutes { rules: paths.into_iter().map(rule).collect(), ..HostRoutes::default() };
        table.hosts.insert(HostPattern::parse(pattern).expect("a pattern"), Arc::new(routes));
    };
    let all = ["/".to_owned()];
    for number in 0..count {
        add(&format!("h{number}.bench.test"), &all);
    }
    for number in 0..count / 10 {
        add(&format!("*.w{number}.bench.test"), &all);
    }
    // The longer prefix does not match the request, but its length determines the start of the search.
    let paths = |team: usize| [format!("/team{team}/v1/items"), format!("/team{team}/v1/items/of/every/single/year")];
    add("paths.bench.test", &(0..TEAMS).flat_map(paths).collect::<Vec<_>>());
    Routes::compile(None, &table, |_| UpstreamId(0), |_| Some(HostId(1)))
}

/// Measures regular expressions of one host: the cost of a request hardly depends on their number.
fn patterns(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find");
    for count in [1_usize, 1_000] {
        let mut table = RouteTable::default();
        let text = |number| format!("/a-{number}/[0-9]+");
        let pattern = |text: &str| PathMatch::pattern_within(text, usize::MAX).expect("a pattern");
        let mut paths: Vec<_> = (0..count).map(|number| PathMatch::Pattern(Arc::new(pattern(&text(number))))).collect();
        paths.sort();
        let rules = paths.into_iter().map(rule).collect();
        let any = Arc::new(HostRoutes { rules, ..HostRoutes::default() });
        table.hosts.insert(HostPattern::parse("h.bench.test").expect("a pattern"), any);
        let routes = Routes::compile(None, &table, |_| UpstreamId(0), |_| Some(HostId(1)));
        let paths: Vec<_> = (0..count).map(|turn| format!("/a-{}/12345", scattered(turn, count))).collect();
        group.bench_function(BenchmarkId::new("regular expression", count), |bencher| {
            let mut paths = paths.iter().cycle();
            bencher.iter(|| {
                let found =
                    routes.find("h.bench.test", paths.next().expect("another one"), &RequestHead::bare()).matched;
                assert!(matches!(found, Matched::Route(_)));
            });
        });
    }
    group.finish();
}

fn rule(path: PathMatch) -> Rule {
    let action = Action::Forward(UpstreamKey::new("bench", "s", "80"));
    Rule { path, owner: "bench/i".into(), filters: Vec::new(), action, forwarding: Arc::default(), conditions: None }
}
