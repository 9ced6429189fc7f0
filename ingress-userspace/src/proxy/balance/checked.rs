//! The view of an endpoint that the health checker works with. Other code sends the checks.

use std::{net::SocketAddr, sync::Arc};

use super::{CheckResult, Common, EndpointState, Health, UpstreamState};
use crate::proxy::upstream::{Connector, Transport};
use ingress_model::{Check, Protocol, ProxyVersion, UpstreamKey};

/// An endpoint with active health checks.
#[derive(Debug)]
pub(in crate::proxy) struct Checked {
    pub(in crate::proxy) key: UpstreamKey,
    pub(in crate::proxy) address: SocketAddr,
    pub(in crate::proxy) protocol: Protocol,
    pub(in crate::proxy) check: Arc<Check>,
    pub(in crate::proxy) proxy_header: Option<ProxyVersion>,
    connector: Option<Arc<Connector>>,
    health: Arc<Health>,
    common: Arc<Common>,
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

    pub(in crate::proxy) fn transport(&self) -> Transport<'_> {
        self.connector.as_deref().map_or(Transport::Plain, Transport::Tls)
    }

    /// Returns whether `other` is the same endpoint with the same check, sent in the same way.
    pub(in crate::proxy) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
            && self.protocol == other.protocol
            && self.check == other.check
            && self.proxy_header == other.proxy_header
            && self.connector.as_ref().map(Arc::as_ptr) == other.connector.as_ref().map(Arc::as_ptr)
    }

    pub(in crate::proxy) fn is_well(&self) -> bool {
        !self.health.is_unwell()
    }

    pub(in crate::proxy) fn judge(&self, is_well: bool) {
        self.health.judge(is_well);
    }

    pub(in crate::proxy) fn count(&self, result: CheckResult) {
        self.common.counts().check(result);
    }
}
