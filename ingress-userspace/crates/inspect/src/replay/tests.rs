use std::sync::Arc;

use ingress_control::{
    Classes, Origin,
    change::{Change, Object},
    cluster::Cluster,
    translate::{Options, Translation, translate},
};
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::{Value, json};

use super::*;

fn translation(ingresses: &[(Value, Value)]) -> Translation {
    let mut cluster = Cluster::default();
    for (number, (annotations, rules)) in ingresses.iter().enumerate() {
        let ingress: Ingress = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": format!("web-{number}"), "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": rules},
        }))
        .expect("an Ingress");
        let object = Object::Ingress(Arc::new(ingress));
        cluster.apply(Change::Apply { object, origin: Origin::Api });
        let service = json!({
            "metadata": {"namespace": "shop", "name": format!("web-{number}")},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        });
        let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).expect("a Service");
        cluster.apply(Change::Apply { object: Object::Service(Arc::new(service.into())), origin: Origin::Api });
    }
    let classes = Classes {
        name: "nginx".into(),
        controller: "k8s.io/ingress-nginx".into(),
        by_name: true,
        ..Classes::default()
    };
    translate(&cluster, &Options { classes, ..Options::default() })
}

fn rules(number: usize, host: &str, path: &str) -> Value {
    let backend = json!({"service": {"name": format!("web-{number}"), "port": {"number": 80}}});
    json!([{"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}])
}

fn get<'l>(host: &'l str, target: &'l str) -> LoggedRequest<'l> {
    LoggedRequest { host, target, method: "GET", is_secure: true, ..LoggedRequest::default() }
}

#[test]
fn rules_and_filters_answer_as_for_requests() {
    let key = |name: &str, value: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): value});
    let translation = translation(&[
        (key("ssl-redirect", "true"), rules(0, "a.test", "/")),
        (key("allowlist-source-range", "192.0.2.0/24"), rules(1, "a.test", "/office")),
        (key("permanent-redirect", "https://b.test"), rules(2, "old.test", "/")),
        (json!({"xdp-ingress.io/deny-paths": "/admin"}), rules(3, "*.wild.test", "/")),
        (key("enable-modsecurity", "true"), rules(4, "guarded.test", "/")),
        (key("limit-rps", "5"), rules(5, "slow.test", "/")),
    ]);
    let mut replay = Replay::new(&translation.table, []);
    let mut answer = |request: LoggedRequest<'_>| match replay.answer(&request).answer {
        ReplayedAnswer::Upstream(keys) => keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    };
    assert_eq!(answer(get("A.test:443", "/x?y=1")), "shop/web-0:80");
    let office = |client: [u8; 4]| LoggedRequest { client: Some(client.into()), ..get("a.test", "/office/1") };
    assert_eq!(answer(office([192, 0, 2, 1])), "shop/web-1:80");
    assert_eq!(answer(office([198, 51, 100, 1])), "Refused(403, \"the client's address is not allowed\")");
    assert_eq!(answer(get("a.test", "/office")), "shop/web-1:80", "without an address, the list is not asked");
    assert_eq!(answer(get("old.test", "/")), "Redirect(301)");
    assert_eq!(answer(get("x.wild.test", "/%61dmin")), "Refused(403, \"`deny-paths` or `redirect-rules` refuse it\")");
    assert_eq!(answer(get("x.wild.test", "/other")), "shop/web-3:80");
    assert_eq!(answer(get("guarded.test", "/")), "Refused(503, \"policy not supported\")");
    for host in ["none.test", "192.0.2.1", "_", ""] {
        assert_eq!(answer(get(host, "/")), "Refused(404, \"no rule matches\")", "{host}");
    }
    assert_eq!(answer(get("a.test", "/../x")), "Refused(400, \"path leads above the root\")");
    assert_eq!(answer(get("a.test", "x")), "Refused(400, \"path does not begin with a slash\")");
}

#[test]
fn undecidable_parts_may_answer() {
    let key = |name: &str, value: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): value});
    let translation = translation(&[
        (key("limit-rps", "5"), rules(0, "slow.test", "/")),
        (key("proxy-body-size", "1m"), rules(1, "small.test", "/")),
    ]);
    let mut replay = Replay::new(&translation.table, []);
    let mut may = |host: &str, status| replay.answer(&get(host, "/")).may_answer("GET", status);
    assert!(may("slow.test", 503) && !may("slow.test", 401));
    assert!(may("small.test", 413) && !may("small.test", 503));
    assert!(!may("none.test", 401));
}

#[test]
fn preflights_are_those_of_cors() {
    let key = |name: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): "true"});
    let translation =
        translation(&[(key("enable-cors"), rules(0, "a.test", "/")), (json!({}), rules(1, "b.test", "/"))]);
    let mut replay = Replay::new(&translation.table, []);
    let mut may = |host: &str, method: &str| {
        let answer = replay.answer(&LoggedRequest { method, ..get(host, "/") });
        answer.may_answer(method, 204)
    };
    assert!(may("a.test", "OPTIONS") && !may("a.test", "GET") && !may("b.test", "OPTIONS"));
}

#[test]
fn tls_is_passed_through_and_plain_http_is_not() {
    let key = |name: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): "true"});
    let translation = translation(&[(key("ssl-passthrough"), rules(0, "a.test", "/"))]);
    let mut replay = Replay::new(&translation.table, []);
    let mut answer = |is_secure| replay.answer(&LoggedRequest { is_secure, ..get("a.test", "/") }).answer;
    assert_eq!(answer(true), ReplayedAnswer::Passthrough);
    assert!(matches!(answer(false), ReplayedAnswer::Upstream(_)), "{:?}", answer(false));
}

#[test]
fn conditions_on_unknown_fields_decide_nothing() {
    let rule = "path ~ ^/old and header:X-Forwarded-Proto = http -> 301 https://a.test/\ncookie:beta = 1 -> 403";
    let rules_of = |text: &str| json!({"xdp-ingress.io/redirect-rules": text});
    let translation = translation(&[
        (rules_of(rule), rules(0, "a.test", "/old")),
        (rules_of("path = /x -> 410"), rules(1, "a.test", "/")),
    ]);
    let answer = |names: &[&str], target: &str, fields: &[(&str, &str)]| {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = LoggedRequest { fields, ..get("a.test", target) };
        Replay::new(&translation.table, names.iter().copied()).answer(&request).answer
    };
    let undecided = |what: &str| {
        ReplayedAnswer::Undecided(format!("the rule asks about {what}, which the log does not have").into())
    };
    let proto = "x-forwarded-proto";
    assert_eq!(answer(&[], "/old", &[]), undecided("the field `x-forwarded-proto`"));
    assert_eq!(answer(&[proto], "/old", &[]), undecided("the cookie `beta`"));
    assert_eq!(answer(&[proto], "/old", &[(proto, "http")]), ReplayedAnswer::Redirect(301));
    assert!(matches!(answer(&[proto, "cookie"], "/old", &[(proto, "https")]), ReplayedAnswer::Upstream(_)));
    // The other conditions decide already.
    assert!(matches!(answer(&["cookie"], "/", &[]), ReplayedAnswer::Upstream(_)));
    assert!(matches!(answer(&[], "/x", &[]), ReplayedAnswer::Refused(410, _)));
}

#[test]
fn rules_behind_a_rewrite_are_replayed() {
    let rule = "path ~ ^/old/(.*) -> rewrite /$1\nheader:X-Beta = 1 -> 403\npath = /up -> 200 ok";
    let translation = translation(&[(json!({"xdp-ingress.io/redirect-rules": rule}), rules(0, "a.test", "/"))]);
    let answer = |names: &[&str], target: &str| {
        Replay::new(&translation.table, names.iter().copied()).answer(&get("a.test", target)).answer
    };
    assert!(matches!(answer(&[], "/old/x"), ReplayedAnswer::Upstream(_)));
    assert!(matches!(answer(&[], "/x"), ReplayedAnswer::Undecided(_)));
    assert!(matches!(answer(&["x-beta"], "/x"), ReplayedAnswer::Upstream(_)));
    assert_eq!(answer(&["x-beta"], "/up"), ReplayedAnswer::Response(200));
}

#[test]
fn each_form_of_a_target_has_its_path() {
    for (target, expect) in [
        ("/a?b", ("/a", "?b")),
        ("/a?u=http://b.test/", ("/a", "?u=http://b.test/")),
        ("/http://b.test/", ("/http://b.test/", "")),
        ("http://a.test", ("/", "")),
        ("HTTP://a.test?q", ("/", "?q")),
        ("https://a.test:443/x/?q", ("/x/", "?q")),
        ("*", ("*", "")),
        ("x", ("x", "")),
        ("", ("", "")),
    ] {
        assert_eq!(path_and_query(target), expect, "{target}");
    }
    let translation = translation(&[(json!({}), rules(0, "a.test", "/x"))]);
    let mut replay = Replay::new(&translation.table, []);
    let mut answer = |method, target| replay.answer(&LoggedRequest { method, ..get("a.test", target) }).answer;
    assert!(matches!(answer("GET", "http://a.test/x?y"), ReplayedAnswer::Upstream(_)));
    assert!(matches!(answer("OPTIONS", "*"), ReplayedAnswer::Refused(404, _)), "no rule is for the server as a whole");
    assert!(matches!(answer("GET", "*"), ReplayedAnswer::Refused(400, _)));
    assert!(matches!(answer("TRACE", "/x"), ReplayedAnswer::Refused(405, _)));
}

#[test]
fn reasons_have_no_part_of_the_path() {
    let translation = translation(&[(json!({}), rules(0, "a.test", "/x")), (json!({}), rules(1, "a.test", "/"))]);
    let mut replay = Replay::new(&translation.table, []);
    let mut answer = |target| replay.answer(&get("a.test", target)).answer;
    let ReplayedAnswer::Refused(400, reason) = answer("/a/..%2fx/1") else { panic!("{:?}", answer("/a/..%2fx/1")) };
    assert_eq!(reason, "pods may read the path as another one, for which another rule holds");
    assert_eq!(answer("/a/..%2fx/2"), ReplayedAnswer::Refused(400, reason));
}
