//! A request in flight: its resources, and the accounting at its end.

use std::{
    future::Future as _,
    net::IpAddr,
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Context,
    time::{Duration, Instant},
};

use http::StatusCode;
use tokio::{
    task::AbortHandle,
    time::{Sleep, sleep_until},
};

use ingress_common::{HostL7Cell, StatusClass};
use ingress_model::{HostId, filter::Limit, route::Meter};

use crate::{
    downstream::{conn::Conn, h2_stalled_frames::StalledStream},
    limits::{CountGuard, Excess},
    observe::{access_log::entry::PendingLine, counters::Tally, traces::Span},
    upstream::{permit::UpstreamPermit, subrequest::Deadline},
};

/// A request in flight on a connection. Boxed, because it is moved many times until it is part of the response.
pub(crate) struct InFlight(Box<InFlightState>);

struct InFlightState {
    host: HostId,
    begun: Instant,
    tally: Tally,
    /// The permit held on its upstream.
    permit: UpstreamPermit,
    /// Counts the request for its rule.
    meter: Option<Arc<Meter>>,
    /// Its line of the access log.
    line: Option<PendingLine>,
    /// Its span, if the request is sampled.
    span: Option<Box<Span>>,
    /// Its count towards a limit of its client.
    counted: Option<CountGuard>,
    /// Ready when the response must have ended.
    deadline: Option<Pin<Box<Sleep>>>,
    stream: StalledStream,
    conn: Rc<Conn>,
}

impl InFlight {
    pub(crate) fn new(conn: Rc<Conn>, host: HostId, tally: Tally, stream: StalledStream) -> Self {
        Self(Box::new(InFlightState {
            host,
            begun: Instant::now(),
            tally,
            permit: UpstreamPermit::default(),
            meter: None,
            line: None,
            span: None,
            counted: None,
            deadline: None,
            stream,
            conn,
        }))
    }

    pub(crate) fn conn(&self) -> &Rc<Conn> {
        &self.0.conn
    }

    pub(crate) fn cell(&self) -> &'static HostL7Cell {
        self.0.tally.cell()
    }

    /// Returns the deadline of a request that may last for `limit`.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Deadline> {
        Deadline::since(self.0.begun, limit)
    }

    /// Sets the time at which the response must have ended.
    pub(crate) fn end_by(&mut self, deadline: Deadline) {
        self.0.deadline = Some(Box::pin(sleep_until(deadline.at)));
    }

    /// Returns whether the response should have ended. If not, the task is woken when that is due.
    pub(crate) fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready())
    }

    /// Keeps `permit` until the request has ended.
    pub(crate) fn hold(&mut self, permit: UpstreamPermit) {
        // Most upstreams have no limits, and their permits are empty.
        if !permit.is_empty() {
            self.0.permit = permit;
        }
    }

    /// Writes `line` when the request has ended.
    pub(crate) fn attach(&mut self, line: PendingLine) {
        self.0.line = Some(line);
    }

    /// Counts the request for its rule when it has ended.
    pub(crate) fn measure(&mut self, meter: Option<&Arc<Meter>>) {
        self.0.meter = meter.map(Arc::clone);
    }

    /// Finishes `span` when the request has ended.
    pub(crate) fn record(&mut self, span: Option<Box<Span>>) {
        self.0.span = span;
    }

    /// Records that the response begins, with the status that is sent to the client.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.0.span {
            span.answered(status.as_u16());
        }
    }

    /// Counts bytes of the response body that are sent.
    pub(crate) fn sent(&mut self, count: usize) {
        if let Some(line) = &self.0.line {
            line.sent(count);
        }
    }

    /// Counts the request against `limit` for `client`.
    ///
    /// # Errors
    /// If the request exceeds the limit.
    pub(crate) fn count(&mut self, limit: &Limit, client: IpAddr) -> Result<(), Excess> {
        let InFlightState { conn, counted, .. } = &mut *self.0;
        let worker = &conn.worker;
        *counted = worker.shared.limiter.admit(limit, client, worker.clock())?;
        Ok(())
    }

    pub(crate) fn finish(&mut self, class: StatusClass) {
        self.0.tally.finish(class);
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.0.stream.is_http2()
    }

    /// Returns the task of its stream, unless the client has an unread frame of the response.
    pub(crate) fn stream(&self) -> Option<AbortHandle> {
        self.0.stream.task()
    }

    /// Records that a frame of the response is handed over.
    pub(crate) fn offer(&mut self) {
        let InFlightState { stream, conn, .. } = &mut *self.0;
        if let Some(stalled_frames) = conn.stalled_frames() {
            stream.offer(stalled_frames, conn.worker.now());
        }
    }

    /// Records that more of the response is requested.
    pub(crate) fn resume(&mut self) {
        self.0.resume();
    }

    /// Counts a timeout: the client, or both sides of its tunnel, stopped sending.
    pub(crate) fn timed_out(&self) {
        self.0.conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
    }
}

impl InFlightState {
    fn resume(&mut self) {
        if let Some(stalled_frames) = self.conn.stalled_frames() {
            self.stream.resume(stalled_frames);
        }
    }
}

impl Drop for InFlightState {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        if self.tally.is_finished() {
            self.conn.worker.durations.add(self.host, took);
        }
        if let Some(meter) = &self.meter {
            meter.add(self.tally.class() as usize, took);
        }
        if let Some(line) = self.line.take() {
            line.finish(&self.conn.worker.lines);
        }
        if let Some(span) = self.span.take() {
            span.finish();
        }
        self.resume();
        self.conn.end_request(self.tally.is_finished());
    }
}
