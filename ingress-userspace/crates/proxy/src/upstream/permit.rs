//! The permit of a request in flight to an upstream, and the endpoint that served it.

use tokio::sync::OwnedSemaphorePermit;

use crate::upstream::balance::{LoadGuard, Picked};

/// The endpoint of a response.
pub(crate) struct Served<'u> {
    pub(crate) endpoint: Picked<'u>,
    /// Held until the response has ended.
    pub(crate) permit: UpstreamPermit,
}

/// Permit and in-flight guard held on a capped upstream.
#[derive(Debug, Default)]
pub(crate) struct UpstreamPermit {
    pub(crate) _busy: Option<LoadGuard>,
    pub(crate) _place: Option<OwnedSemaphorePermit>,
}
