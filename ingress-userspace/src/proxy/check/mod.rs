//! Asks endpoints how they are, and tells those that send requests: one thread for the process, one task for each
//! endpoint that is to be checked. Requests read the verdict, a flag of the endpoint, and wait for nothing.
//!
//! ```text
//! Shared::publish ──▶ Checker ── one task per endpoint ──▶ ask ──▶ pod
//!                                      └──▶ Health (flag) ◀── pick, on the workers
//! ```
//!
//! Nobody is known to be ill: an endpoint gets requests until as many checks in a row as its threshold says have
//! failed.

use std::{
    cell::Cell, collections::HashMap, io, net::SocketAddr, panic::AssertUnwindSafe, rc::Rc, sync::Arc, thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::watch,
    task::{AbortHandle, LocalSet},
    time::sleep,
};

use super::{
    pick::{CheckResult, Checked},
    server::Signal,
    shared::Shared,
};
use crate::model::UpstreamKey;

mod ask;
mod grpc;

/// Snapshots that follow each other within this time are looked at together.
const SETTLE: Duration = Duration::from_millis(50);

/// Checks per second of a process, whatever all Ingresses ask for together; each opens a connection.
const MAX_RATE: f64 = 500.0;

/// Starts the thread. It ends with the signal to drain or stop: whoever takes over asks, too.
pub(super) fn start(shared: Arc<Shared>, signal: watch::Receiver<Signal>) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("health-checks".into()).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(&shared, signal));
    })
}

async fn run(shared: &Shared, mut signal: watch::Receiver<Signal>) {
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
        if slower > 1.0 && slower > pace.get() * 1.1 {
            tracing::warn!(
                limit = MAX_RATE,
                slower,
                "health checks are more than the limit per second, so that intervals are longer by this factor; ask for longer ones by `health-check-interval`"
            );
        }
        pace.set(slower);
        for (key, checked) in wanted {
            let checked = Arc::new(checked);
            let task = tokio::task::spawn_local(watch_over(Arc::clone(&checked), Rc::clone(&pace)));
            tasks.insert(key, (checked, task.abort_handle()));
        }
        tokio::select! {
            // The server is gone, or ends.
            _ = signal.wait_for(|signal| *signal != Signal::Serve) => return,
            changed = published.changed() => if changed.is_err() { return },
        }
        sleep(SETTLE).await;
    }
}

/// By how much intervals are to be longer than these, so that checks are no more than [`MAX_RATE`].
fn slower(intervals: impl Iterator<Item = Duration>) -> f64 {
    let rate: f64 = intervals.map(|interval| interval.as_secs_f64().recip()).sum();
    (rate / MAX_RATE).max(1.0)
}

/// Asks one endpoint again and again, as often as it is to be asked, or more seldom by `pace`.
async fn watch_over(checked: Arc<Checked>, pace: Rc<Cell<f64>>) {
    let mut streak = Streak::default();
    // Endpoints that came together are not asked together.
    sleep(checked.check.interval.mul_f64(pace.get() * fastrand::f64())).await;
    loop {
        // A panic, which has been told, says as little of the endpoint as silence.
        let result = AssertUnwindSafe(ask::ask(&checked)).catch_unwind().await.unwrap_or(CheckResult::Unanswered);
        checked.count(result);
        if let Some(is_well) = streak.add(result == CheckResult::Passed, &checked) {
            checked.judge(is_well);
            tracing::info!(upstream = %checked.key, endpoint = %checked.address, healthy = is_well, "health check");
        }
        sleep(checked.check.interval.mul_f64(pace.get() * (0.95 + fastrand::f64() / 10.0))).await;
    }
}

/// Results of one kind, one after the other.
#[derive(Debug, Default)]
struct Streak {
    passed: bool,
    length: u32,
}

impl Streak {
    /// Adds a result; says how the endpoint is if that is another than before.
    fn add(&mut self, passed: bool, checked: &Checked) -> Option<bool> {
        self.length = if passed == self.passed { self.length.saturating_add(1) } else { 1 };
        self.passed = passed;
        let threshold = if passed { checked.check.healthy } else { checked.check.unhealthy };
        (self.length >= threshold.get() && checked.is_well() != passed).then_some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_checks_together_stay_below_their_rate() {
        for (count, seconds, expect) in
            [(0, 1, 1.0), (500, 1, 1.0), (5_000, 10, 1.0), (1_000, 1, 2.0), (64_000, 1, 128.0)]
        {
            let intervals = std::iter::repeat_n(Duration::from_secs(seconds), count);
            let slower = slower(intervals);
            assert!((slower - expect).abs() < 1e-6, "{count} each {seconds} s: {slower}");
        }
    }
}
