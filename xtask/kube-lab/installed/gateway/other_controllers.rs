//! Other controllers, which write their entries of the same statuses all the time, and look whether these are as they wrote
//! them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Context as _;
use ingress_lab::client::block_on;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{GROUP, api_in};
use crate::stage::Stage;

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(50);

/// Another controller. It writes until the value is dropped or stopped.
pub(super) struct Controller {
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<Entries>>>,
}

/// Entries of another controller in the statuses of some routes.
pub(super) struct Entries {
    pub(super) name: &'static str,
    routes: Vec<String>,
    /// The last entry that it has written in each status.
    written: Vec<Value>,
    pub(super) writes: u64,
    /// Writes that the API server refused, since the route had changed meanwhile.
    pub(super) conflicts: u64,
    /// Entries that were not as they had been written.
    pub(super) lost: Vec<String>,
}

// === impl Controller ===

impl Controller {
    /// Starts it. These routes must have its [`entry`] 0 in their statuses.
    pub(super) fn start(stage: &'static Stage, namespace: &str, name: &'static str, routes: Vec<String>) -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ended, namespace) = (Arc::clone(&has_ended), namespace.to_owned());
        let work = move || block_on(Entries::new(name, routes).write(stage, &namespace, &ended));
        let thread = stage.cluster.control().and_then(|control| control.thread("controller", work));
        Self { has_ended, thread: Some(thread.expect("a controller")) }
    }

    pub(super) fn stop(mut self) -> Entries {
        self.has_ended.store(true, SeqCst);
        self.thread.take().expect("it runs").join().expect("no panic").expect("it writes")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.has_ended.store(true, SeqCst);
    }
}

// === impl Entries ===

impl Entries {
    fn new(name: &'static str, routes: Vec<String>) -> Self {
        let written = vec![entry(name, 0); routes.len()];
        Self { name, routes, written, writes: 0, conflicts: 0, lost: Vec::new() }
    }

    /// Looks at its entries and writes them anew, as other controllers do: with all other entries as they were read, and only
    /// if the route has not changed since.
    async fn write(mut self, stage: &Stage, namespace: &str, ended: &AtomicBool) -> anyhow::Result<Self> {
        let api = api_in(stage, namespace, "HTTPRoute").await?;
        // Entries whose writes were not answered: they may have been made.
        let mut unanswered: Vec<Option<Value>> = vec![None; self.routes.len()];
        for turn in 1_usize.. {
            if ended.load(SeqCst) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            let number = turn % self.routes.len();
            // The API server may be away.
            let Ok(found) = api.get(&self.routes[number]).await else { continue };
            let mut parents = found.data["status"]["parents"].as_array().cloned().unwrap_or_default();
            let unanswered = &mut unanswered[number];
            if unanswered.as_ref().is_some_and(|entry| parents.contains(entry)) {
                self.written[number] = unanswered.take().unwrap_or_default();
            }
            self.check(number, &parents);
            let entry = entry(self.name, turn);
            match parents.iter_mut().find(|parent| parent["controllerName"] == self.name) {
                Some(parent) => parent.clone_from(&entry),
                None => parents.push(entry.clone()),
            }
            let version = found.metadata.resource_version.context("an object without a version")?;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"parents": parents}});
            match api.patch_status(&self.routes[number], &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {
                    self.written[number] = entry;
                    self.writes += 1;
                }
                Err(kube::Error::Api(status)) if status.code == 409 => self.conflicts += 1,
                Err(_) => *unanswered = Some(entry),
            }
        }
        Ok(self)
    }

    fn check(&mut self, number: usize, parents: &[Value]) {
        let found: Vec<&Value> = parents.iter().filter(|parent| parent["controllerName"] == self.name).collect();
        if found != [&self.written[number]] {
            let (route, written) = (&self.routes[number], &self.written[number]);
            self.lost.push(format!("{route}: {found:?} in place of {written}"));
            self.written[number] = found.first().map_or(Value::Null, |entry| (*entry).clone());
        }
    }
}

/// Returns an entry as another controller writes it.
pub(super) fn entry(controller: &str, turn: usize) -> Value {
    let condition = json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": format!("write {turn}"),
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let parent = json!({"group": GROUP, "kind": "Gateway", "name": "elsewhere"});
    json!({"controllerName": controller, "parentRef": parent, "conditions": [condition]})
}
