//! Time limits for pods.

use std::time::Duration;

use super::row::{Row, key};
use crate::translate::values::seconds;
use ingress_model::Forwarding;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedTimeouts>] = &[
    key("proxy-connect-timeout", "time limit for a connection to a pod, in seconds").default("5").reads(|value, parsed| {
        seconds(value, &mut parsed.connect_timeout)
    }),
    key("proxy-read-timeout", "longest silence of a pod before and within a response, or of both sides of a WebSocket, in seconds").default("60").reads(|value, parsed| seconds(value, &mut parsed.read_timeout)),
    key("proxy-send-timeout", "longest time during which a pod accepts no byte of a request, or of a client's side of a WebSocket, in seconds").default("60").reads(|value, parsed| seconds(value, &mut parsed.send_timeout)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedTimeouts>] = &[
    key("proxy-connect-timeout", "time limit for a connection to an endpoint, in seconds")
        .default("5")
        .reads(|value, parsed| seconds(value, &mut parsed.connect_timeout)),
    key(
        "proxy-read-timeout",
        "longest silence of an endpoint before and within a response, or of both sides of a WebSocket, in seconds",
    )
    .default("60")
    .reads(|value, parsed| seconds(value, &mut parsed.read_timeout)),
    key("proxy-send-timeout", "longest time during which an endpoint accepts no byte of a request, in seconds")
        .default("60")
        .reads(|value, parsed| seconds(value, &mut parsed.send_timeout)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedTimeouts {
    pub(super) connect_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) send_timeout: Duration,
}

impl Default for ParsedTimeouts {
    fn default() -> Self {
        let Forwarding { connect_timeout, read_timeout, send_timeout, .. } = Forwarding::default();
        Self { connect_timeout, read_timeout, send_timeout }
    }
}
