//! Events that `kubectl describe ingress` shows to the owner of a wrong Ingress.

use std::collections::BTreeMap;

use ingress_lab::credentials::Authority;

use crate::{
    objects::{ingress, pods, rule, service, site},
    stage::{stage, until},
};

#[test]
fn ten_broken_ingresses_have_ten_helpful_events() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("broken");
    let authority = Authority::generate().expect("an authority");
    scope.apply(&(pods("web", 1) + &service("empty", "{port: 80, targetPort: 8080}")));
    stage.apply(&authority.secret(&scope.name, "elsewhere", &["elsewhere.test"]).expect("a Secret"));
    scope.await_pods(&["web"]);
    scope.apply(&site("oldest", "taken.test", "web"));
    stage.await_status("taken.test", "/", 200);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let tls = |host: &str, secret: &str| {
        format!("  tls: [{{hosts: [{host}], secretName: {secret}}}]\n") + &rule(host, &[("Prefix", "/", "web")])
    };
    let annotated = |name: &str, host: &str, annotation: &str| {
        site(name, host, "web")
            .replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, annotations: {{{annotation}}}}}"))
    };
    let resource = "  rules:\n  - host: e09.test\n    http:\n      paths:\n      - {pathType: Prefix, path: /, backend: {resource: {apiGroup: example.com, kind: Bucket, name: b}}}\n";
    let broken = [
        ("service", "ServiceNotFound", site("service", "e01.test", "missing")),
        ("port", "PortNotFound", site("port", "e02.test", "web").replace("number: 80", "number: 81")),
        ("endpoints", "NoReadyEndpoints", site("endpoints", "e03.test", "empty")),
        ("secret", "SecretNotFound", ingress("secret", &tls("e04.test", "missing"))),
        ("certificate", "CertHostMismatch", ingress("certificate", &tls("e05.test", "elsewhere"))),
        ("conflict", "HostPathConflict", site("conflict", "taken.test", "web")),
        (
            "invalid",
            "InvalidAnnotation",
            annotated("invalid", "e07.test", "nginx.ingress.kubernetes.io/ssl-redirect: \"maybe\""),
        ),
        (
            "unsupported",
            "UnsupportedAnnotation",
            annotated("unsupported", "e08.test", "nginx.ingress.kubernetes.io/server-snippet: \"deny all;\""),
        ),
        ("resource", "UnsupportedBackend", ingress("resource", resource)),
        (
            "class",
            "ClassMismatch",
            annotated("class", "e10.test", "kubernetes.io/ingress.class: \"xdp\"")
                .replace("ingressClassName: xdp", "ingressClassName: missing"),
        ),
    ];
    // The API server refuses a class named twice and differently at creation, but not later.
    let class = site("class", "e10.test", "web").replace("ingressClassName: xdp", "ingressClassName: missing");
    scope.apply(&class);
    for (_, _, manifest) in &broken {
        scope.apply(manifest);
    }
    let expected: BTreeMap<&str, &str> = broken.iter().map(|(name, reason, _)| (*name, *reason)).collect();
    let found = until("every broken Ingress has its event", || {
        let events = scope.json(&["get", "events.events.k8s.io"]);
        let mut found = BTreeMap::new();
        for event in events["items"].as_array().expect("events") {
            let name = event["regarding"]["name"].as_str().unwrap_or_default();
            let reason = event["reason"].as_str().unwrap_or_default();
            if event["regarding"]["kind"] == "Ingress" && expected.get(name) == Some(&reason) {
                assert_eq!(event["type"], "Warning");
                found.insert(name.to_owned(), event["note"].as_str().unwrap_or_default().to_owned());
            }
        }
        if found.len() == expected.len() { Ok(found) } else { Err(format!("only {found:#?}")) }
    });
    for (name, note) in &found {
        println!("{name}: {} {note}", expected[name.as_str()]);
        assert!(note.contains(';'), "an event says what is wrong, and then what to do: {note}");
    }
    let described = scope.kubectl(&["describe", "ingress", "service"]);
    assert!(described.contains("ServiceNotFound"), "{described}");
    // The healthy Ingress has no warnings.
    let events = scope.json(&["get", "events.events.k8s.io", "--field-selector=type=Warning,regarding.name=oldest"]);
    assert_eq!(events["items"].as_array().map(Vec::len), Some(0), "{events}");
}
