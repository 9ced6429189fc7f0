use std::sync::Arc;

use ingress_control::{
    Classes, Origin,
    change::{Change, Object},
    cluster::Cluster,
    translate::{Options, translate},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const PREFIX: &str = "nginx.ingress.kubernetes.io";

fn ingress((namespace, name): (&str, &str), age: usize, annotations: Value, paths: &[(&str, &str)]) -> Ingress {
    let path = |(number, (kind, text)): (usize, &(&str, &str))| {
        let service = json!({"name": format!("{name}-{number}"), "port": {"number": 80}});
        json!({"path": text, "pathType": kind, "backend": {"service": service}})
    };
    let paths: Vec<_> = paths.iter().enumerate().map(path).collect();
    serde_json::from_value(json!({
        "metadata": {
            "namespace": namespace,
            "name": name,
            "creationTimestamp": format!("2026-01-01T00:{age:02}:00Z"),
            "annotations": annotations,
        },
        "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.test", "http": {"paths": paths}}]},
    }))
    .expect("an Ingress")
}

fn regex() -> Value {
    json!({"nginx.ingress.kubernetes.io/use-regex": "true"})
}

/// Compares with a process that takes classes over from ingress-nginx.
fn compare(ingresses: &[Ingress]) -> Comparison {
    let mut cluster = Cluster::default();
    for ingress in ingresses {
        let object = Object::Ingress(Arc::new(ingress.clone()));
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let classes = Classes {
        name: "nginx".into(),
        controller: "k8s.io/ingress-nginx".into(),
        by_name: true,
        ..Classes::default()
    };
    let translation = translate(&cluster, &Options { classes, ..Options::default() });
    assert_eq!(translation.served.len(), ingresses.len());
    witnesses(ingresses, PREFIX, &translation.table)
}

fn shown(comparison: &Comparison) -> Vec<String> {
    let line = |witness: &Witness| format!("{}: {} | {}", witness.url, witness.nginx, witness.here);
    comparison.witnesses.iter().map(line).collect()
}

#[test]
fn what_both_serve_alike_has_no_witness_but_escaped_slashes() {
    let ingresses = [
        ingress(("shop", "web"), 1, json!({}), &[("Prefix", "/"), ("Prefix", "/docs/"), ("Exact", "/login/")]),
        ingress(("shop", "api"), 2, json!({}), &[("ImplementationSpecific", "/api"), ("Exact", "/api/v1")]),
    ];
    let comparison = compare(&ingresses);
    assert_eq!((comparison.hosts, comparison.unknown.len()), (1, 0));
    let others: Vec<_> = comparison.witnesses.iter().filter(|witness| !witness.url.contains("%2F")).collect();
    assert!(others.iter().all(|witness| witness.url.contains("..") || witness.url.contains("%2e")), "{others:?}");
}

#[test]
fn expressions_apply_to_all_paths_of_the_owner() {
    let ingresses = [
        ingress(("shop", "api"), 1, regex(), &[("ImplementationSpecific", "/api/[0-9]+")]),
        ingress(("shop", "web"), 2, json!({}), &[("Exact", "/head"), ("Prefix", "/foo"), ("Prefix", "/")]),
    ];
    let comparison = compare(&ingresses);
    let plain = |witness: &&Witness| !witness.url.contains('%') && !witness.url.contains("..");
    let others: Vec<_> = comparison.witnesses.iter().filter(plain).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn paths_of_guests_keep_their_meaning_and_are_told() {
    let ingresses = [
        ingress(("shop", "web"), 1, json!({}), &[("Exact", "/head"), ("Prefix", "/")]),
        ingress(("blog", "guest"), 2, regex(), &[("ImplementationSpecific", "/blog/[0-9]+")]),
    ];
    let lines = shown(&compare(&ingresses));
    let expect = "https://a.test/HEAD: `/head` of shop/web, to web-0:80 | `/` of shop/web, to web-1:80";
    assert!(lines.iter().any(|line| line == expect), "{lines:#?}");
}

#[test]
fn a_catch_all_serves_hosts_without_rules() {
    let mut first = ingress(("shop", "hub"), 1, json!({}), &[("Prefix", "/hub")]);
    first.spec.as_mut().and_then(|spec| spec.rules.as_mut()).expect("rules")[0].host = None;
    let mut second = ingress(("shop", "all"), 2, json!({}), &[]);
    let spec = second.spec.as_mut().expect("a spec");
    spec.rules = None;
    let backend = json!({"service": {"name": "all", "port": {"number": 80}}});
    spec.default_backend = Some(serde_json::from_value(backend).expect("a backend"));
    let comparison = compare(&[first, second]);
    let plain: Vec<_> = comparison.witnesses.iter().filter(|witness| !witness.url.contains("%2F")).collect();
    assert!(comparison.hosts == 1 && plain.is_empty(), "{plain:?}");
}

#[test]
fn a_configuration_that_nginx_refuses_is_unknown() {
    let comparison = compare(&[ingress(("shop", "web"), 1, json!({}), &[("Prefix", "/foo"), ("Prefix", "/foo/")])]);
    assert_eq!((comparison.hosts, comparison.unknown.len()), (0, 1));
    let UnknownHost { host, reason } = &comparison.unknown[0];
    assert_eq!(host, "a.test");
    assert!(reason.contains("occurs twice"), "{reason}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // Requests without escapes and dots, and sets without two paths that differ in their slash or kind only.
    #[test]
    fn the_owner_of_a_host_is_served_as_with_ingress_nginx(
        paths in prop::collection::btree_map("(/[ab]{1,2}){1,3}/?|/", prop::bool::ANY, 1..6),
        expressions in prop::collection::vec(
            prop::sample::select(vec!["/a/[ab]+", "/b.*", "/[^/]+/a", "/a(/|$)(.*)", "/.*"]), 0..3,
        ),
    ) {
        let texts: BTreeSet<_> = paths.keys().map(|text| path::elements(text)).collect();
        prop_assume!(texts.len() == paths.len());
        // nginx serves exactly `/` by its default backend on hosts with expressions.
        let kind = |text: &str, is_exact: bool| if is_exact && text != "/" { "Exact" } else { "Prefix" };
        let paths: Vec<_> = paths.iter().map(|(text, is_exact)| (kind(text, *is_exact), text.as_str())).collect();
        let unique: BTreeSet<_> = expressions.iter().collect();
        let expressions: Vec<_> = unique.into_iter().map(|text| ("ImplementationSpecific", *text)).collect();
        let mut ingresses = vec![ingress(("shop", "web"), 1, json!({}), &paths)];
        if !expressions.is_empty() {
            ingresses.push(ingress(("shop", "api"), 2, regex(), &expressions));
        }
        let comparison = compare(&ingresses);
        let is_plain = |witness: &&Witness| !witness.url.contains('%') && !witness.url.contains("/.");
        let others: Vec<_> = comparison.witnesses.iter().filter(is_plain).collect();
        prop_assert!(others.is_empty(), "{:#?}", others);
    }
}
