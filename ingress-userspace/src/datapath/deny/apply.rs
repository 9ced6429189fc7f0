//! Makes the tries of the deny list what follows from the configuration and the denials that are pinned, whoever has
//! changed which of them, and however far another process had come that died meanwhile.
//!
//! ```text
//! deny_config ─┐
//!              ├─> DenyEntries ─> Plan ─> deny4, deny6, and the flag in `ports`
//! denials ─────┘
//! ```

use std::collections::{BTreeSet, VecDeque};

use ingress_common::{
    DenyRule, Traffic,
    map::{DENY_CHANGED_ALL, DENY_MAX},
    steer::{DENY_OTHERS, DENY_PASS, PORT_DENIES},
};
use ipnet::IpNet;

use super::{
    super::{error::Error, flags, maps::Maps, sys},
    Applied, DenyConfig, DenyEntry,
    denials::{self, Entry, Origin},
    key4, key6,
    plan::{DenyEntries, Passing, Plan, Present},
    present,
};

/// The deny list after [`apply`].
#[derive(Debug)]
pub(super) struct State {
    /// What the tries hold.
    pub(super) entries: Present,
    /// What stands.
    pub(super) denials: Vec<Entry>,
    /// Networks that only an escalation denies.
    pub(super) escalated: BTreeSet<IpNet>,
    pub(super) applied: Applied,
}

/// Ends the denials whose time is over, and brings the tries up to what is wanted then. What is denied before and after
/// is denied at all times, and so passes what passes before and after, unless a family's trie is full: then what is new
/// waits for room, hops first. A prefix keeps its rule as long as it is listed.
///
/// Reads the whole list, and changes what differs: one system call for each entry. At its end the programs forget what
/// they remember of the list; until then they may follow the list of before. To be called under the lock of the pins:
/// two that change the list at one time would leave a mixture.
///
/// # Errors
/// [`Error::Kernel`], after which some of the changes are made; the next call makes the others.
pub(super) fn apply(maps: &Maps) -> Result<State, Error> {
    let denials = denials::end(maps, sys::now_ns())?;
    let config = DenyConfig::read(maps)?;
    let denied = config.denied().chain(denials.iter().map(|entry| entry.network));
    let passing = if config.spares() { Passing::All } else { Passing::Denied };
    let wanted = DenyEntries::new(passing, denied, config.trusted());
    let changed = bring_up_to(maps, &wanted);
    // Also where nothing has changed, or not everything has: another process may have died before it came here.
    maps.deny_changed.set(&DENY_CHANGED_ALL, &sys::now_ns())?;
    let (entries, applied) = changed?;
    let of = |origin| denials.iter().filter(move |entry| entry.origin == origin).map(|entry| entry.network);
    let by_operators: BTreeSet<_> = of(Origin::Operator).collect();
    let is_asked_for = |network: &IpNet| config.denies(*network) || by_operators.contains(network);
    let escalated = of(Origin::Escalation).filter(|network| !is_asked_for(network)).collect();
    Ok(State { entries, denials, escalated, applied })
}

/// The tries' entries then, and what was done.
fn bring_up_to(maps: &Maps, wanted: &DenyEntries) -> Result<(Present, Applied), Error> {
    let capacity = usize::try_from(DENY_MAX).unwrap_or(usize::MAX);
    let (wanted, mut left_out) = wanted.fitting(capacity);
    let mut present = present(maps)?;
    let Plan { additions, removals } = Plan::new(&present, &wanted);
    begin_counts(maps, &additions)?;
    let mut postponed = VecDeque::new();
    for &entry in &additions {
        // What passes until now goes on to, until the hops within it have found room.
        let is_to_wait = entry.rule.is_some() && !postponed.is_empty() && present.contains_key(&entry.prefix);
        if is_to_wait || !add(maps, entry, &mut present)? {
            postponed.push_back(entry);
        }
    }
    if !wanted.is_empty() {
        enforce(maps, true)?;
    }
    for prefix in &removals {
        remove(maps, *prefix)?;
        present.remove(prefix);
        // What goes makes room, and first of all for hops: those that pass until now go last.
        while let Some(&entry) = postponed.front()
            && add(maps, entry, &mut present)?
        {
            postponed.pop_front();
        }
    }
    let mut added = additions.len();
    for entry in postponed {
        if !add(maps, entry, &mut present)? {
            added -= 1;
            left_out += 1;
        }
    }
    if wanted.is_empty() {
        enforce(maps, false)?;
    }
    Ok((present, Applied { added, removed: removals.len(), left_out }))
}

/// Has the programs look into the list, or not. A list that begins is complete when they do.
fn enforce(maps: &Maps, is_enforced: bool) -> Result<(), Error> {
    flags::write(&maps.ports, PORT_DENIES, if is_enforced { PORT_DENIES } else { 0 })
}

/// Sets the counters of rules to zero that are about to be given to other prefixes than before.
fn begin_counts(maps: &Maps, additions: &[DenyEntry]) -> Result<(), Error> {
    let given = additions.iter().filter_map(|entry| entry.rule).filter(|rule| *rule != DENY_OTHERS);
    let given: Vec<_> = given.collect();
    if given.is_empty() {
        return Ok(());
    }
    let hits = maps.deny_hits()?;
    for rule in given {
        if hits.get(rule as usize).is_some_and(|hits| *hits != Traffic::default()) {
            maps.deny_hits.reset(rule)?;
        }
    }
    Ok(())
}

/// Whether there was room.
fn add(maps: &Maps, entry: DenyEntry, present: &mut Present) -> Result<bool, Error> {
    let DenyEntry { prefix, rule } = entry;
    let value = rule.unwrap_or(DENY_PASS);
    // Before Linux 6.13 a full trie takes no other value for a prefix that it has, either.
    let is_set = write(maps, prefix, value)?
        || (present.remove(&prefix).is_some() && remove(maps, prefix)? && write(maps, prefix, value)?);
    if is_set {
        present.insert(prefix, rule);
    }
    Ok(is_set)
}

/// Whether there was room.
fn write(maps: &Maps, prefix: IpNet, value: DenyRule) -> Result<bool, Error> {
    match prefix {
        IpNet::V4(net) => maps.deny4.set(&key4(net), &value),
        IpNet::V6(net) => maps.deny6.set(&key6(net), &value),
    }
}

fn remove(maps: &Maps, prefix: IpNet) -> Result<bool, Error> {
    match prefix {
        IpNet::V4(net) => maps.deny4.remove(&key4(net)),
        IpNet::V6(net) => maps.deny6.remove(&key6(net)),
    }
}
