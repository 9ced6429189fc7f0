//! Health of an endpoint, from failed requests and from checks. This module decides nothing and sends nothing.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::server::clock;

/// The health of an endpoint, which outlives snapshots while the endpoint stays in the same upstream.
#[derive(Debug, Default)]
pub(crate) struct EndpointHealth {
    /// Consecutive failed requests.
    failures: AtomicU32,
    /// End of the ejection in milliseconds of the proxy's clock; 0 if it is not ejected.
    out_until_ms: AtomicU64,
    /// Whether the endpoint fails its checks.
    unhealthy: AtomicBool,
    /// When the endpoint was added, or became healthy again, in milliseconds of the same clock plus one; 0 after slow
    /// start.
    since_ms: AtomicU64,
}

/// Returns the clock plus one, because 0 stands for "no slow start".
fn age_ms() -> u64 {
    clock::now_ms().saturating_add(1)
}

impl EndpointHealth {
    /// Returns the health of an endpoint added to existing ones.
    pub(super) fn newcomer() -> Self {
        Self { since_ms: AtomicU64::new(age_ms()), ..Self::default() }
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// Increments the count of failures, unless it is no longer `known`: another request was faster. Returns whether it
    /// did.
    pub(super) fn fail(&self, known: u32) -> bool {
        self.failures.compare_exchange(known, known.saturating_add(1), Relaxed, Relaxed).is_ok()
    }

    pub(super) fn eject(&self, until_ms: u64) {
        self.out_until_ms.store(until_ms, Relaxed);
    }

    pub(super) fn succeed(&self) {
        // Reads before writing, so that the cache line usually stays shared between the workers.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.out_until_ms.store(0, Relaxed);
        }
    }

    /// Returns whether the endpoint is ejected. The clock is read only if it has been ejected before.
    pub(super) fn is_ejected(&self, now_ms: impl Fn() -> u64) -> bool {
        let until = self.out_until_ms.load(Relaxed);
        until != 0 && until > now_ms()
    }

    pub(crate) fn is_unhealthy(&self) -> bool {
        self.unhealthy.load(Relaxed)
    }

    /// Stores the outcome of checks. An endpoint that becomes healthy again begins like a new one.
    pub(crate) fn judge(&self, is_healthy: bool) {
        if is_healthy && self.is_unhealthy() {
            self.since_ms.store(age_ms(), Relaxed);
        }
        self.unhealthy.store(!is_healthy, Relaxed);
    }

    /// Returns whether the endpoint should get requests.
    pub(super) fn is_available(&self, now_ms: impl Fn() -> u64) -> bool {
        !self.is_unhealthy() && !self.is_ejected(now_ms)
    }

    /// Returns the share of its requests that the endpoint gets, from 0 to 1. A new endpoint gets all of them after
    /// `time`.
    pub(super) fn share(&self, time: Duration) -> f64 {
        let since = self.since_ms.load(Relaxed);
        if since == 0 {
            return 1.0;
        }
        let share = age_ms().saturating_sub(since) as f64 / time.as_millis().max(1) as f64;
        if share >= 1.0 {
            // Fails if slow start has begun again in the meantime.
            let _begun = self.since_ms.compare_exchange(since, 0, Relaxed, Relaxed);
        }
        share.min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_start_share_grows_to_one() {
        let health = EndpointHealth::newcomer();
        let first = health.share(Duration::from_secs(36_000_000));
        assert!(first < 0.01, "{first}");
        health.since_ms.store(1, Relaxed);
        while age_ms() < 12 {
            std::thread::yield_now();
        }
        let later = health.share(Duration::from_secs(10_000));
        assert!(later > first && later < 1.0, "{later}");
        assert_eq!(health.share(Duration::from_millis(1)), 1.0);
        assert_eq!(health.since_ms.load(Relaxed), 0, "the clock is not asked again");
        assert_eq!(EndpointHealth::default().share(Duration::from_secs(3600)), 1.0);
    }
}
