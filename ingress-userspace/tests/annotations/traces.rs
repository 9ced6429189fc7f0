//! Traces: propagation to pods and export to a collector.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;

use super::{Ingress, Site, configured};
use ingress_proxy_testing::{Origin, serve_connections, wait_until};

/// A collector: accepts requests once it is `open`, and answers with the configured status.
struct Collector {
    address: SocketAddr,
    /// Requests that have begun.
    asked: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    open: Arc<AtomicBool>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let (received, open) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(AtomicBool::new(true)));
        let (counted, kept, is_open) = (Arc::clone(&asked), Arc::clone(&received), Arc::clone(&open));
        let address = serve_connections(move |stream| {
            let (asked, received, open) = (Arc::clone(&counted), Arc::clone(&kept), Arc::clone(&is_open));
            async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let (received, open) = (Arc::clone(&received), Arc::clone(&open));
                    asked.fetch_add(1, SeqCst);
                    tokio::spawn(async move {
                        let (parts, mut body) = request.into_parts();
                        assert_eq!(
                            (
                                parts.method.as_str(),
                                parts.uri.path(),
                                parts.headers.get("content-type").map(|v| v.as_bytes())
                            ),
                            (
                                "POST",
                                "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                                Some(&b"application/grpc"[..])
                            )
                        );
                        let mut message = BytesMut::new();
                        while let Some(Ok(data)) = body.data().await {
                            body.flow_control().release_capacity(data.len()).expect("capacity");
                            message.extend_from_slice(&data);
                        }
                        while !open.load(SeqCst) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        let request = ExportTraceServiceRequest::decode(&message[5..]).expect("a message");
                        received.lock().expect("unpoisoned").push(request);
                        let head = Response::builder().header("content-type", "application/grpc").body(());
                        let mut stream = respond.send_response(head.expect("valid"), false).expect("sent");
                        stream.send_data(Bytes::from_static(&[0; 5]), false).expect("sent");
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", HeaderValue::from_static(status));
                        stream.send_trailers(trailers).expect("sent");
                    });
                }
            }
        });
        Self { address, asked, received, open }
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.received.lock().expect("unpoisoned");
        let resources = received.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| &scope.spans).cloned().collect()
    }

    /// Returns the spans once there are `count`.
    fn wait_for(&self, count: usize) -> Vec<Span> {
        wait_until("the collector has the spans", || self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count);
        spans
    }

    /// Serves `pod` with these annotations and settings, beside the settings that name the collector.
    fn serve(&self, annotations: &[(&str, &str)], settings: &str, pod: &Origin) -> Site {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata:\n  \
             otlp-collector-host: 127.0.0.1\n  otlp-collector-port: \"{}\"\n  otel-schedule-delay-millis: \"1\"\n{settings}",
            self.address.port()
        );
        Ingress::with(annotations).beside(&settings).serve_with(&[pod.address], &configured()).in_order()
    }
}

const ON: &str = "  enable-opentelemetry: \"true\"\n";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the last request's field `name` as received by the pod.
fn told(pod: &Origin, name: &str) -> Option<String> {
    let head = pod.heads().pop().expect("a request");
    let mut values = head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = values.next().map(str::to_owned);
    assert_eq!(values.next(), None, "{head}");
    value
}

fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pair = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        attribute.value.as_ref()?.value.as_ref().map(text)
    };
    span.attributes.iter().map(|attribute| (attribute.key.as_str(), pair(attribute).unwrap_or_default())).collect()
}

#[test]
fn incoming_traces_are_continued() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    let site = collector.serve(&[], ON, &pod);
    let fields =
        format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\nTracestate: a=1\r\nTracestate: b=2\r\nUser-Agent: test\r\n");
    assert_eq!(site.ask("/x?y=1", &fields).status, 200);
    let span = collector.wait_for(1).remove(0);
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(told(&pod, "traceparent"), Some(format!("00-{TRACE}-{}-01", hex(&span.span_id))));
    assert!(pod.heads()[0].contains("tracestate: a=1\r\ntracestate: b=2\r\n"));
    assert_eq!((span.name.as_str(), span.kind, span.trace_state.as_str()), ("GET", SpanKind::Server as i32, "a=1,b=2"));
    assert!(span.end_time_unix_nano > span.start_time_unix_nano && span.status.is_none());
    let found = attributes(&span);
    for (name, expect) in [
        ("http.request.method", "GET"),
        ("url.scheme", "http"),
        ("url.path", "/x"),
        ("url.query", "y=1"),
        ("server.address", "a.test"),
        ("server.port", "80"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "test"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(found.get(name).map(String::as_str), Some(expect), "{name}");
    }
    let resource =
        collector.received.lock().expect("unpoisoned")[0].resource_spans[0].resource.clone().expect("a resource");
    assert_eq!(resource.attributes[0].key, "service.name");
    wait_until("it is counted", || site.proxy.shared.stats().spans == [1, 0, 0]);
}

#[test]
fn a_new_trace_starts_without_a_trusted_parent() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    let site = collector.serve(&[("opentelemetry-operation-name", "$request_method $host")], ON, &pod);
    site.ask("/", "Tracestate: a=1\r\n");
    let span = collector.wait_for(1).remove(0);
    assert_eq!((span.parent_span_id.len(), span.trace_id.len(), span.span_id.len()), (0, 16, 8));
    assert_eq!(told(&pod, "traceparent"), Some(format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))));
    assert_eq!((told(&pod, "tracestate"), span.name.as_str()), (None, "GET a.test"));
    let wary = collector.serve(&[("opentelemetry-trust-incoming-span", "false")], ON, &pod);
    wary.ask("/", &format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\nTracestate: a=1\r\n"));
    let span = collector.wait_for(2).remove(1);
    assert!(hex(&span.trace_id) != TRACE && span.parent_span_id.is_empty());
    assert_eq!(told(&pod, "tracestate"), None);
}

#[test]
fn sampling_follows_the_parent_or_the_sampler() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    let parent = |flags: &str| format!("Traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n");
    let never = "  otel-sampler: AlwaysOff\n";
    let alone = "  otel-sampler-parent-based: \"false\"\n";
    let none = "  otel-sampler: TraceIdRatioBased\n  otel-sampler-ratio: \"0\"\n";
    for (settings, fields, sampled) in [
        (String::new(), parent("00"), false),
        (String::new(), parent("01"), true),
        (never.to_owned(), String::new(), false),
        (never.to_owned(), parent("01"), true),
        (format!("{never}{alone}"), parent("01"), false),
        (alone.to_owned(), parent("00"), true),
        (none.to_owned(), String::new(), false),
    ] {
        let before = collector.spans().len();
        let mut site = collector.serve(&[], &format!("{ON}{settings}"), &pod);
        site.ask("/", &fields);
        let flags = if sampled { "-01" } else { "-00" };
        assert!(told(&pod, "traceparent").is_some_and(|value| value.ends_with(flags)), "{settings} {fields}");
        // Recorded spans are exported at the latest when the process ends.
        site.proxy.stop();
        assert_eq!(collector.spans().len() - before, usize::from(sampled), "{settings} {fields}");
    }
}

#[test]
fn client_supplied_values_are_truncated() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    let site = collector.serve(&[("opentelemetry-operation-name", "$request_uri")], ON, &pod);
    let (path, state) = (format!("/{}", "x".repeat(2000)), format!("a={}", "y".repeat(600)));
    site.ask(&path, &format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\nTracestate: {state}\r\n"));
    let span = collector.wait_for(1).remove(0);
    assert_eq!((span.name.len(), attributes(&span)["url.path"].len(), span.trace_state.len()), (1024, 1024, 0));
    assert_eq!(told(&pod, "tracestate"), Some(state), "the pod gets it as it is");
}

#[test]
fn shutdown_does_not_wait_for_a_silent_collector() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    collector.open.store(false, SeqCst);
    let mut site = collector.serve(&[], &format!("{ON}  otel-max-export-batch-size: \"1\"\n"), &pod);
    assert!((0..5).all(|_| site.get("/").status == 200));
    wait_until("a batch is under way", || collector.asked.load(SeqCst) > 0);
    let (shared, begun) = (Arc::clone(&site.proxy.shared), Instant::now());
    site.proxy.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(shared.stats().spans, [0, 0, 5], "all are accounted for");
}

#[test]
fn only_rules_with_tracing_are_traced() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    let given = format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\nTracestate: a=1\r\n");
    for (annotations, settings) in [(&[][..], ""), (&[("enable-opentelemetry", "false")], ON)] {
        let mut site = collector.serve(annotations, settings, &pod);
        site.ask("/", &given);
        assert_eq!(told(&pod, "traceparent"), Some(format!("00-{TRACE}-{PARENT}-01")), "it passes as it is");
        assert_eq!(told(&pod, "tracestate").as_deref(), Some("a=1"));
        site.proxy.stop();
    }
    assert!(collector.spans().is_empty());
    let site = collector.serve(&[("enable-opentelemetry", "true")], "", &pod);
    site.ask("/", &given);
    collector.wait_for(1);
}

#[test]
fn errors_and_refusals_are_recorded() {
    let collector = Collector::start("0");
    let failing = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let site = collector.serve(&[], ON, &failing);
    assert_eq!(site.get("/").status, 503);
    let span = collector.wait_for(1).remove(0);
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(2));
    assert_eq!(attributes(&span).get("error.type").map(String::as_str), Some("503"));
    let refused = collector.serve(&[("denylist-source-range", "0.0.0.0/0")], ON, &failing);
    assert_eq!(refused.get("/").status, 403);
    let span = collector.wait_for(2).remove(1);
    assert_eq!(attributes(&span).get("http.response.status_code").map(String::as_str), Some("403"));
    assert!(span.status.is_none(), "a client's fault is none of the server's");
}

#[test]
fn a_slow_collector_delays_no_request_and_excess_spans_are_dropped() {
    let (collector, pod) = (Collector::start("0"), Origin::answering("pod"));
    collector.open.store(false, SeqCst);
    let small = format!("{ON}  otel-max-queuesize: \"5\"\n  otel-max-export-batch-size: \"2\"\n");
    let site = collector.serve(&[], &small, &pod);
    let mut client = site.client();
    assert!((0..50).all(|_| client.get("a.test", "/").status == 200));
    wait_until("spans are dropped", || site.proxy.shared.stats().spans[1] > 0);
    collector.open.store(true, SeqCst);
    wait_until("all are accounted for", || site.proxy.shared.stats().spans.iter().sum::<u64>() == 50);
    let [exported, dropped, failed] = site.proxy.shared.stats().spans;
    assert!(exported >= 5 && dropped > 0 && failed == 0, "{exported} {dropped} {failed}");
    assert_eq!(collector.spans().len() as u64, exported);
    let batches: Vec<_> = collector
        .received
        .lock()
        .expect("unpoisoned")
        .iter()
        .map(|r| r.resource_spans[0].scope_spans[0].spans.len())
        .collect();
    assert!(batches.iter().all(|spans| *spans <= 2), "{batches:?}");
}

#[test]
fn spans_that_a_collector_rejects_are_counted() {
    let pod = Origin::answering("pod");
    let unwilling = Collector::start("8");
    let site = unwilling.serve(&[], ON, &pod);
    site.get("/");
    wait_until("it is counted", || site.proxy.shared.stats().spans == [0, 0, 1]);
    let gone = Collector { address: Origin::refusing(), ..unwilling };
    let site = gone.serve(&[], ON, &pod);
    assert_eq!(site.get("/").status, 200);
    wait_until("it is counted", || site.proxy.shared.stats().spans == [0, 0, 1]);
}
