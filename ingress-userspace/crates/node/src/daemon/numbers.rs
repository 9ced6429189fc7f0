//! Assignment of counter numbers to hosts, and their release. Counting happens elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use ingress_common::HostL7Cell;
use ingress_datapath::{Datapath, Given};
use ingress_model::HostId;
use tracing::warn;

/// Time for which the counters of a removed host are kept. It exceeds common scrape intervals, and the limits for
/// requests in flight when the host was removed.
const KEPT: Duration = Duration::from_mins(10);

/// Maximum number of releases per call, so that a translation does not wait long: some 10 µs for each with few CPUs.
const MOST: usize = 1000;

/// Assigns every host its number, kept until the host has been gone for [`KEPT`].
pub(super) struct HostNumbers {
    place: NumberSlot,
    /// Numbered names without a route, with the time of their removal.
    gone: HashMap<String, Instant>,
    /// Names that did not get a number, cleared when numbers become free.
    refused: HashSet<String>,
}

enum NumberSlot {
    /// Numbers in a map that outlives the process.
    Kernel(Arc<Datapath>),
    /// Numbers in memory, without the kernel part.
    Memory { numbers: BTreeMap<String, u32>, free: BTreeSet<u32>, cells: &'static [HostL7Cell] },
}

/// Result of a release of numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Returned {
    /// Numbers that no longer belong to a host.
    pub(super) numbers: Vec<HostId>,
    /// Whether numbers became available for other hosts.
    pub(super) has_freed: bool,
}

/// Reason why a host has no number.
enum NumberRefusal {
    /// All numbers are taken.
    Full,
    /// The map could not be read; the error is logged.
    Unknown,
}

// === impl HostNumbers ===

impl HostNumbers {
    /// Adopts the numbers of the node. Until routes name them, all count as removed.
    pub(super) fn kernel(datapath: Arc<Datapath>, now: Instant) -> Self {
        let gone = datapath.host_ids().names().into_iter().map(|name| (name, now)).collect();
        Self { place: NumberSlot::Kernel(datapath), gone, refused: HashSet::new() }
    }

    /// Creates numbers for this process alone, as many as there are `cells`.
    pub(super) fn memory(cells: &'static [HostL7Cell]) -> Self {
        let place = NumberSlot::Memory { numbers: BTreeMap::new(), free: BTreeSet::new(), cells };
        Self { place, gone: HashMap::new(), refused: HashSet::new() }
    }

    /// Returns the number of a host with routes, or `None` if all are taken or the map cannot be read.
    pub(super) fn number(&mut self, name: &str) -> Option<HostId> {
        self.gone.remove(name);
        if self.refused.contains(name) {
            return None;
        }
        match self.place.assign(name) {
            Ok(number) => Some(number),
            Err(NumberRefusal::Full) => {
                self.refused.insert(name.to_owned());
                None
            }
            Err(NumberRefusal::Unknown) => None,
        }
    }

    /// Returns the size that `--host-capacity` gave the counters of this node.
    pub(super) fn capacity(&self) -> usize {
        match &self.place {
            NumberSlot::Kernel(datapath) => datapath.host_cells().len(),
            NumberSlot::Memory { cells, .. } => cells.len(),
        }
    }

    /// Marks a host as removed from all routes.
    pub(super) fn leave(&mut self, name: String, now: Instant) {
        if !self.refused.remove(&name) {
            self.gone.insert(name, now);
        }
    }

    /// Releases the numbers of hosts that have been gone for long enough and for which nothing counts any more: at most
    /// [`MOST`], the longest gone first.
    pub(super) fn give_back(&mut self, now: Instant) -> Returned {
        let is_due = |since: &Instant| now.saturating_duration_since(*since) >= KEPT;
        let mut due: Vec<_> = self.gone.iter().filter(|(_, since)| is_due(since)).collect();
        if due.is_empty() && !self.place.has_unfinished() {
            return Returned::default();
        }
        due.sort_unstable_by_key(|(_, since)| **since);
        let due: Vec<_> = due.into_iter().map(|(name, _)| name.clone()).collect();
        let returned = self.place.give_back(&due);
        if returned.has_freed {
            self.refused.clear();
        }
        self.gone.retain(|name, _| self.place.has(name));
        returned
    }
}

impl NumberSlot {
    fn assign(&mut self, name: &str) -> Result<HostId, NumberRefusal> {
        match self {
            Self::Kernel(datapath) => match datapath.host_ids().assign(name) {
                Ok(number) => Ok(HostId(number)),
                Err(ingress_datapath::Error::HostsFull { .. }) => Err(NumberRefusal::Full),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(name, error, "cannot assign an id to a host; counted as unattributed");
                    Err(NumberRefusal::Unknown)
                }
            },
            Self::Memory { numbers, free, cells } => {
                if let Some(&number) = numbers.get(name) {
                    return Ok(HostId(number));
                }
                // Without free numbers, the assigned ones are contiguous from 1.
                let next = free.pop_first().map_or(numbers.len() + 1, |number| number as usize);
                let number = u32::try_from(next).ok().filter(|_| next < cells.len()).ok_or(NumberRefusal::Full)?;
                numbers.insert(name.to_owned(), number);
                Ok(HostId(number))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Kernel(datapath) => datapath.host_ids().has(name),
            Self::Memory { numbers, .. } => numbers.contains_key(name),
        }
    }

    /// Returns whether a release is left that [`Self::give_back`] could not finish.
    fn has_unfinished(&self) -> bool {
        matches!(self, Self::Kernel(datapath) if datapath.host_ids().has_unfinished())
    }

    fn give_back(&mut self, names: &[String]) -> Returned {
        match self {
            Self::Kernel(datapath) => {
                let Given { ids, freed, error } = datapath.host_ids().give_back(names, MOST);
                if let Some(error) = &error {
                    let error = error as &dyn std::error::Error;
                    warn!(error, "cannot release all ids of hosts that are gone; trying again");
                }
                Returned { numbers: ids.into_iter().map(HostId).collect(), has_freed: freed > 0 }
            }
            Self::Memory { numbers, free, cells } => {
                let mut given = Vec::new();
                for name in names {
                    let Some(&number) = numbers.get(name) else { continue };
                    let Some(cell) = cells.get(number as usize) else { continue };
                    if given.len() < MOST && cell.active.load(Relaxed) == 0 {
                        // The next host begins at zero; without the kernel part, there are no totals for hosts to add
                        // up to.
                        cell.take();
                        numbers.remove(name);
                        free.insert(number);
                        given.push(HostId(number));
                    }
                }
                Returned { has_freed: !given.is_empty(), numbers: given }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(capacity: usize) -> (HostNumbers, &'static [HostL7Cell]) {
        let cells: &'static [HostL7Cell] = Box::leak((0..capacity).map(|_| HostL7Cell::default()).collect());
        (HostNumbers::memory(cells), cells)
    }

    #[test]
    fn host_numbers_are_stable_and_limited() {
        let (mut numbers, _) = numbers(3);
        let mut number = |name: &str| numbers.number(name);
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("*.test"), Some(HostId(2)));
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("b.test"), None);
    }

    #[test]
    fn numbers_of_removed_hosts_are_freed_after_long_idleness() {
        let (mut numbers, cells) = numbers(3);
        let began = Instant::now();
        for (name, number) in [("a.test", Some(HostId(1))), ("b.test", Some(HostId(2))), ("c.test", None)] {
            assert_eq!(numbers.number(name), number, "{name}");
        }
        cells[1].bytes_in.fetch_add(7, Relaxed);
        cells[1].active.fetch_add(1, Relaxed);
        for name in ["a.test", "b.test", "never.test"] {
            numbers.leave(name.to_owned(), began);
        }
        assert_eq!(numbers.give_back(began + KEPT / 2), Returned::default(), "too early");
        // The host returns, and is removed again.
        assert_eq!(numbers.number("b.test"), Some(HostId(2)));
        let returned = numbers.give_back(began + KEPT);
        assert_eq!(returned, Returned::default(), "one is in use, and a request for the other is under way");
        assert_eq!(numbers.number("c.test"), None);
        cells[1].active.fetch_sub(1, Relaxed);
        assert_eq!(numbers.give_back(began + KEPT), Returned { numbers: vec![HostId(1)], has_freed: true });
        assert_eq!(cells[1].load().bytes_in, 0, "the next one begins at zero");
        assert_eq!(numbers.number("c.test"), Some(HostId(1)));
        assert_eq!(numbers.number("a.test"), None);
        assert!(numbers.gone.is_empty());
    }
    #[test]
    fn each_call_frees_a_limited_batch_of_numbers_oldest_first() {
        let (mut numbers, cells) = numbers(MOST + 3);
        let began = Instant::now();
        let name = |number: usize| format!("h{number}.test");
        let all = 1..=MOST + 2;
        for number in all.clone() {
            numbers.number(&name(number));
        }
        // The last host was removed first. One of the oldest stays in use, without delaying others.
        for number in all {
            numbers.leave(name(number), began - Duration::from_millis(number as u64));
        }
        cells[MOST + 2].active.fetch_add(1, Relaxed);
        let mut given: Vec<_> =
            numbers.give_back(began + KEPT).numbers.into_iter().map(|number| number.0 as usize).collect();
        given.sort_unstable();
        assert_eq!(given, (2..=MOST + 1).collect::<Vec<_>>());
        assert_eq!(numbers.give_back(began + KEPT).numbers, [HostId(1)]);
        assert_eq!(numbers.gone.len(), 1);
    }
}
