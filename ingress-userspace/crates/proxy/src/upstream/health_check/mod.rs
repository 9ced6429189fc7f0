//! Active health checks: one thread for the process, and one task for each endpoint to be checked. Requests read the
//! result, a flag of the endpoint, and never wait for a check.
//!
//! ```text
//! Shared::publish ──▶ Checker ── one task per endpoint ──▶ ask ──▶ pod
//!                                      └──▶ Health (flag) ◀── pick, on the workers
//! ```
//!
//! Endpoints start as healthy: an endpoint gets requests until the number of consecutive failed checks reaches its
//! threshold.

use std::{
    cell::Cell,
    collections::HashMap,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::watch,
    task::{AbortHandle, LocalSet},
    time::sleep,
};

use ingress_model::{Check, UpstreamKey};

use crate::{
    server::{seccomp::WorkerFilter, shared::Shared, signal::Signal},
    upstream::balance::{CheckResult, Checked},
};

mod grpc;
mod probe;

/// Snapshots that follow each other within this time are applied together.
const SETTLE: Duration = Duration::from_millis(50);

/// Limit of checks per second for the whole process, over all Ingresses. The translation reports the Ingresses beyond it.
const MAX_RATE: f64 = Check::MAX_PER_SECOND as f64;

/// Starts the thread. It ends with the signal to drain or stop, because the successor process runs its own checks.
pub(crate) fn start(
    shared: Arc<Shared>,
    signal: watch::Receiver<Signal>,
    filter: Option<WorkerFilter>,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("health-checks".into()).spawn(move || {
        WorkerFilter::bind(filter.as_ref());
        let local = LocalSet::new();
        local.block_on(&runtime, run(&shared, signal));
    })
}

async fn run(shared: &Arc<Shared>, mut signal: watch::Receiver<Signal>) {
    let mut published = shared.published();
    let mut tasks: HashMap<(UpstreamKey, SocketAddr), (Arc<Checked>, AbortHandle)> = HashMap::new();
    let pace = Rc::new(Cell::new(1.0));
    loop {
        published.mark_unchanged();
        let mut wanted = HashMap::new();
        for upstream in shared.snapshot().checked_upstreams() {
            wanted.extend(upstream.checked().map(|checked| ((upstream.key().clone(), checked.address), checked)));
        }
        tasks.retain(|key, (known, task)| {
            let stays = wanted.get(key).is_some_and(|checked| checked.is_same(known));
            if stays {
                wanted.remove(key);
            } else {
                task.abort();
            }
            stays
        });
        let intervals = tasks.values().map(|(checked, _)| &**checked).chain(wanted.values());
        let slower = slower(intervals.map(|checked| checked.check.interval));
        match CheckRateChange::between(pace.replace(slower), slower) {
            Some(CheckRateChange::Capped) => tracing::warn!(
                limit = MAX_RATE,
                slower,
                "health checks are more than the limit per second, so that intervals are longer by this factor; ask for longer ones by `health-check-interval`"
            ),
            Some(CheckRateChange::Free) => tracing::info!("health checks are within their limit per second again"),
            None => {}
        }
        for (key, checked) in wanted {
            let checked = Arc::new(checked);
            let task = tokio::task::spawn_local(watch_over(Arc::clone(&checked), Rc::clone(&pace), Arc::clone(shared)));
            tasks.insert(key, (checked, task.abort_handle()));
        }
        tokio::select! {
            // The server is gone, or shuts down.
            _ = signal.wait_for(|signal| *signal != Signal::Serve) => return,
            changed = published.changed() => if changed.is_err() { return },
        }
        sleep(SETTLE).await;
    }
}

/// Returns the factor by which these intervals are stretched so that the rate of checks stays within [`MAX_RATE`].
fn slower(intervals: impl Iterator<Item = Duration>) -> f64 {
    let rate: f64 = intervals.map(|interval| interval.as_secs_f64().recip()).sum();
    (rate / MAX_RATE).max(1.0)
}

/// A change of the check rate that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckRateChange {
    /// Intervals are now longer than configured.
    Capped,
    /// Intervals are as configured again.
    Free,
}

impl CheckRateChange {
    fn between(before: f64, now: f64) -> Option<Self> {
        match (before > 1.0, now > 1.0) {
            (false, true) => Some(Self::Capped),
            (true, false) => Some(Self::Free),
            _ => None,
        }
    }
}

/// Checks one endpoint repeatedly at its interval, which is multiplied by `pace`.
async fn watch_over(checked: Arc<Checked>, pace: Rc<Cell<f64>>, shared: Arc<Shared>) {
    let mut streak = Streak::default();
    // A random delay, so that endpoints that were added together are not checked together.
    sleep(checked.check.interval.mul_f64(pace.get() * fastrand::f64())).await;
    loop {
        // A panic has been logged already, and counts like a missing response.
        let result = AssertUnwindSafe(probe::send(&checked)).catch_unwind().await.unwrap_or(CheckResult::Unanswered);
        checked.count(result);
        if let Some(is_healthy) = streak.add(result == CheckResult::Passed, &checked) {
            checked.judge(is_healthy);
            tracing::info!(upstream = %checked.key, endpoint = %checked.address, healthy = is_healthy, "health check");
        }
        if pace.get() > 1.0 {
            shared.stats.checks_delayed.fetch_add(1, Relaxed);
        }
        sleep(checked.check.interval.mul_f64(pace.get() * (0.95 + fastrand::f64() / 10.0))).await;
    }
}

/// Consecutive results of the same kind.
#[derive(Debug, Default)]
struct Streak {
    passed: bool,
    length: u32,
}

impl Streak {
    /// Adds a result. Returns the new health of the endpoint if it has changed.
    fn add(&mut self, passed: bool, checked: &Checked) -> Option<bool> {
        self.length = if passed == self.passed { self.length.saturating_add(1) } else { 1 };
        self.passed = passed;
        let threshold = if passed { checked.check.healthy } else { checked.check.unhealthy };
        (self.length >= threshold.get() && checked.is_healthy() != passed).then_some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_check_rate_are_reported_once() {
        let (mut before, mut said) = (1.0, Vec::new());
        for now in [1.0, 1.01, 1.5, 9.0, 1.2, 1.0, 1.0, 2.0] {
            said.extend(CheckRateChange::between(before, now));
            before = now;
        }
        assert_eq!(said, [CheckRateChange::Capped, CheckRateChange::Free, CheckRateChange::Capped]);
    }

    #[test]
    fn the_total_rate_of_checks_is_limited() {
        for (count, seconds, expect) in
            [(0, 1, 1.0), (500, 1, 1.0), (5_000, 10, 1.0), (1_000, 1, 2.0), (64_000, 1, 128.0)]
        {
            let intervals = std::iter::repeat_n(Duration::from_secs(seconds), count);
            let slower = slower(intervals);
            assert!((slower - expect).abs() < 1e-6, "{count} each {seconds} s: {slower}");
        }
    }
}
