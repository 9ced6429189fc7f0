//! A fixed-size, sharded, set-associative table of per-client state, with buckets of [`WAYS`] entries. When a bucket is
//! full, the entry with the least weight is evicted, so a flood of addresses cannot evict entries heavier than those of
//! the flood.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Enough shards that workers seldom contend for a lock.
const SHARDS: usize = 64;
/// Entries of a bucket.
const WAYS: usize = 8;

/// The table, with `BUCKETS` in each of [`SHARDS`]. A shard is allocated on first use.
#[derive(Debug)]
pub(crate) struct ClientTable<T, const BUCKETS: usize> {
    shards: [Mutex<Box<[Bucket<T>]>>; SHARDS],
    forgotten: AtomicU64,
}

type Bucket<T> = [Entry<T>; WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct Entry<T> {
    key: u64,
    /// The default value stands for an unknown client, the same as no entry.
    known: T,
}

// === impl ClientTable ===

impl<T: Copy + Default, const BUCKETS: usize> ClientTable<T, BUCKETS> {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), forgotten: AtomicU64::new(0) }
    }

    /// Changes the state of `key`. If it has no entry, the entry of its bucket with the least `weight` is evicted. The
    /// eviction counts as forgotten unless that weight is `None`, which marks an entry that is not needed.
    #[inline]
    pub(crate) fn change<W: Ord, R>(
        &self,
        key: u64,
        weight: impl Fn(&T) -> Option<W>,
        change: impl FnOnce(&mut T) -> R,
    ) -> R {
        let mut shard = self.shard(key);
        if shard.is_empty() {
            *shard = vec![Bucket::<T>::default(); BUCKETS].into();
        }
        let bucket = &mut shard[Self::bucket(key)];
        let found = bucket.iter().position(|entry| entry.key == key);
        let at = found.unwrap_or_else(|| {
            let least = (0..WAYS).min_by_key(|at| weight(&bucket[*at].known)).unwrap_or(0);
            if weight(&bucket[least].known).is_some() {
                self.forgotten.fetch_add(1, Relaxed);
            }
            bucket[least] = Entry { key, known: T::default() };
            least
        });
        change(&mut bucket[at].known)
    }

    /// Removes the state of `key`.
    pub(crate) fn forget(&self, key: u64) {
        let mut shard = self.shard(key);
        let entries = shard.get_mut(Self::bucket(key)).into_iter().flatten();
        entries.filter(|entry| entry.key == key).for_each(|entry| *entry = Entry::default());
    }

    /// Returns the number of evicted entries that were still needed.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Box<[Bucket<T>]>> {
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn bucket(key: u64) -> usize {
        key as usize / SHARDS % BUCKETS
    }
}

#[cfg(test)]
impl<T: Copy + Default, const BUCKETS: usize> ClientTable<T, BUCKETS> {
    /// Returns the number of entries in the shards allocated so far.
    pub(crate) fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().expect("unpoisoned").len() * WAYS).sum()
    }

    /// Returns another key of the same bucket.
    pub(crate) const fn neighbour(key: u64) -> u64 {
        key + (SHARDS * BUCKETS) as u64
    }

    /// Most entries of the table.
    pub(crate) const MAX: usize = SHARDS * BUCKETS * WAYS;
}
