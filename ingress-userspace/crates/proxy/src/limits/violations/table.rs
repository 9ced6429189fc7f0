//! Counts of violations by client within a time window. The first violation starts a window of the given length, and
//! the first one after its end starts another. Each client needs one number and one time only. A client that knows
//! where its window ends could therefore commit nearly twice as many violations within the given time, half of them at
//! the end of one window and half at the beginning of the next.

use std::{num::NonZeroU32, time::Duration};

use crate::limits::client_table::ClientTable;

/// 32 768 entries of 24 bytes with the key, 768 KiB in all.
#[derive(Debug)]
pub(super) struct ViolationTable(ClientTable<Count, 64>);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// The time of the first violation in milliseconds.
    began: u64,
    /// Zero if there is none.
    violations: u32,
}

const _: () = assert!(size_of::<Count>() == 16);

// === impl ViolationTable ===

impl ViolationTable {
    pub(super) fn new() -> Self {
        Self(ClientTable::new())
    }

    /// Counts one more violation under `key` at `now`. Returns whether the count has reached `after`; if so, it starts
    /// again from zero.
    pub(super) fn count(&self, key: u64, after: NonZeroU32, within: Duration, now: Duration) -> bool {
        let (within, now) = (millis(within), millis(now));
        let Self(clients) = self;
        let weight = |count: &Count| NonZeroU32::new(count.live(within, now)).map(|live| (live, count.began));
        clients.change(key, weight, |count| {
            let violations = count.live(within, now).saturating_add(1);
            let began = if violations == 1 { now } else { count.began };
            let is_enough = violations >= after.get();
            *count = Count { began, violations: if is_enough { 0 } else { violations } };
            is_enough
        })
    }

    /// Clears the count under `key`.
    pub(super) fn forget(&self, key: u64) {
        self.0.forget(key);
    }

    /// Returns the number of counts evicted before their time was over.
    pub(super) fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }
}

// === impl Count ===

impl Count {
    /// Returns the number of violations that still count.
    fn live(&self, within: u64, now: u64) -> u32 {
        if now.saturating_sub(self.began) < within { self.violations } else { 0 }
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

    /// Counts violations of one client at these seconds, and checks which of them reach the limit.
    #[track_caller]
    fn check(after_count: u32, seconds: &[u64], expect: &[usize]) {
        let table = ViolationTable::new();
        let count = |at: &u64| table.count(7, after(after_count), WITHIN, Duration::from_secs(*at));
        let found: Vec<_> = seconds.iter().enumerate().filter(|(_, at)| count(at)).map(|(n, _)| n).collect();
        assert_eq!(found, expect, "{seconds:?}");
    }

    #[test]
    fn the_limit_counts_violations_within_the_window() {
        check(3, &[0, 0, 0], &[2]);
        check(3, &[0, 5, 9], &[2]);
        // The window is over: the next violation starts another.
        check(3, &[0, 5, 10, 11, 12], &[4]);
        check(3, &[0, 9, 10, 19, 20, 29], &[]);
        check(1, &[0, 0, 50], &[0, 1, 2]);
        // After the limit is reached, the count starts again.
        check(3, &[0, 0, 0, 0, 0, 0, 1], &[2, 5]);
        // The clocks of the workers may differ slightly.
        check(3, &[5, 4, 5], &[2]);
    }

    #[test]
    fn clients_are_counted_and_forgotten_separately() {
        let table = ViolationTable::new();
        // Both keys belong to the same bucket.
        let keys = [7, ClientTable::<Count, 64>::neighbour(7)];
        let count = |key| table.count(key, after(2), WITHIN, Duration::ZERO);
        assert!(!count(keys[0]) && !count(keys[1]));
        table.forget(keys[0]);
        table.forget(12_345);
        assert!(!count(keys[0]) && count(keys[1]));
        assert!(count(keys[0]));
        assert_eq!(table.forgotten(), 0);
    }

    #[test]
    fn changed_settings_apply_to_earlier_counts() {
        let table = ViolationTable::new();
        let count = |after_count, within, at| {
            table.count(7, after(after_count), Duration::from_secs(within), Duration::from_secs(at))
        };
        assert!(!count(10, 10, 0) && !count(10, 10, 1));
        assert!(count(3, 10, 2), "it is the third");
        assert!(!count(2, 10, 3));
        assert!(!count(2, 1, 4), "the first one is too long ago now");
    }

    #[test]
    fn clients_with_the_fewest_violations_are_evicted_first() {
        let table = ViolationTable::new();
        let mixed = |key: u64| (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let greedy = u64::MAX;
        let mut found = 0;
        for key in 0..200_000 {
            assert!(!table.count(mixed(key), after(100), WITHIN, Duration::ZERO));
            if key % 100 == 0 {
                found += u32::from(table.count(greedy, after(100), WITHIN, Duration::ZERO));
            }
        }
        // Right after its count was reset, one violation of this client weighs no more than one of the crowd.
        assert!(found >= 19, "it stays, whoever comes: {found}");
        assert_eq!(table.0.capacity(), ClientTable::<Count, 64>::MAX);
        assert!(table.forgotten() > 160_000, "{}", table.forgotten());
        // Expired counts are replaced without being counted as forgotten.
        let before = table.forgotten();
        for key in 0..1000 {
            assert!(!table.count(mixed(key + 200_000), after(100), WITHIN, WITHIN));
        }
        assert_eq!(table.forgotten(), before);
    }
}
