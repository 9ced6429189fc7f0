//! The deny list in the kernel: makes it what it should be, whatever process has left it as it is, and tells what it
//! has dropped. Whom to deny is the caller's to know.

mod plan;

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ingress_common::{
    DenyKey4, DenyKey6, DenyRule, Traffic,
    map::{DENY_MAX, DENY_RULES_MAX},
    steer::{DENY_OTHERS, DENY_PASS, PORT_DENIES},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Shared, error::Error, flags::PortFlags, maps::Maps};
pub use plan::{DenyEffect, DenyEntries};
use plan::{Plan, Present};

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
    rules: Vec<(DenyRule, IpNet)>,
    /// Whether a prefix has no rule of its own.
    has_others: bool,
    left_out: usize,
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
    /// Every rule of the list.
    pub rules: Vec<DenyCount>,
    /// See [`Applied::left_out`].
    pub left_out: usize,
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
        let flags = PortFlags::new(PORT_DENIES, if present.is_empty() { 0 } else { PORT_DENIES });
        Ok(Self { shared, flags, known: Mutex::new(Known::of(&present, 0)) })
    }

    /// Makes the list hold exactly `wanted`, as far as there is room. What is denied before and after is denied at all
    /// times, and so passes what passes before and after, unless a family's list is full: then what is new waits for
    /// room, hops first. A prefix keeps its rule as long as it is listed.
    ///
    /// Reads the whole list, and changes what differs: one system call for each entry. To be called by the owner of the
    /// node, under the lock that [`super::Datapath::take_over_with`] holds: two that change the list at one time would
    /// leave a mixture.
    ///
    /// # Errors
    /// [`Error::Kernel`], after which some of the changes are made.
    pub fn set(&self, wanted: &DenyEntries) -> Result<Applied, Error> {
        let capacity = usize::try_from(DENY_MAX).unwrap_or(usize::MAX);
        let (wanted, mut left_out) = wanted.fitting(capacity);
        let mut present = present(&self.shared.maps)?;
        let Plan { additions, removals } = Plan::new(&present, &wanted);
        self.begin_counts(&additions)?;
        let mut postponed = VecDeque::new();
        for &entry in &additions {
            // What passes until now goes on to, until the hops within it have found room.
            let is_to_wait = entry.rule.is_some() && !postponed.is_empty() && present.contains_key(&entry.prefix);
            if is_to_wait || !self.add(entry, &mut present)? {
                postponed.push_back(entry);
            }
        }
        if !wanted.is_empty() {
            self.enforce(true)?;
        }
        for prefix in &removals {
            self.remove(*prefix)?;
            present.remove(prefix);
            // What goes makes room, and first of all for hops: those that pass until now go last.
            while let Some(&entry) = postponed.front()
                && self.add(entry, &mut present)?
            {
                postponed.pop_front();
            }
        }
        let mut added = additions.len();
        for entry in postponed {
            if !self.add(entry, &mut present)? {
                added -= 1;
                left_out += 1;
            }
        }
        if wanted.is_empty() {
            self.enforce(false)?;
        }
        *self.known() = Known::of(&present, left_out);
        Ok(Applied { added, removed: removals.len(), left_out })
    }

    /// What the list has dropped, as far as this process knows it: that of the owner is the node's.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn view(&self) -> Result<DenyView, Error> {
        let known = self.known();
        let Known { rules, has_others, left_out } = &*known;
        // Most nodes have no list, and a read is one of thousands of counters on each CPU.
        let is_empty = rules.is_empty() && !has_others;
        let hits = if is_empty { Vec::new() } else { self.shared.maps.deny_hits()? };
        let dropped = |rule: DenyRule| hits.get(rule as usize).copied().unwrap_or_default();
        let own = rules.iter().map(|&(rule, prefix)| DenyCount { prefix: Some(prefix), dropped: dropped(rule) });
        let others = has_others.then(|| DenyCount { prefix: None, dropped: dropped(DENY_OTHERS) });
        Ok(DenyView { rules: own.chain(others).collect(), left_out: *left_out })
    }

    /// The flags of a port, with what the list says of it.
    pub(super) fn flags(&self, flags: u32) -> u32 {
        self.flags.apply(flags)
    }

    /// Has the programs look into the list, or not. A list that begins is complete when they do.
    fn enforce(&self, is_enforced: bool) -> Result<(), Error> {
        self.flags.set(if is_enforced { PORT_DENIES } else { 0 }, &self.shared.maps.ports)
    }

    /// Sets the counters of rules to zero that are about to be given to other prefixes than before.
    fn begin_counts(&self, additions: &[DenyEntry]) -> Result<(), Error> {
        let given = additions.iter().filter_map(|entry| entry.rule).filter(|rule| *rule != DENY_OTHERS);
        let given: Vec<_> = given.collect();
        if given.is_empty() {
            return Ok(());
        }
        let hits = self.shared.maps.deny_hits()?;
        for rule in given {
            if hits.get(rule as usize).is_some_and(|hits| *hits != Traffic::default()) {
                self.shared.maps.deny_hits.reset(rule)?;
            }
        }
        Ok(())
    }

    /// Whether there was room.
    fn add(&self, entry: DenyEntry, present: &mut Present) -> Result<bool, Error> {
        let DenyEntry { prefix, rule } = entry;
        let value = rule.unwrap_or(DENY_PASS);
        // Before Linux 6.13 a full trie takes no other value for a prefix that it has, either.
        let is_set = self.write(prefix, value)?
            || (present.remove(&prefix).is_some() && self.remove(prefix)? && self.write(prefix, value)?);
        if is_set {
            present.insert(prefix, rule);
        }
        Ok(is_set)
    }

    /// Whether there was room.
    fn write(&self, prefix: IpNet, value: DenyRule) -> Result<bool, Error> {
        match prefix {
            IpNet::V4(net) => self.shared.maps.deny4.set(&key4(net), &value),
            IpNet::V6(net) => self.shared.maps.deny6.set(&key6(net), &value),
        }
    }

    fn remove(&self, prefix: IpNet) -> Result<bool, Error> {
        match prefix {
            IpNet::V4(net) => self.shared.maps.deny4.remove(&key4(net)),
            IpNet::V6(net) => self.shared.maps.deny6.remove(&key6(net)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Changed in one step, so a panic elsewhere leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    fn of(present: &Present, left_out: usize) -> Self {
        let rules = || present.iter().filter_map(|(&prefix, &rule)| Some((rule?, prefix)));
        let own = rules().filter(|(rule, _)| *rule != DENY_OTHERS && *rule < DENY_RULES_MAX).collect();
        Self { rules: own, has_others: rules().any(|(rule, _)| rule == DENY_OTHERS), left_out }
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

fn rule(value: DenyRule) -> Option<DenyRule> {
    (value != DENY_PASS).then_some(value)
}

fn key4(net: Ipv4Net) -> DenyKey4 {
    DenyKey4 { prefix_len: net.prefix_len().into(), addr: net.network().octets() }
}

fn key6(net: Ipv6Net) -> DenyKey6 {
    DenyKey6 { prefix_len: net.prefix_len().into(), addr: net.network().octets() }
}
