//! The clock of the process: what it says is the same for all threads, and means nothing to another process.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time since it was first asked.
pub(super) fn now() -> Duration {
    BEGAN.elapsed()
}

/// The same in milliseconds.
pub(super) fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}
