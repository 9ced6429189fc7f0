//! A line of the access log while its data are collected.

use std::{
    cell::{Cell, RefCell},
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{format, sink::WorkerLines};
use http::request::Parts;

use ingress_model::{AccessLog, UpstreamKey};

use crate::http::request_id::RequestId;

/// The data of an access log line.
pub(crate) struct LogRecord {
    pub(crate) log: Arc<AccessLog>,
    pub(crate) request: Parts,
    pub(crate) client: IpAddr,
    pub(crate) secure: bool,
    pub(crate) begun: Instant,
    pub(crate) notes: Notes,
    pub(crate) status: u16,
    pub(crate) sent: u64,
}

/// The pending line of a request, filled in when the response begins. A line never filled in is not written.
#[derive(Clone, Default)]
pub(crate) struct PendingLine(pub(crate) Rc<RefCell<Option<LogRecord>>>);

/// Data found while the request is served.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The Ingress, as `namespace/name`.
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) upstream: Option<UpstreamKey>,
    pub(crate) answer: Option<UpstreamAnswer>,
    pub(crate) request_id: Option<RequestId>,
    /// Bytes of the request body received so far.
    pub(crate) received: Option<Rc<Cell<u64>>>,
}

/// The response of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamAnswer {
    pub(crate) address: SocketAddr,
    pub(crate) status: u16,
    pub(crate) took: Duration,
}

impl PendingLine {
    /// Adds `count` bytes of the response body that were sent.
    pub(crate) fn sent(&self, count: usize) {
        if let Some(entry) = &mut *self.0.borrow_mut() {
            entry.sent += count as u64;
        }
    }

    /// Adds the line to `lines`: the response has ended, or the client has disconnected.
    pub(crate) fn finish(self, lines: &WorkerLines) {
        if let Some(entry) = self.0.take() {
            lines.add(|line| format::line(line, &entry, entry.begun.elapsed(), jiff::Timestamp::now()));
        }
    }
}
