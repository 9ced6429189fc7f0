//! Determines the protocol of the endpoints of a port. It does not implement it.

use std::sync::Arc;

use super::{
    Context,
    annotations::ParsedTls,
    destination::{Asker, Through},
    text::shorten,
};
use crate::outcome::{ObjectRef, Reason};
use ingress_model::{HealthPolicy, Protocol, ProxyVersion};

/// Returns the protocol for `appProtocol` of a port (KEP-1435, KEP-3726). Unknown values are served as HTTP/1.1, with a
/// note on `service`.
pub(super) fn of_port(app_protocol: Option<&str>, service: &ObjectRef, context: &mut Context<'_>) -> Protocol {
    let Some(name) = app_protocol.filter(|name| !name.is_empty()) else { return Protocol::Http1 };
    match name {
        "http" | "HTTP" | "kubernetes.io/ws" => Protocol::Http1,
        "kubernetes.io/h2c" => Protocol::H2c,
        "https" | "HTTPS" | "kubernetes.io/wss" => Protocol::Https,
        other => {
            let message = format!(
                "`appProtocol: {}` is not known, so HTTP/1.1 is spoken; known are `http`, `https`, `kubernetes.io/h2c`, `kubernetes.io/ws`, `kubernetes.io/wss`",
                shorten(other)
            );
            context.report(service, Reason::UnknownProtocol, message);
            Protocol::Http1
        }
    }
}

/// The value of annotation `backend-protocol` of an Ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Not set: the port decides.
    #[default]
    OfPort,
    This(Protocol),
    /// A protocol that is known but not implemented, so that requests must not be sent.
    Unsupported,
}

/// How an Ingress wants to reach its pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speech<'p> {
    pub(super) protocol: Wanted,
    pub(super) through: Through,
    /// TLS settings, for protocols over TLS.
    pub(super) backend_tls: Option<&'p ParsedTls>,
    /// Health policy, if it differs from the default.
    pub(super) health_policy: Option<&'p Arc<HealthPolicy>>,
    /// Version of the PROXY protocol header sent to pods, if any.
    pub(super) proxy_header: Option<ProxyVersion>,
    /// The sender, if these are not requests of clients.
    pub(super) asker: Option<&'p Asker>,
}

impl Speech<'_> {
    /// Returns a direct path to pods, without any other wishes of an Ingress.
    pub(super) const fn plain(protocol: Wanted) -> Self {
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

/// Returns the meaning of a value of `backend-protocol`; `None` if it has none.
pub(super) fn of_annotation(value: &str) -> Option<Wanted> {
    match value.to_ascii_uppercase().as_str() {
        "HTTP" => Some(Wanted::This(Protocol::Http1)),
        "HTTPS" => Some(Wanted::This(Protocol::Https)),
        "GRPC" => Some(Wanted::This(Protocol::H2c)),
        "GRPCS" => Some(Wanted::This(Protocol::H2)),
        "FCGI" | "AUTO_HTTP" => Some(Wanted::Unsupported),
        _ => None,
    }
}
