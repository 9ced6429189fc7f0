//! Upstreams: the pods behind one port of one service.

use std::{fmt, net::SocketAddr, sync::Arc};

/// Name of an upstream, stable over its life: `namespace/service:port`.
///
/// Pools, health and balancer state carry over from snapshot to snapshot under this key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamKey(Arc<str>);

/// Where requests for one key go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Sorted by address, without duplicates; empty answers 503.
    pub endpoints: Vec<Endpoint>,
}

/// One pod's address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: SocketAddr,
}

impl UpstreamKey {
    #[must_use]
    pub fn new(namespace: &str, service: &str, port: &str) -> Self {
        Self(format!("{namespace}/{service}:{port}").into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UpstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
