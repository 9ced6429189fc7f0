//! State shared between the process and the status task: its counters, the hosts that this node does not count by
//! themselves, and the signal to leave. This module writes nothing to the cluster.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use ingress_model::{HostPattern, Tree};

/// Shared between the status task, the metrics, and the shutdown sequence.
#[derive(Debug)]
pub struct StatusHandle {
    stats: StatusCounters,
    leaving: watch::Sender<bool>,
    uncounted: watch::Sender<Uncounted>,
}

/// Hosts without counters of their own on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Uncounted {
    pub(super) hosts: Tree<HostPattern, ()>,
    /// Number of hosts that have such counters.
    pub(super) capacity: usize,
}

/// Counters of the status task, over all terms of this process.
#[derive(Debug, Default)]
pub struct StatusCounters {
    status: [AtomicU64; WriteResult::ALL.len()],
    events: [AtomicU64; WriteResult::ALL.len()],
    leader: AtomicBool,
}

/// Counts by result, in the order of [`WriteResult::ALL`].
pub type Results = [u64; WriteResult::ALL.len()];

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    Written,
    /// The object is gone, was replaced, or was refused as it is. The write is tried again when the object changes, or
    /// later.
    Conflict,
    /// The controller's role lacks a verb.
    Forbidden,
    /// No response within the time limit.
    Timeout,
    /// Any other error; the write is tried again.
    Error,
    /// The write was never tried, because there were too many.
    Dropped,
}

// === impl StatusHandle ===

impl Default for StatusHandle {
    fn default() -> Self {
        Self {
            stats: StatusCounters::default(),
            leaving: watch::Sender::new(false),
            uncounted: watch::Sender::default(),
        }
    }
}

impl StatusHandle {
    #[must_use]
    pub fn stats(&self) -> &StatusCounters {
        &self.stats
    }

    /// Gives up leadership for good, as the first step of a shutdown. Reading and routing continue.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Sets the hosts that this node cannot count by themselves, because there are `capacity` counters only. Their
    /// Ingresses are told.
    pub fn set_uncounted(&self, hosts: &Tree<HostPattern, ()>, capacity: usize) {
        self.uncounted.send_if_modified(|uncounted| {
            let is_new = uncounted.hosts != *hosts;
            if is_new {
                *uncounted = Uncounted { hosts: hosts.clone(), capacity };
            }
            is_new
        });
    }

    /// Returns the hosts that this node cannot count by themselves.
    #[must_use]
    pub fn uncounted_hosts(&self) -> Tree<HostPattern, ()> {
        self.uncounted.borrow().hosts.clone()
    }

    pub(super) fn uncounted(&self) -> watch::Receiver<Uncounted> {
        self.uncounted.subscribe()
    }

    pub(super) async fn left(&self) {
        // The sender is in `self`, so this returns only once `leave` was called.
        let _closed = self.leaving.subscribe().wait_for(|leaving| *leaving).await.is_err();
    }
}

// === impl StatusCounters ===

impl StatusCounters {
    /// Returns status writes by result.
    #[must_use]
    pub fn status_writes(&self) -> Results {
        self.status.each_ref().map(|count| count.load(Relaxed))
    }

    /// Returns events by result.
    #[must_use]
    pub fn events(&self) -> Results {
        self.events.each_ref().map(|count| count.load(Relaxed))
    }

    /// Returns `true` while this process writes statuses and events.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader.load(Relaxed)
    }

    pub(super) fn count_status(&self, result: WriteResult) {
        self.status[result as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn count_events(&self, result: WriteResult, number: u64) {
        self.events[result as usize].fetch_add(number, Relaxed);
    }

    pub(super) fn set_leader(&self, is_leader: bool) {
        if self.leader.swap(is_leader, Relaxed) != is_leader {
            tracing::info!(is_leader, "leadership changed");
        }
    }
}

// === impl WriteResult ===

impl WriteResult {
    /// All variants, in the order of their discriminants.
    pub const ALL: [Self; 6] =
        [Self::Written, Self::Conflict, Self::Forbidden, Self::Timeout, Self::Error, Self::Dropped];

    /// Returns the value of the metrics' label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Timeout => "timeout",
            Self::Error => "error",
            Self::Dropped => "dropped",
        }
    }
}
