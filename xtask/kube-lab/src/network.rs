//! The links, addresses and routes between the namespaces of a cluster. The network inside a node's pods is set up by
//! the CNI plugins.

use anyhow::{Context, Result};

use super::plan::{API_V4, BRIDGE, CLIENT, CLIENT_V4, CLIENT_V6, CONTROL, CONTROL_V4, CONTROL_V6, NIC, NodePlan, Plan};
use super::state::{Item, State};
use ingress_lab::Namespace;

/// Creates all namespaces and connects them.
///
/// # Errors
/// Fails if the caller lacks the rights, or ip(8) fails.
pub(super) fn make(state: &State, plan: Plan) -> Result<()> {
    for name in plan.namespaces() {
        state.record(&Item::Namespace(name.clone()))?;
        Namespace::create(&name)?;
    }
    let control = Namespace::open(CONTROL)?;
    control.forwarding()?;
    // The API's service address is an address of this machine, so pods reach it without kube-proxy.
    control.ip(&format!(
        "link add {BRIDGE} type bridge\nlink set {BRIDGE} up\n\
         addr add {CONTROL_V4}/24 dev {BRIDGE}\naddr add {CONTROL_V6}/64 dev {BRIDGE} nodad\n\
         addr add {API_V4}/32 dev lo"
    ))?;
    join(&control, "client", &Namespace::open(CLIENT)?, &[format!("{CLIENT_V4}/24"), format!("{CLIENT_V6}/64")])?;
    for node in plan.nodes() {
        let namespace = Namespace::open(&node.namespace())?;
        namespace.forwarding()?;
        // Traffic may return on another path, for example through a service address.
        namespace.sysctl("ipv4/conf/all/rp_filter", "0")?;
        namespace.sysctl("ipv4/conf/default/rp_filter", "0")?;
        join(&control, &node.name(), &namespace, &[format!("{}/24", node.v4()), format!("{}/64", node.v6())])?;
    }
    for name in plan.namespaces() {
        let others = plan.nodes().into_iter().filter(|node| node.namespace() != name);
        Namespace::open(&name)?.ip(&others.map(route).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}

/// State of a node's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    Down,
}

/// Sets a node's link up or down at the other end, so that the node itself is not changed.
///
/// # Errors
/// Fails if ip(8) fails.
pub(super) fn set_link(node: NodePlan, link: Link) -> Result<()> {
    let state = match link {
        Link::Up => "up",
        Link::Down => "down",
    };
    let name = node.name();
    Namespace::open(CONTROL)?
        .ip(&format!("link set {name} {state}"))
        .with_context(|| format!("cannot set the link of `{name}` {state}"))
}

fn join(control: &Namespace, port: &str, machine: &Namespace, addresses: &[String; 2]) -> Result<()> {
    let [v4, v6] = addresses;
    machine.ip(&format!(
        "link add {NIC} type veth peer name {port} netns {}\naddr add {v4} dev {NIC}\naddr add {v6} dev {NIC} nodad\n\
         link set {NIC} up",
        control.name()
    ))?;
    control.ip(&format!("link set {port} master {BRIDGE}\nlink set {port} up"))?;
    machine.ip(&format!("route add default via {CONTROL_V4}\nroute add default via {CONTROL_V6}"))
}

fn route(node: NodePlan) -> String {
    format!("route add {} via {}\nroute add {} via {}", node.pods_v4(), node.v4(), node.pods_v6(), node.v6())
}

#[cfg(test)]
mod tests {
    use super::super::plan::Services;
    use super::*;

    #[test]
    fn pods_are_reached_through_their_node_in_both_families() {
        let node = Plan::new(1, Services::Unrouted).unwrap().nodes()[0];
        let expect = "route add 10.244.1.0/24 via 10.99.0.11\nroute add fd00:244:0:1::/64 via fd00:99::11";
        assert_eq!(route(node), expect);
    }
}
