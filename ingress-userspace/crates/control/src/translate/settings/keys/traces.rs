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
        "whether requests are traced, if `otlp-collector-host` is set, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.traced),
    )
    .default("false"),
    setting(
        "opentelemetry-operation-name",
        "name of spans, a text with variables, unless an Ingress overrides it; if empty, the method",
        |value, globals| {
            globals.parsed.trace.name = text(value)?;
            Ok(())
        },
    ),
    setting(
        "opentelemetry-trust-incoming-span",
        "whether the request's span joins the client's trace, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.trace.trusts),
    )
    .default("true"),
    setting("otel-max-export-batch-size", "largest number of spans in one export", |value, globals| {
        ParsedTraces::count(value, &mut globals.traces.batch_max)
    })
    .default("512"),
    setting(
        "otel-max-queuesize",
        "largest number of spans that wait for the collector; further ones are dropped and counted",
        |value, globals| ParsedTraces::count(value, &mut globals.traces.queue_max),
    )
    .default("2048"),
    setting(
        "otel-sampler",
        "which of the traces that begin here are recorded: `AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`",
        |value, globals| globals.traces.sampler(value),
    )
    .default("AlwaysOn"),
    setting(
        "otel-sampler-parent-based",
        "whether the caller's decision applies to traces that it began, instead of `otel-sampler`",
        |value, globals| boolean(value, &mut globals.traces.follows_parent),
    )
    .default("true"),
    setting("otel-sampler-ratio", "share of traces that `TraceIdRatioBased` records, from 0 to 1", |value, globals| {
        globals.traces.ratio(value)
    })
    .default("0.01"),
    setting(
        "otel-schedule-delay-millis",
        "longest time that spans wait for an export, in milliseconds",
        |value, globals| globals.traces.delay(value),
    )
    .default("5000"),
    setting("otel-service-name", "`service.name` of all spans", |value, globals| globals.traces.service(value))
        .default("nginx"),
    setting(
        "otlp-collector-host",
        "host or address of a collector for OTLP over gRPC, in the clear; without it, tracing is off",
        |value, globals| globals.traces.collector(value),
    ),
    setting("otlp-collector-port", "port of the collector", |value, globals| {
        number(value, 1..=u16::MAX, &mut globals.traces.port).ok_or_else(|| "the number of a port".into())
    })
    .default("4317"),
];
