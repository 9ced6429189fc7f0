//! Checks that the chart's PodMonitor leads Prometheus to the metrics of each pod, and to no other port. It follows the
//! rules of the Prometheus operator and of Prometheus' discovery and relabelling, and starts neither of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde_json::{Value, json};

use super::chart::template;
use xtask_setup::Packagers;

/// Labels of a target.
type Labels = BTreeMap<String, String>;

/// Addresses of nodes, each with the target on it.
const NODES: [(&str, &str); 2] =
    [("192.0.2.7", "192.0.2.7:9110/metrics"), ("2001:db8::7", "[2001:db8::7]:9110/metrics")];
/// Containers of the user beside ours, with ports and without; Prometheus discovers each.
const OTHERS: &str = r#"--set-json=controller.extraContainers=[{"name":"beside","ports":[{"name":"metrics","containerPort":9110}]},{"name":"xdp-ingress-b"}]"#;

/// Renders the chart with a PodMonitor alone and follows it.
///
/// # Errors
/// Names the targets if they are not exactly one for each pod.
pub(super) fn run(tools: &Packagers) -> Result<()> {
    let set = "--set=controller.metrics.enabled=true,controller.metrics.podMonitor.enabled=true,controller.metrics.service.enabled=false";
    let objects = template(tools, &[set.as_ref(), OTHERS.as_ref()])?;
    let object = |key: &str| objects.get(key).with_context(|| format!("there is no `{key}`"));
    let pod = &object("DaemonSet xdp-ingress/xdp-ingress")?["spec"]["template"];
    let monitor = object("PodMonitor xdp-ingress/xdp-ingress")?;
    for (node, expected) in NODES {
        let found = targets(monitor, pod, node)?;
        ensure!(found == BTreeSet::from([expected.to_owned()]), "the PodMonitor leads to {found:?}, not to {expected}");
    }
    Ok(())
}

/// Returns address and path of each target of a pod on the network of `node`.
fn targets(monitor: &Value, pod: &Value, node: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let selected = monitor["spec"]["selector"]["matchLabels"].as_object().context("the PodMonitor selects all pods")?;
    if selected.iter().any(|(name, value)| pod["metadata"]["labels"].get(name) != Some(value)) {
        return Ok(found);
    }
    let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().context("the PodMonitor has no endpoints")?;
    for endpoint in endpoints {
        for target in discovered(&pod["spec"], node) {
            if let Some(labels) = relabelled(target, endpoint)? {
                let path = endpoint["path"].as_str().unwrap_or("/metrics");
                found.insert(format!("{}{path}", labels.get("__address__").context("a target has no address")?));
            }
        }
    }
    Ok(found)
}

/// Returns what Prometheus discovers of a pod (`role: pod`): a target for each declared port, and one without a port for a
/// container that declares none.
fn discovered(spec: &Value, node: &str) -> Vec<Labels> {
    let list = |key: &str| spec[key].as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for container in [list("containers"), list("initContainers")].concat() {
        let mut labels = Labels::new();
        let mut add =
            |name: &str, value: &str| labels.insert(format!("__meta_kubernetes_pod_{name}"), value.to_owned());
        add("ip", node);
        add("host_ip", node);
        add("node_name", "node-a");
        add("container_name", container["name"].as_str().unwrap_or_default());
        labels.insert("__address__".to_owned(), node.to_owned());
        let ports = container["ports"].as_array().cloned().unwrap_or_default();
        if ports.is_empty() {
            all.push(labels.clone());
        }
        for port in ports {
            let (mut labels, number) = (labels.clone(), port["containerPort"].to_string());
            let host = if node.contains(':') { format!("[{node}]") } else { node.to_owned() };
            labels.insert("__address__".to_owned(), format!("{host}:{number}"));
            let name = port["name"].as_str().unwrap_or_default().to_owned();
            labels.insert("__meta_kubernetes_pod_container_port_name".to_owned(), name);
            labels.insert("__meta_kubernetes_pod_container_port_number".to_owned(), number);
            all.push(labels);
        }
    }
    all
}

/// Applies the rules that the operator makes of an endpoint; `None` if one of them drops the target.
fn relabelled(mut labels: Labels, endpoint: &Value) -> Result<Option<Labels>> {
    let mut rules = Vec::new();
    for (key, label) in [("port", "name"), ("portNumber", "number")] {
        if let Some(port) = endpoint.get(key) {
            let port = port.as_str().map_or_else(|| port.to_string(), str::to_owned);
            let label = format!("__meta_kubernetes_pod_container_port_{label}");
            rules.push(json!({ "action": "keep", "sourceLabels": [label], "regex": port }));
        }
    }
    rules.extend(endpoint["relabelings"].as_array().cloned().unwrap_or_default());
    for rule in &rules {
        if !apply(rule, &mut labels)? {
            return Ok(None);
        }
    }
    Ok(Some(labels))
}

/// Applies a rule of relabelling; `false` if it drops the target.
fn apply(rule: &Value, labels: &mut Labels) -> Result<bool> {
    let names = rule["sourceLabels"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let values: Vec<_> = names.map(|name| labels.get(name).map_or("", String::as_str)).collect();
    let source = values.join(";");
    let regex = rule["regex"].as_str().unwrap_or("(.*)");
    let regex = Regex::new(&format!("^(?s:{regex})$")).with_context(|| format!("in {rule}"))?;
    match rule["action"].as_str().unwrap_or("replace") {
        "keep" => return Ok(regex.is_match(&source)),
        "drop" => return Ok(!regex.is_match(&source)),
        "replace" => {
            let name = rule["targetLabel"].as_str().with_context(|| format!("no `targetLabel` in {rule}"))?;
            if let Some(captures) = regex.captures(&source) {
                let mut value = String::new();
                captures.expand(rule["replacement"].as_str().unwrap_or("$1"), &mut value);
                labels.insert(name.to_owned(), value);
            }
        }
        other => bail!("this check knows no action `{other}`"),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(endpoint: Value, containers: Value, node: &str) -> Vec<String> {
        let monitor =
            json!({ "spec": { "selector": { "matchLabels": { "app": "a" } }, "podMetricsEndpoints": [endpoint] } });
        let pod = json!({ "metadata": { "labels": { "app": "a", "b": "c" } }, "spec": { "containers": containers } });
        targets(&monitor, &pod, node).unwrap().into_iter().collect()
    }

    #[test]
    fn a_port_leads_only_to_containers_that_declare_it() {
        let declared =
            json!([{ "name": "a", "ports": [{ "name": "metrics", "containerPort": 9110 }] }, { "name": "b" }]);
        for endpoint in [json!({ "port": "metrics" }), json!({ "portNumber": 9110 })] {
            assert_eq!(found(endpoint.clone(), declared.clone(), "::1"), ["[::1]:9110/metrics"]);
            assert!(found(endpoint, json!([{ "name": "a" }]), "192.0.2.7").is_empty());
        }
    }

    #[test]
    fn relabelling_gives_a_port_to_containers_without_one() {
        let endpoint = json!({ "path": "/m", "relabelings": [
            { "action": "drop", "sourceLabels": ["__meta_kubernetes_pod_container_name"], "regex": "b" },
            { "sourceLabels": ["__meta_kubernetes_pod_ip"], "regex": "(.*:.*)", "targetLabel": "__address__", "replacement": "unused" },
            { "sourceLabels": ["__meta_kubernetes_pod_ip"], "targetLabel": "__address__", "replacement": "${1}:9110" },
        ] });
        let containers = json!([{ "name": "a" }, { "name": "b" }, { "name": "bb" }]);
        assert_eq!(found(endpoint, containers, "192.0.2.7"), ["192.0.2.7:9110/m"]);
    }

    #[test]
    fn pods_without_the_labels_are_left_alone() {
        let monitor = json!({ "spec": { "selector": { "matchLabels": { "app": "a" } }, "podMetricsEndpoints": [{}] } });
        let pod = json!({ "metadata": { "labels": { "app": "b" } }, "spec": { "containers": [{ "name": "a" }] } });
        assert!(targets(&monitor, &pod, "192.0.2.7").unwrap().is_empty());
    }
}
