//! Request metrics of one rule, if its Ingress enables them. A meter is shared by all workers, and carries over between
//! snapshots for as long as the rule exists.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{HostPattern, PathMatch};

/// Number of classes of responses: 2xx to 5xx, and aborted.
const CLASSES: usize = 5;

/// Meter of one rule.
#[derive(Debug)]
pub struct Meter {
    pub host: HostPattern,
    pub path: PathMatch,
    /// Ingress, as `namespace/name`.
    pub owner: Arc<str>,
    requests: [AtomicU64; CLASSES],
    microseconds: AtomicU64,
}

/// Values of a meter at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterView {
    pub host: String,
    pub path: String,
    pub owner: Arc<str>,
    pub requests: [u64; CLASSES],
    /// Sum of all durations.
    pub took: Duration,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(host: HostPattern, path: PathMatch, owner: Arc<str>) -> Self {
        Self { host, path, owner, requests: Default::default(), microseconds: AtomicU64::new(0) }
    }

    /// Records a finished request with the class of its response and its duration.
    pub fn add(&self, class: usize, took: Duration) {
        if let Some(count) = self.requests.get(class) {
            count.fetch_add(1, Relaxed);
        }
        self.microseconds.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    #[must_use]
    pub fn view(&self) -> MeterView {
        MeterView {
            host: self.host.to_string(),
            path: self.path.to_string(),
            owner: Arc::clone(&self.owner),
            requests: self.requests.each_ref().map(|count| count.load(Relaxed)),
            took: Duration::from_micros(self.microseconds.load(Relaxed)),
        }
    }
}
