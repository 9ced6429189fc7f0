//! A bound of the work that datagrams cause in each span of time. Datagrams beyond it wait in the socket, or are lost.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Span of time for which work is bounded.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// The work of the current [`WINDOW`].
#[derive(Debug)]
pub(super) struct Pace {
    most: u32,
    done: u32,
    began: Instant,
}

// === impl Pace ===

impl Pace {
    /// Returns a bound of `most` units in each [`WINDOW`].
    pub(super) fn new(most: u32) -> Self {
        Self { most, done: 0, began: Instant::now() }
    }

    /// Waits until there is room for work.
    pub(super) async fn ready(&mut self) {
        if self.done >= self.most {
            sleep_until(self.began + WINDOW).await;
        }
        if self.began.elapsed() >= WINDOW {
            (self.began, self.done) = (Instant::now(), 0);
        }
    }

    /// Counts work that was done.
    pub(super) const fn spend(&mut self, work: u32) {
        self.done = self.done.saturating_add(work);
    }
}
