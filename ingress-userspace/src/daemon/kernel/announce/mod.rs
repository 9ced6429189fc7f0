//! Addresses that every node holds and one of them announces: local routes, entries for the programs, and the choice of
//! the announcer among the nodes that are heard.
//!
//! ```text
//! other nodes ──> peers ──> choice ─┐                    ┌─> node_addrs, nic_macs ──> programs answer or drop questions
//! --gateway-addresses ──────────────┴─> Holding ─ owner ─┼─> held routes ──> the stack accepts packets
//!                                                        └─> groups ──> questions in IPv6 arrive
//! ```
//!
//! A process that starts keeps the announcements of a living predecessor until it has listened for a second. An announcer
//! tells its neighbours of each new address several times, so that they forget the node before.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use anyhow::Context as _;
use ingress_control::{AddressPool, NODES_PORT, fnv};
use ingress_datapath::{HeldAddress, NicMode, NicState, Owner};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Kernel, nics::Chosen};
use crate::node::{Addresses, HeldRoutes, LinkKind, Links, Mac};

mod announcements;
mod choice;
mod groups;
mod peers;

use announcements::Announcements;
use choice::NodeId;
use groups::Groups;
use peers::{Hello, Members, Place, Sockets};

pub(super) use peers::HELLO;

/// The held addresses, and the nodes that hold them, too.
pub(super) struct Holding {
    /// The addresses of the pool. As many are held as the programs have room for.
    wanted: BTreeSet<IpAddr>,
    announcements: Announcements,
    /// Interfaces whose driver cannot tell.
    mute: BTreeSet<u32>,
    /// Interfaces on which the latest attempt to tell failed.
    failing: BTreeSet<u32>,
    routes: HeldRoutes,
    groups: Groups,
    /// `None` without a pool.
    sockets: Option<Sockets>,
    members: Members,
    /// Whether a warning about too many nodes was logged.
    is_crowded: bool,
    /// Hash of the pool, which nodes that take part have in common.
    pool: u64,
    /// Ethernet addresses of the interfaces, by index.
    macs: BTreeMap<u32, Mac>,
    /// IPv4 addresses of the interfaces, one for each, by index.
    v4: BTreeMap<u32, Ipv4Addr>,
    /// Pairs of virtual interfaces, by index.
    veths: BTreeSet<u32>,
    /// Interfaces with programs, and those above them.
    nics: BTreeSet<u32>,
    /// Whether an interface has a program.
    has_program: bool,
    /// Whether routes or groups may differ from what is wanted.
    is_astray: bool,
}

// === impl Holding ===

impl Holding {
    /// Prepares to hold the addresses of `pool`. [`Kernel::find_announced`] adds what another process announces.
    ///
    /// # Errors
    /// Fails if the sockets for other nodes cannot be opened, for instance because another program uses their port.
    pub(super) fn open(pool: &AddressPool, routes: HeldRoutes) -> anyhow::Result<Self> {
        let sockets = (!pool.is_empty()).then(Sockets::open).transpose().with_context(|| {
            format!(
                "cannot listen to other nodes on UDP port {NODES_PORT}, as `--gateway-addresses` requires; end other \
                 programs that use this port"
            )
        })?;
        Ok(Self {
            wanted: pool.addresses().collect(),
            announcements: Announcements::new(Instant::now()),
            mute: BTreeSet::new(),
            failing: BTreeSet::new(),
            routes,
            groups: Groups::default(),
            sockets,
            members: Members::default(),
            is_crowded: false,
            pool: fingerprint(pool),
            macs: BTreeMap::new(),
            v4: BTreeMap::new(),
            veths: BTreeSet::new(),
            nics: BTreeSet::new(),
            has_program: false,
            is_astray: true,
        })
    }

    /// Returns the addresses to hold.
    pub(super) const fn wanted(&self) -> &BTreeSet<IpAddr> {
        &self.wanted
    }

    /// Returns these addresses for the programs.
    pub(super) fn entries(&self, held: &BTreeSet<IpAddr>) -> Vec<HeldAddress> {
        let entry = |address: &IpAddr| HeldAddress {
            address: *address,
            is_announced: self.announcements.is_announced(address),
            is_moved: false,
        };
        held.iter().map(entry).collect()
    }

    /// Takes note of the addresses that the programs know as held. Only these get routes and are announced: questions for
    /// others would be answered by the stack of every node.
    pub(super) fn hold(&mut self, held: BTreeSet<IpAddr>) {
        self.is_astray |= self.announcements.hold(held);
    }

    /// Takes note of an attempt to make the programs know these addresses, which failed: they know those at most that
    /// they knew before.
    pub(super) fn fail_to_hold(&mut self, held: &BTreeSet<IpAddr>) {
        self.hold(self.announcements.held().intersection(held).copied().collect());
    }

    /// Takes note of the node's interfaces and addresses.
    pub(super) fn see(&mut self, links: &Links, addresses: &Addresses) {
        self.macs = links.keys().filter_map(|index| Some((*index, mac(links, *index)?))).collect();
        let v4 = addresses.iter().filter_map(|(address, index)| match address {
            IpAddr::V4(address) => Some((*index, *address)),
            IpAddr::V6(_) => None,
        });
        self.v4 = v4.collect();
        self.veths = links.iter().filter(|(_, link)| link.is_veth).map(|(index, _)| *index).collect();
        if self.takes_part() {
            // Something else may have removed a route.
            self.routes.forget();
            self.is_astray = true;
        }
    }

    /// Sets the interfaces to speak from, and whether one of them has a program.
    fn follow(&mut self, nics: BTreeSet<u32>, has_program: bool) {
        let places = nics.iter().map(|index| Place { index: *index, v4: self.v4.get(index).copied() }).collect();
        if let Some(sockets) = &mut self.sockets {
            sockets.follow(places);
        }
        if self.nics.is_empty() {
            // Other nodes are heard from now on.
            self.announcements.listen(Instant::now());
        }
        // An interface that comes back may have another driver.
        self.mute.retain(|index| nics.contains(index));
        self.failing.retain(|index| nics.contains(index));
        self.is_astray |= self.nics != nics || self.has_program != has_program;
        self.nics = nics;
        self.has_program = has_program;
    }

    /// Returns whether there are other nodes to hear.
    pub(super) const fn takes_part(&self) -> bool {
        self.sockets.is_some()
    }

    /// Waits for another node and takes note of it. Cancel-safe. Never returns without a pool.
    pub(super) async fn hear(&mut self) {
        let Some(sockets) = &mut self.sockets else { return std::future::pending().await };
        let hello = sockets.hear().await;
        if hello.pool == self.pool {
            let is_noted = self.members.hear(&hello, Instant::now());
            if !is_noted && !self.is_crowded {
                warn!(
                    limit = Members::MAX,
                    "there are more nodes on this link than can announce addresses; further ones are ignored"
                );
                self.is_crowded = true;
            }
        }
    }

    /// Returns the name of this node, once it has an interface to announce on.
    fn id(&self) -> Option<NodeId> {
        self.nics.iter().find_map(|index| self.macs.get(index)).copied()
    }

    fn say(&self, leaves: bool) {
        if let (Some(sockets), Some(node)) = (&self.sockets, self.id()) {
            sockets.say(&Hello { pool: self.pool, node, leaves });
        }
    }

    /// Returns the other nodes.
    fn others(&mut self, now: Instant) -> BTreeSet<NodeId> {
        let own = self.id();
        self.members.present(now).filter(|node| Some(*node) != own).collect()
    }

    /// Chooses the addresses to announce. Returns whether there are others than before.
    fn choose(&mut self, now: Instant) -> bool {
        let Some(own) = self.id() else { return false };
        let others = self.others(now);
        self.announcements.choose(own, others, now)
    }

    /// Adds and removes routes and memberships of groups. Without a program, the stack would answer ARP on every node;
    /// `is_off` says that there is none on purpose.
    async fn settle(&mut self, own: &Addresses, is_off: bool) -> anyhow::Result<()> {
        // An address of an interface has a route already.
        let held = self.announcements.held().iter().filter(|address| !own.contains_key(address));
        let wanted: BTreeSet<_> = held.filter(|_| is_off || self.has_program).copied().collect();
        let (added, removed) = self.routes.replace(&wanted).await?;
        if added > 0 || removed > 0 {
            info!(added, removed, "changed the routes of held addresses");
        }
        if wanted.iter().any(IpAddr::is_ipv6) || !self.groups.is_empty() {
            self.groups.replace(wanted.iter(), &self.nics).context("cannot join the groups of IPv6 addresses")?;
        }
        self.is_astray = false;
        Ok(())
    }
}

// === impl Kernel ===

impl Kernel {
    /// Tells other nodes of this one, and chooses what it announces. Does nothing if another process owns the node.
    pub(super) fn announce(&mut self, is_owner: bool) {
        let now = Instant::now();
        self.holding.announcements.tick(now);
        if !is_owner {
            return;
        }
        self.holding.say(false);
        if self.holding.choose(now) {
            self.set_addresses();
        }
        let due = self.holding.announcements.due();
        if !due.is_empty() {
            self.tell(&due);
        }
    }

    /// Takes note of what a living process of this node announces, just before this one takes the node over: the other
    /// may have changed it since this one was opened. Other nodes may have taken over the addresses of one that died.
    pub(super) fn find_announced(&mut self) {
        if !self.holding.takes_part() {
            return;
        }
        let found = match self.datapath.has_company() {
            Ok(true) => self.datapath.maps().held_addresses(),
            Ok(false) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let found = found.unwrap_or_else(|error| {
            warn!(
                error = &error as &dyn std::error::Error,
                "cannot read the addresses that an earlier process announces; they are announced again in a second"
            );
            Vec::new()
        });
        let announced = found.into_iter().filter(|held| held.is_announced).map(|held| held.address);
        self.holding.announcements.find(announced.collect());
    }

    /// Tells the neighbours on all interfaces that this node has these addresses.
    fn tell(&mut self, addresses: &[IpAddr]) {
        let Holding { macs, nics, mute, failing, .. } = &mut self.holding;
        for index in nics.iter().filter(|index| macs.contains_key(index)) {
            if mute.contains(index) {
                continue;
            }
            let told = addresses.iter().try_for_each(|address| self.datapath.tell_neighbours(*address, *index));
            let Err(error) = told else {
                failing.remove(index);
                continue;
            };
            if is_unsupported(&error) {
                mute.insert(*index);
            }
            if failing.insert(*index) {
                warn!(
                    index,
                    error = &error as &dyn std::error::Error,
                    "cannot tell the neighbours on this interface of addresses that move here; they ask again when they \
                     have forgotten the node before"
                );
            }
        }
    }

    /// Adapts routes and groups to the held addresses. Failures are retried with the next heartbeat.
    pub(super) async fn settle(&mut self, is_owner: bool) {
        if !is_owner {
            return;
        }
        if let Some(sockets) = &mut self.holding.sockets {
            sockets.join();
        }
        if !self.holding.is_astray {
            return;
        }
        let is_off = self.chosen == Chosen::None;
        if let Err(error) = self.holding.settle(&self.addresses, is_off).await {
            self.holding.routes.forget();
            warn!("cannot hold all addresses of `--gateway-addresses`; trying again: {error:#}");
        }
    }

    /// Writes the Ethernet addresses of the interfaces with programs, and speaks from these interfaces.
    pub(super) fn set_macs(&mut self) -> Result<(), ingress_datapath::Error> {
        if !self.holding.takes_part() {
            return Ok(());
        }
        let mut nics = BTreeSet::from_iter(self.interfaces.above.iter().copied());
        let mut has_program = false;
        for nic in self.datapath.interfaces() {
            let NicState::Attached { mode, .. } = nic.state else { continue };
            has_program = true;
            if nics.insert(nic.index)
                && !self.holding.nics.contains(&nic.index)
                && mode == NicMode::Native
                && self.holding.veths.contains(&nic.index)
            {
                warn!(
                    name = nic.name,
                    "answers to ARP leave this veth interface only if its peer polls: switch GRO on at the peer \
                     (`ethtool -K PEER gro on`), or run with `--xdp-mode generic`"
                );
            }
        }
        self.holding.follow(nics, has_program);
        let Holding { macs, nics, .. } = &self.holding;
        let macs: Vec<_> = nics.iter().filter_map(|index| Some((*index, *macs.get(index)?))).collect();
        self.datapath.set_macs(&macs)
    }

    /// Leaves the announcements to other nodes, if there are any, before connections drain. Their packets then arrive at
    /// those nodes. Does nothing if another process of this node has taken over.
    pub(in crate::daemon) fn leave(&mut self) {
        if self.datapath.owner() == Owner::Other || !self.holding.takes_part() {
            return;
        }
        // Twice, because a datagram may be lost.
        self.holding.say(true);
        self.holding.say(true);
        if !self.holding.others(Instant::now()).is_empty() {
            self.holding.announcements.leave();
            self.set_addresses();
        }
    }

    /// Removes the routes of addresses that no process of this node holds any more, at the end of this one, and then
    /// their entries in the programs: with a route and without an entry, the stack would answer ARP.
    pub(in crate::daemon) async fn let_go(&mut self) {
        let is_replaced = self.datapath.owner() == Owner::Other;
        let keeps = if is_replaced { self.datapath.maps().held_addresses() } else { Ok(Vec::new()) };
        let removed = match keeps {
            Ok(keeps) => self.holding.routes.replace(&keeps.iter().map(|held| held.address).collect()).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            warn!("cannot remove the routes of held addresses; `xdp-ingress unload` removes them: {error:#}");
            return;
        }
        if !is_replaced {
            self.holding.wanted.clear();
            self.set_addresses();
        }
    }
}

/// Returns `true` if the driver cannot do this at all.
fn is_unsupported(error: &ingress_datapath::Error) -> bool {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let mut codes = chain.filter_map(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error());
    codes.any(|code| code == nix::errno::Errno::EOPNOTSUPP as i32)
}

/// Returns the Ethernet address by which neighbours know an interface. The ports of a bond have the bond's.
fn mac(links: &Links, index: u32) -> Option<Mac> {
    let link = links.get(&index)?;
    let above = link.controller.and_then(|controller| links.get(&controller));
    above.filter(|above| above.kind == LinkKind::Bundle).and_then(|above| above.mac).or(link.mac)
}

/// Returns a hash of the networks of a pool, of their text.
fn fingerprint(pool: &AddressPool) -> u64 {
    fnv(pool.networks().iter().map(|network| format!("{network},")).collect::<String>().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn only_a_driver_that_cannot_tell_is_mute() {
        let check = |errno: Errno, expect| {
            let source = io::Error::from_raw_os_error(errno as i32);
            let error = ingress_datapath::Error::Kernel { operation: "run", object: "ingress_xdp".to_owned(), source };
            assert_eq!(is_unsupported(&error), expect, "{errno}");
        };
        check(Errno::EOPNOTSUPP, true);
        check(Errno::ENETDOWN, false);
        check(Errno::ENOMEM, false);
    }
}
