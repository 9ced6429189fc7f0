//! The addresses and interfaces of this node, and by which of them default routes lead, from netlink. Knows nothing of
//! maps or programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt};
use ingress_userspace::panics::vital;
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

/// Interfaces that hold addresses which are not the node's own: kube-proxy's ipvs mode puts every Service there,
/// NodeLocal DNSCache its listen addresses.
const FOREIGN_ADDRESSES: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// A burst of changes (a NIC coming up, a CNI starting) counts as one after this much quiet.
const SETTLE: Duration = Duration::from_millis(50);
/// … but a stream of changes without a pause is reported after this time.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// Address → index of its interface.
pub(crate) type Addresses = BTreeMap<IpAddr, u32>;

/// Index → interface.
pub(crate) type Links = BTreeMap<u32, Link>;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) kind: LinkKind,
    /// The interface that it is a port of: a bond, a bridge, ….
    pub(crate) controller: Option<u32>,
}

/// How packets come to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// A bond or a team: by its ports.
    Bundle,
    /// A VLAN: by the interface that it lies on.
    Vlan { on: u32 },
    /// In a way of its own.
    Other,
}

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// Addresses or interfaces.
    Links,
    /// Those, and by which interfaces default routes lead.
    Routes,
}

/// Reads the node's addresses and interfaces and reports changes.
pub(crate) struct Node {
    handle: Handle,
    changes: futures_util::stream::BoxStream<'static, Change>,
    /// What was seen and not yet reported, and when it is to be at the latest.
    seen: Option<(Change, Instant)>,
}

impl Node {
    /// Opens a netlink socket; needs no privilege. Must be called within a tokio runtime, which then drives the socket.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
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
        // Ends with `self`: the connection stops when its handle and receiver are gone.
        tokio::spawn(vital(connection));
        let changes = messages.filter_map(|(message, _)| std::future::ready(change(&message.payload)));
        Ok(Self { handle, changes: changes.boxed(), seen: None })
    }

    /// The interfaces there are.
    ///
    /// # Errors
    /// If the kernel does not answer the dump.
    pub(crate) async fn links(&self) -> anyhow::Result<Links> {
        let mut links = Links::new();
        let mut messages = self.handle.link().get().execute();
        while let Some(message) = messages.try_next().await.context("cannot list the node's interfaces")? {
            let index = message.header.index;
            links.extend(link(message).map(|link| (index, link)));
        }
        Ok(links)
    }

    /// The addresses that packets for this node can carry; `links` are the interfaces there are. Loopback is left out:
    /// what a process binds there is its own.
    ///
    /// # Errors
    /// If the kernel does not answer the dump.
    pub(crate) async fn addresses(&self, links: &Links) -> anyhow::Result<Addresses> {
        let is_foreign =
            |index: u32| links.get(&index).is_some_and(|link| FOREIGN_ADDRESSES.contains(&link.name.as_str()));
        let mut addresses = Addresses::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.context("cannot list the node's addresses")? {
            if is_foreign(message.header.index) {
                continue;
            }
            // `Local` is the node's end of a point-to-point link, where `Address` is the peer.
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

    /// The interfaces with a default route.
    ///
    /// # Errors
    /// If the kernel does not answer the dump.
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

    /// Waits until something may have changed; `None` when netlink is gone. Safe to cancel: what was seen is reported
    /// by the next call.
    pub(crate) async fn changed(&mut self) -> Option<Change> {
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

/// What a message of netlink says may have changed.
fn change(payload: &NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    match payload {
        // A node may have very many routes, which come and go.
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) => {
            (route.header.destination_prefix_length == 0).then_some(Change::Routes)
        }
        NetlinkPayload::InnerMessage(_) => Some(Change::Links),
        // Messages were lost, perhaps.
        _ => Some(Change::Routes),
    }
}

/// An interface as netlink describes it; `None` if it has no name.
fn link(message: LinkMessage) -> Option<Link> {
    let (mut name, mut kind, mut controller, mut lower, mut is_elsewhere) = (None, None, None, None, false);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text),
            LinkAttribute::Controller(index) => controller = Some(index),
            LinkAttribute::Link(index) => lower = Some(index),
            // Of `lower`.
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
    let kind = match (kind, lower) {
        (Some(InfoKind::Bond | InfoKind::Team), _) => LinkKind::Bundle,
        (Some(InfoKind::Vlan), Some(on)) if !is_elsewhere => LinkKind::Vlan { on },
        _ => LinkKind::Other,
    };
    Some(Link { name: name?, kind, controller })
}

/// A route names its interface itself, or one for each of its next hops.
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
