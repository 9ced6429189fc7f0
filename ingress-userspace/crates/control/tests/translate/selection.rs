//! Translations of clusters in which only the objects of selected Namespaces count.

use std::{path::Path, sync::Arc};

use ingress_control::{
    Origin,
    change::{Change, Kind, ObjectId, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator, translate},
};
use proptest::prelude::*;

use crate::changes::{any_event, change};

fn options() -> Options {
    Options { selects_namespaces: true, ..Options::default() }
}

fn apply(cluster: &mut Cluster, text: &str) {
    let path: Arc<Path> = Path::new("in.yaml").into();
    let parsed = parse(&path, text);
    assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
}

fn select(cluster: &mut Cluster, namespace: &str) {
    apply(cluster, &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n"));
}

/// Every kind of the Gateway API, in `home` and in `away`.
fn objects() -> String {
    let mut text = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp}\n\
                    spec: {controllerName: xdp-ingress.io/gateway-controller}\n"
        .to_owned();
    for namespace in ["home", "away"] {
        let mut add = |kind: &str, spec: &str| {
            text += &format!(
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a, namespace: {namespace}}}\nspec: {spec}\n"
            );
        };
        let port = if namespace == "home" { 80 } else { 81 };
        let listener = |name: &str, port: u16| {
            format!("{{name: {name}, port: {port}, protocol: HTTP, allowedRoutes: {{namespaces: {{from: All}}}}}}")
        };
        add(
            "Gateway",
            &format!(
                "{{gatewayClassName: xdp, allowedListeners: {{namespaces: {{from: All}}}}, listeners: [{}]}}",
                listener("l", port)
            ),
        );
        let set = listener("of-set", port + 10);
        add("ListenerSet", &format!("{{parentRef: {{name: a, namespace: home}}, listeners: [{set}]}}"));
        let rules = "rules: [{backendRefs: [{name: s, port: 80}]}]";
        add("HTTPRoute", &format!("{{parentRefs: [{{name: a, namespace: home}}], {rules}}}"));
        add(
            "BackendTLSPolicy",
            "{targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: s.test, wellKnownCACertificates: System}}",
        );
    }
    text
}

#[test]
fn objects_of_the_gateway_api_count_while_their_namespace_is_selected() {
    let mut cluster = Cluster::new(true);
    let mut translator = Translator::new(options());
    let mut shown = |cluster: &Cluster| -> Vec<String> {
        let translation = translator.translate(cluster);
        assert_eq!(translation, translate(cluster, &options()), "what was translated before makes no difference");
        translation.statuses.keys().map(|id| format!("{} {}", id.kind.as_str(), id.name)).collect()
    };
    apply(&mut cluster, &objects());
    assert_eq!(shown(&cluster), ["GatewayClass xdp"]);
    select(&mut cluster, "home");
    let of_home =
        ["GatewayClass xdp", "Gateway home/a", "ListenerSet home/a", "HTTPRoute home/a", "BackendTLSPolicy home/a"];
    assert_eq!(shown(&cluster), of_home);
    select(&mut cluster, "away");
    assert_eq!(shown(&cluster).len(), 9);
    cluster.apply(Change::Remove(ObjectId { kind: Kind::Namespace, name: ObjectName::new("", "away") }));
    assert_eq!(shown(&cluster), of_home);
}

/// A route may lead to a Service of a namespace that is not selected. What is sent there stays encrypted.
#[test]
fn policies_of_other_namespaces_hold_for_their_services() {
    let mut cluster = Cluster::new(true);
    let route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: b, namespace: home}\n\
                 spec: {parentRefs: [{name: a}], hostnames: [b.test], rules: [{backendRefs: [{name: s, namespace: away, port: 80}]}]}\n\
                 ---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: away}\n\
                 spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: home}], to: [{group: '', kind: Service}]}\n\
                 ---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: away}\nspec: {ports: [{port: 80}]}\n";
    apply(&mut cluster, &(objects() + route));
    select(&mut cluster, "home");
    let table = translate(&cluster, &options()).table.to_string();
    assert!(table.contains("upstream away/s:80+policy(a) https") && table.contains("server-name=s.test"), "{table}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// An incremental translation through all previous states equals a fresh one of the last state.
    #[test]
    fn a_translation_does_not_depend_on_previous_selections(
        batches in prop::collection::vec(prop::collection::vec(any_event(), 1..6), 1..30),
    ) {
        let (mut cluster, mut translator) = (Cluster::new(true), Translator::new(options()));
        let mut known = Vec::new();
        for batch in &batches {
            for change in batch.iter().filter_map(|event| change(event, &mut known)) {
                cluster.apply(change);
            }
            let translation = translator.translate(&cluster);
            let alone = translate(&cluster, &options());
            prop_assert_eq!(&translation, &alone, "{}\n{}", translation.table, alone.table);
        }
    }
}
