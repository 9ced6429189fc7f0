//! Fields of requests and responses, cross-origin requests among them.

use super::{Ingress, configured};
use ingress_proxy_testing::Origin;

#[test]
fn request_headers_are_edited() {
    let origin = Origin::mirror();
    let annotations = [
        ("upstream-vhost", "b.test:8080"),
        ("x-forwarded-prefix", "/app"),
        ("xdp-ingress.io/request-headers", "X-Tenant: $http_x_user!\n-X-Drop\nX-Forwarded-Proto: https"),
    ];
    let site = Ingress::with(&annotations).serve(&origin).in_order();
    let response = site.ask("/", "X-User: u\r\nX-Drop: 1\r\n");
    for expect in [
        "\r\nhost: b.test:8080\r\n",
        "\r\nx-forwarded-host: a.test\r\n",
        "\r\nx-forwarded-prefix: /app\r\n",
        "\r\nx-tenant: u!\r\n",
        "\r\nx-forwarded-proto: https\r\n",
    ] {
        assert_eq!(response.text().matches(expect).count(), 1, "{expect}: {}", response.text());
    }
    assert!(!response.text().contains("x-drop") && !response.text().contains("proto: http\r"), "{}", response.text());
}

#[test]
fn clients_cannot_set_headers_of_the_proxy() {
    const SENT: &str = "Proxy: http://evil.test\r\nX-Scheme: https\r\nX-Original-Forwarded-For: 6.6.6.6\r\nX_Scheme: ftp\r\n\
                        X-Original-URI: /a\r\nX-Original-URL: /b\r\nX-Rewrite-URL: /c\r\nX_Tenant: t\r\n";
    let origin = Origin::mirror();
    let response = Ingress::with(&[]).serve(&origin).in_order().ask("/", SENT);
    let text = response.text();
    for refused in ["evil", "6.6.6.6", "x-scheme: https", "ftp", "x-original-forwarded-for", "x_tenant"] {
        assert!(!text.contains(refused), "{refused}: {text}");
    }
    // ingress-nginx passes the client's fields about the path, too.
    for passed in ["x-scheme: http\r\n", "x-original-uri: /a", "x-original-url: /b", "x-rewrite-url: /c"] {
        assert_eq!(text.matches(passed).count(), 1, "{passed}: {text}");
    }
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\n\
                    data: {enable-underscores-in-headers: 'true'}\n";
    let site = Ingress::with(&[]).beside(settings).serve_with(&[origin.address], &configured()).in_order();
    let response = site.ask("/", SENT);
    let text = response.text();
    assert!(text.contains("x_tenant: t\r\n") && !text.contains("ftp"), "{text}");
}

#[test]
fn headers_of_all_responses_are_edited() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nX-Powered-By: p\r\nX-A: 0\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let edits = ("xdp-ingress.io/response-headers", "X-A: 1\n-X-Powered-By\nX-Path: $uri");
    let site = Ingress::with(&[edits]).serve(&origin).in_order();
    let response = site.get("/p");
    assert_eq!((response.status, response.header("x-a"), response.header("x-path")), (200, Some("1"), Some("/p")));
    assert_eq!(response.header("x-powered-by"), None);
    let site = Ingress::with(&[edits, ("denylist-source-range", "0.0.0.0/0")]).serve(&origin).in_order();
    let response = site.get("/");
    assert_eq!((response.status, response.header("x-a")), (403, Some("1")));
}

const FIELDS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fields, namespace: default}\n\
                      data: {X-Frame-Options: DENY, Server: \"\"}\n";

#[test]
fn a_config_map_adds_response_headers() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[("custom-headers", "default/fields")]);
    let site = ingress.clone().beside(FIELDS).serve(&origin).in_order();
    let response = site.get("/");
    assert_eq!((response.header("x-frame-options"), response.header("server")), (Some("deny"), None));
    let missing = ingress.serve(&origin);
    assert_eq!(missing.get("/").status, 503);
    assert!(missing.outcomes.contains("ConfigMapNotFound"), "{}", missing.outcomes);
    let elsewhere = Ingress::with(&[("custom-headers", "other/fields")]).serve(&origin);
    assert_eq!(elsewhere.get("/").status, 503);
    assert!(elsewhere.outcomes.contains("in another namespace"), "{}", elsewhere.outcomes);
}

#[test]
fn operator_headers_apply_to_all_requests_and_responses() {
    let origin = Origin::mirror();
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\n\
                    data: {add-headers: default/fields, proxy-set-headers: default/fields, hide-headers: 'Date, X-B', hsts: 'true'}\n";
    let site =
        Ingress::with(&[]).beside(FIELDS).beside(settings).serve_with(&[origin.address], &configured()).in_order();
    let response = site.get("/");
    assert_eq!(response.header("x-frame-options"), Some("deny"));
    assert_eq!(response.header("strict-transport-security"), None, "never over plain HTTP");
    assert!(response.text().contains("x-frame-options: deny\r\n"), "{}", response.text());
}

#[test]
fn cors_requests_are_allowed_if_configured() {
    let origin = Origin::answering("pod");
    let annotations = [("enable-cors", "true"), ("cors-allow-origin", "https://*.b.test"), ("cors-max-age", "600")];
    let site = Ingress::with(&annotations).serve(&origin).in_order();
    let preflight = |origin: &str| {
        let fields = format!("Origin: {origin}\r\nAccess-Control-Request-Method: PUT\r\n");
        site.client().send(format!("OPTIONS / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).response()
    };
    let allowed = preflight("https://x.b.test");
    assert_eq!((allowed.status, allowed.header("content-length")), (204, None));
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://x.b.test"));
    assert_eq!(allowed.header("access-control-max-age"), Some("600"));
    let refused = preflight("https://x.c.test");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (204, None));
    assert_eq!(origin.connections(), 0, "preflights are answered here");
    let response = site.ask("/", "Origin: https://x.b.test\r\n");
    assert_eq!((response.text(), response.header("vary")), ("pod", Some("origin")));
    assert_eq!(response.header("access-control-allow-origin"), Some("https://x.b.test"));
    let options = site.client().send("OPTIONS / HTTP/1.1\r\nHost: a.test\r\n\r\n").response();
    assert_eq!(options.text(), "pod", "not every `OPTIONS` is a preflight");
}
