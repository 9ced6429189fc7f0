//! Writes the steered addresses and ports of the node to the kernel, and decides when to update the deny list.

use std::{collections::BTreeSet, net::IpAddr};

use ingress_common::{
    flow::{PROTO_TCP, PROTO_UDP},
    map::{NODE_ADDRS_MAX, PORTS_MAX},
    steer::{PORT_COUNT_ONLY, SLOTS_PER_PORT},
};
use ingress_datapath::{Claim, SteeredPort};
use ingress_model::{StreamPort, Transport};
use ingress_proxy::Shared;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Denied, Kernel, LimitInput, OpenQuic, STREAMS, error_of};
use crate::node::Links;

impl Kernel {
    /// Restores missing attachments, and writes changed addresses and ports to the kernel, if this process owns the
    /// node.
    pub(super) fn refresh(&mut self, owner: &watch::Sender<bool>, shared: &Shared) {
        if !self.owns(owner) {
            return;
        }
        if self.astray {
            self.reconcile();
            // An interface may have a program now, or no longer.
            self.stale |= self.holding.takes_part();
        }
        if self.stale {
            self.set_addresses();
        }
        if self.changed {
            self.renew(shared);
        }
    }

    /// Writes current ports and denials to the kernel. Failures are retried with the next heartbeat.
    fn renew(&mut self, shared: &Shared) {
        let ports = self.steered(shared);
        let are_other = ports != self.applied;
        let limited = LimitInput::of(&shared.snapshot());
        let denied = Denied::of(&shared.snapshot(), &limited);
        if !are_other && self.denied.as_ref() == Some(&denied) && self.limited == Some(limited) {
            self.changed = false;
            return;
        }
        // Slots are included, under the same lock: a process that has just claimed the node must not find our ports in
        // place of its own.
        let claimed = self.claim(Claim::Ownerless, shared);
        self.failures.note("cannot set the node's ports", claimed.as_ref().err().map(AsRef::as_ref));
        match claimed {
            Ok(true) if are_other => info!(count = ports.len(), "the node's ports changed"),
            // If another process owns the node, the next check notices.
            Ok(_) => {}
            // The ports count as applied, so that they keep their room; this has all of it set again.
            Err(_noted) => self.denied = None,
        }
    }

    /// Returns the ports of the current snapshot. UDP ports are bound, and only counted here: responses of a bound
    /// socket could not be told from other packets sent from the rewritten port.
    pub(super) fn steered(&mut self, shared: &Shared) -> Vec<SteeredPort> {
        let snapshot = shared.snapshot();
        let own: Vec<_> = self.ports.into_iter().chain(self.quic.as_ref().map(OpenQuic::port)).collect();
        let is_own = |port: &StreamPort| own.iter().any(|own| (own.port, own.proto) == (port.number, proto(*port)));
        let further = snapshot.ports().into_iter().filter(|port| !is_own(port));
        let streams = further.map(|StreamPort { transport, number }| match transport {
            Transport::Tcp => steered(number, STREAMS, self.workers),
            Transport::Udp => SteeredPort {
                port: number,
                proto: PROTO_UDP,
                first_slot: 0,
                workers: 0,
                flags: PORT_COUNT_ONLY,
                rewritten: None,
            },
        });
        let mut ports: Vec<_> = own.iter().copied().chain(streams).collect();
        self.rewrite(&mut ports, |number| snapshot.has_tcp_port(number));
        let left_out = leave_out(&mut ports, own.len(), &self.applied);
        // The function is called more than once per change.
        if left_out != self.left_out && !left_out.is_empty() {
            // UDP ports are bound in any case.
            let unserved = left_out.iter().filter(|port| self.steers && port.proto == PROTO_TCP).count();
            warn!(
                left_out = left_out.len(),
                unserved,
                room = PORTS_MAX,
                "there are more ports than the kernel part has room for; those left out are not counted, and some may \
                 not be served; remove rows"
            );
        }
        self.left_out = left_out;
        ports
    }

    /// Sets the rewritten ports, if enabled. A port without a valid replacement stays as it is.
    fn rewrite(&mut self, ports: &mut [SteeredPort], is_served: impl Fn(u16) -> bool) {
        let Some(port_rewrite) = &self.port_rewrite else { return };
        let mut unfit = Vec::new();
        for port in ports.iter_mut().filter(|port| port.proto == PROTO_TCP) {
            match port_rewrite.of(port.port, &is_served) {
                Ok(rewritten) => port.rewritten = Some(rewritten),
                Err(why) => unfit.push(why),
            }
        }
        // The function is called more than once per change.
        for why in unfit.iter().filter(|why| !self.unfit.contains(why)) {
            warn!("serving this port without rewriting it, so a DNAT rule for it comes first: {why}");
        }
        self.unfit = unfit;
    }

    /// Reads the node's addresses. After a failure, the known ones are kept until the next change triggers another
    /// attempt.
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

    /// Writes the node's addresses to the kernel. Failures are retried with the next heartbeat.
    pub(super) fn set_addresses(&mut self) {
        let mut addresses: Vec<_> = self.addresses.iter().map(|(address, index)| (*address, *index)).collect();
        let room = NODE_ADDRS_MAX as usize;
        if addresses.len() > room {
            // The addresses least likely used by clients are dropped first: a node with many pods has a link-local one
            // for each.
            addresses.sort_by_key(|(address, _)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
            addresses.truncate(room);
            warn!(
                left_out = self.addresses.len() - room,
                "there are more addresses than the kernel part has room for; link-local ones are left out first"
            );
        }
        let room = room - addresses.len();
        let wanted = self.holding.wanted();
        if wanted.len() > room {
            warn!(
                left_out = wanted.len() - room,
                "there are more held addresses than the kernel part has room for; clients cannot reach those left out"
            );
        }
        let held: BTreeSet<_> = wanted.iter().take(room).copied().collect();
        let entries = self.holding.entries(&held);
        // Before the flags of the addresses: a flag without an entry does nothing.
        let moved = self.datapath.set_moves(&self.holding.moved());
        let set = self.datapath.set_addresses(&addresses, &entries);
        match &set {
            Ok(()) => self.holding.hold(held),
            Err(_noted_below) => self.holding.fail_to_hold(&held),
        }
        let macs = self.set_macs();
        self.stale = set.is_err() || moved.is_err() || macs.is_err();
        self.failures.note("cannot set the node's addresses", error_of(&set));
        self.failures.note("cannot set the nodes that have connections to moved addresses", error_of(&moved));
        self.failures.note("cannot set the Ethernet addresses", error_of(&macs));
    }
}

/// Returns a TCP port with connections steered to the slots of `group`.
pub(super) fn steered(port: u16, group: u32, workers: u32) -> SteeredPort {
    SteeredPort { port, proto: PROTO_TCP, first_slot: group * SLOTS_PER_PORT, workers, flags: 0, rewritten: None }
}

fn proto(port: StreamPort) -> u8 {
    match port.transport {
        Transport::Tcp => PROTO_TCP,
        Transport::Udp => PROTO_UDP,
    }
}

/// Removes the ports that do not fit in the kernel map, and returns them. The first `own` ones, for HTTP, stay before
/// ports that are applied already, and these before others: a new port takes no service from another one.
fn leave_out(ports: &mut Vec<SteeredPort>, own: usize, applied: &[SteeredPort]) -> Vec<SteeredPort> {
    let is_applied =
        |port: &SteeredPort| applied.iter().any(|other| (other.proto, other.port) == (port.proto, port.port));
    let mut order: Vec<_> = (0..ports.len()).collect();
    order.sort_by_key(|at| *at >= own && !is_applied(&ports[*at]));
    let mut taken = 0;
    let fits = |at: &&usize| {
        taken += ports[**at].entries();
        taken <= PORTS_MAX as usize
    };
    let kept: BTreeSet<_> = order.iter().take_while(fits).copied().collect();
    let (kept, left_out): (Vec<_>, Vec<_>) =
        std::mem::take(ports).into_iter().enumerate().partition(|(at, _)| kept.contains(at));
    *ports = kept.into_iter().map(|(_, port)| port).collect();
    left_out.into_iter().map(|(_, port)| port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ports: &[SteeredPort]) -> Vec<u16> {
        ports.iter().map(|port| port.port).collect()
    }

    #[test]
    fn a_new_port_takes_no_room_from_applied_ones() {
        let of = |numbers: std::ops::RangeInclusive<u16>| numbers.map(|number| steered(number, STREAMS, 2));
        let http = [80, 443].map(|number| steered(number, super::super::HTTP, 2));
        let room = PORTS_MAX as usize;
        let mut all: Vec<_> = http.into_iter().chain(of(1000..=1099)).collect();
        let left_out = leave_out(&mut all, 2, &[]);
        assert_eq!((all.len(), left_out.len()), (room, 102 - room), "the first ones");
        assert_eq!(numbers(&all)[..3], [80, 443, 1000]);

        let applied: Vec<_> = http.into_iter().chain(of(2000..=2060)).collect();
        let mut all: Vec<_> = http.into_iter().chain(of(1000..=1004)).chain(of(2000..=2060)).collect();
        let left_out = leave_out(&mut all, 2, &applied);
        assert_eq!(numbers(&left_out), [1001, 1002, 1003, 1004]);
        assert_eq!(numbers(&all)[..4], [80, 443, 1000, 2000], "in the same order as before");
        let mut again = all.clone();
        assert_eq!((numbers(&leave_out(&mut again, 2, &all)), numbers(&again)), (Vec::new(), numbers(&all)));
    }
}
