//! Tracing and counting of requests.

use super::super::super::values::{boolean, text};
use crate::translate::annotations::row::{Key, key};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key("enable-opentelemetry", "whether requests are traced, if `otlp-collector-host` is set", |value, parsed| {
        boolean(value, &mut parsed.traced)
    })
    .default("false"),
    key(
        "metrics-per-path",
        "whether each rule has metrics of its own, by its host and path. Specific to xdp-ingress",
        |value, parsed| boolean(value, &mut parsed.forwarding.metered),
    )
    .default("false"),
    key(
        "opentelemetry-operation-name",
        "name of spans, a text with variables; without it, the method",
        |value, parsed| {
            parsed.trace.name = text(value)?;
            Ok(())
        },
    ),
    key(
        "opentelemetry-trust-incoming-span",
        "whether the request's span joins the client's trace (`traceparent`)",
        |value, parsed| boolean(value, &mut parsed.trace.trusts),
    )
    .default("true"),
];
