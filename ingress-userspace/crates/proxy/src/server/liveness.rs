//! Liveness of a thread. The reader decides how long a silence may last.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Last sign of a thread that has ended in order.
const ENDED: u64 = u64::MAX;

/// Time at which a thread last showed progress. Each sign costs one relaxed store.
#[derive(Debug)]
pub struct Liveness {
    name: String,
    start: Instant,
    /// Milliseconds from `start`, or [`ENDED`].
    last: AtomicU64,
}

impl Liveness {
    /// Creates the liveness of the calling thread, under its name, and gives the first sign.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let name = thread::current().name().unwrap_or("unnamed").to_owned();
        Self { name, start: Instant::now(), last: AtomicU64::new(0) }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives a sign of life.
    pub fn beat(&self) {
        self.last.store(self.age(), Relaxed);
    }

    /// Marks the thread as ended, so that no more signs are expected.
    pub fn end(&self) {
        self.last.store(ENDED, Relaxed);
    }

    /// Returns the time since the last sign, to a millisecond; zero after the end.
    #[must_use]
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.age().saturating_sub(self.last.load(Relaxed)))
    }

    fn age(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(ENDED - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_grows_until_a_beat_or_the_end() {
        let liveness = Liveness::of_this_thread();
        let past = Instant::now().checked_sub(Duration::from_secs(60)).expect("the machine runs for a minute");
        let liveness = Liveness { start: past, ..liveness };
        assert!(liveness.silence() >= Duration::from_secs(60));
        liveness.beat();
        assert!(liveness.silence() < Duration::from_secs(30));
        liveness.end();
        assert_eq!(liveness.silence(), Duration::ZERO);
    }
}
