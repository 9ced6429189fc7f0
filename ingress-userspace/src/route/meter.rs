//! Counts the requests of one rule, where its Ingress asks for that. It is shared by all workers and lives on from
//! snapshot to snapshot for as long as the rule does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::model::{HostPattern, PathMatch};

/// How many classes of answers are told apart: those of 2xx to 5xx, and what broke off.
const CLASSES: usize = 5;

/// Of one rule.
#[derive(Debug)]
pub struct Meter {
    pub host: HostPattern,
    pub path: PathMatch,
    /// Of the Ingress, as `namespace/name`.
    pub owner: Arc<str>,
    requests: [AtomicU64; CLASSES],
    microseconds: AtomicU64,
}

/// What a meter shows at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterView {
    pub host: String,
    pub path: String,
    pub owner: Arc<str>,
    pub requests: [u64; CLASSES],
    /// All durations together.
    pub took: Duration,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(host: HostPattern, path: PathMatch, owner: Arc<str>) -> Self {
        Self { host, path, owner, requests: Default::default(), microseconds: AtomicU64::new(0) }
    }

    /// A request is over, with an answer of this class, after this time.
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
