//! The Helm chart with the values of its `ci/`: a file that was written for ingress-nginx, a load balancer and node ports.

use std::collections::BTreeSet;

use ingress_lab::client::{Ask, Protocol, Trust};
use serde_json::Value;

use crate::{
    objects::{pods, site},
    packaging::{Restored, await_nothing, deploy, helm},
    stage::{Stage, stage, until},
};

/// Time limit of Helm for an installation or update.
const LIMIT: &str = "--timeout=300s";

#[test]
fn values_of_ingress_nginx_serve_its_class() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("chart-nginx");
    let host = "chart-nginx.test";
    // The class of another release.
    scope.share(
        "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: nginx}\nspec: {controller: k8s.io/ingress-nginx}\n",
    );
    scope.apply(
        &(pods("web", 1) + &site("web", host, "web").replace("ingressClassName: xdp", "ingressClassName: nginx")),
    );
    scope.await_pods(&["web"]);
    let _restored = Restored(stage);
    stage.kubectl(&["delete", "--kustomize", &deploy("base"), "--wait"]);
    await_nothing(stage, host);

    let said = with_values(stage, "install", "ingress-nginx", &[]);
    for value in ["controller.autoscaling", "controller.admissionWebhooks", "controller.kind"] {
        assert!(said.contains(&format!("`{value}` has no effect: ")), "{said}");
    }
    stage.await_answer(host, "/", |answer| {
        answer.status == 200 && answer.header("x-content-type-options") == Some("nosniff")
    });
    let expected: BTreeSet<String> = stage.nodes().iter().map(|node| node.v4().to_string()).collect();
    until("the status holds the nodes", || {
        let object = scope.json(&["get", "ingress", "web"]);
        let found = addresses(&object["status"]["loadBalancer"]["ingress"]);
        if found.is_superset(&expected) { Ok(()) } else { Err(object["status"].to_string()) }
    });

    // Metrics are at the address of the node, where the Service leads to.
    for node in stage.nodes() {
        let address = (node.v4(), 9110).into();
        let answer = until("metrics from outside of the node", || {
            stage
                .try_ask(address, Protocol::Http1, &Trust::none(), &Ask::get("metrics.test", "/metrics"))
                .map_err(|error| format!("{error:#}"))
        });
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    await_endpoints(stage, "xdp-ingress-metrics", 9110);

    // Settings change without a restart.
    let before = pod_names(stage);
    with_values(stage, "upgrade", "ingress-nginx", &["--set=controller.addHeaders.X-Edge=changed"]);
    stage.await_answer(host, "/", |answer| answer.header("x-edge") == Some("changed"));
    assert_eq!(pod_names(stage), before, "a change of header fields replaces pods");
    helm(stage, &["uninstall", "xdp-ingress", "--wait", "--timeout=180s"]).expect("the release is removed");
}

#[test]
fn services_of_the_chart_lead_to_all_nodes() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("chart-service");
    let host = "chart-service.test";
    scope.apply(&(pods("web", 1) + &site("web", host, "web")));
    scope.await_pods(&["web"]);
    let _restored = Restored(stage);
    stage.kubectl(&["delete", "--kustomize", &deploy("base"), "--wait"]);
    await_nothing(stage, host);

    // No load balancer becomes ready here, so Helm would wait for it in vain.
    let install = |action: &str, name: &str| {
        let values = format!("--values={}/ci/{name}-values.yaml", deploy("chart"));
        let chart = &deploy("chart");
        helm(stage, &[action, "xdp-ingress", chart, "--create-namespace", &values, LIMIT])
            .expect("the chart is applied");
        stage.await_rollout();
    };
    install("install", "loadbalancer");
    stage.await_status(host, "/", 200);
    for port in [80, 443] {
        await_endpoints(stage, "xdp-ingress", port);
        await_endpoints(stage, "xdp-ingress-internal", port);
    }
    // The cloud gives the address.
    let status = r#"{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.7"}]}}}"#;
    let patch = ["patch", "service", "xdp-ingress", "--subresource=status", "--type=merge", "--patch", status];
    stage.kubectl(&[&["--namespace=xdp-ingress"], &patch[..]].concat());
    until("the status is the address of the load balancer", || {
        let object = scope.json(&["get", "ingress", "web"]);
        let found = addresses(&object["status"]["loadBalancer"]["ingress"]);
        if found == BTreeSet::from(["198.51.100.7".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
    });

    install("upgrade", "nodeport");
    stage.await_status(host, "/", 200);
    let service = stage.json(&["--namespace=xdp-ingress", "get", "service", "xdp-ingress"]);
    let ports = service["spec"]["ports"].as_array().expect("ports");
    let node_ports: Vec<_> = ports.iter().map(|port| port["nodePort"].as_u64()).collect();
    assert_eq!(node_ports, [Some(30080), Some(30043), Some(30032)], "{service}");
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Local", "{service}");
    await_endpoints(stage, "xdp-ingress", 5432);
    helm(stage, &["uninstall", "xdp-ingress", "--wait", "--timeout=180s"]).expect("the release is removed");
}

/// Installs or updates the chart with a file of its `ci/`, and returns its notes.
fn with_values(stage: &Stage, action: &str, name: &str, more: &[&str]) -> String {
    let chart = &deploy("chart");
    let values = format!("--values={chart}/ci/{name}-values.yaml");
    let args = [action, "xdp-ingress", chart, "--create-namespace", "--wait", LIMIT, &values];
    helm(stage, &[&args[..], more].concat()).expect("the chart is applied")
}

/// Waits until a Service of the product leads to this port of every node.
fn await_endpoints(stage: &Stage, service: &str, port: u64) {
    let expected: BTreeSet<String> = stage.nodes().iter().map(|node| node.v4().to_string()).collect();
    let selector = format!("--selector=kubernetes.io/service-name={service}");
    until(&format!("`{service}` leads to all nodes"), || {
        let slices = stage.json(&["--namespace=xdp-ingress", "get", "endpointslices", &selector]);
        let mut found = BTreeSet::new();
        for slice in slices["items"].as_array().into_iter().flatten() {
            if slice["ports"].as_array().into_iter().flatten().any(|entry| entry["port"] == port) {
                for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                    let addresses = endpoint["addresses"].as_array().into_iter().flatten();
                    found.extend(addresses.filter_map(Value::as_str).map(str::to_owned));
                }
            }
        }
        if found.is_superset(&expected) { Ok(()) } else { Err(format!("{port} of {found:?}")) }
    });
}

fn addresses(entries: &Value) -> BTreeSet<String> {
    entries.as_array().into_iter().flatten().filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect()
}

fn pod_names(stage: &Stage) -> BTreeSet<String> {
    let names = stage.kubectl(&["--namespace=xdp-ingress", "get", "pods", "--output=name"]);
    names.lines().map(str::to_owned).collect()
}
