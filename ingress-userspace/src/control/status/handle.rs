//! What the process shares with the status task: its figures, and the word to leave. Writes nothing to the cluster.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

/// Shared between the status task, the metrics, and whoever ends the process.
#[derive(Debug)]
pub struct Handle {
    stats: Stats,
    leaving: watch::Sender<bool>,
}

/// Figures of the status task, of all terms of this process together.
#[derive(Debug, Default)]
pub struct Stats {
    status: [AtomicU64; WriteResult::ALL.len()],
    events: [AtomicU64; WriteResult::ALL.len()],
    leader: AtomicBool,
}

/// Numbers by result, in the order of [`WriteResult::ALL`].
pub type Results = [u64; WriteResult::ALL.len()];

/// What became of something that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Written,
    /// The object is gone, is another by now, or was refused as it stood; tried again when it changes, or later.
    Conflict,
    /// Our role lacks a verb.
    Forbidden,
    /// No answer in time.
    Timeout,
    /// Any other error, tried again.
    Error,
    /// Never tried, for there is too much of it.
    Dropped,
}

// === impl Handle ===

impl Default for Handle {
    fn default() -> Self {
        Self { stats: Stats::default(), leaving: watch::Sender::new(false) }
    }
}

impl Handle {
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Gives leadership up for good, as the first step of a shutdown; what was read and routed goes on.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    pub(super) async fn left(&self) {
        // The sender is in `self`, so this ends only by the word.
        let _closed = self.leaving.subscribe().wait_for(|leaving| *leaving).await.is_err();
    }
}

// === impl Stats ===

impl Stats {
    /// Writes of statuses by result.
    #[must_use]
    pub fn status_writes(&self) -> Results {
        self.status.each_ref().map(|count| count.load(Relaxed))
    }

    /// Events by result.
    #[must_use]
    pub fn events(&self) -> Results {
        self.events.each_ref().map(|count| count.load(Relaxed))
    }

    /// Whether this process writes statuses and events now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader.load(Relaxed)
    }

    pub(super) fn count_status(&self, result: WriteResult) {
        self.status[result as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn count_events(&self, result: WriteResult, number: u64) {
        self.events[result as usize].fetch_add(number, Relaxed);
    }

    pub(super) fn set_leader(&self, is_leader: bool) {
        if self.leader.swap(is_leader, Relaxed) != is_leader {
            tracing::info!(is_leader, "writing of statuses and events");
        }
    }
}

// === impl WriteResult ===

impl WriteResult {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Written, Self::Conflict, Self::Forbidden, Self::Timeout, Self::Error, Self::Dropped];

    /// The value of the metrics' label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Timeout => "timeout",
            Self::Error => "error",
            Self::Dropped => "dropped",
        }
    }
}
