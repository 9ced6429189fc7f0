//! The plan of a cluster: the number of nodes, and every name and address that follows from it. It creates nothing.
//!
//! ```text
//!                 xdpc-control: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!                 bridge sw0 10.99.0.1 fd00:99::1, and the API's service address 10.96.0.1
//!        ┌────────────────────────┼───────────────────────┐
//! xdpc-client            xdpc-n1                   xdpc-n2 …
//! eth0 10.99.0.100       eth0 10.99.0.11           eth0 10.99.0.12
//!      fd00:99::100           fd00:99::11               fd00:99::12
//!                        pods 10.244.1.0/24        pods 10.244.2.0/24
//!                             fd00:244:0:1::/64         fd00:244:0:2::/64
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// More nodes would not fit into the memory of the intended machines.
pub const MOST_NODES: u8 = 8;
/// Prefix of every namespace's name; the laboratory uses other prefixes.
const PREFIX: &str = "xdpc";

/// Network namespace of the control plane.
pub const CONTROL: &str = "xdpc-control";
/// Network namespace of a client outside the cluster, on the same link as the nodes.
pub const CLIENT: &str = "xdpc-client";
/// The bridge in the control plane's namespace that connects all machines.
pub(super) const BRIDGE: &str = "sw0";
/// The only network interface of a node, and of the client.
pub const NIC: &str = "eth0";

pub const CONTROL_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub const CONTROL_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 1);
pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 100);
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 0x100);
/// The address of the Service `kubernetes`, where pods call the API server.
pub const API_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The port of the API server, the same as that of its Service, so that no port translation is needed.
pub const API_PORT: u16 = 443;
/// Address of the registry, which speaks plain HTTP; nodes pull from it.
pub const REGISTRY: &str = "10.99.0.1:5000";
pub(super) const SERVICES: &str = "10.96.0.0/16,fd00:96::/108";
pub(super) const PODS: &str = "10.244.0.0/16,fd00:244::/48";

/// Reachability of ClusterIPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Services {
    /// kube-proxy runs on every node.
    Proxied,
    /// Only the API's own ClusterIP is reachable.
    Unrouted,
}

/// The plan of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    nodes: u8,
    services: Services,
}

/// A node by number; node 1 is `n1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePlan {
    number: u8,
}

// === impl Plan ===

impl Plan {
    /// Returns the plan of a cluster with this number of nodes.
    ///
    /// # Errors
    /// Fails if there are none, or more than [`MOST_NODES`].
    pub fn new(nodes: u8, services: Services) -> Result<Self> {
        ensure!(
            (1..=MOST_NODES).contains(&nodes),
            "a cluster of {nodes} nodes cannot be made; ask for 1 to {MOST_NODES}"
        );
        Ok(Self { nodes, services })
    }

    /// Returns the nodes in order.
    #[must_use]
    pub fn nodes(self) -> Vec<NodePlan> {
        (1..=self.nodes).map(|number| NodePlan { number }).collect()
    }

    #[must_use]
    pub fn services(self) -> Services {
        self.services
    }

    /// Returns every network namespace, the control plane's first.
    #[must_use]
    pub fn namespaces(self) -> Vec<String> {
        let fixed = [CONTROL, CLIENT].map(str::to_owned);
        fixed.into_iter().chain(self.nodes().into_iter().map(NodePlan::namespace)).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services = match self.services {
            Services::Proxied => "proxied",
            Services::Unrouted => "unrouted",
        };
        write!(f, "{} {services}", self.nodes)
    }
}

impl FromStr for Plan {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (nodes, services) = text.split_once(' ').with_context(|| format!("no plan in `{text}`"))?;
        let services = match services {
            "proxied" => Services::Proxied,
            "unrouted" => Services::Unrouted,
            _ => anyhow::bail!("unknown kind of services in `{text}`"),
        };
        Self::new(nodes.parse()?, services)
    }
}

// === impl NodePlan ===

impl NodePlan {
    /// Returns the node's name in Kubernetes, which is also the name of its bridge port.
    #[must_use]
    pub fn name(self) -> String {
        format!("n{}", self.number)
    }

    #[must_use]
    pub fn namespace(self) -> String {
        format!("{PREFIX}-{}", self.name())
    }

    /// Returns the node's zone; every node has its own.
    #[must_use]
    pub fn zone(self) -> String {
        format!("zone-{}", self.number)
    }

    #[must_use]
    pub fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, 10 + self.number)
    }

    #[must_use]
    pub fn v6(self) -> Ipv6Addr {
        // The same digits in both families: 10.99.0.11 and fd00:99::11.
        Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 0x10 + u16::from(self.number))
    }

    /// Returns both addresses, IPv4 first.
    #[must_use]
    pub fn addresses(self) -> [IpAddr; 2] {
        [self.v4().into(), self.v6().into()]
    }

    #[must_use]
    pub fn pods_v4(self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    #[must_use]
    pub fn pods_v6(self) -> String {
        format!("fd00:244:0:{:x}::/64", self.number)
    }

    /// Returns the path of the node's control groups below the root of every hierarchy.
    pub(super) fn cgroup(self) -> String {
        format!("/{}/{}", super::cgroup::TOP, self.name())
    }
}

/// Paths of the cluster's files on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    data: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self { data: "/var/cache/xdp-ingress-cluster".into() }
    }
}

impl Places {
    /// Returns the directory that `down` removes as a whole: keys, logs, etcd's data and all files of the nodes.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// Returns the administrator's kubeconfig, usable in the control plane's and the client's namespaces.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfig")
    }

    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// Returns the log of a program; the control plane's machine is called `control`.
    #[must_use]
    pub fn log(&self, machine: &str, program: &str) -> PathBuf {
        self.logs().join(format!("{machine}-{program}.log"))
    }

    pub(super) fn proxy_kubeconfig(&self) -> PathBuf {
        self.data.join("proxy.kubeconfig")
    }

    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.data.join("pki")
    }

    /// Returns a node's own directory.
    #[must_use]
    pub fn node(&self, node: NodePlan) -> PathBuf {
        self.data.join(node.name())
    }

    /// Returns containerd's socket, at the same path inside and outside the node.
    #[must_use]
    pub fn containerd(&self, node: NodePlan) -> PathBuf {
        self.node(node).join("containerd.sock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_the_state_file() {
        for services in [Services::Proxied, Services::Unrouted] {
            let plan = Plan::new(3, services).unwrap();
            assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
        }
        for text in ["", "2", "2 sideways", "0 proxied", "9 proxied", "x proxied"] {
            assert!(text.parse::<Plan>().is_err(), "{text}");
        }
    }

    #[test]
    fn nodes_share_no_address_and_no_name() {
        let plan = Plan::new(MOST_NODES, Services::Unrouted).unwrap();
        let texts = |node: NodePlan| {
            [
                node.name(),
                node.namespace(),
                node.zone(),
                node.v4().to_string(),
                node.v6().to_string(),
                node.pods_v4(),
                node.pods_v6(),
            ]
        };
        let mut seen: Vec<String> = plan.nodes().into_iter().flat_map(texts).collect();
        seen.extend([CLIENT_V4.to_string(), CONTROL_V4.to_string(), CLIENT_V6.to_string(), CONTROL_V6.to_string()]);
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all, "{seen:?}");
    }

    #[test]
    fn both_families_of_a_node_end_in_the_same_digits() {
        for node in Plan::new(MOST_NODES, Services::Unrouted).unwrap().nodes() {
            let [v4, v6] = node.addresses().map(|address| address.to_string());
            assert_eq!(v4.rsplit('.').next(), v6.rsplit(':').next());
        }
    }
}
