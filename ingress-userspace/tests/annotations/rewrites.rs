//! Paths that are regular expressions, and the paths that pods receive instead.

use super::Ingress;
use ingress_proxy_testing::Origin;

fn seen(ingress: &Ingress, path: &str) -> String {
    let origin = Origin::mirror();
    let response = ingress.serve(&origin).in_order().get(path);
    match response.status {
        200 => response.text().lines().next().unwrap_or_default().to_owned(),
        status => status.to_string(),
    }
}

#[test]
fn capture_groups_form_the_target() {
    let ingress = Ingress::with(&[("rewrite-target", "/$2")]).path("/api(/|$)(.*)", "ImplementationSpecific");
    for (path, expect) in [
        ("/api/x/y?q=1", "get /x/y?q=1 http/1.1"),
        ("/api", "get / http/1.1"),
        ("/API/X", "get /x http/1.1"),
        ("/api/%2E%2e/x", "404"),
        ("/apix", "404"),
        ("/x/api/", "404"),
    ] {
        assert_eq!(seen(&ingress, path), expect, "{path}");
    }
    let prefix = Ingress::with(&[("rewrite-target", "/new")]).path("/old", "Prefix");
    assert_eq!(seen(&prefix, "/old/below"), "get /new http/1.1");
    let exact = Ingress::with(&[("rewrite-target", "/new")]).path("/old", "Exact");
    assert_eq!((seen(&exact, "/old"), seen(&exact, "/old/below")), ("get /new http/1.1".into(), "404".into()));
}

#[test]
fn targets_that_are_urls_redirect_clients() {
    let origin = Origin::answering("pod");
    let ingress =
        Ingress::with(&[("rewrite-target", "https://b.test/new/$1")]).path("/old/(.*)", "ImplementationSpecific");
    let site = ingress.serve(&origin).in_order();
    for (path, expect) in [("/old/x/y", "https://b.test/new/x/y"), ("/OLD/x?a=b", "https://b.test/new/x?a=b")] {
        let response = site.get(path);
        assert_eq!((response.status, response.header("location")), (302, Some(expect)), "{path}");
    }
    let refused = Ingress::with(&[("rewrite-target", "https://$1.b.test/")]);
    assert_eq!(refused.serve(&origin).get("/a").status, 503);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn rewritten_targets_cannot_leave_their_prefix() {
    let ingress = Ingress::with(&[("rewrite-target", "/files/$1")]).path("/static(.*)", "ImplementationSpecific");
    let origin = Origin::mirror();
    let site = ingress.serve(&origin).in_order();
    for (path, expect) in [
        ("/static../secret", "400"),
        ("/static..", "400"),
        (r"/static..\secret", "400"),
        ("/static..%2fsecret", "400"),
        ("/static..%5Csecret", "400"),
        ("/static..;/secret", "400"),
        ("/static..;a=b%2fsecret", "400"),
        ("/static./secret", "400"),
        ("/static/a", "get /files/a http/1.1"),
        ("/static/..a/b..?x=/../y", "get /files/..a/b..?x=/../y http/1.1"),
        ("/statica%2fb;c", "get /files/a%2fb;c http/1.1"),
    ] {
        let response = site.get(path);
        let seen = match response.status {
            200 => response.text().lines().next().unwrap_or_default().to_owned(),
            status => status.to_string(),
        };
        assert_eq!(seen, expect, "{path}");
    }
}

#[test]
fn use_regex_makes_paths_regular_expressions() {
    let ingress = Ingress::with(&[("use-regex", "true")]).path("/v[0-9]+/.*", "ImplementationSpecific");
    assert_eq!(seen(&ingress, "/V12/x"), "get /v12/x http/1.1");
    assert_eq!(seen(&ingress, "/vx/x"), "404");
    let plain = Ingress::with(&[]).path("/v[0-9]+", "Prefix");
    assert_eq!(seen(&plain, "/v1"), "404");
}

#[test]
fn rewrite_targets_accept_only_capture_groups() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[("rewrite-target", "/$http_x_tenant/$1")]).serve(&origin);
    assert_eq!(site.get("/").status, 503);
    assert!(site.outcomes.contains("only groups"), "{}", site.outcomes);
}

#[test]
fn an_unsupported_expression_affects_only_its_path() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[("use-regex", "true")]).path("/(?!api).*", "Prefix").path("/ok", "Prefix");
    let site = ingress.serve(&origin);
    assert_eq!((site.get("/x").status, site.get("/ok").status), (404, 200));
    assert!(site.outcomes.contains("look-around"), "{}", site.outcomes);
}

#[test]
fn only_paths_that_take_too_long_to_match_are_refused() {
    let origin = Origin::mirror();
    let mut ingress = Ingress::with(&[("use-regex", "true")]).path("/other", "Prefix");
    for number in 0..40 {
        ingress = ingress.path(&format!("/(a|b)*a(a|b){{{}}}{number}", 100 + number), "ImplementationSpecific");
    }
    let site = ingress.serve(&origin).in_order();
    let mut seed = 7_u32;
    let mut coins = |length: u32| -> String {
        let coin = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if seed >> 31 == 0 { 'a' } else { 'b' }
        };
        (0..length).map(coin).collect()
    };
    for attempt in 0..5 {
        assert_eq!(site.get(&format!("/{}", coins(6_000))).status, 414, "{attempt}");
    }
    assert_eq!(site.proxy.shared.stats().costly_paths, 5);
    assert_eq!((site.get("/other").status, site.get("/abba").status), (200, 404));

    // Capturing its groups may take long, although the match does not.
    let ingress = Ingress::with(&[("rewrite-target", "/$1")]).path("/((a?b?){200}.*)*", "ImplementationSpecific");
    let site = ingress.serve(&origin).in_order();
    assert_eq!((site.get(&format!("/{}", "ab".repeat(3_000))).status, site.get("/abba").status), (414, 200));
}
