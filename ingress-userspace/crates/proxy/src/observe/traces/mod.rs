//! Distributed tracing: one span for each sampled request, from its head to the end of its response. A finished span
//! goes through a queue to a dedicated thread ([`export`]). Requests never wait for the queue: spans that exceed it are
//! dropped and counted.
//!
//! ```text
//! traceparent ──▶ Trace::begin ──▶ traceparent for the pod
//!                     └ Span ── finished with the request ──▶ queue ──▶ export ──▶ collector
//! ```

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use http::{HeaderValue, Method, Version, header};
use tokio::sync::mpsc;

use ingress_model::route::{Subject, filter::Edits, template::render};
use ingress_model::{TraceRule, Traces};

mod context;
pub(crate) mod export;

/// Longest text attribute of a span, in bytes; longer texts are truncated. Clients control these texts, and a batch
/// must not exceed the limit of collectors, by default 4 MiB.
const TEXT_MAX: usize = 1024;
/// Length of `tracestate` in bytes that must be passed on (section 3.3.1.5). A longer one is omitted, because
/// truncating would change its meaning.
const STATE_MAX: usize = 512;

use context::{TRACEPARENT, TRACESTATE, TraceContext};

/// The queue of finished spans, with its counters.
#[derive(Debug)]
pub(crate) struct Spans {
    queue: mpsc::UnboundedSender<Finished>,
    /// The receiving end, until the exporter takes it.
    taken_by: Mutex<Option<mpsc::UnboundedReceiver<Finished>>>,
    waiting: AtomicUsize,
    counts: [AtomicU64; SpanOutcome::ALL.len()],
}

/// The outcome of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanOutcome {
    /// The collector has accepted it.
    Exported,
    /// The queue was full.
    Dropped,
    /// The collector was unreachable, or has refused it.
    Failed,
}

/// The trace that a request belongs to.
pub(crate) struct Trace {
    context: TraceContext,
    /// Whether the client's `tracestate` is passed on.
    goes_on: bool,
    /// Present if the request is sampled. Boxed, because most are not.
    pub(crate) span: Option<Box<Span>>,
}

/// The span of a sampled request, until its response has ended.
#[derive(Debug)]
pub(crate) struct Span {
    spans: Arc<Spans>,
    traces: Arc<Traces>,
    record: SpanRecord,
    begun: Instant,
    status: Option<u16>,
}

/// The recorded data of a request.
#[derive(Debug)]
struct SpanRecord {
    context: TraceContext,
    parent: Option<u64>,
    state: String,
    name: String,
    attributes: Vec<(&'static str, SpanValue)>,
    started: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SpanValue {
    Text(String),
    Number(i64),
}

/// A finished span.
#[derive(Debug)]
struct Finished {
    span: Box<EndedSpan>,
    traces: Arc<Traces>,
}

#[derive(Debug)]
struct EndedSpan {
    record: SpanRecord,
    ended: SystemTime,
    is_error: bool,
}

// === impl SpanOutcome ===

impl SpanOutcome {
    pub const ALL: [Self; 3] = [Self::Exported, Self::Dropped, Self::Failed];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

// === impl Spans ===

impl Spans {
    pub(crate) fn new() -> Arc<Self> {
        let (queue, taken_by) = mpsc::unbounded_channel();
        let (waiting, counts) = (AtomicUsize::new(0), Default::default());
        Arc::new(Self { queue, taken_by: Mutex::new(Some(taken_by)), waiting, counts })
    }

    /// Returns the counts of spans by outcome, in the order of [`SpanOutcome::ALL`].
    pub(crate) fn counts(&self) -> [u64; SpanOutcome::ALL.len()] {
        self.counts.each_ref().map(|count| count.load(Relaxed))
    }

    fn count(&self, outcome: SpanOutcome, spans: usize) {
        self.counts[outcome as usize].fetch_add(spans as u64, Relaxed);
    }

    /// Returns the receiving end of the queue to the first caller.
    fn take(&self) -> Option<mpsc::UnboundedReceiver<Finished>> {
        self.taken_by.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, finished: Finished) {
        let max = finished.traces.queue_max;
        let has_room = self.waiting.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1)).is_ok();
        if !has_room || self.queue.send(finished).is_err() {
            self.count(SpanOutcome::Dropped, 1);
        }
    }
}

// === impl Trace ===

impl Trace {
    /// Continues the client's trace if the rule trusts it, or begins a new one.
    pub(crate) fn begin(
        traces: &Arc<Traces>,
        rule: &TraceRule,
        spans: &Arc<Spans>,
        version: Version,
        subject: &Subject<'_>,
    ) -> Self {
        let parent = TraceContext::of(subject.headers).filter(|_| rule.trusts);
        let trace = parent.map_or_else(|| fastrand::u128(1..), |parent| parent.trace);
        let sampled = match parent {
            Some(parent) if traces.follows_parent => parent.sampled,
            _ => traces.sampler.samples(trace),
        };
        let context = TraceContext { trace, span: fastrand::u64(1..), sampled };
        let span = sampled.then(|| {
            let record = SpanRecord {
                context,
                parent: parent.map(|parent| parent.span),
                state: parent.map(|_| state(subject)).unwrap_or_default(),
                name: rule.name.as_ref().map_or_else(
                    || method(subject.method).unwrap_or("HTTP").to_owned(),
                    |name| cut(&render(name, subject, None)).to_owned(),
                ),
                attributes: attributes(version, subject),
                started: SystemTime::now(),
            };
            let (spans, traces) = (Arc::clone(spans), Arc::clone(traces));
            Box::new(Span { spans, traces, record, begun: Instant::now(), status: None })
        });
        Self { context, goes_on: parent.is_some(), span }
    }

    /// Replaces the client's trace fields in the request to the pod.
    pub(crate) fn attach(&self, edits: &mut Edits<'_>) {
        edits.found.push((TRACEPARENT, self.context.header()));
        if !self.goes_on {
            edits.found.push((TRACESTATE, None));
        }
    }
}

/// Joins all `tracestate` fields into one list (section 3.3.1.4).
fn state(subject: &Subject<'_>) -> String {
    let values = subject.headers.get_all(&TRACESTATE).iter().filter_map(|value| value.to_str().ok());
    let state = values.collect::<Vec<_>>().join(",");
    if state.len() <= STATE_MAX { state } else { String::new() }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// Returns the name of a well-known method; clients may invent others.
fn method(method: &Method) -> Option<&'static str> {
    const KNOWN: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];
    KNOWN.into_iter().find(|known| *known == method.as_str())
}

/// Returns the attributes of the semantic conventions for HTTP servers.
fn attributes(version: Version, subject: &Subject<'_>) -> Vec<(&'static str, SpanValue)> {
    let Subject {
        method: _,
        host,
        port,
        target,
        headers,
        secure,
        certificate: _,
        certificate_fields: _,
        client,
        https_port: _,
        listener_port: _,
        clock: _,
    } = subject;
    let text = |text: &str| SpanValue::Text(cut(text).to_owned());
    let (path, query) = target.split_once('?').map_or((*target, None), |(path, query)| (path, Some(query)));
    let default_port = if *secure { 443 } else { 80 };
    let mut attributes = vec![
        ("http.request.method", text(method(subject.method).unwrap_or("_OTHER"))),
        ("url.scheme", text(if *secure { "https" } else { "http" })),
        ("url.path", text(path)),
        ("server.address", text(host)),
        ("server.port", SpanValue::Number(port.unwrap_or(default_port).into())),
        ("client.address", SpanValue::Text(client.to_string())),
        (
            "network.protocol.version",
            text(match version {
                Version::HTTP_2 => "2",
                Version::HTTP_3 => "3",
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            }),
        ),
    ];
    attributes.extend(query.map(|query| ("url.query", text(query))));
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes);
    attributes.extend(agent.map(|agent| ("user_agent.original", text(&String::from_utf8_lossy(agent)))));
    attributes
}

// === impl Span ===

impl Span {
    /// Records that the response begins.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Queues the span: the response has ended or was aborted.
    pub(crate) fn finish(self) {
        let Self { spans, traces, mut record, begun, status } = self;
        let error = match status {
            None => Some("client_left".to_owned()),
            Some(status) => {
                record.attributes.push(("http.response.status_code", SpanValue::Number(status.into())));
                (status >= 500).then(|| status.to_string())
            }
        };
        let is_error = error.is_some();
        record.attributes.extend(error.map(|error| ("error.type", SpanValue::Text(error))));
        let ended = record.started + begun.elapsed();
        spans.put(Finished { span: Box::new(EndedSpan { record, ended, is_error }), traces });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(TEXT_MAX)).len(), TEXT_MAX);
        assert_eq!(cut(&format!("x{}", "é".repeat(TEXT_MAX))).len(), TEXT_MAX - 1);
    }
}
