//! The last changes of the configuration, with the time that each took.

use std::{
    collections::VecDeque,
    fmt::Display,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use serde::Serialize;

/// Number of changes kept.
const CHANGES_MAX: usize = 100;
/// Maximum number of names that a change lists of each kind.
const NAMES_MAX: usize = 10;

/// The last changes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog(Mutex<VecDeque<ChangeRecord>>);

/// One publication of a changed configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ChangeRecord {
    /// Generation of the configuration that serves since then.
    pub(crate) generation: u64,
    /// Unix time in seconds.
    #[serde(skip)]
    pub(crate) at: i64,
    /// Time from the receipt of the first of its events until it was served.
    #[serde(skip)]
    pub(crate) took: Duration,
    pub(crate) hosts: ChangedNames,
    pub(crate) upstreams: ChangedNames,
    pub(crate) certificates: ChangedNames,
    pub(crate) new_problems: usize,
    pub(crate) resolved_problems: usize,
}

/// Names of changed entries of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ChangedNames {
    pub(crate) count: usize,
    /// The first ten in order.
    pub(crate) names: Vec<String>,
}

// === impl ChangeLog ===

impl ChangeLog {
    pub(crate) fn add(&self, change: ChangeRecord) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == CHANGES_MAX {
            changes.pop_front();
        }
        changes.push_back(change);
    }

    /// Returns the changes, newest first.
    pub(crate) fn newest_first(&self) -> Vec<ChangeRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

// === impl ChangeRecord ===

impl ChangeRecord {
    /// Returns an empty change that happens now.
    pub(crate) fn now(generation: u64) -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { generation, at: i64::try_from(at.as_secs()).unwrap_or(i64::MAX), ..Self::default() }
    }
}

// === impl ChangedNames ===

impl ChangedNames {
    pub(crate) fn of(names: impl ExactSizeIterator<Item = impl Display>) -> Self {
        Self { count: names.len(), names: names.take(NAMES_MAX).map(|name| name.to_string()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_hundred_changes_are_kept() {
        let log = ChangeLog::default();
        (1..=250).for_each(|generation| log.add(ChangeRecord { generation, ..ChangeRecord::default() }));
        let generations: Vec<_> = log.newest_first().into_iter().map(|change| change.generation).collect();
        assert_eq!((generations.len(), generations.first(), generations.last()), (100, Some(&250), Some(&151)));
    }

    #[test]
    fn a_change_of_many_hosts_names_the_first_ten() {
        let changed = ChangedNames::of((0..5000_u32).map(|number| format!("h{number}.test")));
        assert_eq!(
            (changed.count, changed.names.len(), changed.names.first().map(String::as_str)),
            (5000, 10, Some("h0.test"))
        );
    }
}
