//! The steps of announcing within the life of the process: what it finds, does with each tick, and leaves.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ingress_datapath::{NicMode, NicState, Owner};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{HELLO, Holding, peers::SILENCE};
use crate::daemon::kernel::{Kernel, nics::Chosen};

/// Time from the first datagram of a node that starts until it has chosen what it announces: it listens first.
const CHOSEN: Duration = SILENCE.saturating_add(HELLO.saturating_mul(2));

impl Kernel {
    /// Tells other nodes of this one, and chooses what it announces. Does nothing if another process owns the node.
    pub(in crate::daemon::kernel) fn announce(&mut self, is_owner: bool) {
        let now = Instant::now();
        self.holding.announcements.tick(now);
        self.holding.read_keys(now);
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
    pub(in crate::daemon::kernel) fn find_announced(&mut self) {
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
        if !found.is_empty() {
            self.find_moves();
        }
        let announced = found.into_iter().filter(|held| held.is_announced).map(|held| held.address);
        self.holding.announcements.find(announced.collect());
    }

    /// Takes note of what the process that owned the node last forwards, in place of what this one did.
    pub(in crate::daemon::kernel) fn find_moves(&mut self) {
        if !self.holding.forwards() {
            return;
        }
        let moved = self.datapath.moves().unwrap_or_else(|error| {
            warn!(
                error = &error as &dyn std::error::Error,
                "cannot read where packets of moved addresses go; their connections to other nodes are cut"
            );
            Vec::new()
        });
        self.holding.moves.find(moved, Instant::now());
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
    pub(in crate::daemon::kernel) async fn settle(&mut self, is_owner: bool) {
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
        let settled = self.holding.settle(&self.addresses, is_off).await;
        if settled.is_err() {
            self.holding.routes.forget();
        }
        let error = settled.as_ref().err().map(AsRef::as_ref);
        self.failures.note("cannot hold all addresses of `--gateway-addresses`", error);
    }

    /// Writes the Ethernet addresses of the interfaces with programs, and speaks from these interfaces.
    pub(in crate::daemon::kernel) fn set_macs(&mut self) -> Result<(), ingress_datapath::Error> {
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
                    "answers to ARP leave this veth interface only if its peer has an XDP program, too: attach one there, \
                     or run with `--xdp-mode generic`"
                );
            }
        }
        self.holding.follow(nics, has_program);
        let Holding { macs, nics, .. } = &self.holding;
        let macs: Vec<_> = nics.iter().filter_map(|index| Some((*index, *macs.get(index)?))).collect();
        self.datapath.set_macs(&macs)
    }

    /// Leaves the announcements to other nodes, if there are any, before connections drain. Does nothing if another
    /// process of this node has taken over. Returns whether addresses move now to nodes that forward, of which neighbours
    /// learn within [`super::LEAVING`].
    pub(in crate::daemon) fn leave(&mut self) -> bool {
        if self.datapath.owner() == Owner::Other || !self.holding.takes_part() {
            return false;
        }
        let has_announced = self.holding.announcements.announces();
        // Twice, because a datagram may be lost.
        self.holding.say(true);
        self.holding.say(true);
        let now = Instant::now();
        let are_others = !self.holding.others(now).is_empty();
        if are_others {
            self.give_way(now);
        }
        are_others && has_announced && self.holding.forwards()
    }

    /// Tells other nodes that this one serves on while it drains. If it was alone, it leaves its announcements to nodes
    /// that appear, as soon as they have chosen theirs.
    pub(in crate::daemon::kernel) fn serve_on(&mut self) {
        let now = Instant::now();
        self.holding.read_keys(now);
        self.holding.say_serves();
        let announces = self.holding.announcements.announces();
        if self.holding.heirs(now).is_some_and(|lasts| announces && lasts >= CHOSEN) {
            info!("another node has started and takes the addresses over");
            self.give_way(now);
        }
    }

    fn give_way(&mut self, now: Instant) {
        self.holding.gave_way = true;
        self.holding.announcements.leave();
        self.holding.end_moves(now);
        self.set_addresses();
    }

    /// Returns whether packets of connections to held addresses still arrive at this node: there is no other one, or the others
    /// forward them. A node that drains itself says no more that it takes part, and forwards on.
    pub(in crate::daemon) fn is_reached(&mut self) -> bool {
        if self.datapath.owner() == Owner::Other || !self.holding.takes_part() {
            return false;
        }
        let are_others = self.holding.gave_way || !self.holding.others(Instant::now()).is_empty();
        !are_others || self.holding.forwards()
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
