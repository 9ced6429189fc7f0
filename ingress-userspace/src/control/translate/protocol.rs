//! Reads which protocol the endpoints of a port speak. It does not speak it.

use std::sync::Arc;

use super::{
    Context,
    annotations::{AskedTls, shorten},
    destination::{Asker, Through},
};
use crate::{
    control::outcome::{ObjectRef, Reason},
    model::{Protocol, ProxyVersion, Upkeep},
};

/// What `appProtocol` of a port stands for (KEP-1435, KEP-3726); what it does not know is served as HTTP/1.1, with a
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

/// What the annotation `backend-protocol` of an Ingress asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing: the port says.
    #[default]
    OfPort,
    This(Protocol),
    /// A protocol that is known but not implemented, so that requests must not be sent.
    Unsupported,
}

/// How an Ingress wants its pods spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speech<'p> {
    pub(super) protocol: Wanted,
    pub(super) through: Through,
    /// Where that is over TLS.
    pub(super) terms: Option<&'p AskedTls>,
    /// How they are looked after, if not as all are.
    pub(super) upkeep: Option<&'p Arc<Upkeep>>,
    /// In which version they are told whose a connection is, if they are.
    pub(super) introduction: Option<ProxyVersion>,
    /// Who asks them, if these are not requests of clients.
    pub(super) asker: Option<&'p Asker>,
}

impl Speech<'_> {
    /// Straight to pods, with nothing else that an Ingress may want.
    pub(super) const fn plain(protocol: Wanted) -> Self {
        Self { protocol, through: Through::Pods, terms: None, upkeep: None, introduction: None, asker: None }
    }
}

/// The meaning of a value of `backend-protocol`; `None` if it has none.
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
