//! The view of an endpoint that the health checker works with. Other code sends the checks.

use std::{net::SocketAddr, sync::Arc};

use super::{CheckResult, EndpointHealth, EndpointState, UpstreamCommon, UpstreamState};
use crate::upstream::{Connector, UpstreamTransport};
use ingress_model::{Check, Protocol, ProxyVersion, UpstreamKey};

/// An endpoint with active health checks.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) key: UpstreamKey,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) check: Arc<Check>,
    pub(crate) proxy_header: Option<ProxyVersion>,
    connector: Option<Arc<Connector>>,
    health: Arc<EndpointHealth>,
    common: Arc<UpstreamCommon>,
}

// === impl Checked ===

impl Checked {
    pub(super) fn of(upstream: &UpstreamState, endpoint: &EndpointState, check: &Arc<Check>) -> Self {
        Self {
            key: upstream.key.clone(),
            address: endpoint.address,
            protocol: upstream.protocol,
            check: Arc::clone(check),
            proxy_header: upstream.proxy_header,
            connector: upstream.connector.clone(),
            health: Arc::clone(&endpoint.health),
            common: Arc::clone(&upstream.common),
        }
    }

    pub(crate) fn transport(&self) -> UpstreamTransport<'_> {
        self.connector.as_deref().map_or(UpstreamTransport::Plain, UpstreamTransport::Tls)
    }

    /// Returns whether `other` is the same endpoint with the same check, sent in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
            && self.protocol == other.protocol
            && self.check == other.check
            && self.proxy_header == other.proxy_header
            && self.connector.as_ref().map(Arc::as_ptr) == other.connector.as_ref().map(Arc::as_ptr)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        !self.health.is_unhealthy()
    }

    pub(crate) fn judge(&self, is_healthy: bool) {
        self.health.judge(is_healthy);
    }

    pub(crate) fn count(&self, result: CheckResult) {
        self.common.counts().check(result);
    }
}
