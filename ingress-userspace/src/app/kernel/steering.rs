//! Tells the kernel part for which addresses and ports of the node connections are steered, and when it is told whom to
//! drop.

use std::net::IpAddr;

use ingress_common::{
    flow::{PROTO_TCP, PROTO_UDP},
    map::{NODE_ADDRS_MAX, PORTS_MAX},
    steer::{PORT_COUNT_ONLY, SLOTS_PER_PORT},
};
use ingress_userspace::{
    datapath::{Claim, SteeredPort},
    model::{StreamPort, Transport},
    proxy::Shared,
};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Denied, Kernel, Limited, STREAMS};
use crate::node::Links;

impl Kernel {
    /// Brings the programs to interfaces that they have lost, and tells the kernel addresses and ports that it does not
    /// know yet, if the node is ours.
    pub(super) fn refresh(&mut self, owner: &watch::Sender<bool>, shared: &Shared) {
        if !*owner.borrow() {
            return;
        }
        if self.astray {
            self.follow();
        }
        if self.stale {
            self.set_addresses();
        }
        if self.changed {
            self.renew(shared);
        }
    }

    /// Tells the kernel which ports there are now and whom to drop; what fails is tried again with the next heartbeat.
    fn renew(&mut self, shared: &Shared) {
        let ports = self.steered(shared);
        let are_other = ports != self.told;
        let limited = Limited::of(&shared.snapshot());
        let denied = Denied::of(&shared.snapshot(), &limited);
        if !are_other && self.denied.as_ref() == Some(&denied) && self.limited == Some(limited) {
            self.changed = false;
            return;
        }
        // Slots and all, and under the same lock: a process that has just taken the node must not find our ports in
        // place of its own.
        match self.claim(Claim::Ownerless, shared) {
            Ok(true) if are_other => info!(count = ports.len(), "the node's ports changed"),
            // Where the node is another's, that is found out at the next look.
            Ok(_) => {}
            Err(error) => {
                self.told.clear();
                warn!("cannot set the node's ports, trying again: {error:#}");
            }
        }
    }

    /// The ports that the current snapshot has. Those of UDP services are bound, and only counted here: an answer of
    /// theirs would have to be known from what others send from the other port.
    pub(super) fn steered(&mut self, shared: &Shared) -> Vec<SteeredPort> {
        let snapshot = shared.snapshot();
        let streams = snapshot.streams.keys().map(|StreamPort { transport, number }| match transport {
            Transport::Tcp => steered(*number, STREAMS, self.workers),
            Transport::Udp => SteeredPort {
                port: *number,
                proto: PROTO_UDP,
                first_slot: 0,
                workers: 0,
                flags: PORT_COUNT_ONLY,
                rewritten: None,
            },
        });
        let mut ports: Vec<_> = self.ports.iter().copied().chain(streams).collect();
        self.rewrite(&mut ports, |number| snapshot.has_tcp_service(number));
        let left_out = ports.split_off(fitting(&ports));
        // They are asked for more than once for each change.
        if left_out != self.left_out && !left_out.is_empty() {
            // Those of UDP are bound in any case.
            let unserved = left_out.iter().filter(|port| self.steers && port.proto == PROTO_TCP).count();
            warn!(
                left_out = left_out.len(),
                unserved,
                room = PORTS_MAX,
                "more ports than the kernel part has room for: those left out are not counted, and some may not be \
                 served; remove rows"
            );
        }
        self.left_out = left_out;
        ports
    }

    /// Says which ports packets get in the place of these, if they do. One that can become no other stays as it is.
    fn rewrite(&mut self, ports: &mut [SteeredPort], is_served: impl Fn(u16) -> bool) {
        let Some(rewriting) = &self.rewriting else { return };
        let mut unfit = Vec::new();
        for port in ports.iter_mut().filter(|port| port.proto == PROTO_TCP) {
            match rewriting.of(port.port, &is_served) {
                Ok(rewritten) => port.rewritten = Some(rewritten),
                Err(why) => unfit.push(why),
            }
        }
        // They are asked for more than once for each change.
        for why in unfit.iter().filter(|why| !self.unfit.contains(why)) {
            warn!("serving this port without rewriting it, so that a DNAT rule for it comes first: {why}");
        }
        self.unfit = unfit;
    }

    /// What cannot be read is read again after the next change; what is known goes on to hold.
    pub(super) async fn read_addresses(&mut self, links: &Links) {
        match self.node.addresses(links).await {
            Ok(addresses) if addresses != self.addresses => {
                info!(count = addresses.len(), "the node's addresses changed");
                self.addresses = addresses;
                self.stale = true;
            }
            Ok(_) => {}
            Err(error) => warn!("keeping the addresses known so far: {error:#}"),
        }
    }

    /// Tells the kernel the node's addresses; what fails is tried again with the next heartbeat.
    pub(super) fn set_addresses(&mut self) {
        let mut addresses: Vec<_> = self.addresses.iter().map(|(address, index)| (*address, *index)).collect();
        let room = NODE_ADDRS_MAX as usize;
        if addresses.len() > room {
            // Those that clients least likely use go first: a node with many pods has a link-local address for each.
            addresses.sort_by_key(|(address, _)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
            addresses.truncate(room);
            warn!(
                left_out = self.addresses.len() - room,
                "more addresses than the kernel part has room for; link-local ones are left out first"
            );
        }
        match self.datapath.set_node_addrs(&addresses) {
            Ok(()) => self.stale = false,
            Err(error) => {
                self.stale = true;
                warn!(error = &error as &dyn std::error::Error, "cannot set the node's addresses; trying again");
            }
        }
    }
}

/// A TCP port whose connections go to the slots of `group`.
pub(super) fn steered(port: u16, group: u32, workers: u32) -> SteeredPort {
    SteeredPort { port, proto: PROTO_TCP, first_slot: group * SLOTS_PER_PORT, workers, flags: 0, rewritten: None }
}

/// For how many of the ports the kernel part has room.
fn fitting(ports: &[SteeredPort]) -> usize {
    let mut taken = 0;
    let fits = |port: &&SteeredPort| {
        taken += port.entries();
        taken <= PORTS_MAX as usize
    };
    ports.iter().take_while(fits).count()
}
