//! Bounds what a client may cancel: each request that it cancels has cost a worker and a pod as much as one that it
//! waits for. The numbers are those of HTTP/2. Pure.

use std::time::Instant;

/// Initial and maximum allowance…
const MAX: u32 = 10_000;
/// …refilled by this number each second…
const PER_SECOND: u32 = 1_000;
/// …and for each request, which a client may legitimately cancel.
const PER_REQUEST: u32 = 5;
/// Allowance drawn by a stream that is reset, by the client or because of its error.
const RESET: u32 = 10;

/// The streams that a connection may still reset.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u32,
    filled: Instant,
}

impl Allowance {
    /// Returns a full allowance.
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: MAX, filled: now }
    }

    /// Adds the share of a request.
    pub(crate) fn add_request(&mut self) {
        self.left = self.left.saturating_add(PER_REQUEST).min(MAX);
    }

    /// Draws the share of a reset stream. Returns whether the client stays within its allowance.
    #[must_use]
    pub(crate) fn draw_reset(&mut self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.left = self.left.saturating_add(more).min(MAX);
            self.filled = now;
        }
        match self.left.checked_sub(RESET) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn resets_are_bounded_and_time_refills() {
        let now = Instant::now();
        let mut allowance = Allowance::new(now);
        assert!((0..1_000).all(|_| allowance.draw_reset(now)));
        assert!(!allowance.draw_reset(now));
        let later = now + Duration::from_secs(1);
        assert!((0..100).all(|_| allowance.draw_reset(later)));
        assert!(!allowance.draw_reset(later));
    }

    #[test]
    fn requests_that_are_cancelled_draw_more_than_they_add() {
        let now = Instant::now();
        let mut allowance = Allowance::new(now);
        let cancelled = (0..).take_while(|_| {
            allowance.add_request();
            allowance.draw_reset(now)
        });
        assert_eq!(cancelled.count(), 1_999);
    }
}
