//! Backends of every kind of Service.

use std::collections::{BTreeMap, BTreeSet};

use ingress_lab::{
    client::{Ask, Protocol, Trust},
    load::{Connections, Load},
};

use crate::{
    objects::{deployment, ingress, rule, service, site},
    stage::{http, stage, until},
};

#[test]
fn app_protocol_selects_the_protocol_to_pods() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("app-protocol");
    scope.apply(&deployment("web", 1));
    let cases = [
        ("plain", "{port: 80, targetPort: 8080}", "HTTP/1.1"),
        ("h2c", "{port: 80, targetPort: 8080, appProtocol: kubernetes.io/h2c}", "HTTP/2.0"),
        ("ws", "{port: 80, targetPort: 8080, appProtocol: kubernetes.io/ws}", "HTTP/1.1"),
        ("https", "{port: 80, targetPort: 8443, appProtocol: https}", "HTTP/1.1"),
    ];
    for (name, port, _) in cases {
        let selected = service(name, port).replace(&format!("app: {name}"), "app: web");
        scope.apply(&(selected + &site(name, &format!("{name}.protocol.test"), name)));
    }
    scope.await_pods(&["web"]);
    for (name, _, protocol) in cases {
        let host = format!("{name}.protocol.test");
        stage.await_status(&host, "/", 200);
        for node in stage.nodes() {
            let answer = stage.get(node, &host, "/").expect("an answer");
            assert_eq!(answer.json().expect("what the pod saw")["protocol"].as_str(), Some(protocol), "{name}");
        }
    }
    for node in stage.nodes() {
        let ask = Ask::get("ws.protocol.test", "/");
        let load = Load::start(&stage.client, http(node), ask, 3, Connections::WebSockets).expect("messages come back");
        load.pass(100).expect("more messages come back");
        let report = load.stop().expect("load ends");
        assert_eq!(report.failed, 0, "{:?}", report.reasons);
    }
}

#[test]
fn services_without_selector_or_address_are_served_by_their_slices() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("slices");
    let headless =
        service("web", "{name: http, port: 80, targetPort: 8080}").replace("spec: {", "spec: {clusterIP: None, ");
    let bare = "---\napiVersion: v1\nkind: Service\nmetadata: {name: bare}\nspec: {ports: [{name: http, port: 80}]}\n";
    scope.apply(&(deployment("web", 2) + &headless + bare));
    scope.apply(&(site("headless", "headless.test", "web") + &site("bare", "bare.test", "bare")));
    scope.await_pods(&["web"]);
    stage.await_status("headless.test", "/", 200);
    stage.await_status("bare.test", "/", 503);
    // Two hand-written slices, which share a pod.
    let pods = scope.json(&["get", "pods", "--selector=app=web"]);
    let addresses: Vec<_> =
        pods["items"].as_array().expect("pods").iter().map(|pod| pod["status"]["podIP"].as_str()).collect();
    for (number, address) in addresses.iter().enumerate() {
        let address = address.expect("an address");
        scope.apply(&format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: bare-{number}, labels: {{kubernetes.io/service-name: bare}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: 8080, protocol: TCP}}]\nendpoints: [{{addresses: [{address}]}}, {{addresses: [{address}]}}]\n"
        ));
    }
    for node in stage.nodes() {
        until("both pods answer", || {
            let answers = (0..10).filter_map(|_| stage.get(node, "bare.test", "/").ok());
            let pods: BTreeSet<_> = answers.filter_map(|answer| answer.pod().map(str::to_owned)).collect();
            if pods.len() == 2 { Ok(()) } else { Err(format!("{pods:?}")) }
        });
    }
}

#[test]
fn a_service_may_prefer_the_pods_of_the_node() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("topology");
    for (name, preference) in [("near", "PreferSameNode"), ("zone", "PreferSameZone")] {
        let preferring = service(name, "{port: 80, targetPort: 8080}")
            .replace("spec: {", &format!("spec: {{trafficDistribution: {preference}, "));
        scope.apply(&(deployment(name, 4) + &preferring + &site(name, &format!("{name}.topology.test"), name)));
    }
    scope.await_pods(&["near", "zone"]);
    let pods = scope.json(&["get", "pods"]);
    let node_of: BTreeMap<&str, &str> = pods["items"]
        .as_array()
        .expect("pods")
        .iter()
        .filter_map(|pod| Some((pod["metadata"]["name"].as_str()?, pod["spec"]["nodeName"].as_str()?)))
        .collect();
    for (name, node) in
        ["near", "zone"].into_iter().flat_map(|name| stage.nodes().into_iter().map(move |node| (name, node)))
    {
        let own = node_of.iter().filter(|(pod, at)| pod.starts_with(name) && **at == node.name()).count();
        assert!(own > 0, "no pod of {name} on {}: {node_of:?}", node.name());
        let host = format!("{name}.topology.test");
        until(&format!("{} asks its own pods of {name}", node.name()), || {
            let answers = (0..20).filter_map(|_| stage.get(node, &host, "/").ok());
            let pods: BTreeSet<_> = answers.filter_map(|answer| answer.pod().map(str::to_owned)).collect();
            let is_own = |pod: &String| node_of.get(pod.as_str()) == Some(&node.name().as_str());
            if pods.len() == own && pods.iter().all(is_own) { Ok(()) } else { Err(format!("{pods:?} of {node_of:?}")) }
        });
    }
}

#[test]
fn both_address_families_are_served() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("families");
    let dual = service("web", "{port: 80, targetPort: 8080}")
        .replace("spec: {", "spec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], ");
    scope.apply(&(deployment("web", 1) + &dual + &site("web", "families.test", "web")));
    scope.await_pods(&["web"]);
    stage.await_status("families.test", "/", 200);
    for node in stage.nodes() {
        for address in node.addresses() {
            let ask = Ask::get("families.test", "/");
            let answer = stage.try_ask((address, 80).into(), Protocol::Http1, &Trust::none(), &ask).expect("an answer");
            assert_eq!(answer.status, 200, "over {address}");
        }
    }
}

#[test]
fn the_oldest_ingress_wins_and_unknown_backends_affect_only_their_path() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("conflicts");
    scope.run(&[("old", 1), ("new", 1)]);
    scope.apply(&site("old", "conflict.test", "old"));
    stage.await_status("conflict.test", "/", 200);
    // Creation times have a resolution of one second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let resource = "      - {pathType: Prefix, path: /bucket, backend: {resource: {apiGroup: example.com, kind: Bucket, name: b}}}\n";
    let new =
        ingress("a-new", &(rule("conflict.test", &[("Prefix", "/", "new"), ("Prefix", "/new", "new")]) + resource));
    scope.apply(&new);
    stage.await_answer("conflict.test", "/new", |answer| answer.pod().is_some_and(|pod| pod.starts_with("new-")));
    stage.await_status("conflict.test", "/bucket", 503);
    for node in stage.nodes() {
        let answer = stage.get(node, "conflict.test", "/").expect("an answer");
        assert!(answer.pod().is_some_and(|pod| pod.starts_with("old-")), "{:?}", answer.pod());
    }
    scope.kubectl(&["delete", "ingress", "old"]);
    stage.await_answer("conflict.test", "/", |answer| answer.pod().is_some_and(|pod| pod.starts_with("new-")));
}
