//! Selects the addresses that statuses show, from the operator's options and the objects read. This module reads
//! nothing itself.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use k8s_openapi::api::core::v1::{Node, Service};
use serde::{Deserialize, de::IgnoredAny};

use super::ObjectName;
use ingress_model::Host;

/// Source of the published addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Exactly these addresses.
    Addresses(Vec<Address>),
    /// The addresses of this Service: its load balancer's and its external IPs; else its external name or its cluster
    /// IPs.
    Service(ObjectName),
    /// The addresses of the Ready nodes that run a Ready pod of this controller. The default.
    Nodes(NodeAddresses),
}

/// Preferred kind of node address. All addresses of the chosen kind are published, of both families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeAddresses {
    /// ExternalIP, else InternalIP.
    #[default]
    External,
    /// InternalIP, else ExternalIP.
    Internal,
}

/// An address as a status shows it. IPv4 sorts before IPv6, and IPs before names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    Ip(IpAddr),
    Name(String),
}

/// The text is neither an IP address nor a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a DNS name; give it without port or brackets")]
pub struct InvalidAddress(String);

/// The fields of a node that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    pub(super) is_ready: bool,
    pub(super) external: Vec<Address>,
    pub(super) internal: Vec<Address>,
}

/// The fields of a pod that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "PodFields")]
pub(super) struct PodFacts {
    pub(super) node: Option<String>,
    pub(super) is_ready: bool,
    /// The pod has been deleted, or has ended.
    pub(super) is_leaving: bool,
    pub(super) address: Option<IpAddr>,
}

/// The parts of a pod's JSON that [`PodFacts`] are made from. Code for all of the API's `Pod`, with 150 types in it,
/// would be an eighth of the program.
#[derive(Deserialize)]
struct PodFields {
    metadata: Option<PodMetadata>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Default, Deserialize)]
struct PodStatus {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
}

#[derive(Deserialize)]
struct PodCondition {
    #[serde(rename = "type")]
    type_: Option<String>,
    status: Option<String>,
}

/// Returns the addresses of the Ready nodes that run a Ready pod, or `None` if no node does. The leader itself is such
/// a pod, so `None` means that the answer is not known, and that statuses should stay as they are.
pub(super) fn of_nodes(
    nodes: &BTreeMap<String, NodeFacts>,
    pods: &BTreeMap<String, PodFacts>,
    which: NodeAddresses,
) -> Option<Vec<Address>> {
    let pods = pods.values().filter(|pod| pod.is_ready && !pod.is_leaving);
    let nodes = pods.filter_map(|pod| nodes.get(pod.node.as_ref()?)).filter(|node| node.is_ready);
    let addresses = nodes.flat_map(|NodeFacts { is_ready: _, external, internal }| {
        let (first, second) = match which {
            NodeAddresses::External => (external, internal),
            NodeAddresses::Internal => (internal, external),
        };
        if first.is_empty() { second } else { first }
    });
    let addresses = ordered(addresses.cloned().collect());
    (!addresses.is_empty()).then_some(addresses)
}

/// Returns the addresses of a Service, which may have none yet.
pub(super) fn of_service(service: &Service) -> Vec<Address> {
    let spec = service.spec.clone().unwrap_or_default();
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    let balanced = entries.flat_map(|entry| [entry.ip.clone(), entry.hostname.clone()]).flatten();
    let public = parse(balanced.chain(spec.external_ips.into_iter().flatten()));
    if !public.is_empty() {
        return ordered(public);
    }
    match spec.type_.as_deref() {
        Some("ExternalName") => ordered(parse(spec.external_name)),
        // A load balancer without an address is pending; its addresses are unknown rather than absent.
        Some("LoadBalancer") => Vec::new(),
        // A headless Service has the text `None` as its cluster IP, which is not an address.
        _ => ordered(parse(spec.cluster_ips.into_iter().flatten().filter(|ip| ip != "None"))),
    }
}

pub(super) fn ordered(mut addresses: Vec<Address>) -> Vec<Address> {
    addresses.sort();
    addresses.dedup();
    addresses
}

fn parse(texts: impl IntoIterator<Item = String>) -> Vec<Address> {
    texts.into_iter().filter_map(|text| text.parse().ok()).collect()
}

// === impl Publish ===

impl Default for Publish {
    fn default() -> Self {
        Self::Nodes(NodeAddresses::default())
    }
}

// === impl Address ===

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        match Host::parse(text) {
            Ok(host) => Ok(Self::Name(host.as_str().to_owned())),
            Err(_) => Err(InvalidAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

// === impl NodeFacts ===

impl NodeFacts {
    pub(super) fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let addresses = |kind: &str| {
            let all = status.iter().flat_map(|status| status.addresses.iter().flatten());
            parse(all.filter(|address| address.type_ == kind).map(|address| address.address.clone()))
        };
        let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        Self { is_ready, external: addresses("ExternalIP"), internal: addresses("InternalIP") }
    }
}

// === impl PodFacts ===

impl From<PodFields> for PodFacts {
    fn from(PodFields { metadata, spec, status }: PodFields) -> Self {
        let PodStatus { phase, conditions, pod_ip } = status.unwrap_or_default();
        let is_ready = |PodCondition { type_, status }: &PodCondition| {
            type_.as_deref() == Some("Ready") && status.as_deref() == Some("True")
        };
        let is_deleted = metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_some());
        Self {
            node: spec.and_then(|spec| spec.node_name),
            is_ready: conditions.iter().flatten().any(is_ready),
            is_leaving: is_deleted || matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
            address: pod_ip.and_then(|address| address.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(ready: &str, addresses: &[(&str, &str)]) -> NodeFacts {
        let addresses: Vec<Value> =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {},
            "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]}});
        NodeFacts::of(&serde_json::from_value(node).expect("a Node"))
    }

    fn pod(node: &str, ready: &str, deleted: Option<&str>) -> PodFacts {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"deletionTimestamp": deleted},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        serde_json::from_value(pod).expect("a Pod")
    }

    #[test]
    fn pods_may_lack_any_field() {
        let read = |pod: Value| serde_json::from_value::<PodFacts>(pod).expect("a Pod");
        let none = PodFacts::default();
        for pod in [
            json!({}),
            json!({"metadata": null, "spec": null, "status": null}),
            json!({"metadata": {"deletionTimestamp": null}, "spec": {}, "status": {}}),
            json!({"status": {"podIP": null, "conditions": null, "phase": null}}),
            json!({"status": {"podIP": "", "conditions": [{"type": "Ready"}, {"status": "True"}]}}),
        ] {
            assert_eq!(read(pod.clone()), none, "{pod}");
        }
        let address = Some("10.0.0.1".parse().expect("an address"));
        assert_eq!(read(json!({"status": {"podIP": "10.0.0.1"}})), PodFacts { address, ..none.clone() });
        for status in [json!({"phase": "Failed"}), json!({"phase": "Succeeded"})] {
            assert_eq!(read(json!({"status": status})), PodFacts { is_leaving: true, ..none.clone() });
        }
    }

    fn texts(addresses: Option<Vec<Address>>) -> Option<Vec<String>> {
        addresses.map(|addresses| addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nodes_count_while_they_and_a_local_pod_are_ready() {
        let deleted = Some("2026-01-01T00:00:00Z");
        let internal = [("InternalIP", "10.0.0.1"), ("Hostname", "one")];
        let both = [("InternalIP", "10.0.0.2"), ("ExternalIP", "192.0.2.2"), ("ExternalIP", "2001:db8::2")];
        let nodes: BTreeMap<String, NodeFacts> = [
            ("one".to_owned(), node("True", &internal)),
            ("two".to_owned(), node("True", &both)),
            ("away".to_owned(), node("Unknown", &[("InternalIP", "10.0.0.3")])),
        ]
        .into();
        let external = NodeAddresses::External;
        for (pods, which, expect) in [
            (vec![pod("one", "True", None)], external, Some(&["10.0.0.1"][..])),
            (vec![pod("two", "True", None)], external, Some(&["192.0.2.2", "2001:db8::2"])),
            (vec![pod("two", "True", None)], NodeAddresses::Internal, Some(&["10.0.0.2"])),
            (
                vec![pod("two", "True", None), pod("one", "True", None), pod("one", "True", None)],
                external,
                Some(&["10.0.0.1", "192.0.2.2", "2001:db8::2"]),
            ),
            (vec![pod("one", "True", None), pod("two", "False", None)], external, Some(&["10.0.0.1"])),
            (vec![pod("one", "True", None), pod("two", "True", deleted)], external, Some(&["10.0.0.1"])),
            (vec![pod("one", "True", None), pod("away", "True", None)], external, Some(&["10.0.0.1"])),
            // `None`: a replica that is Ready itself asks, so "no Ready pod" cannot be a correct answer.
            (vec![pod("away", "True", None)], external, None),
            (vec![pod("nowhere", "True", None)], external, None),
            (vec![], external, None),
        ] {
            let pods = pods.into_iter().enumerate().map(|(number, pod)| (number.to_string(), pod)).collect();
            let found = texts(of_nodes(&nodes, &pods, which));
            let expect = expect.map(|expect| expect.iter().map(|&text| text.to_owned()).collect());
            assert_eq!(found, expect, "{pods:?}");
        }
    }

    #[test]
    fn a_service_yields_its_published_addresses() {
        for (spec, balancer, expect) in [
            (
                json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]}),
                json!([{"ip": "192.0.2.9"}, {"hostname": "LB.example.com"}]),
                &["192.0.2.9", "lb.example.com"][..],
            ),
            (
                json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "externalIPs": ["2001:db8::9"]}),
                json!([{"ip": "192.0.2.9"}]),
                &["192.0.2.9", "2001:db8::9"],
            ),
            (json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]}), json!([]), &[]),
            (json!({"type": "ExternalName", "externalName": "edge.example.com"}), json!([]), &["edge.example.com"]),
            (
                json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.1", "fd00::1"]}),
                json!([]),
                &["10.96.0.1", "fd00::1"],
            ),
            (
                json!({"type": "NodePort", "clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.7"]}),
                json!([]),
                &["192.0.2.7"],
            ),
            (json!({"clusterIPs": ["None"]}), json!([]), &[]),
        ] {
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": spec,
                "status": {"loadBalancer": {"ingress": balancer}}});
            let found = of_service(&serde_json::from_value(service).expect("a Service"));
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{spec}");
        }
    }

    #[test]
    fn addresses_are_ips_or_names() {
        for (text, expect) in [
            ("192.0.2.1", Some(Address::Ip([192, 0, 2, 1].into()))),
            ("Edge.Example.COM", Some(Address::Name("edge.example.com".into()))),
            ("2001:DB8::1", Some(Address::Ip("2001:db8::1".parse().expect("an address")))),
            ("[::1]", None),
            ("192.0.2.1:80", None),
            ("*.example.com", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expect, "{text}");
        }
    }
}
