//! Brings the tries of the deny list in line with the pinned configuration and denials. The starting point may be any
//! state, including that of a process that died halfway.
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
    denials::{self, DenialOrigin, PinnedDenial},
    key4, key6,
    plan::{DenyEntries, DenyPlan, Present, TrustedEntries},
    present,
};

/// The deny list after [`apply`].
#[derive(Debug)]
pub(super) struct DenyListState {
    /// Entries of the tries.
    pub(super) entries: Present,
    /// Denials in force.
    pub(super) denials: Vec<PinnedDenial>,
    /// Networks denied only by an escalation.
    pub(super) escalated: BTreeSet<IpNet>,
    pub(super) applied: Applied,
}

/// Ends expired denials, and updates the tries to the wanted state. A network denied before and after stays denied
/// throughout, and one that passes before and after keeps passing. The exception is a full trie: new entries then wait
/// for room, trusted proxies first. A prefix keeps its rule as long as it is listed.
///
/// Reads the whole list, and changes only differences, with one system call per entry. At the end, the programs drop
/// their cached results; until then they may still use the previous list. The caller must hold the lock of the pins:
/// two concurrent updates would leave a mixture.
///
/// # Errors
/// Fails with [`Error::Kernel`] after some of the changes; the next call makes the others.
pub(super) fn apply(maps: &Maps) -> Result<DenyListState, Error> {
    let denials = denials::end(maps, sys::now_ns())?;
    let config = DenyConfig::read(maps)?;
    let denied = config.denied().chain(denials.iter().map(|entry| entry.network));
    let passing = if config.spares() { TrustedEntries::All } else { TrustedEntries::Denied };
    let wanted = DenyEntries::new(passing, denied, config.trusted());
    let changed = bring_up_to(maps, &wanted);
    // Also after a failure or without any change: another process may have died before this step.
    maps.deny_changed.set(&DENY_CHANGED_ALL, &sys::now_ns())?;
    let (entries, applied) = changed?;
    let of = |origin| denials.iter().filter(move |entry| entry.origin == origin).map(|entry| entry.network);
    let by_operators: BTreeSet<_> = of(DenialOrigin::Operator).collect();
    let is_asked_for = |network: &IpNet| config.denies(*network) || by_operators.contains(network);
    let escalated = of(DenialOrigin::Escalation).filter(|network| !is_asked_for(network)).collect();
    Ok(DenyListState { entries, denials, escalated, applied })
}

/// Returns the resulting entries of the tries, and the changes.
fn bring_up_to(maps: &Maps, wanted: &DenyEntries) -> Result<(Present, Applied), Error> {
    let capacity = usize::try_from(DENY_MAX).unwrap_or(usize::MAX);
    let (wanted, mut left_out) = wanted.fitting(capacity);
    let mut present = present(maps)?;
    let DenyPlan { additions, removals } = DenyPlan::new(&present, &wanted);
    begin_counts(maps, &additions)?;
    let mut postponed = VecDeque::new();
    for &entry in &additions {
        // A prefix that still passes keeps passing until the trusted proxies within it have found room.
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
        // Each removal makes room, first of all for trusted proxies; prefixes that still pass come last.
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

/// Switches the lookup in the list on or off. When it is switched on, the list is complete.
fn enforce(maps: &Maps, is_enforced: bool) -> Result<(), Error> {
    flags::write(&maps.ports, PORT_DENIES, if is_enforced { PORT_DENIES } else { 0 })
}

/// Resets the counters of rules that are about to be assigned to other prefixes.
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

/// Adds an entry. Returns whether there was room.
fn add(maps: &Maps, entry: DenyEntry, present: &mut Present) -> Result<bool, Error> {
    let DenyEntry { prefix, rule } = entry;
    let value = rule.unwrap_or(DENY_PASS);
    // Before Linux 6.13, a full trie also refuses a new value for an existing prefix.
    let is_set = write(maps, prefix, value)?
        || (present.remove(&prefix).is_some() && remove(maps, prefix)? && write(maps, prefix, value)?);
    if is_set {
        present.insert(prefix, rule);
    }
    Ok(is_set)
}

/// Writes an entry. Returns whether there was room.
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
