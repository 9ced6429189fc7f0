//! Determines the protocol of the endpoints of a port. It does not implement it.

use super::{outcomes::Outcomes, text::shorten};
use crate::outcome::{ObjectRef, Reason};
use ingress_model::Protocol;

/// Returns the protocol for `appProtocol` of a port (KEP-1435, KEP-3726). Unknown values are served as HTTP/1.1, with a
/// note on `service`.
pub(super) fn of_port(app_protocol: Option<&str>, service: &ObjectRef, outcomes: &mut Outcomes) -> Protocol {
    let Some(name) = app_protocol.filter(|name| !name.is_empty()) else { return Protocol::Http1 };
    match name {
        "http" | "HTTP" | "kubernetes.io/ws" => Protocol::Http1,
        "kubernetes.io/h2c" => Protocol::H2c,
        "https" | "HTTPS" | "kubernetes.io/wss" => Protocol::Https,
        other => {
            let message = format!(
                "`appProtocol: {}` is not known, so pods get HTTP/1.1; known are `http`, `https`, `kubernetes.io/h2c`, \
                 `kubernetes.io/ws`, `kubernetes.io/wss`",
                shorten(other)
            );
            outcomes.report(service, Reason::UnknownProtocol, message);
            Protocol::Http1
        }
    }
}
