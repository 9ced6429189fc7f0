//! How an Ingress wants to reach its pods: protocol, path, TLS and health policy.

use std::sync::Arc;

use super::{
    destination::Through,
    features::{backend_protocol::Wanted, upstream_tls::ParsedTls},
};
use ingress_model::{HealthPolicy, ProxyVersion};

/// How an Ingress wants to reach its pods. The default is directly, as their port says.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackendPolicy {
    pub(crate) protocol: Wanted,
    pub(crate) through: Through,
    /// TLS settings, for protocols over TLS, if they differ from the default.
    pub(crate) tls: Option<ParsedTls>,
    /// Health policy, if it differs from the default.
    pub(crate) health_policy: Option<Arc<HealthPolicy>>,
    /// Version of the PROXY protocol header sent to pods, if any.
    pub(crate) proxy_header: Option<ProxyVersion>,
}
