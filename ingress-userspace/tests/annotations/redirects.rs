//! Redirects.

use super::Ingress;
use ingress_proxy_testing::Origin;

fn check(annotations: &[(&str, &str)], path: &str, expect: (u16, &str)) {
    let origin = Origin::answering("pod");
    let site = Ingress::with(annotations).path("/app", "Prefix").serve(&origin).in_order();
    let (status, location) = site.location(path);
    assert_eq!((status, location.as_str()), expect, "{annotations:?} {path}");
    assert_eq!(origin.connections(), usize::from(status == 200));
}

#[test]
fn all_requests_are_redirected() {
    check(&[("permanent-redirect", "https://b.test")], "/app/x", (301, "https://b.test"));
    check(&[("permanent-redirect", "https://b.test$request_uri")], "/app/x?y", (301, "https://b.test/app/x?y"));
    let code = ("permanent-redirect-code", "308");
    check(&[("permanent-redirect", "https://b.test$uri"), code], "/app/x?y", (308, "https://b.test/app/x"));
    check(&[("temporal-redirect", "/login")], "/app", (302, "http://a.test/login"));
    check(&[("temporal-redirect", "/login"), ("temporal-redirect-code", "307")], "/app", (307, "http://a.test/login"));
    check(&[("temporal-redirect", "/t"), ("permanent-redirect", "/p")], "/app", (302, "http://a.test/t"));
}

#[test]
fn only_the_root_path_is_redirected() {
    check(&[("app-root", "/app")], "/", (302, "http://a.test/app"));
    check(&[("app-root", "/app")], "/app", (200, ""));
    check(&[("app-root", "/app")], "/other", (404, ""));
}

#[test]
fn plain_http_is_redirected_for_hosts_with_tls() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[]).with_tls().serve(&origin).in_order();
    assert_eq!(site.location("/x?y"), (308, "https://a.test/x?y".into()));
    let site = Ingress::with(&[("ssl-redirect", "false")]).with_tls().serve(&origin).in_order();
    assert_eq!(site.get("/").status, 200);
    let site = Ingress::with(&[("force-ssl-redirect", "true"), ("permanent-redirect", "/x")]).serve(&origin).in_order();
    assert_eq!(site.location("/"), (308, "https://a.test/".into()), "to HTTPS first");
}

#[test]
fn rules_answer_by_path_host_and_field() {
    let rules = [
        ("deny-paths", "/app/metrics=404, ~ /\\.git"),
        ("redirect-rules", "path ~ ^/app/old/(.*)$ -> 301 https://b.test/$1\nhost = b.test -> 403"),
    ];
    check(&rules, "/app/metrics/x", (404, ""));
    check(&rules, "/app/x/.git/config", (403, ""));
    // The path is compared in its normal form.
    check(&rules, "/app/x/../%2Egit/config", (403, ""));
    check(&rules, "/app/old/a?b", (301, "https://b.test/a"));
    check(&rules, "/app/new", (200, ""));
}

#[test]
fn rules_answer_with_texts_rewrite_paths_and_know_networks() {
    let origin = Origin::mirror();
    let rules = "path = /app/up -> 200 \"ok\\n\"\nmethod = OPTIONS -> 204\nclient = 198.51.100.0/24 -> 401\n\
                 client != 127.0.0.0/8 -> 403\npath ~ ^/app/v1/(.*)$ -> rewrite /app/$1$is_args$args";
    let site = Ingress::with(&[("redirect-rules", rules), ("request-headers", "X-User: $remote_user")]);
    let site = site.serve(&origin).in_order();
    let up = site.get("/app/up");
    assert_eq!((up.status, up.text(), up.header("content-type")), (200, "ok\n", Some("text/plain; charset=utf-8")));
    let pod = site.ask("/app/v1/x?y", "Authorization: Basic amFuZTp4\r\nX-User: root\r\n");
    assert_eq!(pod.status, 200);
    for text in ["get /app/x?y http/1.1\r\n", "\r\nx-user: jane\r\n"] {
        assert!(pod.text().contains(text), "{text} {}", pod.text());
    }
}

#[test]
fn an_invalid_redirect_fails_only_its_own_rules() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[("permanent-redirect", "https://b.test/$nope")]).serve(&origin);
    assert_eq!(site.get("/").status, 503);
    assert!(site.outcomes.contains("`$nope` is no variable"), "{}", site.outcomes);
}
