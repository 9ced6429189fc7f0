//! Waiting for a condition with a deadline. It never waits for time to pass as such.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How often a condition is looked at: short against everything that is waited for, long against looking.
const INTERVAL: Duration = Duration::from_millis(2);

/// Asks `probe` until it answers, for at most ten seconds.
///
/// # Errors
/// When the deadline has passed; the message names `what` was waited for.
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    until_within(Duration::from_secs(10), what, probe)
}

/// [`until`] with a deadline of its own.
///
/// # Errors
/// When the deadline has passed; the message names `what` was waited for.
pub fn until_within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return Ok(value);
        }
        anyhow::ensure!(Instant::now() < deadline, "waited {} s in vain for {what}", limit.as_secs_f32());
        thread::sleep(INTERVAL);
    }
}
