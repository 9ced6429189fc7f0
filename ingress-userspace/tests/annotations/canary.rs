//! Canaries: some requests of a rule go to other pods.

use super::{Ingress, Site};
use ingress_proxy_testing::Origin;

/// A canary for `a.test` with these annotations, which leads to `pod`; and that pod's service.
fn canary(name: &str, annotations: &str, pod: &Origin) -> String {
    let (ip, port) = (pod.address.ip(), pod.address.port());
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  namespace: default\n  annotations:\n    \
         nginx.ingress.kubernetes.io/canary: \"true\"\n{annotations}\
         spec:\n  ingressClassName: xdp\n  rules:\n  - host: a.test\n    http:\n      paths:\n      \
         - {{path: /, pathType: Prefix, backend: {{service: {{name: {name}, port: {{number: 80}}}}}}}}\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{ports: [{{port: 80}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}\n  namespace: default\n  \
         labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\nports: [{{port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]\n"
    )
}

fn annotation(key: &str, value: &str) -> String {
    format!("    nginx.ingress.kubernetes.io/{key}: {value:?}\n")
}

/// Returns how many of 400 requests `name` answers.
fn share(site: &Site, name: &str) -> usize {
    let mut client = site.client();
    (0..400).filter(|_| client.get("a.test", "/").text() == name).count()
}

#[test]
fn shares_follow_weights() {
    let (main, first, second) = (Origin::answering("main"), Origin::answering("first"), Origin::answering("second"));
    let tenth = canary("first", &annotation("canary-weight", "25"), &first);
    let half = canary("second", &(annotation("canary-weight", "1") + &annotation("canary-weight-total", "2")), &second);
    let site = Ingress::with(&[]).beside(&tenth).beside(&half).serve(&main).in_order();
    // Five standard deviations, which one run in two million exceeds.
    for (name, expect) in [("main", 100_usize), ("first", 100), ("second", 200)] {
        let found = share(&site, name);
        assert!(found.abs_diff(expect) < 50, "{name}: {found}");
    }
    let all = canary("first", &annotation("canary-weight", "100"), &first);
    assert_eq!(share(&Ingress::with(&[]).beside(&all).serve(&main).in_order(), "first"), 400);
    let none = canary("first", "", &first);
    assert_eq!(share(&Ingress::with(&[]).beside(&none).serve(&main).in_order(), "main"), 400);
}

#[test]
fn headers_and_cookies_select_the_canary() {
    let (main, other) = (Origin::answering("main"), Origin::answering("canary"));
    let serve =
        |annotations: &str| Ingress::with(&[]).beside(&canary("canary", annotations, &other)).serve(&main).in_order();
    let header = annotation("canary-by-header", "X-Canary");
    let by_word = serve(&(header.clone() + &annotation("canary-by-cookie", "beta")));
    let by_value = serve(&(header.clone() + &annotation("canary-by-header-value", "eu")));
    let by_pattern = serve(&(header + &annotation("canary-by-header-pattern", "^eu-|test")));
    for (site, fields, expect) in [
        (&by_word, "", "main"),
        (&by_word, "X-Canary: always\r\n", "canary"),
        (&by_word, "X-Canary: never\r\nCookie: beta=always\r\n", "main"),
        (&by_word, "X-Canary: perhaps\r\nCookie: beta=always\r\n", "canary"),
        (&by_word, "Cookie: beta=never\r\n", "main"),
        (&by_value, "X-Canary: eu\r\n", "canary"),
        (&by_value, "X-Canary: always\r\n", "main"),
        (&by_pattern, "X-Canary: eu-west\r\n", "canary"),
        (&by_pattern, "X-Canary: us-west\r\n", "main"),
    ] {
        assert_eq!(site.ask("/", fields).text(), expect, "{fields}");
    }
}

/// Returns the answers to a client that sends its latest cookies back, from its first request on, and the number of
/// cookies set.
fn stay(site: &Site, requests: usize) -> (Vec<String>, usize) {
    let (mut cookie, mut set) = (String::new(), 0);
    let answers = (0..requests).map(|_| {
        let response = site.ask("/", &cookie);
        if let Some(value) = response.header("set-cookie") {
            cookie = format!("Cookie: {}\r\n", value.split_once(';').expect("attributes").0);
            set += 1;
        }
        response.text().to_owned()
    });
    (answers.collect(), set)
}

#[test]
fn a_session_stays_with_the_canary_or_main_rule_it_began_with() {
    let pods = [Origin::answering("a"), Origin::answering("b")];
    let endpoints = pods.each_ref().map(|pod| pod.address);
    let other = Origin::answering("canary");
    for mode in ["balanced", "persistent"] {
        let affinity = [("affinity", "cookie"), ("affinity-mode", mode), ("session-cookie-name", "sid")];
        let half = annotation("canary-weight", "50");
        let sticky =
            Ingress::with(&affinity).beside(&canary("canary", &half, &other)).serve_from(&endpoints).in_order();
        let mut first = std::collections::BTreeSet::new();
        for _ in 0..40 {
            let (answers, set) = stay(&sticky, 8);
            assert!(answers.iter().all(|answer| *answer == answers[0]) && set == 1, "{mode}: {answers:?} {set}");
            first.insert(answers[0].clone());
        }
        assert_eq!(first.len(), 3, "{mode}");
        let legacy = half + &annotation("affinity-canary-behavior", "legacy");
        let legacy =
            Ingress::with(&affinity).beside(&canary("canary", &legacy, &other)).serve_from(&endpoints).in_order();
        let (answers, set) = stay(&legacy, 60);
        let main: std::collections::BTreeSet<_> = answers.iter().filter(|answer| *answer != "canary").collect();
        let canaries = answers.iter().filter(|answer| *answer == "canary").count();
        assert!(main.len() == 1 && canaries > 0 && set == 1, "{mode}: {answers:?} {set}");
    }
}

#[test]
fn a_session_with_a_removed_canary_starts_over() {
    let (main, other) = (Origin::answering("main"), Origin::answering("canary"));
    let affinity = [("affinity", "cookie"), ("session-cookie-name", "sid")];
    let all = canary("canary", &annotation("canary-weight", "100"), &other);
    let with = Ingress::with(&affinity).beside(&all).serve(&main).in_order();
    let first = with.get("/");
    assert_eq!(first.text(), "canary");
    let cookie = first.header("set-cookie").expect("a cookie").split_once(';').expect("attributes").0.to_owned();
    let without = Ingress::with(&affinity).serve(&main).in_order();
    let moved = without.ask("/", &format!("Cookie: {cookie}\r\n"));
    assert_eq!(moved.text(), "main");
    let cookie = moved.header("set-cookie").expect("a new cookie").split_once(';').expect("attributes").0.to_owned();
    // Its session was with the rule's own pods before the canary existed, and stays there.
    assert_eq!(with.ask("/", &format!("Cookie: {cookie}\r\nX-Canary: always\r\n")).text(), "main");
}

#[test]
fn a_canary_uses_the_annotations_of_the_main_ingress() {
    let (main, other) = (Origin::mirror(), Origin::mirror());
    let all = annotation("canary-weight", "100") + &annotation("denylist-source-range", "0.0.0.0/0");
    let site = Ingress::with(&[("rewrite-target", "/$1")])
        .path("/(.*)", "ImplementationSpecific")
        .beside(&canary("canary", &all, &other).replace("path: /,", "path: /(.*),"))
        .serve(&main)
        .in_order();
    let response = site.get("/x");
    assert!(response.status == 200 && response.text().starts_with("get /x "), "{}", response.text());
    assert_eq!((main.connections(), other.connections()), (0, 1));
}

#[test]
fn a_canary_that_cannot_serve_gets_no_requests() {
    let (main, other) = (Origin::answering("main"), Origin::answering("canary"));
    let all = annotation("canary-weight", "100");
    let missing = canary("canary", &all, &other).replace("name: canary, port", "name: nope, port");
    let site = Ingress::with(&[]).beside(&missing).serve(&main);
    assert_eq!(site.get("/").text(), "main");
    assert!(site.outcomes.contains("`default/nope` does not exist"), "{}", site.outcomes);
    let empty = canary("canary", &all, &other).split("---").take(2).collect::<Vec<_>>().join("---");
    assert_eq!(Ingress::with(&[]).beside(&empty).serve(&main).get("/").text(), "main");
    let unreadable = canary("canary", &annotation("canary-weight", "most"), &other);
    let site = Ingress::with(&[]).beside(&unreadable).serve(&main);
    assert_eq!(site.get("/").text(), "main");
    assert!(site.outcomes.contains("InvalidAnnotation"), "{}", site.outcomes);
}

#[test]
fn a_canary_gets_no_requests_of_another_namespace() {
    let (main, other) = (Origin::answering("main"), Origin::answering("canary"));
    let all =
        canary("canary", &annotation("canary-weight", "100"), &other).replace("namespace: default", "namespace: evil");
    let site = Ingress::with(&[]).beside(&all).serve(&main);
    assert_eq!((site.get("/").text(), other.connections()), ("main", 0));
    assert!(site.outcomes.contains("HostPathConflict Ingress evil/canary"), "{}", site.outcomes);
}

#[test]
fn a_canary_without_a_main_ingress_serves_nothing() {
    let (main, other) = (Origin::answering("main"), Origin::answering("canary"));
    let all = annotation("canary-weight", "100");
    let elsewhere = canary("canary", &all, &other).replace("path: /,", "path: /other,");
    let site = Ingress::with(&[]).path("/app", "Prefix").beside(&elsewhere).serve(&main);
    assert_eq!(site.get("/other").status, 404);
    assert!(site.outcomes.contains("CanaryWithoutMain"), "{}", site.outcomes);
    let host = canary("canary", &all, &other).replace("a.test", "b.test");
    let site = Ingress::with(&[]).beside(&host).serve(&main);
    assert_eq!(site.client().get("b.test", "/").status, 404);
    assert!(site.outcomes.contains("CanaryWithoutMain"), "{}", site.outcomes);
}
