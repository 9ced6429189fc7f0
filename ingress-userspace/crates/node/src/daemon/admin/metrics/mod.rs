//! Metrics with their names and help texts. Labels come from routes and closed lists, never from requests.

mod encode;
mod hosts;
mod http3;
pub(super) mod process;
mod resources;
mod syn_cookies;
mod upstreams;

use std::{collections::BTreeMap, fmt, time::Duration};

use ingress_control::{Severity, status::WriteResult};
use ingress_model::route::MeterView;
use ingress_proxy::{
    DatagramStatsView, Dropped, Escalated, LimitStats, PortStatsView, Refusal, SpanOutcome, StatsView, UpstreamView,
    Violation, ViolationStats,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::MetricType,
    registry::Registry,
};

use self::{
    encode::{by, counter, counters, gauge, gauges},
    process::ProcessState,
    resources::ProcessMetrics,
};
use super::{
    AdminSource, CertificateState, ControlState, DenyState, HostCounters, Http3State, InterfaceCounters, MapFill,
    Metrics, StatusState, SynCookiesView,
};

/// Media type of OpenMetrics 1.0 text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A reading of all values, to be encoded.
#[derive(Debug)]
pub(super) struct Reading(Registry);

impl Reading {
    /// Reads the current values of `source`. With many hosts, this takes milliseconds.
    pub(super) fn of(source: &dyn AdminSource, metrics: Metrics) -> Self {
        let process = ProcessState::read();
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("xdp_ingress").register_collector(Box::new(Scrape {
            hosts: (metrics == Metrics::All).then(|| source.hosts()),
            meters: if metrics == Metrics::All { source.meters() } else { Vec::new() },
            upstreams: if metrics == Metrics::All { source.upstreams() } else { Vec::new() },
            totals: source.totals(),
            denied: source.denied(),
            interfaces: source.interfaces(),
            control: source.control(),
            status: source.status(),
            proxy: source.proxy(),
            http3: source.http3(),
            syn_cookies: source.syn_cookies(),
            refused_gateway_datagrams: source.refused_gateway_datagrams(),
            ready: source.ready().is_ok(),
            panics: ingress_panics::count(),
            workers: source.worker_connections(),
            problems: problems(source),
            worker_cpu: process.as_ref().map(|process| process.workers.clone()).unwrap_or_default(),
            certificates: source.certificates().shown(metrics),
            fills: source.fills(),
        }));
        registry.register_collector(Box::new(ProcessMetrics(process)));
        Self(registry)
    }

    /// Writes the values as text.
    ///
    /// # Errors
    /// Fails if `out` does.
    pub(super) fn encode(&self, out: &mut impl fmt::Write) -> fmt::Result {
        text::encode(out, &self.0)
    }
}

/// Counts the problems by reason. Remarks about functions that are all in effect are none.
fn problems(source: &dyn AdminSource) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for outcome in source.problems().keys().filter(|outcome| outcome.severity() == Severity::Warning) {
        *counts.entry(outcome.reason.as_str()).or_default() += 1;
    }
    counts
}

/// A reading of all values.
#[derive(Debug)]
struct Scrape {
    /// `None` if disabled.
    hosts: Option<Vec<HostCounters>>,
    meters: Vec<MeterView>,
    upstreams: Vec<UpstreamView>,
    totals: Vec<(&'static str, ingress_common::Traffic)>,
    /// `None` without the kernel part.
    denied: Option<DenyState>,
    interfaces: Vec<InterfaceCounters>,
    control: ControlState,
    status: Option<StatusState>,
    proxy: StatsView,
    /// `None` if HTTP/3 is not wanted.
    http3: Option<Http3State>,
    /// `None` if SYN cookies are not wanted.
    syn_cookies: Option<SynCookiesView>,
    /// By reason; empty without a pool of addresses.
    refused_gateway_datagrams: Vec<(&'static str, u64)>,
    ready: bool,
    panics: u64,
    /// Number of problems for each reason that has some.
    problems: BTreeMap<&'static str, u64>,
    /// Open connections by worker.
    workers: Vec<(usize, usize)>,
    /// CPU time by worker.
    worker_cpu: Vec<(usize, Duration)>,
    certificates: CertificateState,
    fills: Vec<MapFill>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(hosts) = &self.hosts {
            hosts::encode_hosts(hosts, &mut encoder)?;
        }
        hosts::encode_meters(&self.meters, &mut encoder)?;
        upstreams::encode_upstreams(&self.upstreams, &mut encoder)?;
        self.encode_totals(&mut encoder)?;
        self.encode_denied(&mut encoder)?;
        encode_interfaces(&self.interfaces, &mut encoder)?;
        self.encode_connections(&mut encoder)?;
        self.encode_datagrams(&mut encoder)?;
        self.encode_ports(&mut encoder)?;
        self.encode_http3(&mut encoder)?;
        self.encode_syn_cookies(&mut encoder)?;
        self.encode_status(&mut encoder)?;
        self.encode_control(&mut encoder)?;
        self.encode_build(&mut encoder)?;
        self.encode_workers(&mut encoder)?;
        self.encode_certificates(&mut encoder)?;
        self.encode_fills(&mut encoder)
    }
}

fn encode_interfaces(interfaces: &[InterfaceCounters], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    const DIRECTIONS: [&str; 2] = ["received", "transmitted"];
    let by_direction = |values: fn(&InterfaceCounters) -> [u64; 2]| {
        interfaces.iter().flat_map(move |interface| {
            let rows = DIRECTIONS.into_iter().zip(values(interface));
            rows.map(move |(direction, value)| {
                ([("interface", interface.name.as_str()), ("direction", direction)], value)
            })
        })
    };
    let help = "Packets of all hosts, by interface";
    counters(encoder, "interface_packets", help, by_direction(|each| [each.net.rx_packets, each.net.tx_packets]))?;
    let help = "Bytes on the wire of all hosts, by interface";
    counters(encoder, "interface_bytes", help, by_direction(|each| [each.net.rx_bytes, each.net.tx_bytes]))?;
    let help =
        "1 with the way (how) if the program for this direction is attached to the interface; 0 with the reason if not";
    let rows = interfaces.iter().flat_map(|InterfaceCounters { name, receives, transmits, net: _ }| {
        DIRECTIONS.into_iter().zip([receives, transmits]).map(move |(direction, attached)| {
            let labels = [("interface", name.as_str()), ("direction", direction), ("how", attached.how)];
            (labels, u64::from(attached.is_there))
        })
    });
    gauges(encoder, "interface_attached", help, rows)
}

impl Scrape {
    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rows = self.totals.iter().map(|(reason, traffic)| ([("reason", *reason)], traffic.packets));
        counters(encoder, "kernel_packets", "Packets seen by the kernel programs, by verdict or event", rows)?;
        let rows = self.totals.iter().map(|(reason, traffic)| ([("reason", *reason)], traffic.bytes));
        counters(encoder, "kernel_bytes", "Bytes seen by the kernel programs, by verdict or event", rows)
    }

    fn encode_denied(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(DenyState { rules, left_out, denials }) = &self.denied else { return Ok(()) };
        let rows = rules.iter().map(|(rule, traffic)| ([("rule", rule.as_str())], traffic.packets));
        counters(encoder, "denied_packets", "Packets dropped by the deny list, by listed network", rows)?;
        let rows = rules.iter().map(|(rule, traffic)| ([("rule", rule.as_str())], traffic.bytes));
        counters(encoder, "denied_bytes", "Bytes dropped by the deny list, by listed network", rows)?;
        let help = "Networks not denied in the kernel, because its deny list is full";
        gauge(encoder, "denied_networks_left_out", help, *left_out as u64)?;
        let rows = denials.iter().map(|(origin, count)| ([("origin", *origin)], *count as u64));
        gauges(encoder, "denials", "Networks denied in addition to those of the settings, by origin", rows)
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let StatsView {
            connections: _,
            http3: _,
            parked: _,
            waiting: _,
            accepted,
            accept_errors,
            handshake_errors,
            refused_framing,
            flooded,
            timed_out,
            evicted,
            evicted_streams,
            request_bodies_cut,
            slow_bodies,
            slow_reads,
            mirrors_cut,
            costly_paths,
            checks_delayed,
            log_lines_dropped,
            passwords_hashed,
            spans,
            tokens_verified,
            refused,
            datagrams: _,
            tcp_ports: _,
            udp_ports: _,
            pressure,
            kept,
            limits: LimitStats { over_rate, over_in_flight, forgotten },
            violations: ViolationStats { violations, escalated, forgotten: violators_forgotten },
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
                "Connections closed because two parsers could read the request bytes differently",
                refused_framing,
            ),
            ("connection_flooded", "HTTP/2 connections closed because of a flood of frames without data", flooded),
            ("connection_timed_out", "Connections ended because a head, body or response made no progress", timed_out),
            (
                "connection_evicted",
                "Connections closed under memory pressure because their clients did not read",
                evicted,
            ),
            (
                "stream_evicted",
                "HTTP/2 streams reset under memory pressure because their clients did not read them",
                evicted_streams,
            ),
            ("request_bodies_slow", "Requests ended because their bodies arrived below the minimum rate", slow_bodies),
            (
                "connection_slow_reads",
                "Connections closed because their clients read responses below the minimum rate",
                slow_reads,
            ),
            (
                "request_bodies_cut",
                "Answered requests with unread bodies that were too long or too slow to be drained",
                request_bodies_cut,
            ),
            (
                "mirrors_cut",
                "Requests not mirrored completely, because the mirror is unreachable, slow or overloaded",
                mirrors_cut,
            ),
            (
                "costly_paths",
                "Requests answered 414 because matching their paths would take too much work",
                costly_paths,
            ),
            (
                "health_checks_delayed",
                "Health checks delayed because of the limit of checks per second",
                checks_delayed,
            ),
            (
                "access_log_lines_dropped",
                "Access log lines dropped because their reader was too slow or a write failed",
                log_lines_dropped,
            ),
            ("passwords_hashed", "Password hashes computed because the password was not cached", passwords_hashed),
            ("tokens_verified", "Token signatures verified because the token was not cached", tokens_verified),
        ] {
            counter(encoder, name, help, value)?;
        }
        let help = "Finished trace spans, by outcome";
        let rows = by("result", SpanOutcome::ALL.map(SpanOutcome::as_str), spans);
        counters(encoder, "trace_spans", help, rows)?;
        let help = "Connections closed before their first request, by reason";
        let rows = by("reason", Refusal::ALL.map(Refusal::as_str), refused);
        counters(encoder, "connections_refused", help, rows)?;
        let help = "Requests refused because their client exceeded a limit, by limit";
        let rows = by("reason", ["rate", "in_flight"], [over_rate, over_in_flight]);
        counters(encoder, "requests_limited", help, rows)?;
        let help = "Clients evicted early from the table of rates because it was full";
        counter(encoder, "limited_clients_forgotten", help, forgotten)?;
        let help = "Refusals that counted against a client, by reason; none unless refusals escalate";
        counters(encoder, "violations", help, by("reason", Violation::ALL.map(Violation::as_str), violations))?;
        let help = "Clients that were refused too often, by action";
        counters(encoder, "escalations", help, by("result", Escalated::ALL.map(Escalated::as_str), escalated))?;
        let help = "Clients evicted early from the table of refusals because it was full";
        counter(encoder, "violators_forgotten", help, violators_forgotten)?;
        let help = "Memory pressure level: 1 from 80 % of the cgroup's limit, 2 from 90 %, 3 from 95 %";
        gauge(encoder, "memory_pressure", help, pressure as u64)?;
        let help = "Bytes of request bodies buffered until their endpoints receive them";
        gauge(encoder, "request_bytes_kept", help, kept as u64)
    }

    fn encode_datagrams(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let DatagramStatsView { sessions, to_pods, to_clients, dropped } = self.proxy.datagrams;
        let help = "Datagrams forwarded by UDP services, by direction";
        counters(encoder, "datagrams", help, by("to", ["pod", "client"], [to_pods, to_clients]))?;
        let help = "Datagrams dropped by UDP services, by reason";
        let rows = by("reason", Dropped::ALL.map(Dropped::as_str), dropped);
        counters(encoder, "datagrams_dropped", help, rows)?;
        gauge(encoder, "datagram_sessions", "Sessions of UDP services open now", sessions as u64)?;
        let refused = &self.refused_gateway_datagrams;
        if refused.is_empty() {
            return Ok(());
        }
        let help = "Datagrams of other nodes about Gateway addresses that were refused, by reason";
        let rows = refused.iter().map(|(reason, count)| ([("reason", *reason)], *count));
        counters(encoder, "gateway_datagrams_refused", help, rows)
    }

    fn encode_ports(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, PortStatsView { open, closed }) in [
            (
                "tcp_ports",
                "Bound ports of TCP services, by state; the log explains why a port cannot be opened",
                self.proxy.tcp_ports,
            ),
            (
                "udp_ports",
                "Ports of UDP services, by state; the log explains why a port cannot be opened",
                self.proxy.udp_ports,
            ),
        ] {
            gauges(encoder, name, help, by("state", ["open", "closed"], [open as u64, closed as u64]))?;
        }
        Ok(())
    }

    fn encode_status(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(StatusState { is_leader, status_writes, events }) = self.status else { return Ok(()) };
        let results = WriteResult::ALL.map(WriteResult::as_str);
        let help = "Writes of the status of Ingresses, by result";
        counters(encoder, "status_writes", help, by("result", results, status_writes))?;
        let help = "Events written about objects with problems, by result";
        counters(encoder, "events", help, by("result", results, events))?;
        gauge(encoder, "leader", "1 while this process writes statuses and events", u64::from(is_leader))
    }

    fn encode_control(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ControlState { generation, hosts, upstreams, warnings, hosts_over_capacity, age, serves_saved, applied } =
            &self.control;
        let rows = self.problems.iter().map(|(reason, count)| ([("reason", *reason)], *count));
        gauges(encoder, "config_problems", "Problems in the configuration now, by reason; the log names each", rows)?;
        if let Some(age) = age {
            let help = "Seconds since the API server last confirmed each part of the configuration";
            gauge(encoder, "configuration_age_seconds", help, age.as_secs_f64())?;
        }
        let help = "Time from the receipt of a change of the configuration until this process serves it";
        let name = "configuration_apply_duration_seconds";
        applied.0.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)?;
        let help = "Caught panics; each ended a connection, a stream, a session or a check";
        counter(encoder, "panics", help, self.panics)?;
        for (name, help, value) in [
            (
                "ready",
                "1 while this process serves the new connections of its node, 0 before, after a hand-over and while draining",
                u64::from(self.ready),
            ),
            ("snapshot_generation", "Number of the snapshot being served", *generation),
            ("snapshot_hosts", "Hosts in the snapshot being served", *hosts as u64),
            ("snapshot_upstreams", "Upstreams in the snapshot being served", *upstreams as u64),
            (
                "configuration_is_saved",
                "1 while the saved configuration is served because the API server has not answered",
                u64::from(*serves_saved),
            ),
            ("config_warnings", "Problems in the configuration now; the log names each", *warnings as u64),
            (
                "hosts_over_capacity",
                "Hosts counted as unattributed because host-capacity is exhausted",
                *hosts_over_capacity as u64,
            ),
            ("client_connections", "Client connections open now, handshakes included", self.proxy.connections as u64),
            (
                "client_connections_parked",
                "Idle client connections with released buffers, waiting for a request",
                self.proxy.parked as u64,
            ),
            (
                "requests_waiting",
                "HTTP/2 requests queued until their connections may start more",
                self.proxy.waiting as u64,
            ),
        ] {
            gauge(encoder, name, help, value)?;
        }
        Ok(())
    }
}
