//! The metrics, their names and meaning. Labels come from routes and closed lists, never from requests.

use std::fmt;

use ingress_common::StatusClass;
use ingress_userspace::{
    control::status::WriteResult,
    proxy::{
        CheckResult, DURATION_BOUNDS, DatagramStatsView, Dropped, DurationsView, Full, LimitStats, Refusal, SpanFate,
        StatsView, UpstreamView,
    },
    route::MeterView,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::{ControlState, HostCounters, Metrics, Source, StatusState};

/// OpenMetrics 1.0 text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of `source` as text, read now.
///
/// # Errors
/// Never in practice: the encoder writes to memory.
pub(super) fn encode(source: &dyn Source, metrics: Metrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("xdp_ingress");
    registry.register_collector(Box::new(Scrape {
        hosts: (metrics == Metrics::All).then(|| source.hosts()),
        meters: if metrics == Metrics::All { source.meters() } else { Vec::new() },
        upstreams: if metrics == Metrics::All { source.upstreams() } else { Vec::new() },
        totals: source.totals(),
        control: source.control(),
        status: source.status(),
        proxy: source.proxy(),
        ready: source.ready().is_ok(),
    }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// One reading of everything.
#[derive(Debug)]
struct Scrape {
    /// `None`: not wanted.
    hosts: Option<Vec<HostCounters>>,
    meters: Vec<MeterView>,
    upstreams: Vec<UpstreamView>,
    totals: Vec<(&'static str, ingress_common::Traffic)>,
    control: ControlState,
    status: Option<StatusState>,
    proxy: StatsView,
    ready: bool,
}

/// A metric with one label for the host: name, meaning, value.
type HostMetric = (&'static str, &'static str, fn(&HostCounters) -> u64);

const HOST_COUNTERS: [HostMetric; 6] = [
    ("host_request_body_bytes", "Request body bytes received from clients", |host| host.l7.bytes_in),
    ("host_response_body_bytes", "Response body bytes handed to clients", |host| host.l7.bytes_out),
    ("host_received_packets", "Packets that XDP counted for the host", |host| host.net.rx_packets),
    ("host_received_bytes", "Bytes on the wire that XDP counted for the host", |host| host.net.rx_bytes),
    ("host_transmitted_packets", "Packets transmitted for the host", |host| host.net.tx_packets),
    ("host_transmitted_bytes", "Bytes on the wire transmitted for the host", |host| host.net.tx_bytes),
];

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(hosts) = &self.hosts {
            encode_hosts(hosts, &mut encoder)?;
        }
        encode_meters(&self.meters, &mut encoder)?;
        encode_upstreams(&self.upstreams, &mut encoder)?;
        self.encode_totals(&mut encoder)?;
        self.encode_connections(&mut encoder)?;
        self.encode_datagrams(&mut encoder)?;
        self.encode_status(&mut encoder)?;
        self.encode_control(&mut encoder)
    }
}

fn encode_hosts(hosts: &[HostCounters], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let counter = MetricType::Counter;
    let help = "Final responses by host and class of status; `aborted` broke off before their end";
    let mut metric = encoder.encode_descriptor("host_requests", help, None, counter)?;
    for HostCounters { host, l7, .. } in hosts {
        for (class, count) in StatusClass::NAMES.iter().zip(l7.requests.to_array()) {
            let labels = [("host", host.as_str()), ("class", *class)];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
    }
    for (name, help, value) in HOST_COUNTERS {
        let mut metric = encoder.encode_descriptor(name, help, None, counter)?;
        for host in hosts {
            ConstCounter::new(value(host)).encode(metric.encode_family(&[("host", host.host.as_str())])?)?;
        }
    }
    let help = "Time from the head of a request to the end of its response, of those that went out whole";
    let mut metric = encoder.encode_descriptor("host_request_duration_seconds", help, None, MetricType::Histogram)?;
    for HostCounters { host, durations: DurationsView { buckets, sum }, .. } in hosts {
        let bounds = DURATION_BOUNDS.iter().map(std::time::Duration::as_secs_f64).chain([f64::INFINITY]);
        let all: Vec<_> = bounds.zip(*buckets).collect();
        let labels = [("host", host.as_str())];
        let mut family = metric.encode_family(&labels)?;
        family.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), buckets.iter().sum(), &all, None)?;
    }
    let help = "Requests being served now";
    let mut metric = encoder.encode_descriptor("host_active_requests", help, None, MetricType::Gauge)?;
    for HostCounters { host, l7, .. } in hosts {
        ConstGauge::new(l7.active).encode(metric.encode_family(&[("host", host.as_str())])?)?;
    }
    Ok(())
}

fn encode_meters(meters: &[MeterView], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Final responses by rule and class of status, of Ingresses that ask for it";
    let mut metric = encoder.encode_descriptor("path_requests", help, None, MetricType::Counter)?;
    for MeterView { host, path, owner, requests, took: _ } in meters {
        for (class, count) in StatusClass::NAMES.iter().zip(requests) {
            let labels = [("host", host.as_str()), ("path", path), ("ingress", owner), ("class", class)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
    }
    let help = "Time that these took, together";
    let mut metric = encoder.encode_descriptor("path_request_seconds", help, None, MetricType::Counter)?;
    for MeterView { host, path, owner, requests: _, took } in meters {
        let labels = [("host", host.as_str()), ("path", path), ("ingress", owner)];
        ConstCounter::new(took.as_secs_f64()).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// A counter of an upstream: name, meaning, value.
type Whole = (&'static str, &'static str, fn(&UpstreamView) -> u64);

/// Counters of an upstream by one more label: name, meaning, that label, its values and theirs.
type Parts = (&'static str, &'static str, &'static str, fn(&UpstreamView) -> Vec<(&'static str, u64)>);

fn encode_upstreams(upstreams: &[UpstreamView], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Endpoints of an upstream, by what they are to requests now";
    let mut metric = encoder.encode_descriptor("upstream_endpoints", help, None, MetricType::Gauge)?;
    for UpstreamView { key, fit, ejected, unwell, .. } in upstreams {
        for (state, count) in [("fit", fit), ("ejected", ejected), ("unhealthy", unwell)] {
            let labels = [("upstream", key.as_str()), ("state", state)];
            ConstGauge::new(*count as u64).encode(metric.encode_family(&labels)?)?;
        }
    }
    let whole: [Whole; 2] = [
        ("upstream_ejections", "Times that an endpoint was ejected", |view| view.ejections),
        ("upstream_retries", "Requests that went to another endpoint after the first", |view| view.retries),
    ];
    for (name, help, value) in whole {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for view in upstreams {
            ConstCounter::new(value(view)).encode(metric.encode_family(&[("upstream", view.key.as_str())])?)?;
        }
    }
    let parts: [Parts; 2] = [
        ("upstream_checks", "Health checks, by result", "result", |view| {
            CheckResult::ALL.iter().map(|result| result.as_str()).zip(view.checks).collect()
        }),
        ("upstream_requests_refused", "Requests refused because an upstream was full, by cap", "reason", |view| {
            Full::ALL.iter().map(|full| full.as_str()).zip(view.refused).collect()
        }),
    ];
    for (name, help, label, values) in parts {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for view in upstreams {
            for (part, count) in values(view) {
                let labels = [("upstream", view.key.as_str()), (label, part)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

impl Scrape {
    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Packets seen by the kernel programs, by verdict or event";
        let mut metric = encoder.encode_descriptor("kernel_packets", help, None, MetricType::Counter)?;
        for (reason, traffic) in &self.totals {
            ConstCounter::new(traffic.packets).encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        let help = "Bytes seen by the kernel programs, by verdict or event";
        let mut metric = encoder.encode_descriptor("kernel_bytes", help, None, MetricType::Counter)?;
        for (reason, traffic) in &self.totals {
            ConstCounter::new(traffic.bytes).encode(metric.encode_family(&[("reason", *reason)])?)?;
        }
        Ok(())
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let StatsView {
            connections: _,
            accepted,
            accept_errors,
            handshake_errors,
            refused_framing,
            flooded,
            timed_out,
            mirrors_cut,
            log_lines_dropped,
            passwords_hashed,
            spans,
            tokens_verified,
            refused,
            datagrams: _,
            pressure,
            limits: LimitStats { over_rate, over_in_flight, forgotten },
        } = self.proxy;
        for (name, help, value) in [
            ("connections_accepted", "Client connections accepted", accepted),
            (
                "connection_accept_errors",
                "Client connections lost at accept, or shed for lack of file descriptors",
                accept_errors,
            ),
            ("connection_handshake_errors", "TLS handshakes that failed or took too long", handshake_errors),
            (
                "connection_refused_framing",
                "Connections ended for bytes that two parsers could read differently",
                refused_framing,
            ),
            ("connection_flooded", "HTTP/2 connections ended for a flood of frames that carry nothing", flooded),
            ("connection_timed_out", "Connections ended because a head, body or response made no progress", timed_out),
            (
                "mirrors_cut",
                "Requests that did not reach their mirror whole, as it is away, slow, or overloaded",
                mirrors_cut,
            ),
            ("access_log_lines_dropped", "Lines of the access log that nobody took in time", log_lines_dropped),
            ("passwords_hashed", "Passwords whose hash was computed, as they were not remembered", passwords_hashed),
            ("tokens_verified", "Tokens whose signature was verified, as they were not remembered", tokens_verified),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let help = "Spans of traces that are over, by what became of them";
        let mut metric = encoder.encode_descriptor("trace_spans", help, None, MetricType::Counter)?;
        for (fate, count) in SpanFate::ALL.iter().zip(spans) {
            ConstCounter::new(count).encode(metric.encode_family(&[("result", fate.as_str())])?)?;
        }
        let help = "Connections closed before their first request, by reason";
        let mut metric = encoder.encode_descriptor("connections_refused", help, None, MetricType::Counter)?;
        for (reason, count) in Refusal::ALL.iter().zip(refused) {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason.as_str())])?)?;
        }
        let help = "Requests refused because their client asked for too much, by limit";
        let mut metric = encoder.encode_descriptor("requests_limited", help, None, MetricType::Counter)?;
        for (reason, count) in [("rate", over_rate), ("in_flight", over_in_flight)] {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason)])?)?;
        }
        let help = "Clients whose rate was forgotten before its time, because there were too many";
        let metric = encoder.encode_descriptor("limited_clients_forgotten", help, None, MetricType::Counter)?;
        ConstCounter::new(forgotten).encode(metric)?;
        let help = "How scarce memory is: 1 from 80 % of the cgroup's limit, 2 from 90 %, 3 from 95 %";
        let metric = encoder.encode_descriptor("memory_pressure", help, None, MetricType::Gauge)?;
        ConstGauge::new(pressure as u64).encode(metric)
    }

    fn encode_datagrams(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let DatagramStatsView { sessions, to_pods, to_clients, open_ports, closed_ports, dropped } =
            self.proxy.datagrams;
        let help = "Datagrams of UDP services that were brought to the other side, by which that is";
        let mut metric = encoder.encode_descriptor("datagrams", help, None, MetricType::Counter)?;
        for (to, count) in [("pod", to_pods), ("client", to_clients)] {
            ConstCounter::new(count).encode(metric.encode_family(&[("to", to)])?)?;
        }
        let help = "Datagrams of UDP services that went no further, by reason";
        let mut metric = encoder.encode_descriptor("datagrams_dropped", help, None, MetricType::Counter)?;
        for (reason, count) in Dropped::ALL.iter().zip(dropped) {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason.as_str())])?)?;
        }
        let help = "Sessions of UDP services open now";
        let metric = encoder.encode_descriptor("datagram_sessions", help, None, MetricType::Gauge)?;
        ConstGauge::new(sessions as u64).encode(metric)?;
        let help = "Ports of UDP services, by state; why one cannot be opened, the log says";
        let mut metric = encoder.encode_descriptor("udp_ports", help, None, MetricType::Gauge)?;
        for (state, count) in [("open", open_ports), ("closed", closed_ports)] {
            ConstGauge::new(count as u64).encode(metric.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }

    fn encode_status(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(StatusState { is_leader, status_writes, events }) = self.status else { return Ok(()) };
        for (name, help, values) in [
            ("status_writes", "Writes of the status of Ingresses, by result", status_writes),
            ("events", "Events about objects that something is wrong with, by result", events),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (result, value) in WriteResult::ALL.iter().zip(values) {
                let labels = [("result", result.as_str())];
                ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "1 while this process writes statuses and events";
        let metric = encoder.encode_descriptor("leader", help, None, MetricType::Gauge)?;
        ConstGauge::new(u64::from(is_leader)).encode(metric)
    }

    fn encode_control(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ControlState { generation, hosts, upstreams, warnings, hosts_over_capacity, age, serves_saved } =
            self.control;
        if let Some(age) = age {
            let help = "Seconds since the API server last confirmed each part of the configuration";
            let metric = encoder.encode_descriptor("configuration_age_seconds", help, None, MetricType::Gauge)?;
            ConstGauge::new(age.as_secs_f64()).encode(metric)?;
        }
        for (name, help, value) in [
            (
                "ready",
                "1 while this process serves the new connections of its node, 0 before, after a hand-over and while draining",
                u64::from(self.ready),
            ),
            ("snapshot_generation", "Number of the snapshot being served", generation),
            ("snapshot_hosts", "Hosts in the snapshot being served", hosts as u64),
            ("snapshot_upstreams", "Upstreams in the snapshot being served", upstreams as u64),
            (
                "configuration_is_saved",
                "1 while the saved configuration is served because the API server has not answered",
                u64::from(serves_saved),
            ),
            ("config_warnings", "Problems in the configuration now; the log names each", warnings as u64),
            (
                "hosts_over_capacity",
                "Hosts counted as unattributed because host-capacity is used up",
                hosts_over_capacity as u64,
            ),
            ("client_connections", "Client connections open now, handshakes included", self.proxy.connections as u64),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}
