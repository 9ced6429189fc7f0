//! The protocol of the pods.

use super::{
    row::{Row, key},
    scope::Scope,
};
use crate::outcome::Reason;
use ingress_model::Protocol;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<Wanted>] = &[key(
    "backend-protocol",
    "protocol of the pods: `HTTP`, `HTTPS`, `GRPC`, `GRPCS`, or `AUTO_HTTP` for the scheme of the client's connection; \
         without it, `appProtocol` of the port decides. `proxy-ssl-verify` turns on verification of their certificates",
)
.differs("`FCGI` is refused, and its rules answer 503")
.not_on_routes("set `appProtocol` of the port of the Service, and use a GRPCRoute for gRPC")
.reads(|value, parsed| {
    *parsed = of_annotation(value).ok_or("`HTTP`, `HTTPS`, `GRPC`, `GRPCS` or `AUTO_HTTP`")?;
    Ok(())
})];

/// The value of annotation `backend-protocol` of an Ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Not set: the port decides.
    #[default]
    OfPort,
    This(Protocol),
    /// HTTP/1.1 over TLS for clients over TLS, and in the clear for others.
    OfClient,
    /// A protocol that is known but not implemented, so that requests must not be sent.
    Unsupported,
}

// === impl Wanted ===

impl Wanted {
    /// Returns the protocol, and reports one that is not supported.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Self {
        if self == Self::Unsupported {
            let message = "annotation `backend-protocol` asks for a protocol that is not supported; its rules answer 503, use \
                           `HTTP`, `HTTPS`, `GRPC`, `GRPCS` or `AUTO_HTTP`";
            scope.report_refusal(Reason::UnsupportedAnnotation, message.to_owned());
        }
        self
    }
}

/// Returns the meaning of a value of `backend-protocol`; `None` if it has none.
fn of_annotation(value: &str) -> Option<Wanted> {
    match value.to_ascii_uppercase().as_str() {
        "HTTP" => Some(Wanted::This(Protocol::Http1)),
        "HTTPS" => Some(Wanted::This(Protocol::Https)),
        "GRPC" => Some(Wanted::This(Protocol::H2c)),
        "GRPCS" => Some(Wanted::This(Protocol::H2)),
        "AUTO_HTTP" => Some(Wanted::OfClient),
        "FCGI" => Some(Wanted::Unsupported),
        _ => None,
    }
}
