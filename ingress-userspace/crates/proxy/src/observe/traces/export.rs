//! Exports spans in batches to a collector, as OTLP over gRPC. Sampling is decided elsewhere.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderValue, Method, Response};
use http_body_util::Full;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use tokio::{
    sync::{mpsc, oneshot},
    task::LocalSet,
    time::{Instant, timeout_at},
};

use super::{EndedSpan, Finished, SpanOutcome, SpanRecord, SpanValue, Spans};
use crate::upstream::{
    ConnectTarget, ExchangeLimits, Pool, PoolOptions, UpstreamTransport, h2,
    subrequest::{Attempt, Connections, DEFAULT_RETRY, EitherBody, OwnMessage, SubrequestError, read, within},
    write_request_line,
};
use ingress_model::{Protocol, Traces};

/// Timeout of one batch, from connecting to the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the last batches, because the exit of the process waits for them.
const FAREWELL: Duration = Duration::from_secs(1);
/// Timeout of a connection to one of the collector's addresses, so that others can be tried within [`TIMEOUT`].
const CONNECT: Duration = Duration::from_secs(3);
/// Longest response that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

type Clients = h2::Http2Clients<Full<Bytes>>;

/// Starts the export thread unless another one is running. When `stop` is dropped, it sends a last batch and ends.
pub(crate) fn start(
    spans: Arc<Spans>,
    stop: oneshot::Receiver<Infallible>,
) -> io::Result<Option<thread::JoinHandle<()>>> {
    let Some(queue) = spans.take() else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("traces".into()).spawn(move || {
        LocalSet::new().block_on(&runtime, run(&spans, queue, stop));
        // Does not wait for a pending look-up of the collector's name.
        runtime.shutdown_background();
    });
    thread.map(Some)
}

async fn run(spans: &Spans, mut queue: mpsc::UnboundedReceiver<Finished>, mut stop: oneshot::Receiver<Infallible>) {
    let pool = Pool::new(PoolOptions::default());
    let clients = Clients::new(pool.clone());
    let mut stopping = false;
    loop {
        let first = if stopping {
            queue.try_recv().ok()
        } else {
            tokio::select! {
                first = queue.recv() => first,
                _dropped = &mut stop => {
                    stopping = true;
                    continue;
                }
            }
        };
        let Some(Finished { span, traces }) = first else { return };
        let mut batch = vec![*span];
        let deadline = Instant::now() + traces.delay;
        while batch.len() < traces.batch_max {
            let more = if stopping {
                queue.try_recv().ok()
            } else {
                tokio::select! {
                    more = timeout_at(deadline, queue.recv()) => more.ok().flatten(),
                    _dropped = &mut stop => {
                        stopping = true;
                        continue;
                    }
                }
            };
            let Some(Finished { span, traces: _ }) = more else { break };
            batch.push(*span);
        }
        spans.waiting.fetch_sub(batch.len(), Relaxed);
        let count = batch.len();
        // Closes connections that have been idle for long, such as those to addresses that the name no longer has.
        clients.prune(std::time::Instant::now());
        let mut sending = pin!(send(Connections { pool: &pool, http2: &clients }, &traces, batch));
        let mut sent = None;
        if !stopping {
            tokio::select! {
                result = within(TIMEOUT, &mut sending) => sent = Some(result),
                _dropped = &mut stop => stopping = true,
            }
        }
        let sent = match sent {
            Some(sent) => sent,
            None => within(FAREWELL, &mut sending).await,
        };
        let outcome = if sent.is_ok() { SpanOutcome::Exported } else { SpanOutcome::Failed };
        spans.count(outcome, count);
        if let Err(error) = sent {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(collector = %traces.collector, spans = count, error, "the collector did not accept spans");
            // The collector would not accept the remaining spans either.
            if stopping {
                queue.close();
                spans.count(SpanOutcome::Failed, queue.len());
                return;
            }
        }
    }
}

/// The reason why the collector has not accepted a batch.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("its name cannot be resolved")]
    Name(#[source] io::Error),
    #[error("its name has no address")]
    NoAddress,
    #[error(transparent)]
    Subrequest(#[from] SubrequestError),
    #[error("it answered {}, with grpc-status {grpc:?}", .status.as_u16())]
    Refused { status: http::StatusCode, grpc: Option<HeaderValue> },
}

/// Sends a batch to the first address that answers.
async fn send(
    connections: Connections<'_, Full<Bytes>>,
    traces: &Traces,
    batch: Vec<EndedSpan>,
) -> Result<(), ExportError> {
    let body = framed(&request(traces, batch));
    let mut text = Vec::new();
    write_request_line(&mut text, &Method::POST, PATH);
    text.extend_from_slice(format!("host: {}\r\n", authority(traces)).as_bytes());
    text.extend_from_slice(b"content-type: application/grpc\r\nte: trailers\r\nuser-agent: xdp-ingress\r\n");
    let message = OwnMessage { method: &Method::POST, text: &text, is_last: false };
    let limits = ExchangeLimits { connect_timeout: CONNECT, ..ExchangeLimits::default() };
    let mut error = ExportError::NoAddress;
    for address in tokio::net::lookup_host((host(traces), traces.port)).await.map_err(ExportError::Name)? {
        let target = ConnectTarget { address, transport: UpstreamTransport::Plain, proxy_header: None };
        // A collector that restarts refuses the stream on its old connection.
        for _ in 0..2 {
            let body = &mut Some(Full::new(body.clone()));
            let attempt = Attempt { target, limits: &limits, retry: &DEFAULT_RETRY, message: &message };
            match connections.attempt(Protocol::H2c, attempt, body).await {
                Ok(outcome) => return accepted(outcome.into_response()?).await,
                Err(failed) => {
                    error = failed.error.into();
                    if !failed.is_unseen {
                        break;
                    }
                }
            }
        }
    }
    Err(error)
}

/// Reads the response of the collector.
async fn accepted(response: Response<EitherBody<Full<Bytes>>>) -> Result<(), ExportError> {
    let (parts, body) = response.into_parts();
    let body = read(body, ANSWER_MAX).await?;
    let grpc = body.trailers().unwrap_or(&parts.headers).get("grpc-status");
    match grpc {
        Some(grpc) if parts.status.is_success() && grpc == "0" => Ok(()),
        grpc => Err(ExportError::Refused { status: parts.status, grpc: grpc.cloned() }),
    }
}

/// Returns the collector's name or address, without brackets.
fn host(traces: &Traces) -> &str {
    traces.collector.trim_matches(['[', ']'])
}

/// Returns the `Host` of requests to the collector.
fn authority(traces: &Traces) -> String {
    let (host, port) = (host(traces), traces.port);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Frames a gRPC message: the compression flag, the length, then the message.
fn framed(request: &ExportTraceServiceRequest) -> Bytes {
    let length = request.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding can only fail for lack of room, and the buffer grows.
    request.encode(&mut framed).unwrap_or_default();
    framed.freeze()
}

fn request(traces: &Traces, batch: Vec<EndedSpan>) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![attribute("service.name", SpanValue::Text(traces.service.to_string()))],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "xdp-ingress".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans =
        ScopeSpans { scope: Some(scope), spans: batch.into_iter().map(span).collect(), ..ScopeSpans::default() };
    let resource_spans =
        ResourceSpans { resource: Some(resource), scope_spans: vec![scope_spans], ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn span(ended: EndedSpan) -> Span {
    let EndedSpan { record, ended, is_error } = ended;
    let SpanRecord { context, parent, state, name, attributes, started } = record;
    let status = is_error.then(|| Status { code: StatusCode::Error.into(), ..Status::default() });
    Span {
        trace_id: context.trace.to_be_bytes().into(),
        span_id: context.span.to_be_bytes().into(),
        trace_state: state,
        parent_span_id: parent.map(|parent| parent.to_be_bytes().into()).unwrap_or_default(),
        flags: u32::from(context.sampled),
        name,
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanoseconds(started),
        end_time_unix_nano: nanoseconds(ended),
        attributes: attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        status,
        ..Span::default()
    }
}

fn attribute(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => any_value::Value::StringValue(text),
        SpanValue::Number(number) => any_value::Value::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_model::Sampler;

    #[test]
    fn ipv6_addresses_of_collectors_are_bracketed() {
        for (collector, expect) in [
            ("collector.otel.svc", "collector.otel.svc:4317"),
            ("10.0.0.1", "10.0.0.1:4317"),
            ("fd00::1", "[fd00::1]:4317"),
            ("[fd00::1]", "[fd00::1]:4317"),
        ] {
            let traces = Traces {
                collector: collector.into(),
                port: 4317,
                service: Box::default(),
                sampler: Sampler::Always,
                follows_parent: true,
                queue_max: 1,
                delay: Duration::ZERO,
                batch_max: 1,
            };
            assert_eq!(authority(&traces), expect);
        }
    }
}
