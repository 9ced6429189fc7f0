//! Metrics of upstreams.

use std::fmt;

use ingress_proxy::{CheckResult, Full, UpstreamView};
use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};

use super::encode::{counters, durations, gauges};

/// A counter of an upstream: name, help, value.
type Whole = (&'static str, &'static str, fn(&UpstreamView) -> u64);

/// Counters of an upstream with one more label: name, help, that label, its values with their counts.
type Parts = (&'static str, &'static str, &'static str, fn(&UpstreamView) -> Vec<(&'static str, u64)>);

pub(super) fn encode_upstreams(
    upstreams: &[UpstreamView],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let help = "Endpoints of an upstream, by their current state";
    let rows = upstreams.iter().flat_map(|UpstreamView { key, healthy, ejected, unhealthy, .. }| {
        let states = [("healthy", *healthy), ("ejected", *ejected), ("unhealthy", *unhealthy)];
        states.map(|(state, count)| ([("upstream", key.as_str()), ("state", state)], count as u64))
    });
    gauges(encoder, "upstream_endpoints", help, rows)?;
    let whole: [Whole; 2] = [
        ("upstream_ejections", "Ejections of endpoints", |view| view.ejections),
        ("upstream_retries", "Requests retried on another endpoint", |view| view.retries),
    ];
    for (name, help, value) in whole {
        let rows = upstreams.iter().map(|view| ([("upstream", view.key.as_str())], value(view)));
        counters(encoder, name, help, rows)?;
    }
    let parts: [Parts; 2] = [
        ("upstream_checks", "Health checks, by result", "result", |view| {
            CheckResult::ALL.iter().map(|result| result.as_str()).zip(view.checks).collect()
        }),
        ("upstream_requests_refused", "Requests refused because an upstream was full, by limit", "reason", |view| {
            Full::ALL.iter().map(|full| full.as_str()).zip(view.refused).collect()
        }),
    ];
    for (name, help, label, values) in parts {
        let rows = upstreams.iter().flat_map(|view| {
            let key = view.key.as_str();
            values(view).into_iter().map(move |(part, count)| ([("upstream", key), (label, part)], count))
        });
        counters(encoder, name, help, rows)?;
    }
    let help = "Time from the choice of an endpoint to the head of its response, connecting included";
    let mut metric =
        encoder.encode_descriptor("upstream_header_duration_seconds", help, None, MetricType::Histogram)?;
    for UpstreamView { key, latency, .. } in upstreams {
        if let Some(latency) = latency {
            durations(&mut metric, &[("upstream", key.as_str())], latency)?;
        }
    }
    Ok(())
}
