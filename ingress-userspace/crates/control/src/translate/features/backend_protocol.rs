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
    "protocol of the pods: `HTTP`, `HTTPS`, `GRPC` or `GRPCS`; without it, `appProtocol` of the port decides. \
         `proxy-ssl-verify` turns on verification of their certificates",
)
.differs("`FCGI` and `AUTO_HTTP` are refused, and their rules answer 503")
.not_on_routes("set `appProtocol` of the port of the Service, and use a GRPCRoute for gRPC")
.reads(|value, parsed| {
    *parsed = of_annotation(value).ok_or("`HTTP`, `HTTPS`, `GRPC` or `GRPCS`")?;
    Ok(())
})];

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

// === impl Wanted ===

impl Wanted {
    /// Returns the protocol, and reports one that is not supported.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Self {
        if self == Self::Unsupported {
            let message = "annotation `backend-protocol` asks for a protocol that is not supported; its rules answer 503, use \
                           `HTTP`, `HTTPS`, `GRPC` or `GRPCS`; instead of `AUTO_HTTP`, the one that the pods speak";
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
        "FCGI" | "AUTO_HTTP" => Some(Wanted::Unsupported),
        _ => None,
    }
}
