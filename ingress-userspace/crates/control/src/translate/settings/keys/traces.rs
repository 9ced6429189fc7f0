//! Tracing of requests, and the destination of spans.

use super::super::{
    super::values::{boolean, number, text},
    traces::ParsedTraces,
};
use crate::translate::settings::row::{Setting, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "enable-opentelemetry",
        "whether requests are traced where an Ingress does not say, if `otlp-collector-host` is set",
        |value, globals| boolean(value, &mut globals.parsed.traced),
    )
    .default("false"),
    setting(
        "opentelemetry-operation-name",
        "name of spans where an Ingress does not say, a text with variables; without it, the method",
        |value, globals| {
            globals.parsed.trace.name = text(value)?;
            Ok(())
        },
    ),
    setting(
        "opentelemetry-trust-incoming-span",
        "whether the trace that a client says its request is part of goes on, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.parsed.trace.trusts),
    )
    .default("true"),
    setting("otel-max-export-batch-size", "spans sent together", |value, globals| {
        ParsedTraces::count(value, &mut globals.traces.batch_max)
    })
    .default("512"),
    setting(
        "otel-max-queuesize",
        "spans that wait for the collector; more are dropped and counted",
        |value, globals| ParsedTraces::count(value, &mut globals.traces.queue_max),
    )
    .default("2048"),
    setting(
        "otel-sampler",
        "which traces that begin here are recorded: `AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`",
        |value, globals| globals.traces.sampler(value),
    )
    .default("AlwaysOn"),
    setting(
        "otel-sampler-parent-based",
        "whether a trace that goes on is recorded as its caller says, whatever `otel-sampler`",
        |value, globals| boolean(value, &mut globals.traces.follows_parent),
    )
    .default("true"),
    setting("otel-sampler-ratio", "the share that `TraceIdRatioBased` records, from 0 to 1", |value, globals| {
        globals.traces.ratio(value)
    })
    .default("0.01"),
    setting(
        "otel-schedule-delay-millis",
        "how long spans wait for others to be sent with, in milliseconds",
        |value, globals| globals.traces.delay(value),
    )
    .default("5000"),
    setting("otel-service-name", "`service.name` of all spans", |value, globals| globals.traces.service(value))
        .default("nginx"),
    setting(
        "otlp-collector-host",
        "host or address of a collector that takes OTLP over gRPC, in the clear; without it nothing is traced",
        |value, globals| globals.traces.collector(value),
    ),
    setting("otlp-collector-port", "its port", |value, globals| {
        number(value, 1..=u16::MAX, &mut globals.traces.port).ok_or_else(|| "the number of a port".into())
    })
    .default("4317"),
];
