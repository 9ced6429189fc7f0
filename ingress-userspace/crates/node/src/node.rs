//! Addresses, interfaces and default routes of this node, from netlink. Maps and programs are unknown here.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt};
use ingress_panics::vital;
use rtnetlink::{
    Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection,
    packet_core::NetlinkPayload,
    packet_route::{
        RouteNetlinkMessage,
        address::AddressAttribute,
        link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
        route::{RouteAttribute, RouteMessage, RouteNextHop, RouteType},
    },
};
use tokio::time::{Instant, timeout_at};

mod held_routes;

pub(crate) use held_routes::HeldRoutes;

/// Interfaces with addresses that do not belong to the node: kube-proxy's ipvs mode assigns every Service address
/// there, NodeLocal DNSCache its listen addresses.
const FOREIGN_ADDRESSES: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// Quiet time after which a burst of changes (a NIC coming up, a CNI starting) is reported as one.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum delay of a report during a continuous stream of changes.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// Addresses, each with the index of its interface.
pub(crate) type Addresses = BTreeMap<IpAddr, u32>;

/// Interfaces by index.
pub(crate) type Links = BTreeMap<u32, Link>;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) kind: LinkKind,
    /// Index of its controller: a bond, a bridge, ….
    pub(crate) controller: Option<u32>,
    /// Its Ethernet address; `None` for loopback, tunnels and others without one.
    pub(crate) mac: Option<Mac>,
    /// Whether it is one end of a pair of virtual interfaces.
    pub(crate) is_veth: bool,
}

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// Path by which packets reach an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// A bond or a team: through its ports.
    Bundle,
    /// A VLAN: through its lower interface.
    Vlan { on: u32 },
    /// Any other interface, which receives packets itself.
    Other,
}

/// Scope of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChangeScope {
    /// Addresses or interfaces.
    Links,
    /// Addresses, interfaces, or the interfaces of default routes.
    Routes,
}

/// Reads the node's addresses and interfaces, and reports changes.
pub(crate) struct NodeReader {
    handle: Handle,
    changes: futures_util::stream::BoxStream<'static, ChangeScope>,
    /// Change seen but not yet reported, with the deadline of the report.
    seen: Option<(ChangeScope, Instant)>,
}

impl NodeReader {
    /// Opens a netlink socket; no privilege is needed. Must be called within a tokio runtime, which then drives the
    /// socket.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, handle, messages) =
            new_multicast_connection(&groups).context("cannot open a netlink socket to read the node's addresses")?;
        // The task ends with `self`: the connection stops when its handle and receiver are gone.
        tokio::spawn(vital(connection));
        let changes = messages.filter_map(|(message, _)| std::future::ready(change(&message.payload)));
        Ok(Self { handle, changes: changes.boxed(), seen: None })
    }

    /// Returns the current interfaces.
    ///
    /// # Errors
    /// Fails if the kernel does not answer the dump.
    pub(crate) async fn links(&self) -> anyhow::Result<Links> {
        let mut links = Links::new();
        let mut messages = self.handle.link().get().execute();
        while let Some(message) = messages.try_next().await.context("cannot list the node's interfaces")? {
            let index = message.header.index;
            links.extend(link(message).map(|link| (index, link)));
        }
        Ok(links)
    }

    /// Returns the possible destination addresses of packets for this node; `links` are its current interfaces.
    /// Loopback is excluded, so that other processes keep their listeners there.
    ///
    /// # Errors
    /// Fails if the kernel does not answer the dump.
    pub(crate) async fn addresses(&self, links: &Links) -> anyhow::Result<Addresses> {
        let is_foreign =
            |index: u32| links.get(&index).is_some_and(|link| FOREIGN_ADDRESSES.contains(&link.name.as_str()));
        let mut addresses = Addresses::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.context("cannot list the node's addresses")? {
            if is_foreign(message.header.index) {
                continue;
            }
            // `Local` is the node's end of a point-to-point link, and `Address` the peer's.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let address = local.or_else(|| {
                message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Address(address) => Some(*address),
                    _ => None,
                })
            });
            if let Some(address) = address.filter(|address| !address.is_loopback()) {
                addresses.insert(address, message.header.index);
            }
        }
        Ok(addresses)
    }

    /// Returns the interfaces with a default route.
    ///
    /// # Errors
    /// Fails if the kernel does not answer the dump.
    pub(crate) async fn default_routes(&self) -> anyhow::Result<BTreeSet<u32>> {
        let mut indices = BTreeSet::new();
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        for family in [v4, v6] {
            let mut routes = self.handle.route().get(family).execute();
            while let Some(route) = routes.try_next().await.context("cannot list the node's routes")? {
                if route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast {
                    indices.extend(output_interfaces(&route));
                }
            }
        }
        Ok(indices)
    }

    /// Waits until a change is reported; returns `None` when netlink is gone. Cancel-safe: a change already seen is
    /// reported by the next call.
    pub(crate) async fn changed(&mut self) -> Option<ChangeScope> {
        if self.seen.is_none() {
            let change = self.changes.next().await?;
            self.seen = Some((change, Instant::now() + SETTLE_MAX));
        }
        let (_, latest) = self.seen?;
        while let Ok(more) = timeout_at(latest.min(Instant::now() + SETTLE), self.changes.next()).await {
            let more = more?;
            self.seen = self.seen.map(|(change, latest)| (change.max(more), latest));
        }
        self.seen.take().map(|(change, _)| change)
    }
}

/// Returns the scope of the change in a netlink message.
fn change(payload: &NetlinkPayload<RouteNetlinkMessage>) -> Option<ChangeScope> {
    match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(route)) if held_routes::is_ours(route) => {
            Some(ChangeScope::Links)
        }
        // Only default routes matter otherwise: a node may have very many routes, which come and go.
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) => {
            (route.header.destination_prefix_length == 0).then_some(ChangeScope::Routes)
        }
        NetlinkPayload::InnerMessage(_) => Some(ChangeScope::Links),
        // Some messages may have been lost.
        _ => Some(ChangeScope::Routes),
    }
}

/// Parses an interface from netlink, or returns `None` if it has no name.
fn link(message: LinkMessage) -> Option<Link> {
    let (mut name, mut kind, mut controller, mut lower, mut is_elsewhere) = (None, None, None, None, false);
    let mut mac = None;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text),
            LinkAttribute::Address(bytes) => mac = Mac::try_from(bytes).ok().filter(|mac| *mac != [0; 6]),
            LinkAttribute::Controller(index) => controller = Some(index),
            LinkAttribute::Link(index) => lower = Some(index),
            // The namespace of `lower`.
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(info) => {
                kind = info.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let is_veth = kind == Some(InfoKind::Veth);
    let kind = match (kind, lower) {
        (Some(InfoKind::Bond | InfoKind::Team), _) => LinkKind::Bundle,
        (Some(InfoKind::Vlan), Some(on)) if !is_elsewhere => LinkKind::Vlan { on },
        _ => LinkKind::Other,
    };
    Some(Link { name: name?, kind, controller, mac, is_veth })
}

/// Returns the output interfaces of a route: its own, or those of its next hops.
fn output_interfaces(route: &RouteMessage) -> Vec<u32> {
    route
        .attributes
        .iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop: &RouteNextHop| hop.interface_index).collect(),
            _ => Vec::new(),
        })
        .collect()
}
