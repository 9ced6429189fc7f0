//! The permit of a request in flight to an upstream, and the endpoint that served it.

use tokio::sync::OwnedSemaphorePermit;

use crate::upstream::{
    balance::{LoadGuard, Picked},
    subrequest::Deadline,
};

/// The endpoint of a response.
pub(crate) struct Served<'u> {
    pub(crate) endpoint: Picked<'u>,
    /// Held until the response has ended.
    pub(crate) permit: UpstreamPermit,
    /// Time at which the response must have ended, if its try has a limit. Boxed so that other requests do not carry its
    /// size.
    pub(crate) deadline: Option<Box<Deadline>>,
}

/// Permit and in-flight guard held on a capped upstream.
#[derive(Debug, Default)]
pub(crate) struct UpstreamPermit {
    pub(crate) _busy: Option<LoadGuard>,
    pub(crate) _place: Option<OwnedSemaphorePermit>,
}

// === impl UpstreamPermit ===

impl UpstreamPermit {
    /// Returns whether the upstream has neither limits nor counts its requests in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self._busy.is_none() && self._place.is_none()
    }
}
