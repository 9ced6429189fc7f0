//! Counters of the failures of one upstream.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Full;
use crate::observe::durations::DurationsView;

/// The counters of one upstream, since the upstream was added.
#[derive(Debug, Default)]
pub(super) struct UpstreamCounts {
    pub(super) ejections: AtomicU64,
    /// Requests that were retried on another endpoint.
    pub(super) retries: AtomicU64,
    /// Refused requests, in the order of [`Full::ALL`].
    refused: [AtomicU64; Full::ALL.len()],
    /// Results of checks, in the order of [`CheckResult::ALL`].
    checks: [AtomicU64; CheckResult::ALL.len()],
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Passed,
    /// The endpoint returned an unexpected response.
    Failed,
    /// There was no response, or no connection.
    Unanswered,
}

/// Health of the endpoints of one upstream, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamView {
    pub key: ingress_model::UpstreamKey,
    /// Endpoints that get requests, are ejected, or fail their checks; one in both of the latter states counts as the
    /// last.
    pub healthy: usize,
    pub ejected: usize,
    pub unhealthy: usize,
    pub ejections: u64,
    pub retries: u64,
    /// Refused requests, in the order of [`Full::ALL`].
    pub refused: [u64; Full::ALL.len()],
    /// Results of checks, in the order of [`CheckResult::ALL`].
    pub checks: [u64; CheckResult::ALL.len()],
    /// Times to the head of responses; `None` if they are not counted ([`crate::Options::times_upstreams`]), or there
    /// is none.
    pub latency: Option<DurationsView>,
}

impl CheckResult {
    pub const ALL: [Self; 3] = [Self::Passed, Self::Failed, Self::Unanswered];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
        }
    }
}

impl UpstreamView {
    /// Returns whether an endpoint is unhealthy or a counter above zero.
    #[must_use]
    pub fn is_notable(&self) -> bool {
        let Self { key: _, healthy: _, ejected, unhealthy, ejections, retries, refused, checks, latency } = self;
        latency.is_some()
            || *ejected + *unhealthy > 0
            || [&[*ejections, *retries], &refused[..], &checks[..]].concat().iter().any(|count| *count > 0)
    }
}

impl UpstreamCounts {
    pub(super) fn refuse(&self, full: Full) {
        self.refused[full as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn check(&self, result: CheckResult) {
        self.checks[result as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self) -> [u64; Full::ALL.len()] {
        self.refused.each_ref().map(|count| count.load(Relaxed))
    }

    pub(super) fn checks(&self) -> [u64; CheckResult::ALL.len()] {
        self.checks.each_ref().map(|count| count.load(Relaxed))
    }
}
