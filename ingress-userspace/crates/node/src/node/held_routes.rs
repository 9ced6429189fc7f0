//! Local routes, by which this node accepts packets for addresses that no interface has.
//!
//! The routes have a protocol number of their own, so that those of a process that died are found and removed. The
//! kernel keeps a route until it is removed.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use ingress_panics::vital;
use rtnetlink::{
    Error, Handle, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    },
};

/// Marks our routes (`proto 120` in `ip route`). No number of a routing daemon in `rt_protos` of iproute2.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(120);
/// The table of local routes.
const TABLE: u8 = 255;
/// Index of the loopback interface.
const LOOPBACK: u32 = 1;

/// Sets and removes the routes.
pub(crate) struct HeldRoutes {
    handle: Handle,
    /// Addresses with a route of ours; `None` before the first look.
    present: Option<BTreeSet<IpAddr>>,
}

/// Returns `true` for a route that this module made.
pub(super) fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == PROTOCOL && route.header.kind == RouteType::Local
}

// === impl HeldRoutes ===

impl HeldRoutes {
    /// Opens a netlink socket of its own, on which the kernel filters routes. Must be called within a tokio runtime, which
    /// then drives the socket.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()
            .context("cannot open a netlink socket for the routes of held addresses")?;
        // The task ends with `self`: the connection stops when its handle is gone.
        tokio::spawn(vital(connection));
        Ok(Self { handle, present: None })
    }

    /// Has the routes read again before the next change, because something else may have removed some.
    pub(crate) fn forget(&mut self) {
        self.present = None;
    }

    /// Sets the routes to exactly those of these addresses, and returns the numbers of added and removed ones. A route
    /// of another program to the same address stays in place of ours.
    ///
    /// # Errors
    /// Fails if the kernel refuses, for instance without `CAP_NET_ADMIN`. Some of the changes may then be made.
    pub(crate) async fn replace(&mut self, wanted: &BTreeSet<IpAddr>) -> anyhow::Result<(usize, usize)> {
        let present = match self.present.take() {
            Some(present) => present,
            None => self.read().await?,
        };
        let (mut added, mut removed) = (0, 0);
        for address in wanted.difference(&present) {
            match self.handle.route().add(route(*address)).execute().await {
                Ok(()) => added += 1,
                Err(Error::NetlinkError(error)) if error.raw_code() == -(nix::errno::Errno::EEXIST as i32) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot add a local route for {address}")),
            }
        }
        for address in present.difference(wanted) {
            match self.handle.route().del(route(*address)).execute().await {
                Ok(()) => removed += 1,
                Err(Error::NetlinkError(error)) if error.raw_code() == -(nix::errno::Errno::ESRCH as i32) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot remove the local route for {address}"));
                }
            }
        }
        self.present = Some(wanted.clone());
        Ok((added, removed))
    }

    /// Returns the addresses with a route of ours.
    async fn read(&self) -> anyhow::Result<BTreeSet<IpAddr>> {
        let mut present = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut routes = self.handle.route().get(filter(family)).execute();
            loop {
                match routes.try_next().await {
                    Ok(Some(route)) if is_ours(&route) => present.extend(destination(&route)),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // The family has no such table yet.
                    Err(Error::NetlinkError(error)) if error.raw_code() == -(nix::errno::Errno::ENOENT as i32) => break,
                    Err(error) => return Err(error).context("cannot list the node's routes"),
                }
            }
        }
        Ok(present)
    }
}

/// Returns a question for our routes. A strict socket (`NETLINK_GET_STRICT_CHK`) gets no others, of which a node may have
/// very many.
fn filter(family: AddressFamily) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.table = TABLE;
    message.header.protocol = PROTOCOL;
    message.header.kind = RouteType::Local;
    message
}

fn route(address: IpAddr) -> RouteMessage {
    match address {
        IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .output_interface(LOOPBACK)
            .table_id(TABLE.into())
            .protocol(PROTOCOL)
            .scope(RouteScope::Host)
            .kind(RouteType::Local)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .output_interface(LOOPBACK)
            .table_id(TABLE.into())
            .protocol(PROTOCOL)
            .kind(RouteType::Local)
            .build(),
    }
}

fn destination(route: &RouteMessage) -> Option<IpAddr> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some((*address).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without privileges, there are no routes of ours to be found.
    #[tokio::test]
    async fn the_kernel_sends_only_the_routes_that_are_asked_for() {
        let routes = HeldRoutes::open().expect("a socket");
        let count = async |message: RouteMessage| -> usize {
            let found: Vec<_> = routes.handle.route().get(message).execute().try_collect().await.expect("a list");
            found.len()
        };
        let local = |protocol| {
            let mut message = filter(AddressFamily::Inet);
            message.header.protocol = protocol;
            message
        };
        assert_eq!(count(local(RouteProtocol::Other(119))).await, 0);
        assert!(count(local(RouteProtocol::Kernel)).await > 0, "127.0.0.1 has a local route");
    }
}
