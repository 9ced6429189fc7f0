//! Tracing of requests, and the destination of spans.

use std::{sync::Arc, time::Duration};

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, number, text};
use ingress_model::{Sampler, TraceRule, Traces};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedTracing>] = &[
    key("enable-opentelemetry", "whether requests are traced, if `otlp-collector-host` is set")
        .default("false")
        .reads(|value, parsed| boolean(value, &mut parsed.traced)),
    key("opentelemetry-operation-name", "name of spans, a text with variables; without it, the method").reads(
        |value, parsed| {
            parsed.trace.name = text(value)?;
            Ok(())
        },
    ),
    key("opentelemetry-trust-incoming-span", "whether the request's span joins the client's trace (`traceparent`)")
        .default("true")
        .reads(|value, parsed| boolean(value, &mut parsed.trace.trusts)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedTracing>] = &[
    key(
        "enable-opentelemetry",
        "whether requests are traced, if `otlp-collector-host` is set, unless an Ingress overrides it",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.traced)),
    key(
        "opentelemetry-operation-name",
        "name of spans, a text with variables, unless an Ingress overrides it; if empty, the method",
    )
    .reads(|value, parsed| {
        parsed.trace.name = text(value)?;
        Ok(())
    }),
    key(
        "opentelemetry-trust-incoming-span",
        "whether the request's span joins the client's trace, unless an Ingress overrides it",
    )
    .default("true")
    .reads(|value, parsed| boolean(value, &mut parsed.trace.trusts)),
];

/// Sorted by name.
pub(super) const SETTINGS: &[Row<ParsedTraces>] = &[
    key("otel-max-export-batch-size", "largest number of spans in one export")
        .default("512")
        .reads(|value, traces| ParsedTraces::count(value, &mut traces.batch_max)),
    key(
        "otel-max-queuesize",
        "largest number of spans that wait for the collector; further ones are dropped and counted",
    )
    .default("2048")
    .reads(|value, traces| ParsedTraces::count(value, &mut traces.queue_max)),
    key(
        "otel-sampler",
        "which of the traces that begin here are recorded: `AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`",
    )
    .default("AlwaysOn")
    .reads(|value, traces| traces.sampler(value)),
    key(
        "otel-sampler-parent-based",
        "whether the caller's decision applies to traces that it began, instead of `otel-sampler`",
    )
    .default("true")
    .reads(|value, traces| boolean(value, &mut traces.follows_parent)),
    key("otel-sampler-ratio", "share of traces that `TraceIdRatioBased` records, from 0 to 1")
        .default("0.01")
        .reads(|value, traces| traces.ratio(value)),
    key("otel-schedule-delay-millis", "longest time that spans wait for an export, in milliseconds")
        .default("5000")
        .reads(|value, traces| traces.delay(value)),
    key("otel-service-name", "`service.name` of all spans")
        .default("nginx")
        .reads(|value, traces| traces.service(value)),
    key(
        "otlp-collector-host",
        "host or address of a collector for OTLP over gRPC, in the clear; without it, tracing is off",
    )
    .reads(|value, traces| traces.collector(value)),
    key("otlp-collector-port", "port of the collector").default("4317").reads(|value, traces| {
        number(value, 1..=u16::MAX, &mut traces.port).ok_or_else(|| "the number of a port".into())
    }),
];

/// Values for one Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedTracing {
    /// Whether requests are traced. Default false.
    traced: bool,
    trace: TraceRule,
}

impl Default for ParsedTracing {
    fn default() -> Self {
        Self { traced: false, trace: TraceRule { trusts: true, name: None } }
    }
}

/// Values for all Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedTraces {
    /// Empty disables tracing.
    collector: String,
    port: u16,
    service: String,
    sampler: Kind,
    /// In millionths.
    ratio: u32,
    follows_parent: bool,
    queue_max: usize,
    delay: Duration,
    batch_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Always,
    Never,
    Ratio,
}

impl Default for ParsedTraces {
    fn default() -> Self {
        Self {
            collector: String::new(),
            port: 4317,
            service: "nginx".to_owned(),
            sampler: Kind::Always,
            ratio: 10_000,
            follows_parent: true,
            queue_max: 2048,
            delay: Duration::from_secs(5),
            batch_max: 512,
        }
    }
}

// === impl ParsedTraces ===

impl ParsedTraces {
    pub(crate) fn build(self) -> Option<Arc<Traces>> {
        let Self { collector, port, service, sampler, ratio, follows_parent, queue_max, delay, batch_max } = self;
        let sampler = match sampler {
            Kind::Always => Sampler::Always,
            Kind::Never => Sampler::Never,
            Kind::Ratio => Sampler::Ratio(ratio),
        };
        let (collector, service) = (collector.into(), service.into());
        let traces = Traces { collector, port, service, sampler, follows_parent, queue_max, delay, batch_max };
        (!traces.collector.is_empty()).then(|| Arc::new(traces))
    }

    fn collector(&mut self, value: &str) -> Read {
        let is_host = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b));
        self.collector =
            Some(value).filter(|_| is_host).ok_or("a host, as `collector.otel.svc`, or an address")?.into();
        Ok(())
    }

    fn sampler(&mut self, value: &str) -> Read {
        self.sampler = match value {
            "AlwaysOn" => Kind::Always,
            "AlwaysOff" => Kind::Never,
            "TraceIdRatioBased" => Kind::Ratio,
            _ => return Err("`AlwaysOn`, `AlwaysOff` or `TraceIdRatioBased`".into()),
        };
        Ok(())
    }

    fn ratio(&mut self, value: &str) -> Read {
        let ratio = value.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        self.ratio = (ratio.ok_or("a number from 0 to 1")? * f64::from(Sampler::MILLION)).round() as u32;
        Ok(())
    }

    fn service(&mut self, value: &str) -> Read {
        let is_name = !value.is_empty() && !value.chars().any(char::is_control) && value.len() <= 255;
        let is_word = is_name && !value.contains(['$', ' ']);
        self.service = Some(value).filter(|_| is_word).ok_or("a name without spaces")?.into();
        Ok(())
    }

    fn count(value: &str, field: &mut usize) -> Read {
        number(value, 1..=1_000_000, field).ok_or_else(|| "a number from 1 to 1000000".into())
    }

    fn delay(&mut self, value: &str) -> Read {
        let mut milliseconds = 0;
        number(value, 1..=3_600_000, &mut milliseconds).ok_or("a number of milliseconds from 1 to 3600000")?;
        self.delay = Duration::from_millis(milliseconds);
        Ok(())
    }
}

// === impl ParsedTracing ===

impl ParsedTracing {
    pub(super) fn build(&self) -> Option<Arc<TraceRule>> {
        self.traced.then(|| Arc::new(self.trace.clone()))
    }
}
