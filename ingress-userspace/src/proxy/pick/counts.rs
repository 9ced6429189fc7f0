//! What has happened to requests for one upstream that did not go as they should.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Full;

/// Of one upstream, since it came.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) ejections: AtomicU64,
    /// Requests that went to another endpoint after the first.
    pub(super) retries: AtomicU64,
    /// In the order of [`Full::ALL`].
    refused: [AtomicU64; Full::ALL.len()],
    /// In the order of [`CheckResult::ALL`].
    checks: [AtomicU64; CheckResult::ALL.len()],
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Passed,
    /// The endpoint answered, but not as it should.
    Failed,
    /// There was no answer, or no connection.
    Unanswered,
}

/// How the endpoints of one upstream are, and what has happened to its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamView {
    pub key: crate::model::UpstreamKey,
    /// Endpoints that get requests, that are ejected, and that checks have found wanting; one that is both counts as
    /// the latter.
    pub fit: usize,
    pub ejected: usize,
    pub unwell: usize,
    pub ejections: u64,
    pub retries: u64,
    /// In the order of [`Full::ALL`].
    pub refused: [u64; Full::ALL.len()],
    /// In the order of [`CheckResult::ALL`].
    pub checks: [u64; CheckResult::ALL.len()],
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
    /// Whether it differs from that of an upstream all of whose requests went well.
    #[must_use]
    pub fn is_telling(&self) -> bool {
        let Self { key: _, fit: _, ejected, unwell, ejections, retries, refused, checks } = self;
        *ejected + *unwell > 0
            || [&[*ejections, *retries], &refused[..], &checks[..]].concat().iter().any(|count| *count > 0)
    }
}

impl Counts {
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
