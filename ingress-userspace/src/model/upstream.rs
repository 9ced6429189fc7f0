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
    /// What its endpoints speak.
    pub protocol: Protocol,
    /// Sorted by address, without duplicates; empty answers 503.
    pub endpoints: Vec<Endpoint>,
}

/// What is spoken to the endpoints of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    #[default]
    Http1,
    /// HTTP/2 in the clear, by prior knowledge (RFC 9113, 3.3).
    H2c,
    /// HTTP/1.1 over TLS. The endpoint's certificate is not verified: pods rarely have one that names them.
    Https,
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

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "http/1.1",
            Self::H2c => "h2c",
            Self::Https => "https",
        })
    }
}
