//! The pods of the controller: which there are, and which of them answers for its node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

/// Port of the admin address unless the arguments of the pod name another.
const ADMIN_PORT: u16 = 9110;

/// A pod of the controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct ControllerPod {
    pub(super) node: String,
    pub(super) name: String,
    pub(super) phase: String,
    /// Whether Kubernetes counts the pod as ready.
    pub(super) is_ready: bool,
    /// Whether the pod has been asked to end.
    pub(super) is_ending: bool,
    pub(super) restarts: i32,
    pub(super) started: Option<String>,
    pub(super) admin_port: u16,
    /// Name of the container of the controller.
    pub(super) container: String,
}

// === impl ControllerPod ===

impl ControllerPod {
    pub(super) fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        // Further containers come after it.
        let container = spec.and_then(|spec| spec.containers.first());
        let arguments = container.and_then(|container| container.args.as_deref()).unwrap_or_default().iter();
        let container = container.map(|container| container.name.clone()).unwrap_or_default();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        Self {
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Unknown".to_owned()),
            is_ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            restarts: containers.iter().find(|other| other.name == container).map_or(0, |own| own.restart_count),
            started: status.and_then(|status| status.start_time.as_ref()).map(|time| time.0.to_string()),
            admin_port: arguments.filter_map(|argument| port(argument)).next_back().unwrap_or(ADMIN_PORT),
            container,
        }
    }
}

/// Returns the port in an argument that names the admin address.
fn port(argument: &str) -> Option<u16> {
    let port = argument.strip_prefix("--healthz-port=");
    let address = || argument.strip_prefix("--admin-addr=").and_then(|address| Some(address.rsplit_once(':')?.1));
    port.or_else(address)?.parse().ok()
}

/// Returns a pod for each node. The pods of a node share its network, so any of them reaches the admin address of the
/// process that owns the node. The best one is running and stays.
pub(super) fn one_per_node(pods: Vec<ControllerPod>) -> Vec<ControllerPod> {
    let rank = |pod: &ControllerPod| (pod.phase == "Running", !pod.is_ending, pod.is_ready, pod.started.clone());
    let mut by_node = BTreeMap::<String, ControllerPod>::new();
    for pod in pods {
        match by_node.get(&pod.node) {
            // A pod without a node has no neighbour.
            Some(other) if !pod.node.is_empty() && rank(other) >= rank(&pod) => {}
            _ => {
                let place = if pod.node.is_empty() { format!("~{}", pod.name) } else { pod.node.clone() };
                by_node.insert(place, pod);
            }
        }
    }
    by_node.into_values().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(node: &str, name: &str, phase: &str, args: &[&str]) -> ControllerPod {
        let ready = if phase == "Running" { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "nodeName": node, "containers": [{ "name": "xdp-ingress", "args": args }] },
            "status": {
                "phase": phase, "conditions": [{ "type": "Ready", "status": ready }],
                "containerStatuses": [{
                    "name": "xdp-ingress", "ready": true, "restartCount": 2, "image": "i", "imageID": "i"
                }],
            },
        });
        ControllerPod::of(&serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn the_admin_port_is_that_of_the_arguments() {
        for (args, expected) in [
            (&["run"][..], 9110),
            (&["run", "--admin-addr=127.0.0.1:9200"], 9200),
            (&["run", "--admin-addr=[::]:9300", "--log=info"], 9300),
            (&["run", "--healthz-port=10254"], 10_254),
            (&["run", "--admin-addr=127.0.0.1:x"], 9110),
        ] {
            assert_eq!(pod("a", "p", "Running", args).admin_port, expected, "{args:?}");
        }
        let pod = pod("a", "p", "Running", &[]);
        assert_eq!((pod.restarts, pod.is_ready, pod.is_ending), (2, true, false));
    }

    #[test]
    fn a_running_pod_answers_for_its_node() {
        let ending = ControllerPod { is_ending: true, ..pod("a", "old", "Running", &[]) };
        let pods = vec![
            pod("b", "b1", "Pending", &[]),
            ending,
            pod("a", "new", "Running", &[]),
            pod("b", "b2", "Running", &[]),
            pod("", "waits", "Pending", &[]),
            pod("", "waits-too", "Pending", &[]),
        ];
        let names: Vec<_> = one_per_node(pods).into_iter().map(|pod| pod.name).collect();
        assert_eq!(names, ["new", "b2", "waits", "waits-too"]);
    }
}
