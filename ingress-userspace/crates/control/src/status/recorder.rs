//! Writes the events that the [`EventDeduper`] selects, one at a time. It does not decide which.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::events::v1::{Event, EventSeries},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Options, WriteResult,
    access::{Permission, RequestFailure, RetryLog, ask},
    events::{self, EventDeduper, RecorderStep},
    input::{Problem, StatusInput},
    options::request_timeout,
};
use crate::clock::expiry;

/// Reports problems as they appear, until the future is dropped.
pub(super) async fn keep(client: &Client, options: &Options, mut input: watch::Receiver<Arc<StatusInput>>) {
    let mut deduper = EventDeduper::new(Instant::now());
    let mut recorder = Recorder::new(client, options);
    let mut uncounted = options.handle.uncounted();
    input.mark_changed();
    let mut dropped = 0;
    let mut observed: Option<Arc<StatusInput>> = None;
    loop {
        let counts_otherwise = uncounted.has_changed().unwrap_or_default();
        if counts_otherwise || input.has_changed().unwrap_or_default() {
            let known = Arc::clone(&input.borrow_and_update());
            let is_new = |observed: &Arc<StatusInput>| counts_otherwise || known.may_have_other_problems(observed);
            if observed.as_ref().is_none_or(is_new) {
                let problems = known.problems(&uncounted.borrow_and_update());
                let before = std::mem::replace(&mut dropped, deduper.observe(&problems, Instant::now()));
                let more = dropped.saturating_sub(before);
                if more > 0 {
                    tracing::warn!(
                        dropped = more,
                        "there are too many problems to write an event for each; the log has them all"
                    );
                    options.handle.stats().count_events(WriteResult::Dropped, more);
                }
            }
            observed = Some(known);
        }
        match deduper.next(Instant::now()) {
            RecorderStep::Report(problem, count) => match recorder.report(&problem, count).await {
                Ok(count) => deduper.reported(&problem, count, Instant::now()),
                Err(pause) => {
                    // A quota or policy may concern this event alone, so after the pause others come first.
                    deduper.put_off(&problem, Instant::now() + 2 * pause);
                    sleep(pause).await;
                }
            },
            RecorderStep::Wait(at) => {
                tokio::select! {
                    changed = input.changed() => match changed {
                        // Handled at the top of the loop.
                        Ok(()) => input.mark_changed(),
                        Err(_closed) => return,
                    },
                    // The sender belongs to the handle, which outlives this future.
                    _changed = uncounted.changed() => uncounted.mark_changed(),
                    () = expiry(at) => {}
                }
            }
        }
    }
}

struct Recorder<'o> {
    client: &'o Client,
    options: &'o Options,
    limit: Duration,
    create: RetryLog,
    get: RetryLog,
    patch: RetryLog,
}

const LOST: &str = "problems of objects are only in the log";

// === impl Recorder ===

impl<'o> Recorder<'o> {
    fn new(client: &'o Client, options: &'o Options) -> Self {
        let retry_log = |verb| RetryLog::new(Permission { verb, resource: "events.events.k8s.io", lost: LOST });
        Self {
            client,
            options,
            limit: request_timeout(options),
            create: retry_log("create"),
            get: retry_log("get"),
            patch: retry_log("patch"),
        }
    }

    /// Reports `problem`, which was reported `count` times before. Returns the new count, or zero if the server refuses
    /// this event as it is. An error is the time to pause.
    async fn report(&mut self, problem: &Problem, count: i32) -> Result<i32, Duration> {
        let Options { controller, identity, handle, .. } = self.options;
        let event = events::event(problem, controller, identity, Timestamp::now());
        let (retry_log, result) = self.write(&event, count).await;
        let (result, answer) = match result {
            Ok(count) => {
                for retry_log in [&mut self.create, &mut self.get, &mut self.patch] {
                    retry_log.succeeded();
                }
                (WriteResult::Written, Ok(count))
            }
            Err(failure) if failure.is_particular() => {
                tracing::debug!(object = %problem.name, %failure, "event not written");
                (failure.result(), Ok(0))
            }
            Err(failure) => (failure.result(), Err(self.retry_log(retry_log).failed(&failure))),
        };
        handle.stats().count_events(result, 1);
        answer
    }

    /// Creates the event, or increases its count if the server has it. Returns the verb of the request that the result
    /// comes from.
    async fn write(&self, event: &Event, count: i32) -> (Verb, Result<i32, RequestFailure>) {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if count > 0 {
            match self.count_on(&api, name, count + 1).await {
                // The server has forgotten the event.
                Err(RequestFailure::Gone(_)) => {}
                result => return (Verb::Patch, result),
            }
        }
        match ask(self.limit, api.create(&PostParams::default(), event)).await {
            Ok(_) => return (Verb::Create, Ok(1)),
            // Another leader, or this process before a restart, has reported it.
            Err(RequestFailure::Conflict) => {}
            Err(failure) => return (Verb::Create, Err(failure)),
        }
        match ask(self.limit, api.get(name)).await {
            Ok(found) => {
                let count = found.series.map_or(1, |series| series.count);
                (Verb::Patch, self.count_on(&api, name, count.saturating_add(1)).await)
            }
            Err(failure) => (Verb::Get, Err(failure)),
        }
    }

    async fn count_on(&self, api: &Api<Event>, name: &str, count: i32) -> Result<i32, RequestFailure> {
        let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
        let patch = Patch::Merge(json!({ "series": series }));
        ask(self.limit, api.patch(name, &PatchParams::default(), &patch)).await.map(|_| count)
    }

    fn retry_log(&mut self, verb: Verb) -> &mut RetryLog {
        match verb {
            Verb::Create => &mut self.create,
            Verb::Get => &mut self.get,
            Verb::Patch => &mut self.patch,
        }
    }
}

#[derive(Clone, Copy)]
enum Verb {
    Create,
    Get,
    Patch,
}
