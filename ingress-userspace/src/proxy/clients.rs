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

/// `BUCKETS` in each of [`SHARDS`], which takes its part when it is first used.
#[derive(Debug)]
pub(super) struct Clients<T, const BUCKETS: usize> {
    shards: [Mutex<Box<[Bucket<T>]>>; SHARDS],
    forgotten: AtomicU64,
}

type Bucket<T> = [Entry<T>; WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct Entry<T> {
    key: u64,
    /// The default of a client of which nothing is known, which is as good as none.
    known: T,
}

// === impl Clients ===

impl<T: Copy + Default, const BUCKETS: usize> Clients<T, BUCKETS> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), forgotten: AtomicU64::new(0) }
    }

    /// Changes what is known of `key`. If it has no entry, the one of its bucket with the least `weight` makes room and
    /// counts as forgotten, unless that is `None`: nobody misses it.
    #[inline]
    pub(super) fn change<W: Ord, R>(
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

    /// Nothing is known of `key` any more.
    pub(super) fn forget(&self, key: u64) {
        let mut shard = self.shard(key);
        let entries = shard.get_mut(Self::bucket(key)).into_iter().flatten();
        entries.filter(|entry| entry.key == key).for_each(|entry| *entry = Entry::default());
    }

    /// Entries that were missed when they went.
    pub(super) fn forgotten(&self) -> u64 {
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
impl<T: Copy + Default, const BUCKETS: usize> Clients<T, BUCKETS> {
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
