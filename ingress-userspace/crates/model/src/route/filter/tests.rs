//! Unit tests of single filters. Their application to real requests is covered by `tests/proxy`.

use std::sync::Arc;

use super::*;
use crate::{
    Access, AuthService, Cors, CorsWildcards, ExtAuthz, Networks, Origins, PassedField, PathModifier, Pattern,
    ReplacementPath, Satisfy, Template,
};

fn subject<'r>(target: &'r str, headers: &'r HeaderMap) -> Subject<'r> {
    Subject {
        method: &Method::GET,
        host: "a.test",
        port: None,
        target,
        headers,
        secure: false,
        certificate: Shown::Nothing,
        certificate_fields: "",
        client: [192, 0, 2, 7].into(),
        https_port: 443,
        listener_port: 80,
        clock: Duration::default,
    }
}

fn check_redirect(target: &str, secure: bool, https_port: u16, expect: Option<&str>) {
    let filter = Filter::RedirectHttps { status: 308, except: [PathMatch::prefix("/plain").expect("valid")].into() };
    let headers = HeaderMap::new();
    let subject = Subject { secure, https_port, ..subject(target, &headers) };
    let expect =
        expect.map_or(Verdict::Continue, |location| Verdict::Redirect { status: 308, location: location.into() });
    assert_eq!(apply(&filter, &subject, &mut Edits::default()), expect, "{target}");
}

#[test]
fn plain_http_requests_are_redirected_to_https() {
    check_redirect("/x?y=1", false, 443, Some("https://a.test/x?y=1"));
    check_redirect("/x?y=1", false, 8443, Some("https://a.test:8443/x?y=1"));
    check_redirect("/x?y=1", true, 443, None);
}

#[test]
fn acme_challenges_and_excepted_paths_stay_on_http() {
    check_redirect("/.well-known/acme-challenge/token", false, 443, None);
    check_redirect("/.well-known/other", false, 443, Some("https://a.test/.well-known/other"));
    check_redirect("/plain", false, 443, None);
    check_redirect("/plain/below?x=/", false, 443, None);
    check_redirect("/plainer?x=/plain", false, 443, Some("https://a.test/plainer?x=/plain"));
}

#[test]
fn redirects_take_missing_parts_from_the_request() {
    const NOTHING: LocationParts = LocationParts { scheme: None, host: None, port: None, path: None };
    let other = || Some(Host::parse("b.test").expect("valid"));
    let (http, https) = (Some(UrlScheme::Http), Some(UrlScheme::Https));
    let replacement = |text| ReplacementPath::parse(text).expect("valid");
    let full = |text| Some(PathModifier::Full(replacement(text)));
    let prefix = |text| Some(PathModifier::Prefix { matched: "/x".into(), replacement: replacement(text) });
    let headers = HeaderMap::new();
    for (secure, listener_port, parts, expect) in [
        (false, 80, NOTHING, "http://a.test/x/y?q=1"),
        (false, 8080, NOTHING, "http://a.test:8080/x/y?q=1"),
        (true, 443, NOTHING, "https://a.test/x/y?q=1"),
        (true, 80, NOTHING, "https://a.test:80/x/y?q=1"),
        (false, 8080, LocationParts { scheme: https, ..NOTHING }, "https://a.test/x/y?q=1"),
        (true, 8443, LocationParts { scheme: http, ..NOTHING }, "http://a.test/x/y?q=1"),
        (true, 8443, LocationParts { scheme: https, ..NOTHING }, "https://a.test/x/y?q=1"),
        (false, 8080, LocationParts { port: NonZeroU16::new(80), ..NOTHING }, "http://a.test/x/y?q=1"),
        (false, 80, LocationParts { port: NonZeroU16::new(443), ..NOTHING }, "http://a.test:443/x/y?q=1"),
        (false, 80, LocationParts { scheme: https, port: NonZeroU16::new(443), ..NOTHING }, "https://a.test/x/y?q=1"),
        (false, 80, LocationParts { scheme: https, port: NonZeroU16::new(80), ..NOTHING }, "https://a.test:80/x/y?q=1"),
        (false, 80, LocationParts { host: other(), ..NOTHING }, "http://b.test/x/y?q=1"),
        (false, 80, LocationParts { path: full("/new"), ..NOTHING }, "http://a.test/new?q=1"),
        (false, 80, LocationParts { path: prefix("/new"), ..NOTHING }, "http://a.test/new/y?q=1"),
        (false, 80, LocationParts { path: prefix("/"), host: other(), ..NOTHING }, "http://b.test/y?q=1"),
    ] {
        let text = format!("{parts:?} {secure} {listener_port}");
        let redirect = Redirect { status: 302, location: Location::Parts(parts) };
        let subject = Subject { secure, listener_port, ..subject("/x/y?q=1", &headers) };
        assert_eq!(location(&redirect, &subject), expect, "{text}");
    }
    let redirect = Redirect { status: 302, location: Location::Parts(NOTHING) };
    assert_eq!(location(&redirect, &subject("*", &headers)), "http://a.test");
    // A template stays one.
    let redirect = Redirect { status: 302, location: Template::parse("/new?$args").expect("valid").into() };
    assert_eq!(location(&redirect, &subject("/x?q=1", &headers)), "http://a.test/new?q=1");
}

#[test]
fn allow_and_deny_lists_decide_on_addresses() {
    for (allow, deny, expect) in [
        ("", "", Verdict::Continue),
        ("192.0.2.0/24", "", Verdict::Continue),
        ("198.51.100.0/24", "", Verdict::Deny),
        ("", "192.0.2.7", Verdict::Deny),
        ("192.0.2.0/24", "192.0.2.7", Verdict::Deny),
        ("", "192.0.2.8", Verdict::Continue),
    ] {
        let networks = |text| Networks::parse(text).expect("valid");
        let filter = Filter::Access(Arc::new(Access { allow: networks(allow), deny: networks(deny) }));
        let headers = HeaderMap::new();
        let verdict = apply(&filter, &subject("/", &headers), &mut Edits::default());
        assert_eq!(verdict, expect, "allow {allow} deny {deny}");
    }
}

fn check_rewrite(pattern: &str, rewrite: &str, target: &str, expect: Option<&str>) {
    let pattern = Pattern::of_path(pattern).expect("valid");
    let filter = Filter::Rewrite(Arc::new(Rewrite::Template {
        pattern: Some(pattern),
        target: Rewrite::parse(rewrite).expect("valid"),
    }));
    let (headers, mut edits) = (HeaderMap::new(), Edits::default());
    assert_eq!(apply(&filter, &subject(target, &headers), &mut edits), Verdict::Continue);
    assert_eq!(edits.target.as_deref(), expect, "{target}");
}

#[test]
fn targets_are_rewritten_from_capture_groups() {
    for (pattern, rewrite, target, expect) in [
        ("/api(/|$)(.*)", "/$2", "/api/x/y?q=1", "/x/y?q=1"),
        ("/api(/|$)(.*)", "/$2", "/api", "/"),
        ("/api(/|$)(.*)", "/$2", "/API/x", "/x"),
        ("/api(/|$)(.*)", "$2", "/api/x", "/x"),
        ("/", "/$2", "/x", "/"),
        ("/old", "/new", "/old/below", "/new"),
        ("/(.*)", "/index?path=$1", "/x?q=1", "/index?path=x&q=1"),
        ("/(.*)", "/$1", "/x?", "/x"),
    ] {
        check_rewrite(pattern, rewrite, target, Some(expect));
    }
}

#[test]
fn paths_are_rewritten_and_queries_kept() {
    let replacement = |text| ReplacementPath::parse(text).expect("valid");
    let full = |text| PathModifier::Full(replacement(text));
    let prefix = |text| PathModifier::Prefix { matched: "/foo".into(), replacement: replacement(text) };
    for (modifier, target, expect) in [
        (full("/one"), "/foo/one/two", "/one"),
        (full("/one"), "/foo/one?x=/foo", "/one?x=/foo"),
        (prefix("/xyz"), "/foo/bar?q=1", "/xyz/bar?q=1"),
        (prefix(""), "/foo/bar", "/bar"),
        (prefix("/"), "/foo?q=1", "/?q=1"),
        (prefix("/"), "/foo?", "/?"),
    ] {
        let filter = Filter::Rewrite(Arc::new(Rewrite::Path(modifier)));
        let (headers, mut edits) = (HeaderMap::new(), Edits::default());
        assert_eq!(apply(&filter, &subject(target, &headers), &mut edits), Verdict::Continue);
        assert_eq!(edits.target.as_deref(), Some(expect), "{filter} {target}");
    }
}

fn fields(headers: &HeaderMap) -> String {
    let mut lines: Vec<_> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
    lines.sort();
    lines.join("|")
}

#[test]
fn response_headers_are_edited_in_order() {
    let edits = HeaderEdits::parse("X-A: 1\n+X-B: 2\n-Server\nX-Host: $host$http_x_evil").expect("valid");
    let filters = [Filter::ResponseHeaders(Arc::new(edits))];
    let mut response = HeaderMap::new();
    for (name, value) in [("x-a", "0"), ("x-a", "00"), ("x-b", "1"), ("server", "x"), ("x-host", "y")] {
        response.append(name, HeaderValue::from_static(value));
    }
    let mut headers = HeaderMap::new();
    respond(&filters, &subject("/", &headers), &mut response);
    assert_eq!(fields(&response), "x-a: 1|x-b: 1|x-b: 2|x-host: a.test");
    // A template without a valid value removes the field; a value from elsewhere must not remain.
    headers.insert("x-evil", HeaderValue::from_bytes(b"\xff").expect("valid"));
    respond(&filters, &subject("/", &headers), &mut response);
    assert_eq!(response["x-host"], "a.test");
}

fn check_cors(origins: &str, request: &[(&'static str, &'static str)], method: &Method, expect: &str) {
    let cors = Cors {
        origins: Origins::parse(origins).expect("valid"),
        methods: HeaderValue::from_static("GET"),
        headers: HeaderValue::from_static("X-A"),
        expose: Some(HeaderValue::from_static("X-E")),
        credentials: true,
        max_age: 600,
        wildcards: CorsWildcards::AsConfigured,
    };
    let filters = [Filter::Cors(Arc::new(cors))];
    let headers = request.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
    let headers: HeaderMap = headers.collect();
    let subject = Subject { method, ..subject("/", &headers) };
    let mut response = HeaderMap::new();
    response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://of-the-pod.test"));
    respond(&filters, &subject, &mut response);
    assert_eq!(fields(&response), expect, "{origins} {request:?}");
    let preflight = request.len() == 2 && *method == Method::OPTIONS;
    let verdict = if preflight { Verdict::Preflight } else { Verdict::Continue };
    assert_eq!(apply(&filters[0], &subject, &mut Edits::default()), verdict);
}

#[test]
fn cors_headers_depend_on_origin_and_method() {
    const ALLOWED: &str = "access-control-allow-credentials: true|access-control-allow-origin: https://b.test|\
                           access-control-expose-headers: X-E|vary: Origin";
    let origin = ("origin", "https://b.test");
    let asks = ("access-control-request-method", "PUT");
    check_cors("https://b.test", &[origin], &Method::GET, ALLOWED);
    check_cors("https://c.test", &[origin], &Method::GET, "vary: Origin");
    check_cors("https://b.test", &[], &Method::GET, "vary: Origin");
    check_cors("https://b.test", &[origin, asks], &Method::GET, ALLOWED);
    check_cors(
        "https://b.test",
        &[origin, asks],
        &Method::OPTIONS,
        "access-control-allow-credentials: true|access-control-allow-headers: X-A|access-control-allow-methods: GET|\
         access-control-allow-origin: https://b.test|access-control-expose-headers: X-E|access-control-max-age: 600|vary: Origin",
    );
    check_cors("https://b.test", &[origin], &Method::OPTIONS, ALLOWED);
    check_cors(
        "*",
        &[origin],
        &Method::GET,
        "access-control-allow-credentials: true|access-control-allow-origin: *|access-control-expose-headers: X-E",
    );
}

/// Returns the CORS fields of a response, with `*` for every list.
fn wildcard_fields(credentials: bool, method: &Method, request: &[(&'static str, &'static str)]) -> String {
    let any = HeaderValue::from_static("*");
    let cors = Cors {
        origins: Origins::Any,
        methods: any.clone(),
        headers: any.clone(),
        expose: Some(any),
        credentials,
        max_age: 5,
        wildcards: CorsWildcards::Resolved,
    };
    let filters = [Filter::Cors(Arc::new(cors))];
    let headers = request.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
    let headers: HeaderMap = headers.collect();
    let mut response = HeaderMap::new();
    response.insert("x-page", HeaderValue::from_static("7"));
    response.insert(header::SET_COOKIE, HeaderValue::from_static("a=b"));
    respond(&filters, &Subject { method, ..subject("/", &headers) }, &mut response);
    response.remove("x-page");
    response.remove(header::SET_COOKIE);
    fields(&response)
}

#[test]
fn wildcards_are_replaced_for_requests_with_credentials() {
    let origin = ("origin", "https://b.test");
    let method = ("access-control-request-method", "PUT");
    let names = ("access-control-request-headers", "x-a, x-b");
    for (credentials, method, request, expect) in [
        (
            true,
            Method::OPTIONS,
            &[origin, method, names][..],
            "access-control-allow-credentials: true|access-control-allow-headers: x-a, x-b|\
             access-control-allow-methods: PUT|access-control-allow-origin: https://b.test|\
             access-control-expose-headers: x-page|access-control-max-age: 5|vary: Origin",
        ),
        (
            true,
            Method::OPTIONS,
            &[origin, method],
            "access-control-allow-credentials: true|access-control-allow-methods: PUT|\
             access-control-allow-origin: https://b.test|access-control-expose-headers: x-page|\
             access-control-max-age: 5|vary: Origin",
        ),
        (
            true,
            Method::GET,
            &[origin],
            "access-control-allow-credentials: true|access-control-allow-origin: https://b.test|\
             access-control-expose-headers: x-page|vary: Origin",
        ),
        (true, Method::GET, &[], "vary: Origin"),
        (
            false,
            Method::OPTIONS,
            &[origin, method, names],
            "access-control-allow-headers: *|access-control-allow-methods: *|access-control-allow-origin: *|\
             access-control-expose-headers: *|access-control-max-age: 5",
        ),
        (false, Method::GET, &[origin], "access-control-allow-origin: *|access-control-expose-headers: *"),
    ] {
        assert_eq!(wildcard_fields(credentials, &method, request), expect, "{credentials} {method} {request:?}");
    }
}

#[test]
fn empty_lists_are_left_out_where_wildcards_are_resolved() {
    let headers = [("origin", "https://b.test"), ("access-control-request-method", "PUT")];
    let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers: HeaderMap = headers.into_iter().collect();
    let empty = HeaderValue::from_static("");
    for (wildcards, expect) in [
        (CorsWildcards::Resolved, "access-control-allow-origin: https://b.test|access-control-max-age: 5|vary: Origin"),
        (
            CorsWildcards::AsConfigured,
            "access-control-allow-headers: |access-control-allow-methods: |\
             access-control-allow-origin: https://b.test|access-control-max-age: 5|vary: Origin",
        ),
    ] {
        let cors = Cors {
            origins: Origins::parse_list(["https://b.test"]).expect("valid"),
            methods: empty.clone(),
            headers: empty.clone(),
            expose: None,
            credentials: false,
            max_age: 5,
            wildcards,
        };
        let mut response = HeaderMap::new();
        let preflight = Subject { method: &Method::OPTIONS, ..subject("/", &headers) };
        respond(&[Filter::Cors(Arc::new(cors))], &preflight, &mut response);
        assert_eq!(fields(&response), expect, "{wildcards:?}");
    }
}

#[test]
fn fields_of_the_authorization_service_are_never_those_of_a_client_that_an_address_admits() {
    let to = HeaderName::from_static("x-user");
    let ext_authz = ExtAuthz {
        service: AuthService::SameHost,
        target: Template::parse("/verify").expect("valid"),
        method: Method::GET,
        timeout: Duration::from_secs(10),
        sign_in: None,
        response_headers: [PassedField { from: HeaderName::from_static("x-found"), to: to.clone() }].into(),
        request_redirect: Template::parse("$request_uri").expect("valid"),
        always_set_cookie: false,
        headers: HeaderEdits::default(),
        cache: None,
        exempt: crate::RequestRules::default(),
    };
    let headers: HeaderMap = [(to, HeaderValue::from_static("root"))].into_iter().collect();
    for (allow, expect) in [("192.0.2.0/24", true), ("198.51.100.0/24", false)] {
        let access = Access { allow: Networks::parse(allow).expect("valid"), deny: Networks::default() };
        let satisfy = Satisfy::Any(access);
        let authentication = Authentication { basic: None, token: None, ext_authz: Some(ext_authz.clone()), satisfy };
        let filter = Filter::Authentication(Box::new(authentication).into());
        let mut edits = Edits::default();
        let passes = apply(&filter, &subject("/", &headers), &mut edits) == Verdict::Continue;
        // The service gets the client's own field, if it is asked.
        assert_eq!((passes, edits.replace("x-user")), (expect, expect), "{allow}");
    }
}
