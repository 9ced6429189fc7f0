//! The promises of the Ingress documentation, as scenarios: default backend, host rules, load balancing, path rules.
//! Each is tested on every node. `class.rs` has the scenario about classes.

use std::collections::BTreeSet;

use http::Method;
use ingress_lab::{
    client::{Ask, Protocol, Trust},
    credentials::Authority,
};

use crate::{
    objects::{ingress, pods, rule},
    stage::{Scope, http, https, stage, until},
};

/// Fields that every answer to a client carries.
const FIELDS: [&str; 4] = ["content-length", "content-type", "date", "server"];

#[test]
fn default_backend_takes_every_host_path_and_method() {
    let Some(stage) = stage() else { return };
    // The default backend takes hosts that other tests expect to be unknown.
    let _alone = stage.alone();
    let scope = stage.scope("default-backend");
    scope.run(&[("web", 1)]);
    scope.apply(&ingress("all", "  defaultBackend: {service: {name: web, port: {number: 80}}}\n"));
    stage.await_status("anything.test", "/", 200);
    let requests = [
        (Method::GET, "my-host", "/"),
        (Method::GET, "my-host", "/sub?query=1"),
        (Method::POST, "some-host", "/"),
        (Method::PUT, "", "/resource"),
        (Method::DELETE, "some-host", "/resource"),
        (Method::PATCH, "my-host", "/sub/resource"),
    ];
    for node in stage.nodes() {
        for (method, host, path) in requests.clone() {
            // An empty name stands for the node's own address.
            let host = if host.is_empty() { node.v4().to_string() } else { host.to_owned() };
            let upload = if method == Method::GET { 0 } else { 1000 };
            let ask = Ask { method: method.clone(), host, path: path.into(), upload };
            let answer = stage.try_ask(http(node), Protocol::Http1, &Trust::none(), &ask).expect("an answer");
            assert_eq!(answer.status, 200, "{ask:?}");
            let json = answer.json().expect("what the pod saw");
            assert_eq!((json["method"].as_str(), json["path"].as_str()), (Some(method.as_str()), Some(path)));
            assert_eq!(json["headers"]["host"].as_str(), Some(ask.host.as_str()));
            assert_eq!(json["received"].as_u64(), Some(upload));
            for field in FIELDS {
                assert!(answer.header(field).is_some(), "{field} is missing: {:?}", answer.headers);
            }
        }
    }
    drop(scope);
    stage.await_status("anything.test", "/", 404);
    for node in stage.nodes() {
        let answer = stage.get(node, "anything.test", "/").expect("an answer");
        for field in FIELDS {
            assert!(answer.header(field).is_some(), "{field} is missing of our own answer: {:?}", answer.headers);
        }
    }
}

#[test]
fn hosts_match_exactly_or_by_one_label() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("host-rules");
    let authority = Authority::generate().expect("an authority");
    scope.apply(&(pods("wild", 1) + &pods("exact", 1)));
    stage.apply(&authority.secret(&scope.name, "tls", &["foo.hosts.test"]).expect("a Secret"));
    scope.await_pods(&["wild", "exact"]);
    let exact = "  tls: [{hosts: [foo.hosts.test], secretName: tls}]\n".to_owned()
        + &rule("foo.hosts.test", &[("Prefix", "/", "exact")]);
    scope.apply(&(ingress("exact", &exact) + &ingress("wild", &rule("*.hosts.test", &[("Prefix", "/", "wild")]))));
    stage.await_answer("bar.hosts.test", "/", |answer| served_by(answer.pod(), "wild"));
    let trust = authority.trust().expect("a root");
    for node in stage.nodes() {
        let secure = |protocol| {
            until("the certificate is served", || {
                let ask = Ask::get("foo.hosts.test", "/");
                stage.try_ask(https(node), protocol, &trust, &ask).map_err(|error| format!("{error:#}"))
            })
        };
        for protocol in [Protocol::Https1, Protocol::Https2] {
            let answer = secure(protocol);
            assert!(answer.status == 200 && served_by(answer.pod(), "exact"), "{protocol:?} {answer:?}");
        }
        let get = |host: &str| stage.get(node, host, "/path").expect("an answer");
        assert_eq!(get("foo.hosts.test").status, 308, "a host with TLS is redirected");
        assert!(served_by(get("bar.hosts.test").pod(), "wild"));
        assert!(served_by(get("BAR.hosts.test:80").pod(), "wild"), "case and port do not matter");
        for nobody in ["baz.bar.hosts.test", "hosts.test", "foohosts.test"] {
            assert_eq!(get(nobody).status, 404, "{nobody}");
        }
    }
}

#[test]
fn requests_reach_all_ten_pods() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("balance");
    scope.apply(&pods("web", 10));
    scope.apply(&ingress("web", &rule("balance.test", &[("Prefix", "/", "web")])));
    scope.await_pods(&["web"]);
    for node in stage.nodes() {
        until("all ten are routed to", || {
            let pods: BTreeSet<String> = (0..100)
                .map(|_| stage.get(node, "balance.test", "/").expect("an answer"))
                .filter_map(|answer| answer.pod().map(str::to_owned))
                .collect();
            if pods.len() == 10 { Ok(()) } else { Err(format!("only {pods:?}")) }
        });
    }
}

/// A host, its paths, and the expected pod of each request; no pod means 404.
type Paths =
    (&'static str, &'static [(&'static str, &'static str, &'static str)], &'static [(&'static str, &'static str)]);

const NOBODY: &str = "";

/// The table of the Ingress documentation ("Examples", path matching), and cases that it implies.
const PATHS: [Paths; 12] = [
    ("p01.test", &[("Exact", "/foo", "a")], &[("/foo", "a"), ("/foo/", NOBODY), ("/FOO", NOBODY), ("/bar", NOBODY)]),
    ("p02.test", &[("Exact", "/foo/", "a")], &[("/foo/", "a"), ("/foo", NOBODY)]),
    ("p03.test", &[("Prefix", "/", "a")], &[("/", "a"), ("/anything/at?all=1", "a")]),
    ("p04.test", &[("Prefix", "/foo", "a")], &[("/foo", "a"), ("/foo/", "a"), ("/foo/x", "a"), ("/foox", NOBODY)]),
    ("p05.test", &[("Prefix", "/foo/", "a")], &[("/foo", "a"), ("/foo/", "a"), ("/", NOBODY)]),
    ("p06.test", &[("Prefix", "/aaa/bb", "a")], &[("/aaa/bbb", NOBODY), ("/aaa/bb", "a")]),
    ("p07.test", &[("Prefix", "/aaa/bbb", "a")], &[("/aaa/bbb/ccc", "a"), ("/aaa/bbbxyz", NOBODY), ("/aaa/bbb", "a")]),
    ("p08.test", &[("Prefix", "/", "a"), ("Prefix", "/aaa", "b")], &[("/aaa/ccc", "b"), ("/ccc", "a")]),
    (
        "p09.test",
        &[("Prefix", "/aaa", "b"), ("Prefix", "/", "a"), ("Prefix", "/aaa/bbb", "c")],
        &[("/aaa/bbb", "c"), ("/aaa/bbb/ddd", "c"), ("/aaa/ccc", "b"), ("/ccc", "a")],
    ),
    ("p10.test", &[("Prefix", "/aaa", "a")], &[("/ccc", NOBODY)]),
    ("p11.test", &[("Prefix", "/foo", "a"), ("Exact", "/foo", "b")], &[("/foo", "b"), ("/foo/", "a")]),
    // Element by element both are the same; of two that match, the longer text goes first.
    (
        "p12.test",
        &[("Prefix", "/foo", "a"), ("Prefix", "/foo/", "b")],
        &[("/foo/", "b"), ("/foo", "b"), ("/foo/x", "b")],
    ),
];

#[test]
fn paths_match_as_documented() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("paths");
    scope.run(&[("a", 1), ("b", 1), ("c", 1)]);
    for (host, paths, _) in PATHS {
        scope.apply(&ingress(host, &rule(host, paths)));
    }
    // Changes arrive in order, so the last host implies all others.
    stage.await_answer("p12.test", "/foo", |answer| served_by(answer.pod(), "b"));
    for node in stage.nodes() {
        for (host, _, asked) in PATHS {
            for (path, expected) in asked {
                let answer = stage.get(node, host, path).expect("an answer");
                let right = match *expected {
                    NOBODY => answer.status == 404,
                    service => answer.status == 200 && served_by(answer.pod(), service),
                };
                assert!(right, "{host}{path}: {} from {:?}, expected `{expected}`", answer.status, answer.pod());
            }
        }
    }
    await_gone(&scope, "p12.test");
}

/// Deletes the Ingress of this name and host, and waits until its host is unknown.
fn await_gone(scope: &Scope<'_>, name: &str) {
    scope.kubectl(&["delete", "ingress", name]);
    scope.stage.await_status(name, "/foo", 404);
}

/// Returns whether a pod of the Deployment answered.
pub(crate) fn served_by(pod: Option<&str>, deployment: &str) -> bool {
    pod.is_some_and(|pod| pod.starts_with(&format!("{deployment}-")))
}
