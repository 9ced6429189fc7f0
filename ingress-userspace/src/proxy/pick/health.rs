//! What is known of how an endpoint is: by requests that failed there, and by checks. It decides nothing and asks
//! nobody.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::proxy::clock;

/// Outlives snapshots: the same endpoint of the same upstream keeps it.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Health {
    /// Requests that failed in a row.
    failures: AtomicU32,
    /// Ejected until then, in milliseconds of the proxy's clock; 0 for not at all.
    out_until_ms: AtomicU64,
    /// Whether checks have found it wanting.
    unwell: AtomicBool,
    /// Since when it is there, or there again, in milliseconds of the same, and one; 0 for ever.
    since_ms: AtomicU64,
}

/// The clock, and one: 0 stands for never.
fn age_ms() -> u64 {
    clock::now_ms().saturating_add(1)
}

impl Health {
    /// Of an endpoint that others were there before.
    pub(super) fn newcomer() -> Self {
        Self { since_ms: AtomicU64::new(age_ms()), ..Self::default() }
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// One more than `known`, unless somebody else has said so before.
    pub(super) fn fail(&self, known: u32) -> bool {
        self.failures.compare_exchange(known, known.saturating_add(1), Relaxed, Relaxed).is_ok()
    }

    pub(super) fn eject(&self, until_ms: u64) {
        self.out_until_ms.store(until_ms, Relaxed);
    }

    pub(super) fn succeed(&self) {
        // A plain read first: the line stays shared between the workers in the usual case.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.out_until_ms.store(0, Relaxed);
        }
    }

    /// Whether it is ejected. The clock is read only if it was.
    pub(super) fn is_ejected(&self, now_ms: impl Fn() -> u64) -> bool {
        let until = self.out_until_ms.load(Relaxed);
        until != 0 && until > now_ms()
    }

    pub(in crate::proxy) fn is_unwell(&self) -> bool {
        self.unwell.load(Relaxed)
    }

    /// Checks have found out how it is. One that is well again begins like a newcomer.
    pub(in crate::proxy) fn judge(&self, is_well: bool) {
        if is_well && self.is_unwell() {
            self.since_ms.store(age_ms(), Relaxed);
        }
        self.unwell.store(!is_well, Relaxed);
    }

    /// Whether it should get requests.
    pub(super) fn is_fit(&self, now_ms: impl Fn() -> u64) -> bool {
        !self.is_unwell() && !self.is_ejected(now_ms)
    }

    /// What share of its requests it gets, from 0 to 1, where one that has come gets all of them after `time`.
    pub(super) fn share(&self, time: Duration) -> f64 {
        let since = self.since_ms.load(Relaxed);
        if since == 0 {
            return 1.0;
        }
        let share = age_ms().saturating_sub(since) as f64 / time.as_millis().max(1) as f64;
        if share >= 1.0 {
            // Unless it has come back since, and begins once more.
            let _begun = self.since_ms.compare_exchange(since, 0, Relaxed, Relaxed);
        }
        share.min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_and_is_whole_in_the_end() {
        let health = Health::newcomer();
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
        assert_eq!(Health::default().share(Duration::from_secs(3600)), 1.0);
    }
}
