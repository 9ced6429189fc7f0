//! Refreshes the keys of a JWKS endpoint: one task on one worker, from the first token that needs them until no rule
//! uses the endpoint any more.

use std::{
    error::Error,
    iter::successors,
    rc::Rc,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
    time::Duration,
};

use tokio::{
    task::spawn_local,
    time::{sleep, timeout},
};

use super::{
    fetch::fetch,
    jwks_cache::{Fetched, JwksCache, KEPT_MAX},
};
use crate::{
    server::{clock, worker::Worker},
    snapshot::Snapshot,
};

/// Minimum interval between two log lines about one endpoint.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// The warning about a key set that is valid but contains no usable key.
const NO_KEYS: &str = "cannot verify tokens: none of the keys that their server publishes can be used";
/// Interval at which a task checks whether it is still needed.
const LOOK: Duration = Duration::from_secs(60);

impl JwksCache {
    /// Returns the keys; if there are none yet, waits up to `patience` for them. Starts a task on `worker` if no other
    /// task refreshes them.
    pub(super) async fn fetched(self: &Arc<Self>, patience: Duration, worker: &Rc<Worker>) -> Option<Arc<Fetched>> {
        self.note_need(clock::now());
        if let Some(kept) = self.take_up() {
            // The task outlives the request, because other requests wait for the same keys.
            drop(spawn_local(keep(kept, Rc::clone(worker))));
        }
        if let Some(keys) = self.usable(clock::now()) {
            return Some(keys);
        }
        let mut fetching = self.is_fetching.subscribe();
        // Uses the keys present afterwards, however the wait ended.
        drop(timeout(patience, fetching.wait_for(|is_fetching| !is_fetching)).await);
        self.usable(clock::now())
    }

    /// Returns the guard for a new task if none is running; the caller must start the task.
    pub(super) fn take_up(self: &Arc<Self>) -> Option<Kept> {
        let _times = self.times();
        if self.has_task.load(Relaxed) {
            return None;
        }
        // Set before `has_task`, so that other requests find a fetch to wait for even though the task has not run yet.
        self.is_fetching.send_replace(true);
        self.has_task.store(true, Release);
        Some(Kept(Arc::clone(self)))
    }

    /// Returns whether rules of `snapshot` use this JWKS cache, and requests have needed its keys recently.
    pub(super) fn is_needed(&self, snapshot: &Snapshot, now: Duration) -> bool {
        let asked = Duration::from_secs(self.asked.load(Relaxed));
        let ring = snapshot.jwks_caches.of(&self.server);
        ring.is_some_and(|ring| std::ptr::eq(&**ring, self)) && now.saturating_sub(asked) < KEPT_MAX
    }

    /// Fetches the keys. Returns a message for the log if something is wrong.
    async fn refresh(&self, worker: &Worker) -> Option<String> {
        self.is_fetching.send_replace(true);
        self.times().begin();
        let fetched = fetch(&self.server, worker).await;
        let now = clock::now();
        let complaint = match fetched {
            Ok((keys, fresh)) => {
                // The server may revoke all keys, but may also have made a mistake, so this is reported.
                let complaint = keys.is_empty().then(|| NO_KEYS.to_owned());
                self.times().succeed(now, fresh);
                self.keys.store(Some(Arc::new(Fetched { keys, at: now })));
                complaint
            }
            Err(why) => {
                self.times().fail(now);
                Some(format!("cannot fetch keys of tokens: {}", chain(&why)))
            }
        };
        self.is_fetching.send_replace(false);
        complaint
    }
}

/// Joins the messages of an error and all its sources.
fn chain(error: &dyn Error) -> String {
    let texts = successors(Some(error), |&error| error.source()).map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
}

/// Guard that clears the task state when dropped, even if the task ends before its first poll.
pub(super) struct Kept(Arc<JwksCache>);

impl Drop for Kept {
    fn drop(&mut self) {
        let Self(ring) = self;
        let _times = ring.times();
        ring.has_task.store(false, Release);
        ring.is_fetching.send_replace(false);
    }
}

/// Refreshes the keys while requests need them and the configuration uses their endpoint.
async fn keep(kept: Kept, worker: Rc<Worker>) {
    let Kept(ring) = &kept;
    let mut logged: Option<Duration> = None;
    loop {
        let complaint = ring.refresh(&worker).await;
        let now = clock::now();
        logged = logged.filter(|_| complaint.is_some());
        if let Some(complaint) = complaint
            && logged.is_none_or(|logged| now.saturating_sub(logged) >= LOG_PAUSE)
        {
            let usable = ring.usable(now).is_some_and(|fetched| !fetched.keys.is_empty());
            let failures = ring.times().failures();
            tracing::warn!(server = %ring.server.origin, usable, failures, "{complaint}");
            logged = Some(now);
        }
        loop {
            let now = clock::now();
            if !ring.is_needed(&worker.snapshot(), now) {
                ring.keys.store(None);
                return;
            }
            let pause = ring.times().pause(now);
            if pause.is_zero() {
                break;
            }
            tokio::select! {
                () = sleep(pause.min(LOOK)) => {}
                () = ring.sought.notified() => {}
            }
        }
    }
}
