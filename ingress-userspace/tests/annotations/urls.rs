//! Redirects and cookies of pods that do not know their public URL.

use super::Ingress;
use ingress_proxy_testing::{Origin, Response};

const ANSWER: &str = "HTTP/1.1 302 Found\r\nLocation: http://pod:8080/login\r\nRefresh: 5; url=http://pod:8080/late\r\n\
                      Set-Cookie: a=1; Path=/; Domain=pod.local\r\nSet-Cookie: b=2; path=/x\r\nSet-Cookie: c=3\r\n\
                      Content-Length: 0\r\n\r\n";

fn origin() -> Origin {
    Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send(ANSWER);
        }
    })
}

fn values(response: &Response, name: &str) -> Vec<String> {
    let head = response.head.lines().filter_map(|line| line.split_once(": "));
    head.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn redirects_and_cookies_of_pods_are_rewritten() {
    let origin = origin();
    let annotations = [
        ("proxy-redirect-from", "http://pod:8080/"),
        ("proxy-redirect-to", "https://$host/app/"),
        ("proxy-cookie-domain", "pod.local $host"),
        ("proxy-cookie-path", "~^/(.*)$ \"/app/$1; Secure\""),
        ("affinity", "cookie"),
        ("session-cookie-path", "/own"),
    ];
    let response = Ingress::with(&annotations).serve(&origin).in_order().get("/");
    assert_eq!(values(&response, "location"), ["https://a.test/app/login"]);
    assert_eq!(values(&response, "refresh"), ["5; url=https://a.test/app/late"]);
    let cookies = values(&response, "set-cookie");
    assert_eq!(cookies[..3], ["a=1; path=/app/; secure; domain=a.test", "b=2; path=/app/x; secure", "c=3"]);
    assert!(cookies[3].contains("path=/own") && cookies.len() == 4, "the proxy's own cookie stays: {cookies:?}");
}

#[test]
fn responses_stay_without_rewriting() {
    let origin = origin();
    let annotations = [("proxy-redirect-from", "default"), ("proxy-redirect-to", "/app"), ("proxy-cookie-path", "off")];
    let response = Ingress::with(&annotations).serve(&origin).in_order().get("/");
    assert_eq!(values(&response, "location"), ["http://pod:8080/login"]);
    assert_eq!(values(&response, "set-cookie"), ["a=1; path=/; domain=pod.local", "b=2; path=/x", "c=3"]);
}

#[test]
fn redirects_of_the_proxy_stay() {
    let origin = origin();
    let annotations =
        [("proxy-redirect-from", "/"), ("proxy-redirect-to", "/app/"), ("permanent-redirect", "https://b.test/")];
    let response = Ingress::with(&annotations).serve(&origin).in_order().get("/");
    assert_eq!(values(&response, "location"), ["https://b.test/"]);
}

#[test]
fn the_host_for_pods_has_variables() {
    let origin = Origin::mirror();
    let seen = |value: &str, fields: &str| {
        let site = Ingress::with(&[("upstream-vhost", value)]).serve(&origin).in_order();
        let response = site.ask("/", fields);
        let host = response.text().lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned));
        (response.status, host.unwrap_or_default())
    };
    let linkerd = "$service_name.$namespace.svc.cluster.local:8084";
    assert_eq!(seen(linkerd, ""), (200, "web.default.svc.cluster.local:8084".into()));
    assert_eq!(seen("$http_x_tenant.pods.test", "X-Tenant: t1\r\n"), (200, "t1.pods.test".into()));
    for tenant in ["", "X-Tenant: \r\n", "X-Tenant: u@evil\r\n", "X-Tenant: a b\r\n", "X-Tenant: a/b\r\n"] {
        assert_eq!(seen("${http_x_tenant}", tenant).0, 400, "{tenant}");
    }
}
