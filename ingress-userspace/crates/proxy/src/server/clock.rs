//! The clock of the process. All threads share it; its times have no meaning in another process.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the time since the first call.
pub(crate) fn now() -> Duration {
    BEGAN.elapsed()
}

/// Like [`now`], in milliseconds.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}
