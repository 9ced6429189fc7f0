//! CORS as Gateway API defines it, with the cases of its conformance test `HTTPRouteCORS`.

use http::HeaderValue;
use ingress_model::{Cors, CorsWildcards, Filter, Origins};
use ingress_proxy_testing::{Origin, Proxy, Response, Table};

const PREFLIGHT: &str =
    "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-header-1, x-header-2\r\n";

fn cors(origins: &[&str], methods: &'static str, headers: &'static str, credentials: bool) -> Cors {
    Cors {
        origins: Origins::parse_list(origins.iter().copied()).expect("valid"),
        methods: HeaderValue::from_static(methods),
        headers: HeaderValue::from_static(headers),
        expose: None,
        credentials,
        max_age: 5,
        wildcards: CorsWildcards::Resolved,
    }
}

/// Sends a request of a page of `origin`, and returns the response and whether the pod saw the request.
fn ask(cors: Cors, method: &str, origin: &str, fields: &str) -> (Response, bool) {
    let pod = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host_with("a.test", &[pod.address], vec![Filter::Cors(cors.into())]));
    let request = format!("{method} / HTTP/1.1\r\nHost: a.test\r\nOrigin: {origin}\r\n{fields}\r\n");
    let response = proxy.client().send(request).response();
    (response, !pod.heads().is_empty())
}

#[test]
fn preflights_are_answered_with_the_configured_lists() {
    let configured = || {
        let expose = Some(HeaderValue::from_static("x-header-3, x-header-4"));
        let origins = ["https://www.foo.com", "https://*.bar.com"];
        Cors { expose, max_age: 3600, ..cors(&origins, "GET, OPTIONS", "x-header-1, x-header-2", true) }
    };
    for origin in ["https://www.foo.com", "https://www.bar.com", "https://xpto.www.bar.com"] {
        let (response, reached) = ask(configured(), "OPTIONS", origin, PREFLIGHT);
        assert_eq!((response.status, reached), (204, false));
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-allow-methods", "get, options"),
            ("access-control-allow-headers", "x-header-1, x-header-2"),
            ("access-control-expose-headers", "x-header-3, x-header-4"),
            ("access-control-max-age", "3600"),
            ("access-control-allow-credentials", "true"),
        ] {
            assert_eq!(response.header(name), Some(value), "{origin} {name}");
        }
        // The field of a preflight does not make one of a GET.
        let (response, reached) = ask(configured(), "GET", origin, PREFLIGHT);
        assert_eq!(
            (response.status, reached, response.header("access-control-allow-origin")),
            (200, true, Some(origin))
        );
    }
    for (method, status) in [("OPTIONS", 204), ("GET", 200)] {
        let (response, _) = ask(configured(), method, "https://foobar.com", PREFLIGHT);
        assert_eq!((response.status, response.header("access-control-allow-origin")), (status, None), "{method}");
    }
}

#[test]
fn every_origin_and_method_may_be_allowed() {
    let (response, _) =
        ask(cors(&["https://www.foo.com"], "*", "", false), "OPTIONS", "https://www.foo.com", PREFLIGHT);
    assert_eq!(response.header("access-control-allow-methods"), Some("*"));
    assert_eq!(response.header("access-control-allow-origin"), Some("https://www.foo.com"));
    assert_eq!(response.header("access-control-allow-headers"), None);
    assert_eq!(response.header("access-control-allow-credentials"), None);
    for (method, origin) in [("OPTIONS", "https://foobar.com"), ("PUT", "https://foobar.com:12345")] {
        let (response, _) = ask(cors(&["*"], "PUT", "", false), method, origin, PREFLIGHT);
        assert_eq!(response.header("access-control-allow-origin"), Some("*"));
        assert_eq!(response.header("access-control-allow-credentials"), None);
    }
}

#[test]
fn a_request_with_credentials_gets_its_own_values_in_place_of_wildcards() {
    let all = |credentials| cors(&["*"], "*", "*", credentials);
    let origin = "https://other.foo.com";
    let (response, _) = ask(all(true), "OPTIONS", origin, PREFLIGHT);
    for (name, value) in [
        ("access-control-allow-origin", Some(origin)),
        ("access-control-allow-methods", Some("put")),
        ("access-control-allow-headers", Some("x-header-1, x-header-2")),
        ("access-control-allow-credentials", Some("true")),
        ("vary", Some("origin")),
    ] {
        assert_eq!(response.header(name), value, "{name}");
    }
    let (response, _) = ask(all(true), "GET", origin, "");
    assert_eq!(response.header("access-control-allow-origin"), Some(origin));
    assert_eq!(response.header("access-control-allow-credentials"), Some("true"));
    let (response, _) = ask(all(false), "OPTIONS", origin, PREFLIGHT);
    assert_eq!(response.header("access-control-allow-methods"), Some("*"));
    assert_eq!(response.header("access-control-allow-headers"), Some("*"));
    assert_eq!(response.header("access-control-allow-credentials"), None);
}
