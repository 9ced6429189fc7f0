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
use ingress_common::map::NODE_ADDRS_MAX;
use ingress_control::AddressPool;
use ingress_datapath::{HeldAddress, NicMode, NicState, Owner};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Kernel;
use crate::node::{Addresses, HeldRoutes, LinkKind, Links, Mac};

mod choice;
mod groups;
mod peers;

use choice::{NodeId, announcer};
use groups::Groups;
use peers::{Hello, Members, Place, SILENCE, Sockets};

pub(super) use peers::HELLO;

/// Ticks of [`HELLO`] after which neighbours are told of a new address. Linux ignores an ARP reply within a second of the
/// one before (`LOCKTIME`).
const TOLD_AT: [u8; 5] = [0, 1, 2, 6, 12];

/// The held addresses, and the nodes that hold them, too.
pub(super) struct Holding {
    wanted: BTreeSet<IpAddr>,
    announced: BTreeSet<IpAddr>,
    /// Announced addresses that neighbours are yet to be told of, with the ticks since they were chosen.
    untold: BTreeMap<IpAddr, u8>,
    /// Interfaces whose driver cannot tell.
    mute: BTreeSet<u32>,
    routes: HeldRoutes,
    groups: Groups,
    /// `None` without a pool.
    sockets: Option<Sockets>,
    members: Members,
    /// Number of other nodes at the latest choice.
    others: usize,
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
    /// Until then, announcements stay as they were found.
    listens_until: Instant,
    /// Whether routes or groups may differ from what is wanted.
    is_astray: bool,
}

// === impl Holding ===

impl Holding {
    /// Prepares to hold the addresses of `pool`; `found` are those that another living process of this node holds.
    ///
    /// # Errors
    /// Fails if the sockets for other nodes cannot be opened, for instance because another program uses their port.
    pub(super) fn open(pool: &AddressPool, routes: HeldRoutes, found: &[HeldAddress]) -> anyhow::Result<Self> {
        let sockets = (!pool.is_empty()).then(Sockets::open).transpose().with_context(|| {
            format!("cannot listen to other nodes on UDP port {}, as `--gateway-addresses` requires", peers::PORT)
        })?;
        let mut holding = Self {
            announced: found.iter().filter(|held| held.is_announced).map(|held| held.address).collect(),
            wanted: BTreeSet::new(),
            untold: BTreeMap::new(),
            mute: BTreeSet::new(),
            routes,
            groups: Groups::default(),
            sockets,
            members: Members::default(),
            others: 0,
            pool: fingerprint(pool),
            macs: BTreeMap::new(),
            v4: BTreeMap::new(),
            veths: BTreeSet::new(),
            nics: BTreeSet::new(),
            listens_until: Instant::now() + SILENCE,
            is_astray: true,
        };
        holding.hold(pool.addresses().collect());
        Ok(holding)
    }

    /// Sets the addresses to hold. Programs learn of them with the next [`Kernel::set_addresses`].
    fn hold(&mut self, addresses: BTreeSet<IpAddr>) {
        self.announced.retain(|address| addresses.contains(address));
        self.untold.retain(|address, _| addresses.contains(address));
        self.wanted = addresses;
        self.is_astray = true;
    }

    /// Returns the addresses for the programs.
    fn addresses(&self) -> impl Iterator<Item = HeldAddress> {
        let held = |address: &IpAddr| HeldAddress { address: *address, is_announced: self.announced.contains(address) };
        self.wanted.iter().map(held)
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

    /// Sets the interfaces to speak from.
    fn follow(&mut self, nics: BTreeSet<u32>) {
        let places = nics.iter().map(|index| Place { index: *index, v4: self.v4.get(index).copied() }).collect();
        if let Some(sockets) = &mut self.sockets {
            sockets.follow(places);
        }
        if self.nics.is_empty() {
            // Other nodes are heard from now on.
            self.listens_until = Instant::now() + SILENCE;
        }
        self.is_astray |= self.nics != nics;
        self.nics = nics;
    }

    /// Returns whether there are other nodes to hear.
    pub(super) const fn takes_part(&self) -> bool {
        self.sockets.is_some()
    }

    /// Waits for another node and takes note of it. Cancel-safe. Never returns without a pool.
    pub(super) async fn hear(&mut self) {
        let Some(sockets) = &self.sockets else { return std::future::pending().await };
        let hello = sockets.hear().await;
        if hello.pool == self.pool {
            self.members.hear(&hello, Instant::now());
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

    /// Chooses the addresses to announce. Returns whether there are others than before.
    fn choose(&mut self, now: Instant) -> bool {
        let Some(own) = self.id() else { return false };
        let others: BTreeSet<_> = self.members.present(now).filter(|node| *node != own).collect();
        if now < self.listens_until {
            return false;
        }
        let nodes = || others.iter().copied().chain([own]);
        let announced = self.wanted.iter().filter(|address| announcer(address, nodes()) == Some(own));
        let announced: BTreeSet<_> = announced.copied().collect();
        let is_other = announced != self.announced;
        if is_other || others.len() != self.others {
            let (others, addresses) = (others.len(), announced.len());
            info!(others, addresses, of = self.wanted.len(), "chose the addresses that this node announces");
        }
        self.others = others.len();
        self.untold.retain(|address, _| announced.contains(address));
        self.untold.extend(announced.difference(&self.announced).map(|address| (*address, 0)));
        self.announced = announced;
        is_other
    }

    /// Returns the addresses of which neighbours are to be told now.
    fn due(&mut self) -> Vec<IpAddr> {
        let due =
            self.untold.iter().filter(|(_, ticks)| TOLD_AT.contains(ticks)).map(|(address, _)| *address).collect();
        self.untold.values_mut().for_each(|ticks| *ticks += 1);
        self.untold.retain(|_, ticks| TOLD_AT.iter().any(|at| *at >= *ticks));
        due
    }

    /// Adds and removes routes and memberships of groups.
    async fn settle(&mut self, own: &Addresses) -> anyhow::Result<()> {
        // An address of an interface has a route already.
        let wanted: BTreeSet<_> = self.wanted.iter().filter(|address| !own.contains_key(address)).copied().collect();
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
        if !is_owner {
            return;
        }
        self.holding.say(false);
        if self.holding.choose(Instant::now()) {
            self.set_addresses();
        }
        let due = self.holding.due();
        if !due.is_empty() {
            self.tell(&due);
        }
    }

    /// Tells the neighbours on all interfaces that this node has these addresses.
    fn tell(&mut self, addresses: &[IpAddr]) {
        let Holding { macs, nics, mute, .. } = &mut self.holding;
        for index in nics.iter().filter(|index| macs.contains_key(index)) {
            if mute.contains(index) {
                continue;
            }
            let told = addresses.iter().try_for_each(|address| self.datapath.tell_neighbours(*address, *index));
            if let Err(error) = told {
                warn!(
                    index,
                    error = &error as &dyn std::error::Error,
                    "cannot tell the neighbours on this interface of addresses that move here; they ask again when they \
                     have forgotten the node before"
                );
                mute.insert(*index);
            }
        }
    }

    /// Adapts routes and groups to the held addresses. Failures are retried with the next heartbeat.
    pub(super) async fn settle(&mut self, is_owner: bool) {
        if !is_owner || !self.holding.is_astray {
            return;
        }
        if let Err(error) = self.holding.settle(&self.addresses).await {
            self.holding.routes.forget();
            warn!("cannot hold all addresses of `--gateway-addresses`; trying again: {error:#}");
        }
    }

    /// Returns the held addresses that fit beside `own` addresses of the node.
    pub(super) fn held(&self, own: usize) -> Vec<HeldAddress> {
        let room = (NODE_ADDRS_MAX as usize).saturating_sub(own);
        let wanted = self.holding.wanted.len();
        if wanted > room {
            warn!(
                left_out = wanted - room,
                "there are more held addresses than the kernel part has room for; clients cannot reach those left out"
            );
        }
        self.holding.addresses().take(room).collect()
    }

    /// Writes the Ethernet addresses of the interfaces with programs, and speaks from these interfaces.
    pub(super) fn set_macs(&mut self) -> Result<(), ingress_datapath::Error> {
        if !self.holding.takes_part() {
            return Ok(());
        }
        let mut nics = BTreeSet::from_iter(self.interfaces.above.iter().copied());
        for nic in self.datapath.interfaces() {
            let NicState::Attached { mode, .. } = nic.state else { continue };
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
        self.holding.follow(nics);
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
        if self.holding.members.present(Instant::now()).count() > 0 {
            self.holding.announced.clear();
            self.set_addresses();
        }
    }

    /// Removes the routes of addresses that no process of this node holds any more, at the end of this one.
    pub(in crate::daemon) async fn let_go(&mut self) {
        let keeps = match self.datapath.owner() {
            Owner::Other => self.datapath.maps().held_addresses(),
            Owner::This | Owner::Unassigned => {
                self.holding.hold(BTreeSet::new());
                self.set_addresses();
                Ok(Vec::new())
            }
        };
        let removed = match keeps {
            Ok(keeps) => self.holding.routes.replace(&keeps.iter().map(|held| held.address).collect()).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            warn!("cannot remove the routes of held addresses; `xdp-ingress unload` removes them: {error:#}");
        }
    }
}

/// Returns the Ethernet address by which neighbours know an interface. The ports of a bond have the bond's.
fn mac(links: &Links, index: u32) -> Option<Mac> {
    let link = links.get(&index)?;
    let above = link.controller.and_then(|controller| links.get(&controller));
    above.filter(|above| above.kind == LinkKind::Bundle).and_then(|above| above.mac).or(link.mac)
}

/// Returns a hash of the networks of a pool, FNV-1a of their text.
fn fingerprint(pool: &AddressPool) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let texts = pool.networks().iter().map(|network| format!("{network},"));
    texts.flat_map(String::into_bytes).fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
