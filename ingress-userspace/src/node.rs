//! The addresses and interfaces of this node, from netlink. Knows nothing of maps or programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::{
    Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection,
    packet_route::{
        address::AddressAttribute,
        link::LinkAttribute,
        route::{RouteAttribute, RouteMessage, RouteNextHop, RouteType},
    },
};
use tokio::time::{Instant, timeout_at};

/// Interfaces that hold addresses which are not the node's own: kube-proxy's ipvs mode puts every Service there,
/// NodeLocal DNSCache its listen addresses.
const FOREIGN_ADDRESSES: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// A burst of address changes (a NIC coming up, a CNI starting) counts as one after this much quiet.
const SETTLE: Duration = Duration::from_millis(50);
/// … but a stream of changes without a pause is reported after this time.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// Address → index of its interface.
pub(crate) type Addresses = BTreeMap<IpAddr, u32>;

/// Reads the node's addresses and reports changes.
pub(crate) struct Node {
    handle: Handle,
    changes: futures_util::stream::BoxStream<'static, ()>,
    /// A change that was seen and not yet reported.
    dirty: bool,
}

impl Node {
    /// Opens a netlink socket; needs no privilege. Must be called within a tokio runtime, which then drives the socket.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, messages) =
            new_multicast_connection(&groups).context("cannot open a netlink socket to read the node's addresses")?;
        // Ends with `self`: the connection stops when its handle and receiver are gone.
        tokio::spawn(connection);
        Ok(Self { handle, changes: messages.map(|_| ()).boxed(), dirty: false })
    }

    /// The addresses that packets for this node can carry. Loopback is left out: what a process binds there is its own.
    ///
    /// # Errors
    /// If the kernel does not answer the dump.
    pub(crate) async fn addresses(&self) -> anyhow::Result<Addresses> {
        let foreign = self.interfaces(|name| FOREIGN_ADDRESSES.contains(&name)).await?;
        let mut addresses = Addresses::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.context("cannot list the node's addresses")? {
            if foreign.contains_key(&message.header.index) {
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

    /// The names of the interfaces with a default route.
    ///
    /// # Errors
    /// If the kernel does not answer the dump.
    pub(crate) async fn default_interfaces(&self) -> anyhow::Result<Vec<String>> {
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
        let names = self.interfaces(|name| name != "lo").await?;
        Ok(indices.iter().filter_map(|index| names.get(index).cloned()).collect())
    }

    /// Waits until addresses or links may have changed; `None` when netlink is gone. Safe to cancel: a change that was seen is
    /// reported by the next call.
    pub(crate) async fn changed(&mut self) -> Option<()> {
        if !self.dirty {
            self.changes.next().await?;
            self.dirty = true;
        }
        let latest = Instant::now() + SETTLE_MAX;
        while let Ok(more) = timeout_at(latest.min(Instant::now() + SETTLE), self.changes.next()).await {
            more?;
        }
        self.dirty = false;
        Some(())
    }

    async fn interfaces(&self, keep: impl Fn(&str) -> bool) -> anyhow::Result<BTreeMap<u32, String>> {
        let mut names = BTreeMap::new();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await.context("cannot list the node's interfaces")? {
            let name = link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            });
            if let Some(name) = name.filter(|name| keep(name)) {
                names.insert(link.header.index, name);
            }
        }
        Ok(names)
    }
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
