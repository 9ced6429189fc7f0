//! Explanations against the lookup of the request path, and texts for typical URLs.

use std::sync::Arc;

use ingress_model::{
    Authorities, ClientCertificates, Demand, HostId, PathPattern, Redirect, RequestHead, Split, Template, Unavailable,
    Upstream,
    route::{Matched, Routes, UpstreamId},
};
use proptest::prelude::*;

use super::*;

fn rule(path: PathMatch, owner: &str) -> Rule {
    let action = Action::Forward(UpstreamKey::new("default", "web", "80"));
    Rule { path, owner: owner.into(), filters: Vec::new(), action, forwarding: Arc::default(), conditions: None }
}

fn table(hosts: Vec<(HostPattern, Vec<PathMatch>, bool)>) -> RouteTable {
    let mut table = RouteTable::default();
    for (pattern, mut paths, has_fallback) in hosts {
        paths.sort();
        paths.dedup();
        let owner = |path: &str| format!("{pattern}/{path}");
        let rules = paths.iter().map(|path| rule(path.clone(), &owner(&path.to_string()))).collect();
        let fallback = has_fallback.then(|| Box::new(rule(PathMatch::Prefix("/".into()), &owner("fallback"))));
        table.hosts.insert(pattern, Arc::new(HostRoutes { rules, fallback, ..HostRoutes::default() }));
    }
    let pods = Upstream {
        endpoints: vec![ingress_model::Endpoint { address: ([10, 0, 0, 1], 8080).into() }],
        ..Upstream::default()
    };
    table.upstreams.insert(UpstreamKey::new("default", "web", "80"), Arc::new(pods));
    table
}

fn host(text: &str) -> HostPattern {
    HostPattern::parse(text).expect("a host")
}

fn prefix(text: &str) -> PathMatch {
    PathMatch::prefix(text).expect("a path")
}

fn explained(table: &RouteTable, url: &str) -> Explanation {
    explain(table, url).expect("a URL")
}

#[test]
fn other_rules_are_listed_with_their_reasons() {
    let exact = PathMatch::exact("/a/b").expect("a path");
    let table =
        table(vec![(host("a.test"), vec![prefix("/a"), prefix("/"), prefix("/b"), prefix("/a/b/c"), exact], false)]);
    let explanation = explained(&table, "https://A.test:8443/a/./bc?token=hunter2#top");
    assert_eq!((&*explanation.host, &*explanation.path), ("a.test", "/a/bc"));
    assert_eq!(explanation.verdict, Verdict::Forwarded);
    assert_eq!(explanation.summary, "Ingress `a.test//a` sends the request to `default/web:80` (one pod).");
    let reasons: Vec<_> =
        explanation.considered.iter().map(|c| (c.path.as_deref().unwrap_or("-"), &*c.reason)).collect();
    assert_eq!(
        reasons,
        [
            ("/a/b", "the path is not exactly this one"),
            ("/a/b/c", "the path is not below this prefix"),
            ("/b", "the path is not below this prefix"),
            ("/", "it matches, too, but the chosen rule has precedence"),
        ]
    );
    let text = serde_json::to_string(&explanation).expect("JSON");
    assert!(!text.contains("hunter2"), "{text}");
    let partial = explained(&table, "a.test/ab");
    let reason = partial.considered.iter().find(|c| c.path.as_deref() == Some("/a")).map(|c| &*c.reason);
    assert_eq!(reason, Some("the prefix ends within an element of the path; prefixes match whole elements"));
}

#[test]
fn the_most_specific_host_decides_alone() {
    let table = table(vec![(host("a.test"), vec![prefix("/x")], false), (host("*.test"), vec![prefix("/")], false)]);
    let explanation = explained(&table, "http://a.test/y");
    assert_eq!(explanation.verdict, Verdict::NotFound);
    assert_eq!(explanation.summary, "The request gets 404, because no rule of `a.test` matches the path.");
    assert_eq!(explanation.hosts, ["a.test", "*.test"]);
    assert_eq!(explained(&table, "http://b.test/y").verdict, Verdict::Forwarded);
    let unknown = explained(&table, "http://a.example/");
    assert_eq!(unknown.summary, "The request gets 404, because no host of the configuration matches.");
}

#[test]
fn redirects_and_refusals_name_their_ingress() {
    let mut table = RouteTable::default();
    let redirect = Filter::RedirectHttps { status: 308, except: Arc::new([prefix("/plain")]) };
    let mut secure = rule(prefix("/"), "a/web");
    secure.filters.push(redirect);
    let mut broken = rule(prefix("/broken"), "a/broken");
    broken.action = Action::Refuse(Unavailable::NoService);
    let mut moved = rule(prefix("/moved"), "a/moved");
    let location = Template::parse("https://b.test/?token=hunter2").expect("a template");
    moved.action = Action::Redirect(Arc::new(Redirect { status: 301, location: location.into() }));
    let rules = vec![broken, moved, secure];
    table.hosts.insert(host("a.test"), Arc::new(HostRoutes { rules, ..HostRoutes::default() }));
    let summary = |url| explained(&table, url).summary;
    assert_eq!(summary("http://a.test/x"), "Ingress `a/web` redirects the request to HTTPS with 308.");
    assert!(summary("http://a.test/plain/x").contains("sends the request"));
    assert!(summary("http://a.test/.well-known/acme-challenge/x").contains("sends the request"));
    assert!(summary("https://a.test/broken").contains("answers 503: no such service"));
    assert_eq!(
        summary("https://a.test/moved"),
        "Ingress `a/moved` redirects the request to `https://b.test/?…` with 301."
    );
}

#[test]
fn only_upstreams_of_the_scheme_are_named() {
    let mut table = RouteTable::default();
    let [clear, over_tls] = ["80", "80+https"].map(|port| UpstreamKey::new("a", "web", port));
    let mut by_scheme = rule(prefix("/"), "a/web");
    let split = Split { main: clear.clone(), canaries: Vec::new(), over_tls: vec![(clear, over_tls)] };
    by_scheme.action = Action::Split(Arc::new(split));
    table.hosts.insert(host("a.test"), Arc::new(HostRoutes { rules: vec![by_scheme], ..HostRoutes::default() }));
    for (url, upstream) in [("http://a.test/", "a/web:80"), ("https://a.test/", "a/web:80+https")] {
        let summary = explained(&table, url).summary;
        assert_eq!(summary, format!("Ingress `a/web` sends the request to `{upstream}` (0 pods)."));
    }
}

#[test]
fn plain_http_is_refused_where_client_certificates_are_required() {
    let mut table = RouteTable::default();
    let clients = Arc::new(ClientCertificates {
        authorities: Arc::new(Authorities { origin: "a/ca".into(), certificates: Vec::new() }),
        revoked: Vec::new(),
        demand: Demand::Required,
        depth: 1,
        passed: false,
        name: None,
        error_page: None,
    });
    let mut protected = rule(prefix("/"), "a/web");
    protected.filters.push(Filter::ClientCertificate(Arc::clone(&clients)));
    let routes = HostRoutes { rules: vec![protected], clients: Some(clients), ..HostRoutes::default() };
    table.hosts.insert(host("a.test"), Arc::new(routes));
    let plain = explained(&table, "http://a.test/");
    assert_eq!(plain.verdict, Verdict::Refused);
    assert_eq!(plain.summary, "Ingress `a/web` requires client certificates, so plain HTTP gets 403.");
    let secure = explained(&table, "https://a.test/");
    assert_eq!(secure.verdict, Verdict::Forwarded);
    assert!(secure.notes.iter().any(|note| note.contains("request a client certificate")), "{:?}", secure.notes);
}

#[test]
fn refused_paths_are_explained() {
    let table = table(vec![(host("a.test"), vec![prefix("/a/b"), prefix("/")], false)]);
    let summary = |url| explained(&table, url).summary;
    assert_eq!(summary("https://a.test/../x"), "The request is refused with 400: path leads above the root.");
    assert!(summary("https://a.test/a%2fb").contains("pods may read the path as `/a/b`"));
}

#[test]
fn certificates_follow_the_server_name() {
    let mut table = table(vec![(host("a.test"), vec![prefix("/")], false)]);
    table.server_names.insert(host("a.test"), Some("a/cert".into()));
    table.server_names.insert(host("*.test"), None);
    table.fallback_certificate = Some("ops/default".into());
    let certificate = |url| {
        let CertificateChoice { server_name, secret, is_fallback } = explained(&table, url).certificate?;
        Some((server_name?, secret?, is_fallback))
    };
    assert_eq!(certificate("https://a.test/"), Some(("a.test".into(), "a/cert".into(), false)));
    assert_eq!(certificate("https://b.test/"), Some(("*.test".into(), "ops/default".into(), true)));
    assert_eq!(certificate("http://a.test/"), None);
}

#[test]
fn what_is_no_url_gets_a_clear_error() {
    let table = RouteTable::default();
    let error = |url| explain(&table, url).expect_err("no URL").to_string();
    assert_eq!(error("ftp://a.test/"), "`ftp` is no scheme of this controller; use `http` or `https`");
    assert!(error("https://").starts_with("`https://` is no URL"));
    assert!(error("https://a b/").starts_with("`https://a b/` is no URL"));
    assert!(error("https://10.0.0.1/").contains("IP address"));
}

fn any_path() -> impl Strategy<Value = PathMatch> {
    let plain = ("(/[ab]{1,2}){0,3}/?", any::<bool>()).prop_filter_map("empty", |(text, is_exact)| {
        if is_exact { PathMatch::exact(&text).ok() } else { PathMatch::prefix(&text).ok() }
    });
    let pattern = prop::sample::select(vec!["/", "/a", "/a(.*)", "/[ab]/.*a", "/.*/b{2}", "/a(/|$)(.*)"]);
    let pattern = pattern
        .prop_map(|text| PathMatch::Pattern(Arc::new(PathPattern::parse(text, usize::MAX).expect("an expression"))));
    prop_oneof![3 => plain, 1 => pattern]
}

proptest! {
    #[test]
    fn explanations_agree_with_the_request_path(
        hosts in prop::collection::vec(
            (prop::sample::select(vec!["a.t", "b.a.t", "*.a.t", "*.t", "x.t"]), prop::collection::vec(any_path(), 0..20), any::<bool>()),
            0..5,
        ),
        requests in prop::collection::vec(("([ab]\\.){1,2}t", "(/[ab]{0,2}){1,4}"), 1..20),
    ) {
        let table = table(hosts.into_iter().map(|(name, paths, fallback)| (host(name), paths, fallback)).collect());
        let routes = Routes::compile(None, &table, |_| UpstreamId(0), |_| Some(HostId(1)));
        for (name, path) in requests {
            let explanation = explained(&table, &format!("https://{name}{path}"));
            let found = match routes.find(&name, &explanation.path, &RequestHead::bare()).matched {
                Matched::Route(route) => Some(route.owner.to_string()),
                _ => None,
            };
            prop_assert_eq!(explanation.route.map(|route| route.ingress), found, "{} {}", name, path);
        }
    }
}
