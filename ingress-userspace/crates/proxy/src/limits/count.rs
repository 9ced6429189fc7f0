//! Counters of requests or connections in flight, by key. An entry exists only while its count is above zero.

use std::{
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

/// Enough shards that workers seldom contend for a lock.
const SHARDS: usize = 64;

/// The sharded counters. An entry is removed with its last guard, so there are never more entries than requests or
/// connections.
#[derive(Debug)]
pub(super) struct InFlightCounts([Mutex<Counts>; SHARDS]);

/// Counts by key. Keys are keyed hashes already, so that no client can choose them: a faster hash suffices.
type Counts = HashMap<u64, u32, RandomState>;

/// Guard of one counted request or connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard {
    counts: Arc<InFlightCounts>,
    key: u64,
}

impl Default for InFlightCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl InFlightCounts {
    /// Counts one more under `key`, a keyed hash of the client. Returns `None` if that would exceed `max`.
    pub(super) fn enter(self: &Arc<Self>, key: u64, max: NonZeroU32) -> Option<CountGuard> {
        let mut shard = self.shard(key);
        let count = shard.entry(key).or_default();
        if *count >= max.get() {
            return None;
        }
        *count += 1;
        Some(CountGuard { counts: Arc::clone(self), key })
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Counts> {
        self.0[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let Self { counts, key } = self;
        if let Entry::Occupied(mut entry) = counts.shard(*key).entry(*key) {
            match entry.get() {
                0 | 1 => drop(entry.remove()),
                more => *entry.get_mut() = more - 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_removed_with_their_last_request() {
        let counts = Arc::new(InFlightCounts::default());
        let max = NonZeroU32::new(2).expect("two");
        let (first, second) = (counts.enter(7, max), counts.enter(7, max));
        assert!(first.is_some() && second.is_some());
        assert!(counts.enter(7, max).is_none());
        assert!(counts.enter(7 + SHARDS as u64, max).is_some(), "of the same shard");
        drop(first);
        assert!(counts.enter(7, max).is_some());
        drop(second);
        assert!(counts.0.iter().all(|shard| shard.lock().expect("unpoisoned").is_empty()));
    }
}
