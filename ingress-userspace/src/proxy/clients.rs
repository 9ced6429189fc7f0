//! Something small about each of very many clients, in a table of a fixed size: buckets of [`WAYS`] entries, into which
//! the key leads. Where a bucket is full, the entry goes that weighs least; so a crowd of addresses can at worst have
//! those forgotten that weigh no more than each of the crowd does.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// So many that workers seldom meet.
const SHARDS: usize = 64;
/// Entries of a bucket.
const WAYS: usize = 8;

/// What is known of a client.
pub(super) trait Entry: Copy {
    /// That of a client of which nothing is known, which is as good as none.
    fn unknown(key: u64) -> Self;

    fn key(&self) -> u64;
}

/// `BUCKETS` in each of [`SHARDS`], which takes its part when it is first used.
#[derive(Debug)]
pub(super) struct Clients<E, const BUCKETS: usize> {
    shards: [Mutex<Box<[[E; WAYS]]>>; SHARDS],
    forgotten: AtomicU64,
}

// === impl Clients ===

impl<E: Entry, const BUCKETS: usize> Clients<E, BUCKETS> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), forgotten: AtomicU64::new(0) }
    }

    /// Changes the entry of `key`. If it has none, the one of its bucket with the least `weight` makes room, and counts as
    /// forgotten if it `is_missed`.
    #[inline]
    pub(super) fn change<W: Ord, R>(
        &self,
        key: u64,
        weight: impl Fn(&E) -> W,
        is_missed: impl Fn(&E) -> bool,
        change: impl FnOnce(&mut E) -> R,
    ) -> R {
        let mut shard = self.shard(key);
        if shard.is_empty() {
            *shard = vec![[E::unknown(0); WAYS]; BUCKETS].into();
        }
        let bucket = &mut shard[Self::bucket(key)];
        let known = bucket.iter().position(|entry| entry.key() == key);
        let at = known.unwrap_or_else(|| {
            let least = (0..WAYS).min_by_key(|at| weight(&bucket[*at])).unwrap_or(0);
            if is_missed(&bucket[least]) {
                self.forgotten.fetch_add(1, Relaxed);
            }
            bucket[least] = E::unknown(key);
            least
        });
        change(&mut bucket[at])
    }

    /// Nothing is known of `key` any more.
    pub(super) fn forget(&self, key: u64) {
        let mut shard = self.shard(key);
        let entries = shard.get_mut(Self::bucket(key)).into_iter().flatten();
        entries.filter(|entry| entry.key() == key).for_each(|entry| *entry = E::unknown(0));
    }

    /// Entries that were missed when they went.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Box<[[E; WAYS]]>> {
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn bucket(key: u64) -> usize {
        key as usize / SHARDS % BUCKETS
    }
}

#[cfg(test)]
impl<E: Entry, const BUCKETS: usize> Clients<E, BUCKETS> {
    /// Entries that there is room for, in the shards that were used.
    pub(super) fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().expect("unpoisoned").len() * WAYS).sum()
    }

    /// Another key of the same bucket.
    pub(super) const fn neighbour(key: u64) -> u64 {
        key + (SHARDS * BUCKETS) as u64
    }

    /// Most entries.
    pub(super) const MAX: usize = SHARDS * BUCKETS * WAYS;
}
