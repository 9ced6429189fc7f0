//! Request rates by GCRA, the algorithm of ATM networks (ITU-T I.371). Each client has one moment for each rate, the
//! theoretical arrival time: by then, all its requests so far conform to the rate. A request may come before that
//! moment by as much as the burst allows, and moves it on by one interval. This is equivalent to the leaky bucket of
//! nginx's `limit_req` with `nodelay`, kept in one number.
//!
//! When a bucket of the table is full, the client with the earliest moment is evicted. Its entry would expire first
//! anyway, so the clients with the most requests stay longest.

use std::time::Duration;

use crate::limits::client_table::ClientTable;
use ingress_model::filter::Rate;

/// 131 072 entries of 24 bytes with the key, 3 MiB in all.
#[derive(Debug)]
pub(super) struct Rates(ClientTable<Due, 256>);

/// The arrival time for each rate, in nanoseconds. A client with no time in the future needs no entry.
#[derive(Clone, Copy, Debug, Default)]
struct Due([u64; 2]);

const _: () = assert!(size_of::<Due>() == 16);

// === impl Rates ===

impl Rates {
    pub(super) fn new() -> Self {
        Self(ClientTable::new())
    }

    /// Counts a request at `now` against all `rates`, which must be the same for each call with one key.
    ///
    /// # Errors
    /// The time to wait if the request exceeds one of the rates. It is not counted against any of them then.
    pub(super) fn admit(&self, key: u64, rates: [Option<Rate>; 2], now: Duration) -> Result<(), Duration> {
        let now = nanos(now);
        let Self(clients) = self;
        let weight = |due: &Due| Some(due.last()).filter(|last| *last > now);
        clients.change(key, weight, |due| due.admit(rates, now)).map_err(Duration::from_nanos)
    }

    /// Returns the number of clients evicted before their arrival times were past.
    pub(super) fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }
}

// === impl Due ===

impl Due {
    fn last(&self) -> u64 {
        let Self([one, other]) = *self;
        one.max(other)
    }

    fn admit(&mut self, rates: [Option<Rate>; 2], now: u64) -> Result<(), u64> {
        let mut wait = 0;
        let Self(mut moments) = *self;
        for (due, rate) in moments.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let interval = nanos(rate.interval());
            let early = (*due).saturating_sub(now);
            wait = wait.max(early.saturating_sub(interval.saturating_mul(rate.burst.into())));
            *due = (*due).max(now).saturating_add(interval);
        }
        if wait > 0 {
            return Err(wait);
        }
        *self = Self(moments);
        Ok(())
    }
}

/// 64 bits hold 584 years of nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn rate(requests: u32, seconds: u64, burst: u32) -> Option<Rate> {
        let requests = NonZeroU32::new(requests).expect("some");
        Some(Rate { requests, per: Duration::from_secs(seconds), burst })
    }

    /// Sends requests of one client, each given as the time in milliseconds and the expected wait.
    fn check(rates: [Option<Rate>; 2], requests: &[(u64, u64)]) {
        let table = Rates::new();
        for (n, (at, wait)) in requests.iter().enumerate() {
            let admitted = table.admit(7, rates, Duration::from_millis(*at));
            let expect = if *wait == 0 { Ok(()) } else { Err(Duration::from_millis(*wait)) };
            assert_eq!(admitted, expect, "request {n} at {at} ms of {rates:?}");
        }
    }

    #[test]
    fn requests_beyond_the_burst_are_spaced() {
        check(
            [rate(10, 1, 0), None],
            &[(0, 0), (0, 100), (50, 50), (100, 0), (199, 1), (200, 0), (5000, 0), (5000, 100)],
        );
        check(
            [rate(10, 1, 2), None],
            &[(0, 0), (0, 0), (0, 0), (0, 100), (99, 1), (100, 0), (100, 100), (300, 0), (300, 0)],
        );
        check([None, rate(60, 60, 1)], &[(0, 0), (0, 0), (0, 1000), (1000, 0)]);
    }

    #[test]
    fn requests_refused_by_one_rate_count_for_neither() {
        let rates = [rate(10, 1, 0), rate(2, 60, 1)];
        check(rates, &[(0, 0), (50, 50), (100, 0), (200, 29_800), (300, 29_700), (30_000, 0), (30_050, 29_950)]);
    }

    #[test]
    fn a_changed_rate_keeps_earlier_counts() {
        let table = Rates::new();
        let at = Duration::from_millis;
        for _ in 0..11 {
            assert_eq!(table.admit(7, [rate(10, 1, 10), None], at(0)), Ok(()));
        }
        assert_eq!(table.admit(7, [rate(5, 1, 0), None], at(0)), Err(at(1100)));
        assert_eq!(table.admit(7, [rate(5, 1, 0), None], at(1100)), Ok(()));
    }

    /// A million clients with one request each must not evict the client that has used up its burst.
    #[test]
    fn the_least_active_clients_are_evicted_first() {
        let table = Rates::new();
        let rates = [None, rate(60, 60, 10)];
        let greedy = u64::MAX;
        let mut admitted = 0;
        // Well distributed, as real keys are.
        let mixed = |key: u64| (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for key in 0..1_000_000 {
            assert_eq!(table.admit(mixed(key), rates, Duration::ZERO), Ok(()));
            if key % 50 == 0 {
                admitted += u32::from(table.admit(greedy, rates, Duration::ZERO).is_ok());
            }
        }
        assert_eq!(admitted, 11, "it stays, whoever comes");
        assert_eq!(table.0.capacity(), ClientTable::<Due, 256>::MAX);
        assert!(table.forgotten() > 800_000, "{}", table.forgotten());
        // Expired entries are replaced without being counted as forgotten.
        let before = table.forgotten();
        for key in 0..1000 {
            assert_eq!(table.admit(mixed(key + 1_000_000), rates, Duration::from_secs(60)), Ok(()));
        }
        assert_eq!(table.forgotten(), before);
    }
}
