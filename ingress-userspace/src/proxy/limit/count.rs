//! Counts of what is under way, by key, for as long as it is.

use std::{
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// So many that workers seldom meet.
const SHARDS: usize = 64;

/// An entry stays for as long as one is counted, so that there are never more than there are requests or connections.
#[derive(Debug)]
pub(super) struct Counts([Mutex<HashMap<u64, u32>>; SHARDS]);

/// One, until it is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct Counted {
    counts: Arc<Counts>,
    key: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Counts {
    /// Counts one more under `key`; `None` if that would be more than `max`.
    pub(super) fn enter(self: &Arc<Self>, key: u64, max: NonZeroU32) -> Option<Counted> {
        let mut shard = self.shard(key);
        let count = shard.entry(key).or_default();
        if *count >= max.get() {
            return None;
        }
        *count += 1;
        Some(Counted { counts: Arc::clone(self), key })
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.0[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
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
    fn entries_live_as_long_as_what_they_count() {
        let counts = Arc::new(Counts::default());
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
