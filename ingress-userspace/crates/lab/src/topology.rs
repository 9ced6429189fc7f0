//! The network of the demo and the tests: a client, two routers with a small-MTU link between them, a node, pods.
//!
//! ```text
//! client ──1500── hop-a ──1400── hop-b ──1500── node ──1500── pod-a, pod-b, pod-c
//! 192.0.2.2       .1             203.0.113.1    .10           10.244.0.11, .12, .13
//! 2001:db8:1::2   ::1            2001:db8:3::1  ::10          fd00:244::11, ::12, ::13
//! ```
//!
//! The client may also have addresses in other networks of 2001:db8:1::/48. The small link touches neither end, so both
//! ends have to learn of it by ICMP (RFC 1191, RFC 8201). All addresses are from the documentation and private ranges.
//! This file starts no program except the pods' threads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Lab, Namespace, echo::Echo};

pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
pub const NODE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub const NODE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 0x10);
/// Interface of the node that faces the clients.
pub const NODE_NIC: &str = "eth0";
/// Interface of the router that faces the node.
pub const ROUTER_NIC: &str = "eth1";
/// Names of the pods, in the order of their addresses.
pub const PODS: [&str; 3] = ["pod-a", "pod-b", "pod-c"];
/// Port of the pods' containers.
pub const POD_PORT: u16 = 8080;
/// MTU of the link between the routers.
pub const SMALL_MTU: u32 = 1400;

/// The namespaces, linked and routed, with an echo server in every pod on [`POD_PORT`] and on port 80.
#[derive(Debug)]
pub struct Topology {
    pub client: Namespace,
    /// The router next to the client.
    first_router: Namespace,
    /// The router at the other end of [`NODE_NIC`]; its own end is [`ROUTER_NIC`].
    pub router: Namespace,
    pub node: Namespace,
    pub pods: Vec<Pod>,
}

/// A pod; its server stops when the value is dropped.
#[derive(Debug)]
pub struct Pod {
    pub name: &'static str,
    pub namespace: Namespace,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    _echo: Echo,
}

impl Topology {
    /// Creates all of it.
    ///
    /// # Errors
    /// Fails if the machine lacks a requirement: see [`super::capability`].
    pub fn build(lab: &Lab) -> anyhow::Result<Self> {
        let [client, hop_a, hop_b, node] = ["client", "hop-a", "hop-b", "node"].map(|name| lab.namespace(name));
        let (client, hop_a, hop_b, node) = (client?, hop_a?, hop_b?, node?);
        for router in [&hop_a, &hop_b, &node] {
            router.forwarding()?;
        }
        lab.link((&client, "eth0"), (&hop_a, "eth0"), 1500)?;
        lab.link((&hop_a, "eth1"), (&hop_b, "eth0"), SMALL_MTU)?;
        lab.link((&hop_b, ROUTER_NIC), (&node, NODE_NIC), 1500)?;
        client.ip(&format!(
            "addr add {CLIENT_V4}/24 dev eth0\naddr add {CLIENT_V6}/64 dev eth0 nodad\n\
             route add default via 192.0.2.1\nroute add default via 2001:db8:1::1"
        ))?;
        hop_a.ip("addr add 192.0.2.1/24 dev eth0\naddr add 2001:db8:1::1/64 dev eth0 nodad\n\
             addr add 198.51.100.1/30 dev eth1\naddr add 2001:db8:2::1/64 dev eth1 nodad\n\
             route add default via 198.51.100.2\nroute add default via 2001:db8:2::2\n\
             route add 2001:db8:1::/48 via 2001:db8:1::2")?;
        hop_b.ip("addr add 198.51.100.2/30 dev eth0\naddr add 2001:db8:2::2/64 dev eth0 nodad\n\
             addr add 203.0.113.1/24 dev eth1\naddr add 2001:db8:3::1/64 dev eth1 nodad\n\
             route add 192.0.2.0/24 via 198.51.100.1\nroute add 2001:db8:1::/48 via 2001:db8:2::1\n\
             route add 10.244.0.0/24 via 203.0.113.10\nroute add fd00:244::/64 via 2001:db8:3::10")?;
        node.ip(&format!(
            "addr add {NODE_V4}/24 dev {NODE_NIC}\naddr add {NODE_V6}/64 dev {NODE_NIC} nodad\n\
             route add default via 203.0.113.1\nroute add default via 2001:db8:3::1"
        ))?;
        let pods = PODS.iter().enumerate().map(|(index, name)| Pod::build(lab, &node, name, index));
        Ok(Self { client, first_router: hop_a, router: hop_b, pods: pods.collect::<anyhow::Result<_>>()?, node })
    }

    /// Gives the link between the routers the MTU of the other links, before either end learns of the smaller one.
    ///
    /// # Errors
    /// Fails if the MTU cannot be changed.
    pub fn raise_mtu(&self) -> anyhow::Result<()> {
        self.first_router.ip("link set eth1 mtu 1500")?;
        self.router.ip("link set eth0 mtu 1500")
    }
}

impl Pod {
    fn build(lab: &Lab, node: &Namespace, name: &'static str, index: usize) -> anyhow::Result<Self> {
        let number = 11 + u8::try_from(index)?;
        let v4 = Ipv4Addr::new(10, 244, 0, number);
        // The text forms of both families end in the same digits: 10.244.0.11 and fd00:244::11.
        let v6: Ipv6Addr = format!("fd00:244::{number}").parse()?;
        let namespace = lab.namespace(name)?;
        lab.link((node, name), (&namespace, "eth0"), 1500)?;
        // Routed pods with a link-local gateway, as in several network plugins; no bridge, no prefix on the link.
        node.ip(&format!(
            "addr add 169.254.1.1/32 dev {name} scope link\naddr add fe80::1/64 dev {name} nodad\n\
             route add {v4}/32 dev {name} src {NODE_V4}\nroute add {v6}/128 dev {name}"
        ))?;
        namespace.ip(&format!(
            "addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
             route add 169.254.1.1/32 dev eth0 scope link\nroute add default via 169.254.1.1\n\
             route add default via fe80::1 dev eth0"
        ))?;
        let listen = [POD_PORT, 80]
            .map(|port| [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((v6, port))])
            .concat();
        let echo = Echo::start(&namespace, name, &listen)?;
        Ok(Self { name, namespace, v4, v6, _echo: echo })
    }
}

/// Returns the node's address in a family.
#[must_use]
pub fn node_addr(family: Family) -> IpAddr {
    match family {
        Family::V4 => NODE_V4.into(),
        Family::V6 => NODE_V6.into(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}
