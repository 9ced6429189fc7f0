//! Counts by client, in time. A count begins with an offence and takes in those that come within a given time after it;
//! the next one begins another. That takes one number and one moment a client. Who knew where one count ends could so
//! have nearly twice as many offences within the time, half of them at the end of one and half at the beginning of the
//! next.
//!
//! The table is of a fixed size: buckets of [`WAYS`] entries, into which the key leads. Where a bucket is full, a count
//! goes whose time is over, else the lowest; so a crowd of addresses can at worst forget those who offend no more than
//! each of the crowd does.

use std::{
    num::NonZeroU32,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// So many that workers seldom meet.
const SHARDS: usize = 64;
/// Per shard.
const BUCKETS: usize = 64;
/// Entries of a bucket.
const WAYS: usize = 8;

/// 32 768 entries of 24 bytes, 768 KiB in all; a shard takes its part when it is first used.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<Box<[Bucket]>>; SHARDS],
    forgotten: AtomicU64,
}

type Bucket = [Entry; WAYS];

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    /// When the first offence came, in milliseconds.
    began: u64,
    /// 0 for an entry that is free.
    count: u32,
}

const FREE: Entry = Entry { key: 0, began: 0, count: 0 };

const _: () = assert!(size_of::<Entry>() == 24);

impl Table {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), forgotten: AtomicU64::new(0) }
    }

    /// Counts one more under `key` at `now`. Whether there are `after` of them then; if so, the next one is the first
    /// again.
    pub(super) fn count(&self, key: u64, after: NonZeroU32, within: Duration, now: Duration) -> bool {
        let (within, now) = (millis(within), millis(now));
        let mut shard = self.shard(key);
        if shard.is_empty() {
            *shard = vec![[FREE; WAYS]; BUCKETS].into();
        }
        let bucket = &mut shard[bucket(key)];
        let known = bucket.iter().position(|entry| entry.count > 0 && entry.key == key);
        let at = known.unwrap_or_else(|| {
            let weight = |at: &usize| (bucket[*at].live(within, now), bucket[*at].began);
            let lightest = (0..WAYS).min_by_key(weight).unwrap_or(0);
            self.forgotten.fetch_add(u64::from(bucket[lightest].live(within, now) > 0), Relaxed);
            bucket[lightest] = FREE;
            lightest
        });
        let entry = &mut bucket[at];
        let count = entry.live(within, now).saturating_add(1);
        let began = if count == 1 { now } else { entry.began };
        let is_enough = count >= after.get();
        *entry = if is_enough { FREE } else { Entry { key, began, count } };
        is_enough
    }

    /// Whatever was counted under `key` no longer is.
    pub(super) fn forget(&self, key: u64) {
        let mut shard = self.shard(key);
        let entries = shard.get_mut(bucket(key)).into_iter().flatten();
        entries.filter(|entry| entry.key == key).for_each(|entry| *entry = FREE);
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Box<[Bucket]>> {
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn bucket(key: u64) -> usize {
    key as usize / SHARDS % BUCKETS
}

impl Entry {
    /// How many still count.
    fn live(&self, within: u64, now: u64) -> u32 {
        if now.saturating_sub(self.began) < within { self.count } else { 0 }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    fn after(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).expect("some")
    }

    /// Offences of one client at these seconds, and which of them are one too many.
    #[track_caller]
    fn check(after_count: u32, seconds: &[u64], expect: &[usize]) {
        let table = Table::new();
        let count = |at: &u64| table.count(7, after(after_count), WITHIN, Duration::from_secs(*at));
        let found: Vec<_> = seconds.iter().enumerate().filter(|(_, at)| count(at)).map(|(n, _)| n).collect();
        assert_eq!(found, expect, "{seconds:?}");
    }

    #[test]
    fn so_many_within_the_time_are_too_many() {
        check(3, &[0, 0, 0], &[2]);
        check(3, &[0, 5, 9], &[2]);
        // The time is over: another count begins.
        check(3, &[0, 5, 10, 11, 12], &[4]);
        check(3, &[0, 9, 10, 19, 20, 29], &[]);
        check(1, &[0, 0, 50], &[0, 1, 2]);
        // After enough of them the next is the first.
        check(3, &[0, 0, 0, 0, 0, 0, 1], &[2, 5]);
        // Workers read their clocks one after the other.
        check(3, &[5, 4, 5], &[2]);
    }

    #[test]
    fn clients_count_apart_and_one_is_forgotten_alone() {
        let table = Table::new();
        // Of the same bucket.
        let keys = [7, 7 + (SHARDS * BUCKETS) as u64];
        let count = |key| table.count(key, after(2), WITHIN, Duration::ZERO);
        assert!(!count(keys[0]) && !count(keys[1]));
        table.forget(keys[0]);
        table.forget(12_345);
        assert!(!count(keys[0]) && count(keys[1]));
        assert!(count(keys[0]));
        assert_eq!(table.forgotten(), 0);
    }

    #[test]
    fn other_settings_hold_for_what_was_counted_before() {
        let table = Table::new();
        let count = |after_count, within, at| {
            table.count(7, after(after_count), Duration::from_secs(within), Duration::from_secs(at))
        };
        assert!(!count(10, 10, 0) && !count(10, 10, 1));
        assert!(count(3, 10, 2), "it is the third");
        assert!(!count(2, 10, 3));
        assert!(!count(2, 1, 4), "the first one is too long ago now");
    }

    #[test]
    fn a_crowd_is_bounded_and_forgets_those_first_who_offend_least() {
        let table = Table::new();
        let mixed = |key: u64| (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let greedy = u64::MAX;
        let mut found = 0;
        for key in 0..200_000 {
            assert!(!table.count(mixed(key), after(100), WITHIN, Duration::ZERO));
            if key % 100 == 0 {
                found += u32::from(table.count(greedy, after(100), WITHIN, Duration::ZERO));
            }
        }
        // Its first offence after it was found weighs no more than one of the crowd.
        assert!(found >= 19, "it stays, whoever comes: {found}");
        let entries: usize = table.shards.iter().map(|shard| shard.lock().expect("unpoisoned").len() * WAYS).sum();
        assert_eq!(entries, SHARDS * BUCKETS * WAYS);
        assert!(table.forgotten() > 160_000, "{}", table.forgotten());
        // Those whose time is over make room without being missed.
        let before = table.forgotten();
        for key in 0..1000 {
            assert!(!table.count(mixed(key + 200_000), after(100), WITHIN, WITHIN));
        }
        assert_eq!(table.forgotten(), before);
    }
}
