//! Selects the interfaces for programs, follows them as they appear and disappear, and logs their state.

use std::{collections::BTreeSet, error::Error};

use ingress_datapath::{Datapath, Interfaces, NicReport, NicState, TransmitState, XdpMode};
use tracing::{info, warn};

use super::{Failures, Kernel, error_of};
use crate::node::{ChangeScope, LinkKind, Links, NodeReader};

/// Name of the loopback interface, which may occur in a route to nowhere.
const LOOPBACK: &str = "lo";
/// Failure to restore the programs.
const NO_PROGRAMS: &str = "cannot attach our programs again";

/// Selection of interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    None,
    /// Interfaces by name, as soon as they exist.
    Named(Vec<String>),
    /// Interfaces that have a default route, or had one since the start. It is cheaper to keep programs than to attach
    /// and detach them with every change of a route.
    Routed(BTreeSet<u32>),
}

impl Chosen {
    pub(super) async fn new(mode: XdpMode, names: Vec<String>, node: &NodeReader) -> anyhow::Result<Self> {
        if mode == XdpMode::Off {
            return Ok(Self::None);
        }
        if !names.is_empty() {
            return Ok(Self::Named(names));
        }
        let routed = node.default_routes().await?;
        if routed.is_empty() {
            warn!("no interface has a default route, so XDP waits for one; or name an interface with --interface");
        }
        Ok(Self::Routed(routed))
    }

    /// Updates the interfaces with a default route, if they are selected that way.
    async fn look(&mut self, node: &NodeReader) -> anyhow::Result<()> {
        if let Self::Routed(routed) = self {
            routed.extend(node.default_routes().await?);
        }
        Ok(())
    }

    /// Returns the interfaces on which packets for the selected ones arrive. For a bond or a VLAN, these are the
    /// interfaces below it.
    pub(super) fn interfaces(&self, links: &Links) -> Interfaces {
        let (mut names, mut above) = (Vec::new(), BTreeSet::new());
        match self {
            Self::None => {}
            Self::Named(wanted) => {
                for name in wanted {
                    match links.iter().find(|(_, link)| link.name == *name) {
                        Some((index, _)) => descend(links, *index, &mut names, &mut above),
                        None => names.push(name.clone()),
                    }
                }
            }
            Self::Routed(routed) => {
                let routed = routed.iter().filter(|index| links.get(*index).is_some_and(|link| link.name != LOOPBACK));
                routed.for_each(|index| descend(links, *index, &mut names, &mut above));
            }
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Interfaces { names, above: above.into_iter().collect() }
    }
}

/// Adds the interface to `names`. If its packets arrive on lower interfaces, adds those instead, and itself to `above`.
/// A missing interface is skipped.
fn descend(links: &Links, index: u32, names: &mut Vec<String>, above: &mut BTreeSet<u32>) {
    let Some(link) = links.get(&index) else { return };
    let below: Vec<u32> = match link.kind {
        LinkKind::Bundle => {
            links.iter().filter(|(_, link)| link.controller == Some(index)).map(|(index, _)| *index).collect()
        }
        LinkKind::Vlan { on } if links.contains_key(&on) => vec![on],
        LinkKind::Vlan { .. } | LinkKind::Other => return names.push(link.name.clone()),
    };
    // Each interface is visited once, even if netlink reports a cycle.
    if above.insert(index) {
        below.into_iter().for_each(|index| descend(links, index, names, above));
    }
}

/// Returns the interfaces on which packets for this one arrive: those below a bond, team or VLAN.
pub(super) fn ports(links: &Links, index: u32) -> BTreeSet<u32> {
    let (mut names, mut above) = (Vec::new(), BTreeSet::new());
    descend(links, index, &mut names, &mut above);
    links.iter().filter(|(_, link)| names.contains(&link.name)).map(|(index, _)| *index).collect()
}

impl Kernel {
    /// Reads interfaces and addresses. After a failure, the known ones are kept until the next change triggers another
    /// attempt.
    pub(super) async fn read_node(&mut self, change: ChangeScope) {
        self.rerouted |= change == ChangeScope::Routes;
        match self.node.links().await {
            Ok(links) => {
                if self.rerouted {
                    match self.chosen.look(&self.node).await {
                        Ok(()) => self.rerouted = false,
                        Err(error) => warn!("keeping the interfaces known so far: {error:#}"),
                    }
                }
                self.interfaces = self.chosen.interfaces(&links);
                self.astray = true;
                self.read_addresses(&links).await;
                self.holding.see(&links, &self.addresses);
                // Ethernet addresses may have changed.
                self.stale |= self.holding.takes_part();
            }
            Err(error) => warn!("keeping the interfaces and addresses known so far: {error:#}"),
        }
    }

    /// Attaches programs to the selected interfaces. Failures are retried with the next heartbeat.
    pub(super) fn reconcile(&mut self) {
        let before = self.datapath.interfaces();
        let reconciled = self.datapath.reconcile(&self.interfaces);
        self.astray = reconciled.is_err();
        self.failures.note("cannot attach to the node's interfaces", error_of(&reconciled));
        report_changes(&before, &self.datapath.interfaces());
    }

    /// Attaches our programs again if a process has attached its own and ended before it took the node over, or if somebody
    /// has detached them. For the owner of the node.
    pub(super) fn keep_programs(&mut self) {
        let before = self.datapath.interfaces();
        let kept = self.datapath.keep_programs(&self.interfaces);
        self.failures.note(NO_PROGRAMS, error_of(&kept));
        if matches!(kept, Ok(true)) {
            info!(
                "our programs were replaced by those of a process that has ended, or detached; they are attached again"
            );
            report_changes(&before, &self.datapath.interfaces());
            // An interface may have another mode than before.
            self.stale |= self.holding.takes_part();
        }
    }
}

/// Attaches our programs again: after a roll-back the interfaces have those of the process that has ended. A failure does
/// not prevent service.
pub(super) fn renew_programs(datapath: &Datapath, interfaces: &Interfaces, failures: &mut Failures) {
    let before = datapath.interfaces();
    failures.note(NO_PROGRAMS, error_of(&datapath.renew_programs(interfaces)));
    report_changes(&before, &datapath.interfaces());
}

/// Logs the interfaces whose state has changed, and those that have gone.
fn report_changes(before: &[NicReport], now: &[NicReport]) {
    let has_gone =
        |nic: &&NicReport| nic.state != NicState::Absent && !now.iter().any(|other| other.index == nic.index);
    for nic in before.iter().filter(has_gone) {
        info!(name = nic.name, index = nic.index, "interface is gone or no longer selected");
    }
    let is_new = |nic: &&NicReport| !before.iter().any(|other| is_same(nic, other));
    now.iter().filter(is_new).for_each(report);
}

/// Returns whether two reports would give the same log line.
fn is_same(nic: &NicReport, other: &NicReport) -> bool {
    let said = |NicReport { name, index, state, refusals: _, transmit }: &NicReport| {
        (name.clone(), *index, state.as_str(), transmit.as_str())
    };
    said(nic) == said(other)
}

/// Logs the state of an interface: every attach mode is visible in the log.
pub(super) fn report(nic: &NicReport) {
    let NicReport { name, index, state, refusals, transmit } = nic;
    info!(name, index, ?state, transmit = transmit.as_str(), "interface");
    for refusal in refusals {
        let error = &**refusal as &dyn Error;
        warn!(error = error, name, mode = state.as_str(), "this interface has no better mode");
    }
    if *state == NicState::Failed {
        warn!(
            name,
            "packets that this interface receives are served, but not counted; `--steer rewrite` does nothing for \
             them, and only the proxy applies the deny list"
        );
    }
    if let TransmitState::Failed(error) = transmit {
        let error = &**error as &dyn Error;
        warn!(
            error = error,
            name,
            "packets that this interface sends are not counted, and `--steer rewrite` does nothing for received ones; \
             everything else works"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Link;

    /// Parses `1 lo, 2 eth0<4, 3 eth1<4, 4 bond0=bundle, 5 bond0.7=vlan:4`: index, name, controller, kind.
    fn links(text: &str) -> Links {
        let link = |text: &str| {
            let (index, rest) = text.split_once(' ').expect("an index and a name");
            let (rest, kind) = rest.split_once('=').unwrap_or((rest, ""));
            let (name, controller) =
                rest.split_once('<').map_or((rest, None), |(name, index)| (name, index.parse().ok()));
            let kind = match kind.split_once(':') {
                Some((_, on)) => LinkKind::Vlan { on: on.parse().expect("an index") },
                None if kind == "bundle" => LinkKind::Bundle,
                None => LinkKind::Other,
            };
            (
                index.parse().expect("an index"),
                Link { name: name.to_owned(), kind, controller, mac: None, is_veth: false },
            )
        };
        text.split(", ").map(link).collect()
    }

    #[track_caller]
    fn check(chosen: &Chosen, there: &str, names: &[&str], above: &[u32]) {
        let Interfaces { names: found, above: found_above } = chosen.interfaces(&links(there));
        assert_eq!(found, names, "{chosen:?} of {there}");
        assert_eq!(found_above, above, "{chosen:?} of {there}");
    }

    const NODE: &str = "1 lo, 2 eth0<4, 3 eth1<4, 4 bond0=bundle, 5 bond0.7=vlan:4, 6 br0, 7 veth1<6, 8 eth2";

    #[test]
    fn programs_attach_where_packets_arrive() {
        let named = |names: &[&str]| Chosen::Named(names.iter().map(|&name| name.to_owned()).collect());
        let routed = |indices: &[u32]| Chosen::Routed(indices.iter().copied().collect());
        check(&routed(&[8]), NODE, &["eth2"], &[]);
        check(&routed(&[4]), NODE, &["eth0", "eth1"], &[4]);
        check(&routed(&[5]), NODE, &["eth0", "eth1"], &[4, 5]);
        check(&routed(&[4, 5, 8]), NODE, &["eth0", "eth1", "eth2"], &[4, 5]);
        // A bridge itself is selected: its ports include those of pods.
        check(&routed(&[6]), NODE, &["br0"], &[]);
        check(&routed(&[1]), NODE, &[], &[]);
        check(&named(&["eth2", "bond0", "eth0"]), NODE, &["eth2", "eth0", "eth1"], &[4]);
        check(&Chosen::None, NODE, &[], &[]);
    }

    #[test]
    fn packets_of_a_bond_or_vlan_arrive_below() {
        for (index, expect) in [(8, [8].into()), (4, [2, 3].into()), (5, [2, 3].into()), (9, BTreeSet::new())] {
            assert_eq!(ports(&links(NODE), index), expect, "{index}");
        }
        assert_eq!(ports(&links("2 eth0, 3 eth0.7=vlan:2"), 3), [2].into());
    }

    #[test]
    fn named_interfaces_may_be_missing() {
        let named = Chosen::Named(vec!["eth0".to_owned(), "eth9".to_owned()]);
        check(&named, "2 eth0", &["eth0", "eth9"], &[]);
        check(&named, "3 lan0", &["eth0", "eth9"], &[]);
        let routed = Chosen::Routed([2, 9].into());
        check(&routed, "2 eth0", &["eth0"], &[]);
        check(&routed, "2 lan0", &["lan0"], &[]);
        // A bond without ports receives nothing. A VLAN on an interface of another namespace is itself where its
        // packets arrive.
        check(&routed, "2 bond0=bundle", &[], &[2]);
        check(&routed, "2 eth0.7=vlan:77", &["eth0.7"], &[]);
    }
}
