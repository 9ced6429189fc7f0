//! Responses for each path. Connections are handled elsewhere.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, header};
use ingress_cli::counters;
use ingress_common::{NicNet, Traffic};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::Semaphore, task::spawn_blocking};

use super::{
    AdminSource, DenyState, HostCounters, InterfaceCounters, Metrics, Reach,
    api::{self, ApiError},
    body::AdminBody,
    dashboard, metrics,
    stream::{EventStream, Viewers},
    text_stream::TextStream,
};

/// Handler for requests to this process.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) source: Arc<dyn AdminSource>,
    pub(crate) metrics: Metrics,
    /// Whether the dashboard is served.
    pub(crate) has_dashboard: bool,
    /// Open streams of events.
    viewers: Viewers,
    /// Turns of the requests and events that are made on another thread.
    turns: Arc<Semaphore>,
    /// Places of the scrapes that are sent at once.
    scrapes: Arc<Semaphore>,
}

/// Number of answers and events that are made at once on another thread.
const TURNS: usize = 1;
/// Number of scrapes that are sent at once. Each has a reading of all values, some 300 bytes for a host.
const SCRAPES: usize = 4;

/// List of all paths, for the 404 response.
const PATHS: &str =
    "/healthz, /startz, /readyz, /metrics, /hosts, /totals, /interfaces, /denied, /api/v1 or /dashboard";

const DASHBOARD_OFF: &str = "the dashboard is turned off; remove `--dashboard=false`\n";

impl Answers {
    /// Returns a handler with all values from `source`, and with the dashboard.
    pub(crate) fn new(source: Arc<dyn AdminSource>, metrics: Metrics) -> Self {
        let turns = Arc::new(Semaphore::new(TURNS));
        let scrapes = Arc::new(Semaphore::new(SCRAPES));
        Self { source, metrics, has_dashboard: true, viewers: Viewers::default(), turns, scrapes }
    }

    /// Opens a stream of the events that `make` returns, one each second.
    ///
    /// # Errors
    /// Fails if too many streams are open.
    pub(super) fn open(&self, make: impl FnMut() -> String + Send + 'static) -> Result<EventStream, ApiError> {
        self.viewers.open(Arc::clone(&self.turns), make).ok_or(ApiError::TooManyViewers)
    }

    /// Answers a request. The API may read ten thousand hosts or certificates (0.2 s), so its requests are answered on
    /// another thread, one after the other. The main thread meanwhile shows XDP that the process is alive. The metrics are
    /// read once their text is asked for, also on another thread.
    pub(super) async fn respond<B>(self: Arc<Self>, request: Request<B>, reach: Reach) -> Response<AdminBody> {
        let is_quick = matches!(request.uri().path(), "/healthz" | "/startz" | "/readyz" | "/metrics");
        if reach != Reach::Authenticated && is_quick {
            return self.answer(&request, reach);
        }
        let request = request.map(drop);
        let answers = Arc::clone(&self);
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let answered = spawn_blocking(move || answers.answer(&request, reach)).await;
        // The answer panicked; the panic is logged.
        answered.unwrap_or_else(|_| text(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made\n".into()))
    }

    pub(super) fn answer<B>(&self, request: &Request<B>, reach: Reach) -> Response<AdminBody> {
        let source = self.source.as_ref();
        // Health, metrics and counters have an address of their own.
        let path = request.uri().path();
        if reach == Reach::Authenticated && !api::is_below(path) && !dashboard::is_below(path) {
            return text(StatusCode::NOT_FOUND, "only /api/v1 and /dashboard are served here\n".into());
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n".into());
        }
        match path {
            "/healthz" => verdict("ok", source.live()),
            // Requests are answered only once everything except the configuration is ready.
            "/startz" => verdict("started", Ok(())),
            "/readyz" => verdict("ready", source.ready()),
            "/metrics" if self.metrics != Metrics::Off => self.scrape(),
            "/hosts" => typed(StatusCode::OK, "application/json", hosts(source).to_string()),
            "/totals" => typed(StatusCode::OK, "application/json", counters::totals(source.totals()).to_string()),
            "/interfaces" => typed(StatusCode::OK, "application/json", interfaces(source).to_string()),
            "/denied" => typed(StatusCode::OK, "application/json", denied(source).to_string()),
            path if api::is_below(path) => api::answer(self, request, reach),
            path if dashboard::is_below(path) && self.has_dashboard => dashboard::answer(self, request, reach),
            path if dashboard::is_below(path) => text(StatusCode::NOT_FOUND, DASHBOARD_OFF.into()),
            _ => text(StatusCode::NOT_FOUND, format!("try {PATHS}\n")),
        }
    }

    /// Returns the metrics. With many hosts their text is longer than everything else that this process holds, so it is
    /// made while the client reads it.
    fn scrape(&self) -> Response<AdminBody> {
        let (source, metrics, turns) = (Arc::clone(&self.source), self.metrics, Arc::clone(&self.turns));
        let body = TextStream::new(Arc::clone(&self.scrapes), move |writer| {
            let reading = {
                // The semaphore is never closed.
                let _turn = Handle::current().block_on(turns.acquire());
                metrics::Reading::of(&*source, metrics)
            };
            reading.encode(writer)
        });
        response(StatusCode::OK, metrics::CONTENT_TYPE, AdminBody::Text(body))
    }
}

fn verdict(good: &str, verdict: Result<(), String>) -> Response<AdminBody> {
    match verdict {
        Ok(()) => text(StatusCode::OK, format!("{good}\n")),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

pub(super) fn hosts(source: &dyn AdminSource) -> Value {
    let host = |HostCounters { host, id, l7, durations: _, net }: HostCounters| counters::host(&host, id, &l7, &net);
    source.hosts().into_iter().map(host).collect()
}

/// Returns an empty list without the kernel part.
pub(super) fn denied(source: &dyn AdminSource) -> Value {
    let DenyState { rules, left_out, denials: _ } = source.denied().unwrap_or_default();
    let rules = rules
        .into_iter()
        .map(|(rule, Traffic { packets, bytes })| json!({ "rule": rule, "packets": packets, "bytes": bytes }));
    json!({ "rules": rules.collect::<Vec<_>>(), "left_out": left_out })
}

pub(super) fn interfaces(source: &dyn AdminSource) -> Value {
    let interfaces = source.interfaces().into_iter();
    let interfaces = interfaces.map(|InterfaceCounters { name, receives, transmits, net }| {
        let NicNet { rx_packets, rx_bytes, tx_packets, tx_bytes } = net;
        json!({
            "interface": name, "receives": receives.how, "transmits": transmits.how, "rx_packets": rx_packets,
            "rx_bytes": rx_bytes, "tx_packets": tx_packets, "tx_bytes": tx_bytes,
        })
    });
    interfaces.collect()
}

fn text(status: StatusCode, body: String) -> Response<AdminBody> {
    typed(status, "text/plain; charset=utf-8", body)
}

pub(super) fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response<AdminBody> {
    response(status, content_type, AdminBody::whole(body))
}

fn response(status: StatusCode, content_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::daemon::admin::testing::{Fixed, ask};

    #[test]
    fn a_failed_probe_names_the_reason() {
        let bad = Answers::new(Arc::new(Fixed::with(Err("worker-1 hangs".into()))), Metrics::All);
        let good = Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(ask(&bad, Method::GET, path), (503, "worker-1 hangs\n".to_owned()));
            assert_eq!(ask(&good, Method::GET, path).0, 200);
        }
        assert_eq!(ask(&bad, Method::GET, "/startz").0, 200, "a process that cannot serve has started nevertheless");
        assert_eq!(ask(&good, Method::POST, "/healthz").0, 405);
    }

    #[test]
    fn denied_packets_are_listed_by_rule() {
        let answers = Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All);
        let (status, body) = ask(&answers, Method::GET, "/denied");
        assert_eq!(status, 200);
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let rules = json!([{ "rule": "192.0.2.0/24", "packets": 3, "bytes": 180 }]);
        assert_eq!(body, json!({ "rules": rules, "left_out": 2 }));
    }

    #[test]
    fn interfaces_are_listed_with_their_attach_modes() {
        let answers = Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::Off);
        let (status, body) = ask(&answers, Method::GET, "/interfaces");
        let answered: Value = serde_json::from_str(&body).expect("JSON");
        let expected = json!([{
            "interface": "eth0", "receives": "native", "transmits": "failed", "rx_packets": 1, "rx_bytes": 60,
            "tx_packets": 2, "tx_bytes": 120,
        }]);
        assert_eq!((status, answered), (200, expected));
    }

    #[test]
    fn metrics_are_as_detailed_as_configured() {
        let metrics = |metrics| ask(&Answers::new(Arc::new(Fixed::with(Ok(()))), metrics), Method::GET, "/metrics");
        assert_eq!(metrics(Metrics::Off).0, 404);
        let (status, all) = metrics(Metrics::All);
        assert_eq!(status, 200);
        assert!(all.contains("web.test") && all.contains("xdp_ingress_ready 1"), "{all}");
        for line in [
            "xdp_ingress_host_request_duration_seconds_sum{host=\"web.test\"} 30.001",
            "xdp_ingress_host_request_duration_seconds_count{host=\"web.test\"} 3",
            "xdp_ingress_host_request_duration_seconds_bucket{le=\"0.005\",host=\"web.test\"} 1",
            "xdp_ingress_host_request_duration_seconds_bucket{le=\"10.0\",host=\"web.test\"} 1",
            "xdp_ingress_host_request_duration_seconds_bucket{le=\"+Inf\",host=\"web.test\"} 3",
            "xdp_ingress_path_requests_total{host=\"web.test\",path=\"/app\",ingress=\"default/web\",class=\"5xx\"} 2",
            "xdp_ingress_path_request_seconds_total{host=\"web.test\",path=\"/app\",ingress=\"default/web\"} 2.5",
            "xdp_ingress_upstream_endpoints{upstream=\"default/web:80\",state=\"ejected\"} 1",
            "xdp_ingress_upstream_ejections_total{upstream=\"default/web:80\"} 3",
            "xdp_ingress_upstream_retries_total{upstream=\"default/web:80\"} 4",
            "xdp_ingress_upstream_requests_refused_total{upstream=\"default/web:80\",reason=\"requests\"} 5",
            "xdp_ingress_upstream_checks_total{upstream=\"default/web:80\",result=\"failed\"} 7",
            "xdp_ingress_denied_packets_total{rule=\"192.0.2.0/24\"} 3",
            "xdp_ingress_denied_bytes_total{rule=\"192.0.2.0/24\"} 180",
            "xdp_ingress_upstream_header_duration_seconds_bucket{le=\"0.01\",upstream=\"default/web:80\"} 4",
            "xdp_ingress_upstream_header_duration_seconds_sum{upstream=\"default/web:80\"} 0.024",
            "xdp_ingress_certificate_not_after_timestamp_seconds{secret=\"shop/tls\"} 1900000000",
            "xdp_ingress_certificate_fallback_hosts 3",
            "xdp_ingress_config_problems{reason=\"ServiceNotFound\"} 1",
            "xdp_ingress_worker_connections{worker=\"1\"} 9",
            "xdp_ingress_kernel_map_entries{map=\"deny4\"} 9",
            "xdp_ingress_kernel_map_capacity{map=\"deny4\"} 100000",
            concat!("xdp_ingress_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\",arch="),
            "# TYPE process_cpu_seconds counter",
            "\nprocess_cpu_seconds_total ",
            "\nprocess_resident_memory_bytes ",
            "\nprocess_open_fds ",
            "\nprocess_start_time_seconds ",
            "xdp_ingress_denied_networks_left_out 2",
            "xdp_ingress_denials{origin=\"escalation\"} 4",
            "xdp_ingress_violations_total{reason=\"credentials\"} 0",
            "xdp_ingress_escalations_total{result=\"dry_run\"} 0",
            "xdp_ingress_interface_packets_total{interface=\"eth0\",direction=\"received\"} 1",
            "xdp_ingress_interface_bytes_total{interface=\"eth0\",direction=\"transmitted\"} 120",
            "xdp_ingress_interface_attached{interface=\"eth0\",direction=\"received\",how=\"native\"} 1",
            "xdp_ingress_interface_attached{interface=\"eth0\",direction=\"transmitted\",how=\"failed\"} 0",
        ] {
            assert!(all.contains(line), "{line}: {all}");
        }
        let (status, few) = metrics(Metrics::WithoutHosts);
        assert_eq!(status, 200);
        assert!(
            !few.contains("web.test")
                && !few.contains("upstream=")
                && !few.contains("xdp_ingress_host_")
                && few.contains("xdp_ingress_ready 1"),
            "{few}"
        );
    }

    #[test]
    fn every_metric_has_a_row_with_its_type_in_the_documentation() {
        const PAGE: &str = include_str!("../../../../../../docs/metrics.md");
        let answers = Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All);
        let (_, text) = ask(&answers, Method::GET, "/metrics");
        assert!(!text.contains("UnknownKind"), "notes are no problems");
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let code: BTreeMap<_, _> = types.map(|(name, of)| (named(name, of), of.to_owned())).collect();
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix('|')?.split_once('|'));
        let page = rows.filter(|(names, _)| names.contains("`xdp_ingress_") || names.contains("`process_"));
        let page: BTreeMap<_, _> = page
            .flat_map(|(names, rest)| {
                let of = rest.split('|').next().unwrap_or_default().trim().to_owned();
                names.split('`').skip(1).step_by(2).map(move |name| (name.to_owned(), of.clone()))
            })
            .collect();
        assert!(code.len() > 60, "{code:?}");
        assert_eq!(code, page);
    }

    /// Returns the name that a query uses.
    fn named(name: &str, of: &str) -> String {
        if of == "counter" { format!("{name}_total") } else { name.to_owned() }
    }
}
