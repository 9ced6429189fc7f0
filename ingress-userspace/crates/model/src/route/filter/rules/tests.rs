//! Laws of rules that answer requests.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::*;
use crate::route::filter::Shown;

/// Returns a request for `a.test` over TLS.
fn subject<'r>(method: &'r Method, target: &'r str, headers: &'r HeaderMap) -> Subject<'r> {
    Subject {
        method,
        host: "a.test",
        port: None,
        target,
        headers,
        secure: true,
        certificate: Shown::Nothing,
        certificate_fields: "",
        client: IpAddr::from([192, 0, 2, 1]),
        https_port: 443,
        listener_port: 443,
        clock: std::time::Duration::default,
    }
}

fn verdict(rules: &RequestRules, host: &str, target: &str, headers: &[(&'static str, &[u8])]) -> String {
    let field = |(name, value): &(&'static str, &[u8])| {
        (HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"))
    };
    let headers: HeaderMap = headers.iter().map(field).collect();
    let subject = Subject { host, ..subject(&Method::GET, target, &headers) };
    let mut edits = Edits::default();
    match apply(rules, &subject, &mut edits) {
        Verdict::Continue => edits.target.map(|target| format!("rewrite {target}")).unwrap_or_default(),
        Verdict::Respond { status, body } => format!("{status} {body:?}"),
        Verdict::Refuse { status } => status.to_string(),
        Verdict::Redirect { status, location } => format!("{status} {location}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_rule_answers_rewrites_and_knows_networks() {
    let text = "client = 198.51.100.0/24 -> 403\nclient != 192.0.2.0/24 -> 401\npath = /up -> 200 ok\n\
                method = OPTIONS -> 204\npath ~ ^/api/(.*)$ -> rewrite /$1$is_args$args\npath ~ ^/api -> 404";
    let rules = RequestRules::redirects(text).expect("valid");
    for (target, expect) in
        [("/up", "200 \"ok\""), ("/api/x?a=b", "rewrite /x?a=b"), ("/api/x", "rewrite /x"), ("/api", "404"), ("/x", "")]
    {
        assert_eq!(verdict(&rules, "a.test", target, &[]), expect, "{target}");
    }
}

#[test]
fn neither_the_case_of_a_name_nor_a_line_feed_hides_what_is_refused() {
    let rules = RequestRules::redirects("arg:debug = 1 -> 403\ncookie:beta = 1 -> 402").expect("valid");
    assert_eq!(verdict(&rules, "a.test", "/?DEBUG=1", &[]), "403");
    assert_eq!(verdict(&rules, "a.test", "/", &[("cookie", b"a=2; BETA=1")]), "402");
    assert_eq!(verdict(&rules, "a.test", "/", &[("cookie", b"betas=1; abeta=1")]), "");
    let rules = RequestRules::redirects("arg:debug = 1 -> /a\ncookie:beta = 1 -> /b").expect("valid");
    assert!(verdict(&rules, "a.test", "/?DEBUG=1", &[]).contains("/a"), "redirects compare as nginx does, too");
    assert!(verdict(&rules, "a.test", "/", &[("cookie", b"a=2; BETA=1")]).contains("/b"));
    let rules = RequestRules::deny_paths("~ \\.php$").expect("valid");
    assert_eq!(verdict(&rules, "a.test", "/a.php%0a", &[]), "403");
    assert_eq!(verdict(&rules, "a.test", "/a.php%0ab", &[]), "");
}

#[test]
fn the_first_entry_for_a_path_decides() {
    let text = "!/.well-known/, /metrics=404, = /status, ~ /\\., ~* \\.(sql|bak)$=410";
    let rules = RequestRules::deny_paths(text).expect("valid");
    for (target, expect) in [
        ("/", ""),
        ("/metrics", "404"),
        ("/metrics/x?y", "404"),
        ("/metricsx", "404"),
        ("/a/metrics", ""),
        ("/status", "403"),
        ("/status/", ""),
        ("/a/.git/config", "403"),
        ("/.well-known/acme-challenge/x", ""),
        ("/dump.SQL?x=1", "410"),
        ("/?x=.bak", ""),
    ] {
        assert_eq!(verdict(&rules, "a.test", target, &[]), expect, "{target}");
    }
    for hidden in ["/x/..%2fmetrics", "/x/..;/metrics", "/%2fmetrics", "/x\\..\\metrics", "/%5cmetrics", "/metrics;x/y"]
    {
        assert_eq!(verdict(&rules, "a.test", hidden, &[]), "404", "{hidden}");
    }
    // An exemption is for paths that no pod reads otherwise.
    assert_eq!(verdict(&rules, "a.test", "/.well-known/..%2fmetrics", &[]), "404");
    let escaped = RequestRules::deny_paths("/@fs, = /a b").expect("valid");
    for target in ["/%40fs/etc", "/@fs/etc", "/a%20b", "/%25/..%2f%40fs/etc", "/x%5c..%5c%40fs", "/x%2f..;%2f%40fs"] {
        assert_eq!(verdict(&escaped, "a.test", target, &[]), "403", "{target}");
    }
    // The path is too long for the expression, so it may be one of those that are denied.
    let long = format!("/{}", "a".repeat(200_000));
    assert_eq!(verdict(&rules, "a.test", &long, &[]), "403");
}

#[test]
fn rules_redirect_and_refuse_by_conditions() {
    let text = "\
        host = old.test -> 301 https://new.test$request_uri\n\
        path ~ ^/blog/([^/]*)/(.*)$ and arg:old != 1 -> https://blog.test/$2/$1\n\
        header:User-Agent ~* bot -> 429\n\
        header:X-Forwarded-Proto = http -> 308 https://$host/s\n\
        path = / -> /app";
    let rules = RequestRules::redirects(text).expect("valid");
    for (host, target, headers, expect) in [
        ("old.test", "/x?y", &[][..], "301 https://new.test/x?y"),
        ("a.test", "/blog/a/b", &[], "302 https://blog.test/b/a"),
        ("a.test", "/blog/a/b?old=1", &[], ""),
        ("a.test", "/x", &[("user-agent", &b"Good"[..]), ("user-agent", b"\xffBadBot")], "429"),
        ("a.test", "/x", &[("x-forwarded-proto", b"http")], "308 https://a.test/s"),
        ("a.test", "/x", &[("x-forwarded-proto", b"https")], ""),
        ("a.test", "/?x", &[], "302 https://a.test/app"),
    ] {
        assert_eq!(verdict(&rules, host, target, headers), expect, "{host}{target}");
    }
    // A missing field is the empty text.
    let rules = RequestRules::redirects("header:X-Key = \"\" -> 401").expect("valid");
    assert_eq!(verdict(&rules, "a.test", "/", &[]), "401");
    assert_eq!(verdict(&rules, "a.test", "/", &[("x-key", b"1")]), "");
}

#[test]
fn no_other_value_escapes_a_refusal() {
    let cookies = [("cookie", &b"x=good; x=\xffbad"[..])];
    for (text, target, headers, expect) in [
        ("arg:debug = 1 -> 403", "/?debug=0&debug=1", &[][..], "403"),
        ("arg:debug = 1 -> 403", "/?d%65bug=%31", &[], "403"),
        ("arg:debug = 1 -> 403", "/?debug=0", &[], ""),
        ("arg:key != s -> 403", "/?key=s&key=t", &[], "403"),
        ("arg:key != s -> 403", "/?key=s", &[], ""),
        ("arg:key != s -> 403", "/", &[], "403"),
        ("cookie:x ~ bad -> 403", "/", &cookies, "403"),
        ("cookie:x ~ bad -> /x", "/", &cookies, ""),
        ("header:X-Key != s -> 403", "/", &[("x-key", b"s"), ("x-key", b"t")], "403"),
        ("header:X-Key != s -> 403", "/", &[("x-key", b"s")], ""),
    ] {
        let rules = RequestRules::redirects(text).expect("valid");
        assert_eq!(verdict(&rules, "a.test", target, headers), expect, "{text} {target}");
    }
    // Groups are those of the line that matches.
    let rules = RequestRules::redirects("header:X-A ~ ^to-(.*)$ -> /$1").expect("valid");
    let lines = [("x-a", &b"other"[..]), ("x-a", b"to-b")];
    assert_eq!(verdict(&rules, "a.test", "/", &lines), "302 https://a.test/b");
}

#[test]
fn searches_of_a_request_have_a_bound_together() {
    let rules = RequestRules::redirects("header:X-A ~ (a?b?){200}c -> 403").expect("valid");
    let line = ("x-a", &[b'a'; 100][..]);
    assert_eq!(verdict(&rules, "a.test", "/", &[line]), "");
    assert_eq!(verdict(&rules, "a.test", "/", &[line; 50]), "403");
    let rules = RequestRules::redirects("header:X-A ~ (a?b?){200}c -> /x").expect("valid");
    assert_eq!(verdict(&rules, "a.test", "/", &[line]), "");
    assert_eq!(verdict(&rules, "a.test", "/", &[line; 50]), "431");
    // A line with a match decides, wherever it stands.
    let lines = [&[line; 50][..], &[("x-a", b"c")]].concat();
    assert_eq!(verdict(&rules, "a.test", "/", &lines), "302 https://a.test/x");
}

#[test]
fn texts_too_long_to_be_searched_are_refused_by_every_rule_that_they_may_concern() {
    let long = "a".repeat(300_000);
    for (text, expect) in [
        ("header:X-A ~ b -> 403", "403"),
        ("header:X-A !~ b -> 403", "403"),
        ("header:X-A ~ b -> /x", "431"),
        ("header:X-A !~ b -> /x", "431"),
        ("header:X-A !~ b -> 200 ok", "431"),
        ("header:X-A ~ b -> rewrite /x", "431"),
        // Another condition fails, so the text does not matter.
        ("header:X-A ~ b and path = /y -> /x", ""),
        ("path = /y and header:X-A !~ b -> rewrite /x", ""),
        ("path = / -> /y\nheader:X-A ~ b -> /x", "302 https://a.test/y"),
        ("path = / -> rewrite /y\nheader:X-A ~ b -> 403", "rewrite /y"),
    ] {
        let rules = RequestRules::redirects(text).expect("valid");
        assert_eq!(verdict(&rules, "a.test", "/", &[("x-a", long.as_bytes())]), expect, "{text}");
    }
    let rules = RequestRules::redirects("header:X-Token !~ ^[a-f0-9]{64}$ -> /login").expect("valid");
    for (token, expect) in
        [("a".repeat(64), ""), ("a".repeat(65), "302 https://a.test/login"), ("a".repeat(WORK_MAX), "431")]
    {
        assert_eq!(verdict(&rules, "a.test", "/", &[("x-token", token.as_bytes())]), expect, "{}", token.len());
    }
}

#[test]
fn a_rule_with_an_unknown_text_decides_only_where_it_changes_the_answer() {
    let headers = HeaderMap::new();
    for (text, target, expect) in [
        // Rules behind a rewrite hold for paths without one.
        ("path ~ ^/a -> rewrite /\nheader:X-A = 1 -> 403", "/b", true),
        ("path ~ ^/a -> rewrite /\nheader:X-A = 1 -> 403", "/a", false),
        ("header:X-A = 1 -> rewrite /", "/", false),
        ("header:X-A = 1 -> rewrite /\npath = / -> 403", "/", true),
        ("header:X-A = 1 -> rewrite /\npath = / -> 403", "/x", false),
        ("path = / -> 403\nheader:X-A = 1 -> 404", "/", false),
    ] {
        let rules = RequestRules::redirects(text).expect("valid");
        let is_known = |asked: &RequestSubject| !matches!(asked, RequestSubject::Header(_));
        assert_eq!(
            undecided_by(&rules, &subject(&Method::GET, target, &headers), is_known).is_some(),
            expect,
            "{text} {target}"
        );
    }
}

#[test]
fn a_request_is_exempt_only_if_no_pod_reads_another_path() {
    let exempt = |text: &str, method: &Method, target: &str| {
        let headers = HeaderMap::new();
        exempts(&RequestRules::exemptions(text).expect("valid"), &subject(method, target, &headers))
    };
    let get = &Method::GET;
    for (text, target, expect) in [
        ("path ~ ^/public/", "/public/x", true),
        ("path ~ ^/public/", "/admin", false),
        ("uri ~ ^/public/", "/public/x?y", true),
        ("uri = /up", "/up", true),
        ("uri = /up", "/up?x", false),
        ("path !~ ^/admin", "/x", true),
        ("path !~ ^/admin", "/admin/x", false),
        ("uri !~ ^/admin", "/%2fadmin", false),
        // Many pods ignore `..` at the root.
        ("uri !~ ^/admin", "/..%2fadmin", false),
        ("path !~ ^/admin", "/..\\admin", false),
        ("path !~ ^/admin", "/..;/admin", false),
        ("path !~ ^/admin", "/x/..%5c..%5cadmin", false),
        // Some decode twice.
        ("path ~ ^/public/", "/public/%252e%252e%252fadmin", false),
        ("path ~ ^/public/", "/public/100%25", true),
        ("path ~ ^/public/ and path !~ \\.php$", "/public/x.php", false),
        ("path ~ ^/public/ and path !~ \\.php$", "/public/x.txt", true),
        ("", "/", false),
        ("# path ~ .", "/", false),
    ] {
        assert_eq!(exempt(text, get, target), expect, "{text} {target}");
    }
    for subject in ["path", "uri"] {
        let text = format!("{subject} ~ ^/public/");
        for hidden in [
            "/public/..%2fadmin",
            "/public/..;/admin",
            "/public/%2e%2e%5cadmin",
            "/public\\..\\admin",
            "/public/..%2fadmin?x",
        ] {
            assert!(!exempt(&text, get, hidden), "{text} {hidden}");
        }
        let long = format!("/public/{}", "a".repeat(2_000_000));
        assert!(!exempt(&format!("{subject} ~ (a?b?){{200}}c"), get, &long), "a text that is too long is not exempt");
    }
    assert!(exempt("method = OPTIONS", &Method::OPTIONS, "/x") && !exempt("method = OPTIONS", get, "/x"));
    for wrong in
        ["path", "header:x = 1", "client = 10.0.0.0/8", "cookie:a = 1", "path ~ ^/ -> 200", "host = a.test", "and"]
    {
        assert!(RequestRules::exemptions(wrong).is_err(), "{wrong}");
    }
}
