//! Addresses that every node holds and one of them announces: local routes, entries for the programs, and the choice of
//! the announcer among the nodes that are heard.
//!
//! ```text
//! other nodes ──> peers ──> choice ─┐                    ┌─> node_addrs, nic_macs ──> programs answer or drop questions
//! --gateway-addresses ──────────────┴─> Holding ─ owner ─┼─> held routes ──> the stack accepts packets
//!                                                        └─> groups ──> questions in IPv6 arrive
//! ```
//!
//! The node that announced an address before may serve its connections on. With `--gateway-address-forwarding`, the
//! programs then send it their packets, as long as it says that it serves ([`moves`]).
//!
//! With a key, nodes hear only those that have it, too ([`auth`]).
//!
//! A process that starts keeps the announcements of a living predecessor until it has listened for a second. An announcer
//! tells its neighbours of each new address several times, so that they forget the node before.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use ingress_control::{AddressPool, NODES_PORT, fnv};
use ingress_datapath::{HeldAddress, MovedAddress, monotonic_ns};
use tokio::time::Instant;
use tracing::info;

use super::nics::ports;
use crate::node::{Addresses, HeldRoutes, Link, LinkKind, Links, Mac};

mod announcements;
mod auth;
mod choice;
mod datagrams;
mod groups;
mod kernel;
mod key_file;
mod messages;
mod moves;
mod peers;
mod refusals;

use announcements::Announcements;
use auth::Authenticator;
use choice::{NodeId, announcer};
use groups::Groups;
use key_file::KeyFile;
use moves::Moves;
use peers::{Members, Place, Sockets};
use refusals::Alarm;

pub(super) use peers::HELLO;
pub(in crate::daemon) use refusals::Refusals;

/// Time for which a node that leaves takes new connections, if nodes forward, and for which it holds the addresses after its
/// last connection, if their packets still arrive. The next announcer tells neighbours of its addresses within 1.4 s: 0.2 s
/// after the message at the latest, and 1.2 s later for neighbours that ignored it before.
pub(in crate::daemon) const LEAVING: Duration = Duration::from_secs(2);

/// The held addresses, and the nodes that hold them, too.
pub(super) struct Holding {
    /// The addresses of the pool. As many are held as the programs have room for.
    wanted: BTreeSet<IpAddr>,
    announcements: Announcements,
    /// Whether packets are forwarded to nodes that serve on, and this node says that it serves.
    forwards: bool,
    /// Empty unless `forwards`.
    moves: Moves,
    /// Interfaces whose driver cannot tell.
    mute: BTreeSet<u32>,
    /// Interfaces on which the latest attempt to tell failed.
    failing: BTreeSet<u32>,
    routes: HeldRoutes,
    groups: Groups,
    /// `None` without a pool.
    sockets: Option<Sockets>,
    /// `None` without `--gateway-address-key-file`.
    key_file: Option<KeyFile>,
    authenticator: Authenticator,
    alarm: Alarm,
    members: Members,
    /// Time since which there are other nodes, while this one drains.
    heirs_since: Option<Instant>,
    /// Whether this node has left its announcements to other nodes.
    gave_way: bool,
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
    /// Interfaces where packets of a bond, team or VLAN arrive, by its index. Empty unless `forwards`.
    below: BTreeMap<u32, BTreeSet<u32>>,
    /// Interfaces with programs, and those above them.
    nics: BTreeSet<u32>,
    /// Whether an interface has a program.
    has_program: bool,
    /// Whether routes or groups may differ from what is wanted.
    is_astray: bool,
}

// === impl Holding ===

impl Holding {
    /// Prepares to hold the addresses of `pool`, and to forward packets after moves if it `forwards`.
    /// [`super::Kernel::find_announced`] adds what another process announces.
    ///
    /// # Errors
    /// Fails if the sockets for other nodes cannot be opened, for instance because another program uses their port, or if
    /// the file of the keys is unusable.
    pub(super) fn open(
        pool: &AddressPool,
        key_file: Option<PathBuf>,
        forwards: bool,
        routes: HeldRoutes,
    ) -> anyhow::Result<Self> {
        let sockets = (!pool.is_empty()).then(Sockets::open).transpose().with_context(|| {
            format!(
                "cannot listen to other nodes on UDP port {NODES_PORT}, as `--gateway-addresses` requires; end other \
                 programs that use this port"
            )
        })?;
        let opened = key_file.map(|path| {
            let at = path.display().to_string();
            KeyFile::open(path, Instant::now()).with_context(|| format!("cannot use `--gateway-address-key-file` {at}"))
        });
        let (key_file, keys) = opened.transpose()?.map_or((None, Vec::new()), |(file, keys)| (Some(file), keys));
        Ok(Self {
            wanted: pool.addresses().collect(),
            announcements: Announcements::new(Instant::now()),
            forwards,
            moves: Moves::default(),
            mute: BTreeSet::new(),
            failing: BTreeSet::new(),
            routes,
            groups: Groups::default(),
            sockets,
            key_file,
            authenticator: Authenticator::new(keys).context("the system has no randomness")?,
            alarm: Alarm::default(),
            members: Members::default(),
            heirs_since: None,
            gave_way: false,
            is_crowded: false,
            pool: fingerprint(pool),
            macs: BTreeMap::new(),
            v4: BTreeMap::new(),
            veths: BTreeSet::new(),
            below: BTreeMap::new(),
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
            is_moved: self.moves.is_moved(address),
        };
        held.iter().map(entry).collect()
    }

    /// Returns the addresses that moved here, for the programs.
    pub(super) fn moved(&self) -> Vec<MovedAddress> {
        self.moves.entries()
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
        if self.forwards {
            let has_others_below = |(_, link): &(&u32, &Link)| link.kind != LinkKind::Other;
            let below = links.iter().filter(has_others_below).map(|(index, _)| (*index, ports(links, *index)));
            self.below = below.collect();
        }
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

    /// Returns the number of datagrams that did not count. `None` without a pool.
    pub(super) fn refusals(&self) -> Option<Arc<Refusals>> {
        self.takes_part().then(|| self.alarm.counts())
    }

    /// Returns the name of this node, once it has an interface to announce on.
    fn id(&self) -> Option<NodeId> {
        self.nics.iter().find_map(|index| self.macs.get(index)).copied()
    }

    /// Returns whether nodes forward packets of connections that others have.
    pub(super) const fn forwards(&self) -> bool {
        self.forwards && self.takes_part()
    }

    /// Returns the other nodes.
    fn others(&mut self, now: Instant) -> BTreeSet<NodeId> {
        let own = self.id();
        self.members.present(now).filter(|node| Some(*node) != own).collect()
    }

    /// Returns for how long there have been other nodes while this one drains; `None` if there are none.
    fn heirs(&mut self, now: Instant) -> Option<Duration> {
        let are_others = !self.others(now).is_empty();
        self.heirs_since = are_others.then(|| self.heirs_since.unwrap_or(now));
        self.heirs_since.map(|since| now.saturating_duration_since(since))
    }

    /// Chooses the addresses to announce, and those with packets for another node. Returns whether there are others than
    /// before.
    fn choose(&mut self, now: Instant) -> bool {
        let Some(own) = self.id() else { return false };
        let others = self.others(now);
        let is_other = self.announcements.choose(own, others, now);
        for (address, before) in self.announcements.take_moved() {
            // A node that drains as the only one has announced all, and takes no part.
            let serving = self.moves.serving(now).filter(|node| *node != own);
            if let Some(before) = before.or_else(|| announcer(&address, serving)) {
                self.moves.begin(address, before, monotonic_ns());
            }
        }
        self.end_moves(now) || is_other
    }

    /// Ends moves that are over. Returns whether there are any.
    fn end_moves(&mut self, now: Instant) -> bool {
        let Self { announcements, moves, .. } = self;
        moves.tick(|address| announcements.is_announced(address), now, monotonic_ns())
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
