//! The schedule of fetches from a JWKS endpoint: before keys expire, earlier if a token names an unknown key, later
//! after failures. Pure; callers pass the time and fetch.

use std::time::Duration;

/// Minimum interval between two fetches caused by unknown keys, because anyone can send a token with an invented `kid`.
const SEEK_PAUSE: Duration = Duration::from_secs(30);
/// Pause after the first failure, doubled after each further consecutive one up to the maximum.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The state of the schedule. Times are those of the process's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Time for which the latest keys are fresh; zero before the first fetch.
    fresh: Duration,
    /// End of the last fetch.
    tried: Duration,
    /// Consecutive failures.
    failures: u32,
    /// Time of the last request for an unknown key.
    sought: Option<Duration>,
    /// Whether no fetch has begun since `sought`.
    is_sought: bool,
}

impl Times {
    /// Returns the time until the next fetch; zero if it is due.
    pub(super) fn pause(&self, now: Duration) -> Duration {
        if self.is_sought {
            return Duration::ZERO;
        }
        let due = match self.failures {
            // Slightly early, so that requests never see expired keys.
            0 => self.tried + self.fresh - self.fresh / 16,
            failures => {
                let doublings = (failures - 1).min(RETRY_MAX.as_secs().ilog2() + 1);
                self.tried + (RETRY_MIN * (1_u32 << doublings)).min(RETRY_MAX)
            }
        };
        due.saturating_sub(now)
    }

    /// Requests a fetch for an unknown key. Returns whether the fetch is due now.
    pub(super) fn seek(&mut self, now: Duration) -> bool {
        let may = self.sought.is_none_or(|sought| now.saturating_sub(sought) >= SEEK_PAUSE);
        if may {
            (self.sought, self.is_sought) = (Some(now), true);
        }
        may
    }

    /// Records that a fetch begins. Later requests for unknown keys need another fetch.
    pub(super) fn begin(&mut self) {
        self.is_sought = false;
    }

    pub(super) fn succeed(&mut self, now: Duration, fresh: Duration) {
        (self.tried, self.fresh, self.failures) = (now, fresh, 0);
    }

    pub(super) fn fail(&mut self, now: Duration) {
        (self.tried, self.failures) = (now, self.failures.saturating_add(1));
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_are_refreshed_before_they_expire() {
        let mut times = Times::default();
        assert_eq!(times.pause(at(1000)), Duration::ZERO, "there are none");
        times.succeed(at(1000), at(160));
        for (now, expect) in [(1000, 150), (1100, 50), (1149, 1), (1150, 0), (5000, 0)] {
            assert_eq!(times.pause(at(now)), at(expect), "{now}");
        }
    }

    #[test]
    fn failed_fetches_back_off() {
        let mut times = Times::default();
        for expect in [1, 2, 4, 8, 16, 30, 30, 30] {
            times.fail(at(1000));
            assert_eq!(times.pause(at(1000)), at(expect), "{}", times.failures);
            assert_eq!(times.pause(at(1000 + expect)), Duration::ZERO, "{}", times.failures);
        }
        times.failures = u32::MAX;
        assert_eq!(times.pause(at(1000)), at(30));
        times.succeed(at(2000), at(160));
        assert_eq!(times.pause(at(2000)), at(150), "they are forgotten");
    }

    #[test]
    fn fetches_for_unknown_keys_are_limited_to_two_per_minute() {
        let mut times = Times::default();
        times.succeed(at(1000), at(6000));
        assert!(times.seek(at(1001)), "however fresh the others are");
        assert_eq!(times.pause(at(1001)), Duration::ZERO);
        times.begin();
        times.succeed(at(1002), at(6000));
        assert_eq!(times.pause(at(1002)), at(5625), "it was fetched");
        for (now, expect) in [(1002, false), (1030, false), (1031, true), (1032, false), (1061, true)] {
            assert_eq!(times.seek(at(now)), expect, "{now}");
        }
    }
}
