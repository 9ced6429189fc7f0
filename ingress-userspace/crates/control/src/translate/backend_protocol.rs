//! The wishes of an Ingress for the way to its pods: protocol, path, TLS and health policy. It decides nothing.

use std::sync::Arc;

use super::{
    destination::{Asker, Through},
    parsed_tls::ParsedTls,
};
use ingress_model::{HealthPolicy, Protocol, ProxyVersion};

/// The value of annotation `backend-protocol` of an Ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Not set: the port decides.
    #[default]
    OfPort,
    This(Protocol),
    /// A protocol that is known but not implemented, so that requests must not be sent.
    Unsupported,
}

/// How an Ingress wants to reach its pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speech<'p> {
    pub(crate) protocol: Wanted,
    pub(crate) through: Through,
    /// TLS settings, for protocols over TLS.
    pub(crate) backend_tls: Option<&'p ParsedTls>,
    /// Health policy, if it differs from the default.
    pub(crate) health_policy: Option<&'p Arc<HealthPolicy>>,
    /// Version of the PROXY protocol header sent to pods, if any.
    pub(crate) proxy_header: Option<ProxyVersion>,
    /// The sender, if these are not requests of clients.
    pub(crate) asker: Option<&'p Asker>,
}

/// Returns the meaning of a value of `backend-protocol`; `None` if it has none.
pub(crate) fn of_annotation(value: &str) -> Option<Wanted> {
    match value.to_ascii_uppercase().as_str() {
        "HTTP" => Some(Wanted::This(Protocol::Http1)),
        "HTTPS" => Some(Wanted::This(Protocol::Https)),
        "GRPC" => Some(Wanted::This(Protocol::H2c)),
        "GRPCS" => Some(Wanted::This(Protocol::H2)),
        "FCGI" | "AUTO_HTTP" => Some(Wanted::Unsupported),
        _ => None,
    }
}

impl Speech<'_> {
    /// Returns a direct path to pods, without any other wishes of an Ingress.
    pub(crate) const fn plain(protocol: Wanted) -> Self {
        Self {
            protocol,
            through: Through::Pods,
            backend_tls: None,
            health_policy: None,
            proxy_header: None,
            asker: None,
        }
    }
}
