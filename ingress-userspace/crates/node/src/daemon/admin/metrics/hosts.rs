//! Metrics of hosts, and of rules with path metrics.

use std::fmt;

use ingress_common::StatusClass;
use ingress_model::route::MeterView;
use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};

use super::{
    super::HostCounters,
    encode::{counters, durations, gauges},
};

/// A metric with one label for the host: name, help, value.
type HostMetric = (&'static str, &'static str, fn(&HostCounters) -> u64);

const HOST_COUNTERS: [HostMetric; 6] = [
    ("host_request_body_bytes", "Request body bytes received from clients", |host| host.l7.bytes_in),
    ("host_response_body_bytes", "Response body bytes handed to clients", |host| host.l7.bytes_out),
    ("host_received_packets", "Packets that XDP counted for the host", |host| host.net.rx_packets),
    ("host_received_bytes", "Bytes on the wire that XDP counted for the host", |host| host.net.rx_bytes),
    ("host_transmitted_packets", "Packets sent that were counted for the host", |host| host.net.tx_packets),
    ("host_transmitted_bytes", "Bytes on the wire sent that were counted for the host", |host| host.net.tx_bytes),
];

pub(super) fn encode_hosts(hosts: &[HostCounters], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Final responses by host and status class; `aborted` responses ended early";
    let rows = hosts.iter().flat_map(|HostCounters { host, l7, .. }| {
        let classes = StatusClass::NAMES.into_iter().zip(l7.requests.to_array());
        classes.map(move |(class, count)| ([("host", &**host), ("class", class)], count))
    });
    counters(encoder, "host_requests", help, rows)?;
    for (name, help, value) in HOST_COUNTERS {
        let rows = hosts.iter().map(|host| ([("host", &*host.host)], value(host)));
        counters(encoder, name, help, rows)?;
    }
    let help = "Time from the request head to the end of the response, for complete responses";
    let mut metric = encoder.encode_descriptor("host_request_duration_seconds", help, None, MetricType::Histogram)?;
    for HostCounters { host, durations: took, .. } in hosts {
        durations(&mut metric, &[("host", &**host)], took)?;
    }
    let rows = hosts.iter().map(|HostCounters { host, l7, .. }| ([("host", &**host)], l7.active));
    gauges(encoder, "host_active_requests", "Requests being served now", rows)
}

pub(super) fn encode_meters(meters: &[MeterView], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Final responses by rule and status class, for Ingresses that enable path metrics";
    let rows = meters.iter().flat_map(|MeterView { host, path, owner, requests, took: _ }| {
        StatusClass::NAMES.into_iter().zip(*requests).map(move |(class, count)| {
            let labels = [("host", host.as_str()), ("path", path.as_str()), ("ingress", &**owner), ("class", class)];
            (labels, count)
        })
    });
    counters(encoder, "path_requests", help, rows)?;
    let rows = meters.iter().map(|MeterView { host, path, owner, requests: _, took }| {
        let labels = [("host", host.as_str()), ("path", path.as_str()), ("ingress", &**owner)];
        (labels, took.as_secs_f64())
    });
    counters(encoder, "path_request_seconds", "Total duration of these responses in seconds", rows)
}
