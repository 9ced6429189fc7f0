//! The deny list in the kernel: brings it to the wanted state, regardless of the process that left it, and reports its
//! dropped packets. The networks come from the caller: from the configuration (`config`), an operator or an escalation
//! (`denials`).

mod apply;
mod config;
mod denials;
mod edit;
mod plan;
mod prefix;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{error::Error, flags::PortFlags, maps::Maps, sys};
use crate::shared::DatapathShared;
use ingress_common::{
    DenyKey4, DenyKey6, DenyRule, Traffic,
    map::DENY_RULES_MAX,
    steer::{DENY_OTHERS, DENY_PASS, PORT_DENIES},
};

use apply::{DenyListState, apply};
pub use config::DenyConfig;
use denials::PinnedDenial;
pub use denials::{Denial, DenialOrigin, Rejection};
pub use edit::{DenialOutcome, DenyEditor, Removed};
use plan::Present;

/// The deny list of this node. Like all maps, it outlives processes.
#[derive(Debug)]
pub struct DenyList {
    shared: Arc<DatapathShared>,
    /// Whether the programs look into the list: [`PORT_DENIES`].
    flags: PortFlags,
    known: Mutex<KnownList>,
}

/// The list as known to this process, for reports of dropped packets.
#[derive(Debug, Default)]
struct KnownList {
    /// Rules, except for networks denied only by an escalation: attackers could create any number of those.
    rules: Vec<(DenyRule, IpNet)>,
    /// Whether some prefix has no rule of its own.
    has_others: bool,
    left_out: usize,
    denials: Vec<PinnedDenial>,
    /// Number of networks of IPv4, and of IPv6.
    networks: [usize; 2],
    /// Ended denials not yet returned by [`DenyList::expire`].
    gone: Vec<(IpNet, DenialOrigin)>,
}

/// An entry in the kernel map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyEntry {
    pub prefix: IpNet,
    /// `None` if packets from the prefix pass.
    pub rule: Option<DenyRule>,
}

/// Result of [`DenyList::set`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of new entries, and of entries with another effect.
    pub added: usize,
    pub removed: usize,
    /// Number of denied prefixes that did not fit: their packets pass.
    pub left_out: usize,
}

/// Packets dropped by the deny list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyView {
    /// Every rule of the list, except for networks denied only by an escalation.
    pub rules: Vec<DenyCount>,
    /// See [`Applied::left_out`].
    pub left_out: usize,
    /// Number of denials in force, in the order of [`DenialOrigin::ALL`].
    pub denials: [usize; DenialOrigin::ALL.len()],
}

/// Number of entries in each map of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyFill {
    /// Networks of IPv4, those that pass included; likewise of IPv6.
    pub v4: usize,
    pub v6: usize,
    pub denials: usize,
}

/// Packets dropped by one rule since its prefix was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCount {
    /// `None` for the sum over all prefixes without their own rule ([`DENY_OTHERS`]), since the maps were created.
    pub prefix: Option<IpNet>,
    pub dropped: Traffic,
}

// === impl DenyList ===

impl DenyList {
    /// Reads the existing list. The programs keep using it if it has entries.
    pub(super) fn read(shared: Arc<DatapathShared>) -> Result<Self, Error> {
        let present = present(&shared.maps)?;
        let denials = denials::entries(&shared.maps)?;
        let flags = PortFlags::new(PORT_DENIES, flags(&present));
        // The first change reveals which of them are only denied by an escalation.
        let known = Mutex::new(KnownList::of(&present, &BTreeSet::new(), denials, 0));
        Ok(Self { shared, flags, known })
    }

    /// Updates the list to the configuration plus the denials in force, as far as there is room. A network denied
    /// before and after stays denied throughout, and one that passes before and after keeps passing. The exception is a
    /// full list of a family: new entries then wait for room, trusted proxies first. A prefix keeps its rule as long as
    /// it is listed.
    ///
    /// Reads the whole list, and changes only differences, with one system call per entry. Must be called by the owner
    /// of the node, under the lock held by [`super::Datapath::take_over_with`].
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`] if there is no room for all trusted networks, and with [`Error::Kernel`] after
    /// some of the changes.
    pub fn set(&self, config: &DenyConfig) -> Result<Applied, Error> {
        let left_out = config.write(&self.shared.maps)?;
        let mut state = apply(&self.shared.maps)?;
        state.applied.left_out += left_out;
        let applied = state.applied;
        self.learn(state);
        Ok(applied)
    }

    /// Adds denials, each replacing one of the same network and origin, and applies them. They last until they expire
    /// or are removed. Returns the result for each. Takes the lock of the pins, and reads the whole list.
    ///
    /// # Errors
    /// Fails with [`Error::Kernel`], after which some of them may be in force.
    pub fn deny(&self, denials: &[Denial]) -> Result<Vec<DenialOutcome>, Error> {
        let _exclusive = self.shared.pins.lock()?;
        let (entered, state) = edit::enter(&self.shared.maps, denials)?;
        self.learn(state);
        Ok(entered)
    }

    /// Ends expired denials, and notices those that others have added or removed. Must be called every second. Returns
    /// the denials known to this process that no longer exist, for any reason. Takes the lock of the pins only if there
    /// is a change.
    ///
    /// # Errors
    /// Fails with [`Error::Kernel`].
    pub fn expire(&self) -> Result<Vec<(IpNet, DenialOrigin)>, Error> {
        let maps = &self.shared.maps;
        let (now_ns, standing) = (sys::now_ns(), denials::entries(maps)?);
        if standing.iter().any(|entry| entry.has_ended(now_ns)) || standing != self.known().denials {
            let _exclusive = self.shared.pins.lock()?;
            self.learn(apply(maps)?);
        }
        Ok(std::mem::take(&mut self.known().gone))
    }

    /// Returns the packets dropped by the list as known to this process; the owner's list is that of the node.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn view(&self) -> Result<DenyView, Error> {
        let known = self.known();
        let KnownList { rules, has_others, left_out, denials, networks: _, gone: _ } = &*known;
        // Most nodes have an empty list, and a read returns thousands of counters per CPU.
        let is_empty = rules.is_empty() && !has_others;
        let hits = if is_empty { Vec::new() } else { self.shared.maps.deny_hits()? };
        let dropped = |rule: DenyRule| hits.get(rule as usize).copied().unwrap_or_default();
        let own = rules.iter().map(|&(rule, prefix)| DenyCount { prefix: Some(prefix), dropped: dropped(rule) });
        let others = has_others.then(|| DenyCount { prefix: None, dropped: dropped(DENY_OTHERS) });
        let denials = DenialOrigin::ALL.map(|origin| denials.iter().filter(|entry| entry.origin == origin).count());
        Ok(DenyView { rules: own.chain(others).collect(), left_out: *left_out, denials })
    }

    /// Returns the number of entries as known to this process; the owner's list is that of the node. Reads no map.
    pub fn fill(&self) -> DenyFill {
        let known = self.known();
        let [v4, v6] = known.networks;
        DenyFill { v4, v6, denials: known.denials.len() }
    }

    /// Adds the flags for the list to those of a port.
    pub(super) fn flags(&self, flags: u16) -> u16 {
        self.flags.apply(flags)
    }

    fn learn(&self, DenyListState { entries, denials, escalated, applied }: DenyListState) {
        self.flags.learn(flags(&entries));
        let name = |entry: &PinnedDenial| (entry.network, entry.origin);
        let stands: BTreeSet<_> = denials.iter().map(name).collect();
        let mut known = self.known();
        let mut gone = std::mem::take(&mut known.gone);
        gone.extend(known.denials.iter().map(name).filter(|name| !stands.contains(name)));
        *known = KnownList { gone, ..KnownList::of(&entries, &escalated, denials, applied.left_out) };
    }

    fn known(&self) -> MutexGuard<'_, KnownList> {
        // Each update is a single assignment, so a panic elsewhere cannot leave it inconsistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl KnownList ===

impl KnownList {
    fn of(present: &Present, escalated: &BTreeSet<IpNet>, denials: Vec<PinnedDenial>, left_out: usize) -> Self {
        let rules = || present.iter().filter_map(|(&prefix, &rule)| Some((rule?, prefix)));
        let is_shown = |(rule, prefix): &(DenyRule, IpNet)| {
            *rule != DENY_OTHERS && *rule < DENY_RULES_MAX && !escalated.contains(prefix)
        };
        let own = rules().filter(is_shown).collect();
        let has_others = rules().any(|(rule, _)| rule == DENY_OTHERS);
        let v4 = present.keys().filter(|prefix| prefix.addr().is_ipv4()).count();
        Self { rules: own, has_others, left_out, denials, networks: [v4, present.len() - v4], gone: Vec::new() }
    }
}

// === impl DenyEntry ===

impl DenyEntry {
    /// Returns the entry that decides about packets from `addr`: the longest prefix that contains it.
    #[must_use]
    pub fn deciding(entries: &[Self], addr: IpAddr) -> Option<Self> {
        let addr = addr.to_canonical();
        let holding = entries.iter().filter(|entry| entry.prefix.contains(&addr));
        holding.max_by_key(|entry| entry.prefix.prefix_len()).copied()
    }

    /// Returns `None` for an invalid prefix length, which the kernel never has.
    pub(super) fn v4(DenyKey4 { prefix_len, addr }: DenyKey4, value: DenyRule) -> Option<Self> {
        let prefix = Ipv4Net::new(Ipv4Addr::from(addr), u8::try_from(prefix_len).ok()?).ok()?;
        Some(Self { prefix: IpNet::V4(prefix), rule: rule(value) })
    }

    /// Same as [`DenyEntry::v4`].
    pub(super) fn v6(DenyKey6 { prefix_len, addr }: DenyKey6, value: DenyRule) -> Option<Self> {
        let prefix = Ipv6Net::new(Ipv6Addr::from(addr), u8::try_from(prefix_len).ok()?).ok()?;
        Some(Self { prefix: IpNet::V6(prefix), rule: rule(value) })
    }
}

fn present(maps: &Maps) -> Result<Present, Error> {
    Ok(maps.deny_entries()?.into_iter().map(|DenyEntry { prefix, rule }| (prefix, rule)).collect())
}

/// Returns the port flags for the list: an empty list costs nothing.
fn flags(present: &Present) -> u16 {
    if present.is_empty() { 0 } else { PORT_DENIES }
}

fn rule(value: DenyRule) -> Option<DenyRule> {
    (value != DENY_PASS).then_some(value)
}

fn key4(net: Ipv4Net) -> DenyKey4 {
    DenyKey4 { prefix_len: net.prefix_len().into(), addr: net.network().octets() }
}

fn key6(net: Ipv6Net) -> DenyKey6 {
    DenyKey6 { prefix_len: net.prefix_len().into(), addr: net.network().octets() }
}

// === impl Maps ===

impl Maps {
    /// Returns the deny list, sorted by prefix.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn deny_entries(&self) -> Result<Vec<DenyEntry>, Error> {
        let v4 = self.deny4.entries()?.into_iter().filter_map(|(key, rule)| DenyEntry::v4(key, rule));
        let v6 = self.deny6.entries()?.into_iter().filter_map(|(key, rule)| DenyEntry::v6(key, rule));
        let mut entries: Vec<_> = v4.chain(v6).collect();
        entries.sort_by_key(|entry| entry.prefix);
        entries.dedup_by_key(|entry| entry.prefix);
        Ok(entries)
    }
}
