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

use std::{collections::HashMap, io, net::SocketAddr, panic::AssertUnwindSafe, sync::Arc, thread, time::Duration};

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
        for (key, checked) in wanted {
            let checked = Arc::new(checked);
            let task = tokio::task::spawn_local(watch_over(Arc::clone(&checked)));
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

/// Asks one endpoint again and again.
async fn watch_over(checked: Arc<Checked>) {
    let mut streak = Streak::default();
    // Endpoints that came together are not asked together.
    sleep(checked.check.interval.mul_f64(fastrand::f64())).await;
    loop {
        // A panic, which has been told, says as little of the endpoint as silence.
        let result = AssertUnwindSafe(ask::ask(&checked)).catch_unwind().await.unwrap_or(CheckResult::Unanswered);
        checked.count(result);
        if let Some(is_well) = streak.add(result == CheckResult::Passed, &checked) {
            checked.judge(is_well);
            tracing::info!(upstream = %checked.key, endpoint = %checked.address, healthy = is_well, "health check");
        }
        sleep(checked.check.interval.mul_f64(0.95 + fastrand::f64() / 10.0)).await;
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
