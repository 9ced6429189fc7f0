//! Tracing and counting of requests.

use super::{
    super::super::values::{boolean, text},
    Key, key,
};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key("enable-opentelemetry", "whether requests are traced, if `otlp-collector-host` is set", |value, asked| {
        boolean(value, &mut asked.traced)
    })
    .default("false"),
    key(
        "metrics-per-path",
        "whether requests of each rule are counted for themselves, by host and path of the rule. Specific to \
         xdp-ingress",
        |value, asked| boolean(value, &mut asked.forwarding.metered),
    )
    .default("false"),
    key(
        "opentelemetry-operation-name",
        "name of spans, a text with variables; without it, the method",
        |value, asked| {
            asked.trace.name = text(value)?;
            Ok(())
        },
    ),
    key(
        "opentelemetry-trust-incoming-span",
        "whether the trace that a client says its request is part of (`traceparent`) goes on",
        |value, asked| boolean(value, &mut asked.trace.trusts),
    )
    .default("true"),
];
