//! The errors of forwarding a request.

use crate::upstream::{ExchangeError, balance::Full};

/// The reason why there is no response of an endpoint to forward.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("the upstream has no endpoints")]
    NoEndpoints,
    /// The number of requests in flight has reached the upstream's limit.
    #[error("the upstream is full")]
    Full(Full),
    #[error("no endpoint accepted a connection")]
    Connect { timed_out: bool },
    /// Caused by this node, not by an endpoint.
    #[error("this node has no resources for a connection")]
    Exhausted,
    #[error("the exchange with an endpoint failed")]
    Exchange(#[source] ExchangeError),
}
