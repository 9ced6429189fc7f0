//! Aliases of hosts.

use super::Ingress;
use ingress_proxy_testing::{Origin, Response};

/// An Ingress of one path that leads to service `web`.
fn other(name: &str, host: &str, path: &str, annotations: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: default, annotations: {{{annotations}}}}}\n\
         spec:\n  ingressClassName: xdp\n  rules:\n  - host: {host}\n    http: {{paths: [{{path: {path}, pathType: Prefix, \
         backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}\n"
    )
}

const REDIRECT: &str = "xdp-ingress.io/permanent-redirect: 'https://other.test'";

fn location(response: &Response) -> (u16, &str) {
    (response.status, response.header("location").unwrap_or_default())
}

#[test]
fn a_host_is_reached_with_and_without_www() {
    let origin = Origin::answering("pod");
    for (host, from) in [("a.test", "www.a.test"), ("www.a.test", "a.test")] {
        let ingress = Ingress::with(&[("from-to-www-redirect", "true")]).on(host);
        let site = ingress.clone().path("/app", "Prefix").serve(&origin).in_order();
        assert_eq!(site.client().get(host, "/app").status, 200);
        let redirected = site.client().get(from, "/x?y=1");
        assert_eq!(location(&redirected), (308, &*format!("http://{host}/x?y=1")));
        let port = site.client().get(&format!("{from}:8080"), "/");
        assert_eq!(location(&port), (308, &*format!("http://{host}/")), "{from}");
        // A rule that names the host takes precedence.
        let taken = ingress.beside(&other("other", from, "/", REDIRECT)).serve(&origin);
        assert_eq!(location(&taken.client().get(from, "/")), (301, "https://other.test"));
        let told =
            format!("`from-to-www-redirect` does nothing for `{from}`, as Ingress `default/other` has rules for it");
        assert!(taken.outcomes.contains(&told), "{}", taken.outcomes);
    }
}

#[test]
fn each_ingress_of_a_host_may_redirect_to_it() {
    let origin = Origin::answering("pod");
    let same = other("other", "a.test", "/other", "xdp-ingress.io/from-to-www-redirect: 'true'");
    let site = Ingress::with(&[("from-to-www-redirect", "true")]).beside(&same).serve(&origin).in_order();
    assert_eq!(location(&site.client().get("www.a.test", "/other")), (308, "http://a.test/other"));
}

#[test]
fn an_alias_has_the_rules_of_its_host() {
    let origin = Origin::mirror();
    let aliases = ("server-alias", "b.test, C.test");
    let site = Ingress::with(&[aliases, ("response-headers", "X-Site: a")]).path("/app", "Prefix");
    let site = site.serve(&origin).in_order();
    for host in ["a.test", "b.test", "c.test"] {
        let response = site.client().get(host, "/app/x");
        assert_eq!((response.status, response.header("x-site")), (200, Some("a")));
        assert!(response.text().contains(&format!("host: {host}\r\n")), "{}", response.text());
        assert_eq!(site.client().get(host, "/x").status, 404);
    }
    // A rule that names the host takes all of it, however young.
    let site = Ingress::with(&[aliases]).path("/app", "Prefix").beside(&other("other", "b.test", "/other", ""));
    let site = site.serve(&origin);
    let statuses = [("b.test", "/app"), ("b.test", "/other"), ("c.test", "/app")];
    assert_eq!(statuses.map(|(host, path)| site.client().get(host, path).status), [404, 200, 200]);
    assert!(
        site.outcomes.contains("`server-alias` does nothing for `b.test`, as Ingress `default/other`"),
        "{}",
        site.outcomes
    );
}

#[test]
fn a_wildcard_alias_is_one_label_and_yields_to_rules() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[("server-alias", "*.b.test")]).path("/app", "Prefix");
    let site = ingress.beside(&other("other", "own.b.test", "/other", "")).serve(&origin);
    for (host, path, expect) in [
        ("x.b.test", "/app", 200),
        ("y.b.test", "/app", 200),
        ("x.b.test", "/other", 404),
        ("own.b.test", "/other", 200),
        ("own.b.test", "/app", 404),
        ("x.y.b.test", "/app", 404),
        ("b.test", "/app", 404),
    ] {
        assert_eq!(site.client().get(host, path).status, expect, "{host}{path}");
    }
}

#[test]
fn aliases_share_paths_as_hosts_do() {
    let origin = Origin::answering("pod");
    let alias = "xdp-ingress.io/server-alias: b.test";
    let ingress = Ingress::with(&[("server-alias", "b.test")]).path("/app", "Prefix");
    let both =
        ingress.beside(&other("other", "a.test", "/other", alias)).beside(&other("third", "d.test", "/app", alias));
    let site = both.serve(&origin);
    assert_eq!(["/app", "/other"].map(|path| site.client().get("b.test", path).status), [200, 200]);
    assert!(site.outcomes.contains("path `/app` of host `b.test` belongs to the older Ingress"), "{}", site.outcomes);
}

#[test]
fn invalid_names_are_reported() {
    let origin = Origin::answering("pod");
    for (key, value, expect) in [
        ("server-alias", "*.b.test", "is `*.b.test`: `*.` stands for exactly one label"),
        ("server-alias", "b.*", "write host names, separated by commas"),
        ("server-alias", "~^www\\d+$", "write host names, separated by commas"),
        ("server-alias", "a.test", "`server-alias` does nothing for `a.test`, which this Ingress serves anyway"),
        ("from-to-www-redirect", "on", "write \"true\" or \"false\""),
    ] {
        let site = Ingress::with(&[(key, value)]).serve(&origin);
        assert!(site.outcomes.contains(expect), "{value}: {}", site.outcomes);
        assert_eq!(site.get("/").status, 200);
    }
    let names: Vec<_> = (0..6000).map(|n| format!("{n}.b.test")).collect();
    let site =
        Ingress::with(&[("server-alias", &names.join(","))]).path("/a", "Exact").path("/b", "Exact").serve(&origin);
    assert!(site.outcomes.contains("`server-alias` has 6000 names for 2 paths, but 10000"), "{}", site.outcomes);
    assert_eq!(site.client().get("1.b.test", "/a").status, 404);
}
