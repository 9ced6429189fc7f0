//! Waits for a condition with a deadline; never for a fixed time.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Interval between checks of a condition: short compared to all conditions, long compared to a check.
const INTERVAL: Duration = Duration::from_millis(2);

/// Longest wait of [`until`]: on a busy machine, a condition may take many times its usual milliseconds. Only a failing
/// test waits that long.
const LIMIT: Duration = Duration::from_secs(30);

/// Calls `probe` until it returns a value, for at most 30 seconds.
///
/// # Errors
/// Fails if the deadline has passed; the message contains `what`.
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    until_within(LIMIT, what, probe)
}

/// Waits like [`until`], with this deadline.
///
/// # Errors
/// Fails if the deadline has passed; the message contains `what`.
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
