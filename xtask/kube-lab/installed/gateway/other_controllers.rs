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
use kube::api::{DynamicObject, Patch, PatchParams};
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
    /// The entry of a later write that was not answered, for each status: the write may have been made.
    unanswered: Vec<Option<Value>>,
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
        let (written, unanswered) = (vec![entry(name, 0); routes.len()], vec![None; routes.len()]);
        Self { name, routes, written, unanswered, writes: 0, conflicts: 0, lost: Vec::new() }
    }

    /// Looks at its entries and writes them anew, as other controllers do: with all other entries as they were read, and only
    /// if the route has not changed since.
    async fn write(mut self, stage: &Stage, namespace: &str, ended: &AtomicBool) -> anyhow::Result<Self> {
        let api = api_in(stage, namespace, "HTTPRoute").await?;
        for turn in 1_usize.. {
            if ended.load(SeqCst) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            let number = turn % self.routes.len();
            // The API server may be away.
            let Ok(found) = api.get(&self.routes[number]).await else { continue };
            let mut parents = parents(&found);
            self.check(number, &parents);
            let entry = entry(self.name, turn);
            match parents.iter_mut().find(|parent| parent["controllerName"] == self.name) {
                Some(parent) => parent.clone_from(&entry),
                None => parents.push(entry.clone()),
            }
            let version = found.metadata.resource_version.context("an object without a version")?;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"parents": parents}});
            match api.patch_status(&self.routes[number], &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => self.wrote(number, entry),
                Err(kube::Error::Api(status)) if status.code == 409 => self.conflicts += 1,
                Err(_) => self.unanswered[number] = Some(entry),
            }
        }
        for number in 0..self.routes.len() {
            let found = api.get(&self.routes[number]).await?;
            self.check(number, &parents(&found));
        }
        Ok(self)
    }

    fn wrote(&mut self, number: usize, entry: Value) {
        self.written[number] = entry;
        // An earlier write can no longer be made: it was for an earlier version of the route.
        self.unanswered[number] = None;
        self.writes += 1;
    }

    /// Compares its entry in a status with the one it has written.
    fn check(&mut self, number: usize, parents: &[Value]) {
        if let Some(entry) = self.unanswered[number].take_if(|entry| parents.contains(entry)) {
            self.written[number] = entry;
        }
        let found: Vec<&Value> = parents.iter().filter(|parent| parent["controllerName"] == self.name).collect();
        if found != [&self.written[number]] {
            let (route, written) = (&self.routes[number], &self.written[number]);
            self.lost.push(format!("{route}: {found:?} in place of {written}"));
            self.written[number] = found.first().map_or(Value::Null, |entry| (*entry).clone());
        }
    }
}

/// Returns the entries in the status of a route.
fn parents(route: &DynamicObject) -> Vec<Value> {
    route.data["status"]["parents"].as_array().cloned().unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_the_last_write_or_of_an_unanswered_one() {
        let [first, second] = [1, 2].map(|turn| entry("one.test", turn));
        // Entry of a write without an answer, entries that are found, number of lost ones, entry expected next.
        let check = |unanswered: Option<&Value>, found: &[&Value], lost: usize, next: &Value| {
            let mut entries = Entries::new("one.test", vec!["r".to_owned()]);
            entries.unanswered[0] = unanswered.cloned();
            let found: Vec<Value> = found.iter().copied().cloned().collect();
            entries.check(0, &found);
            assert_eq!((entries.lost.len(), &entries.written[0]), (lost, next), "{found:?} {:?}", entries.lost);
        };
        let (zero, other) = (entry("one.test", 0), entry("two.test", 7));
        check(None, &[&other, &zero], 0, &zero);
        check(Some(&first), &[&zero], 0, &zero);
        check(Some(&first), &[&first, &other], 0, &first);
        check(Some(&first), &[&second], 1, &second);
        check(None, &[&first], 1, &first);
        check(None, &[&other], 1, &Value::Null);
        check(None, &[&zero, &zero], 1, &zero);
    }

    #[test]
    fn an_unanswered_write_is_void_after_a_later_one() {
        let [first, second] = [1, 2].map(|turn| entry("one.test", turn));
        let mut entries = Entries::new("one.test", vec!["r".to_owned()]);
        entries.unanswered[0] = Some(first.clone());
        entries.wrote(0, second.clone());
        entries.check(0, &[second]);
        assert!(entries.lost.is_empty(), "{:?}", entries.lost);
        entries.check(0, &[first]);
        assert_eq!(entries.lost.len(), 1, "an earlier entry came back");
    }
}
