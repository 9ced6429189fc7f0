//! The deny list in the kernel: makes it what it should be, whatever process has left it as it is, and tells what it
//! has dropped. Whom to deny is the caller's to know: the configuration (`config`), an operator or an escalation
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

use ingress_common::{
    DenyKey4, DenyKey6, DenyRule, Traffic,
    map::DENY_RULES_MAX,
    steer::{DENY_OTHERS, DENY_PASS, PORT_DENIES},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Shared, error::Error, flags::PortFlags, maps::Maps, sys};
use apply::{State, apply};
pub use config::DenyConfig;
use denials::Entry;
pub(super) use denials::read as read_denials;
pub use denials::{Denial, Origin, Rejection};
pub use edit::{DenyEditor, Entered, Removed};
use plan::Present;

/// The deny list of this node, which outlasts processes as all maps do.
#[derive(Debug)]
pub struct DenyList {
    shared: Arc<Shared>,
    /// Whether the programs look into it: [`PORT_DENIES`].
    flags: PortFlags,
    known: Mutex<Known>,
}

/// The list as this process knows it, for whoever asks what it has dropped.
#[derive(Debug, Default)]
struct Known {
    /// Without those that only an escalation denies: there would be as many as there are attackers.
    rules: Vec<(DenyRule, IpNet)>,
    /// Whether a prefix has no rule of its own.
    has_others: bool,
    left_out: usize,
    denials: Vec<Entry>,
    /// Denials that have gone, and that no [`DenyList::sweep`] has told of yet.
    gone: Vec<(IpNet, Origin)>,
}

/// An entry as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyEntry {
    pub prefix: IpNet,
    /// `None` if what comes from there passes.
    pub rule: Option<DenyRule>,
}

/// What [`DenyList::set`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries that are new, or have another effect.
    pub added: usize,
    pub removed: usize,
    /// Prefixes to be denied for which there was no room: what comes from there passes.
    pub left_out: usize,
}

/// What the deny list has dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyView {
    /// Every rule of the list, but for those of networks that only an escalation denies.
    pub rules: Vec<DenyCount>,
    /// See [`Applied::left_out`].
    pub left_out: usize,
    /// Denials that stand, in the order of [`Origin::ALL`].
    pub denials: [usize; Origin::ALL.len()],
}

/// What one rule has dropped, since its prefix is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCount {
    /// `None` for all prefixes without a rule of their own together ([`DENY_OTHERS`]), since there are maps.
    pub prefix: Option<IpNet>,
    pub dropped: Traffic,
}

// === impl DenyList ===

impl DenyList {
    /// Takes the list as it is. The programs go on to look into it if there is anything.
    pub(super) fn read(shared: Arc<Shared>) -> Result<Self, Error> {
        let present = present(&shared.maps)?;
        let denials = denials::entries(&shared.maps)?;
        let flags = PortFlags::new(PORT_DENIES, flags(&present));
        // Which of them only an escalation denies turns out with the first change.
        let known = Mutex::new(Known::of(&present, &BTreeSet::new(), denials, 0));
        Ok(Self { shared, flags, known })
    }

    /// Makes the list hold what the configuration wants, beside the denials that stand, as far as there is room. What
    /// is denied before and after is denied at all times, and so passes what passes before and after, unless a family's
    /// list is full: then what is new waits for room, hops first. A prefix keeps its rule as long as it is listed.
    ///
    /// Reads the whole list, and changes what differs: one system call for each entry. To be called by the owner of the
    /// node, under the lock that [`super::Datapath::take_over_with`] holds.
    ///
    /// # Errors
    /// [`Error::TooMany`] if there is no room for all networks that are trusted, and [`Error::Kernel`], after which
    /// some of the changes are made.
    pub fn set(&self, config: &DenyConfig) -> Result<Applied, Error> {
        let left_out = config.write(&self.shared.maps)?;
        let mut state = apply(&self.shared.maps)?;
        state.applied.left_out += left_out;
        let applied = state.applied;
        self.learn(state);
        Ok(applied)
    }

    /// Enters denials, each in place of one of the same network and origin, until they end or are removed, and has the
    /// programs heed them. What became of each. Takes the lock of the pins, and reads the whole list.
    ///
    /// # Errors
    /// [`Error::Kernel`], after which some of them may hold.
    pub fn deny(&self, denials: &[Denial]) -> Result<Vec<Entered>, Error> {
        let _exclusive = self.shared.pins.lock()?;
        let (entered, state) = edit::enter(&self.shared.maps, denials)?;
        self.learn(state);
        Ok(entered)
    }

    /// Ends the denials whose time is over, and learns of those that others have entered or removed: to be called each
    /// second. Those that this process knew of and that are no more, whatever the reason. Takes the lock of the pins
    /// only if there is something to do.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn sweep(&self) -> Result<Vec<(IpNet, Origin)>, Error> {
        let maps = &self.shared.maps;
        let (now_ns, standing) = (sys::now_ns(), denials::entries(maps)?);
        if standing.iter().any(|entry| entry.has_ended(now_ns)) || standing != self.known().denials {
            let _exclusive = self.shared.pins.lock()?;
            self.learn(apply(maps)?);
        }
        Ok(std::mem::take(&mut self.known().gone))
    }

    /// What the list has dropped, as far as this process knows it: that of the owner is the node's.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn view(&self) -> Result<DenyView, Error> {
        let known = self.known();
        let Known { rules, has_others, left_out, denials, gone: _ } = &*known;
        // Most nodes have no list, and a read is one of thousands of counters on each CPU.
        let is_empty = rules.is_empty() && !has_others;
        let hits = if is_empty { Vec::new() } else { self.shared.maps.deny_hits()? };
        let dropped = |rule: DenyRule| hits.get(rule as usize).copied().unwrap_or_default();
        let own = rules.iter().map(|&(rule, prefix)| DenyCount { prefix: Some(prefix), dropped: dropped(rule) });
        let others = has_others.then(|| DenyCount { prefix: None, dropped: dropped(DENY_OTHERS) });
        let denials = Origin::ALL.map(|origin| denials.iter().filter(|entry| entry.origin == origin).count());
        Ok(DenyView { rules: own.chain(others).collect(), left_out: *left_out, denials })
    }

    /// The flags of a port, with what the list says of it.
    pub(super) fn flags(&self, flags: u16) -> u16 {
        self.flags.apply(flags)
    }

    fn learn(&self, State { entries, denials, escalated, applied }: State) {
        self.flags.learn(flags(&entries));
        let name = |entry: &Entry| (entry.network, entry.origin);
        let stands: BTreeSet<_> = denials.iter().map(name).collect();
        let mut known = self.known();
        let mut gone = std::mem::take(&mut known.gone);
        gone.extend(known.denials.iter().map(name).filter(|name| !stands.contains(name)));
        *known = Known { gone, ..Known::of(&entries, &escalated, denials, applied.left_out) };
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Changed in one step, so a panic elsewhere leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    fn of(present: &Present, escalated: &BTreeSet<IpNet>, denials: Vec<Entry>, left_out: usize) -> Self {
        let rules = || present.iter().filter_map(|(&prefix, &rule)| Some((rule?, prefix)));
        let is_shown = |(rule, prefix): &(DenyRule, IpNet)| {
            *rule != DENY_OTHERS && *rule < DENY_RULES_MAX && !escalated.contains(prefix)
        };
        let own = rules().filter(is_shown).collect();
        let has_others = rules().any(|(rule, _)| rule == DENY_OTHERS);
        Self { rules: own, has_others, left_out, denials, gone: Vec::new() }
    }
}

// === impl DenyEntry ===

impl DenyEntry {
    /// The one of `entries` that decides about packets from `addr`: the longest prefix that holds it.
    #[must_use]
    pub fn deciding(entries: &[Self], addr: IpAddr) -> Option<Self> {
        let addr = addr.to_canonical();
        let holding = entries.iter().filter(|entry| entry.prefix.contains(&addr));
        holding.max_by_key(|entry| entry.prefix.prefix_len()).copied()
    }

    /// `None` for a prefix longer than there are; the kernel has none.
    pub(super) fn v4(DenyKey4 { prefix_len, addr }: DenyKey4, value: DenyRule) -> Option<Self> {
        let prefix = Ipv4Net::new(Ipv4Addr::from(addr), u8::try_from(prefix_len).ok()?).ok()?;
        Some(Self { prefix: IpNet::V4(prefix), rule: rule(value) })
    }

    /// As [`DenyEntry::v4`].
    pub(super) fn v6(DenyKey6 { prefix_len, addr }: DenyKey6, value: DenyRule) -> Option<Self> {
        let prefix = Ipv6Net::new(Ipv6Addr::from(addr), u8::try_from(prefix_len).ok()?).ok()?;
        Some(Self { prefix: IpNet::V6(prefix), rule: rule(value) })
    }
}

fn present(maps: &Maps) -> Result<Present, Error> {
    Ok(maps.deny_entries()?.into_iter().map(|DenyEntry { prefix, rule }| (prefix, rule)).collect())
}

/// What the list wants of the ports: an empty one costs nothing.
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
