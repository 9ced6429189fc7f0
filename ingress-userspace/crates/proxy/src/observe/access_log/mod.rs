//! The access log: one line for each request, written when its response has ended.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use http::request::Parts;

use ingress_model::{AccessLog, UpstreamKey};

use crate::{
    downstream::conn::Conn,
    http::{client_address::RequestClient, request_id::RequestId},
    observe::access_log::entry::{LogRecord, Notes, PendingLine, UpstreamAnswer},
    snapshot::Snapshot,
};

pub(crate) mod entry;
mod format;
mod sink;

pub(crate) use sink::WorkerLines;
pub use sink::{Sink, SinkGuard};

/// A request being served. If it is dropped before the response begins, the client has disconnected; it is logged with
/// status 499, as in nginx.
pub(crate) struct LogGuard<'c> {
    conn: &'c Conn,
    pub(crate) request: &'c mut Parts,
    /// Boxed so that requests that are not logged do not carry its size.
    pub(crate) log_entry: Option<Box<LogEntry>>,
}

/// The status of requests that the client abandoned, as in nginx; it is only logged and never sent.
const LEFT: u16 = 499;

/// Collects the data of the log entry while a request is served.
pub(crate) struct LogEntry {
    log: Arc<AccessLog>,
    line: PendingLine,
    begun: Instant,
    client: IpAddr,
    /// Whether the client's own connection is encrypted.
    secure: bool,
    notes: Notes,
}

// === impl LogGuard ===

impl<'c> LogGuard<'c> {
    pub(crate) fn new(conn: &'c Conn, snapshot: &Snapshot, request: &'c mut Parts) -> Self {
        Self { conn, request, log_entry: LogEntry::of(conn, snapshot) }
    }

    /// Records that the response begins, with the status that is sent to the client.
    pub(crate) fn answered(&mut self, status: u16) {
        self.fill(status);
    }

    fn fill(&mut self, status: u16) -> Option<PendingLine> {
        let log_entry = self.log_entry.take()?;
        let line = log_entry.line();
        let request = std::mem::replace(self.request, http::Request::new(()).into_parts().0);
        log_entry.fill(request, status);
        Some(line)
    }
}

impl Drop for LogGuard<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.fill(LEFT) {
            line.finish(&self.conn.worker.lines);
        }
    }
}

// === impl LogEntry ===

impl LogEntry {
    /// Returns a log entry for a request that begins now, if the access log is enabled.
    fn of(conn: &Conn, snapshot: &Snapshot) -> Option<Box<Self>> {
        let log = snapshot.settings.access_log.clone().filter(|_| conn.worker.shared.sink.get().is_some())?;
        let (line, begun, client) = (PendingLine::default(), Instant::now(), conn.peer().address());
        Some(Box::new(Self { log, line, begun, client, secure: conn.secure, notes: Notes::default() }))
    }

    /// Records the client of the request.
    pub(crate) fn identify(&mut self, client: &RequestClient<'_>) {
        (self.client, self.secure) = (client.address, client.secure);
    }

    /// Records that a rule of `owner` matched. Drops the log entry if that rule has logging disabled.
    pub(crate) fn matched(log_entry: &mut Option<Box<Self>>, owner: &Arc<str>, logged: bool) {
        match log_entry {
            Some(log_entry) if logged => log_entry.notes.owner = Some(Arc::clone(owner)),
            _ => *log_entry = None,
        }
    }

    /// Drops the log entry if requests for this target are excluded from the access log.
    pub(crate) fn skip(log_entry: &mut Option<Box<Self>>, target: &str) {
        let Some(known) = log_entry else { return };
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if known.log.skip.iter().any(|skip| skip.matches(path)) {
            *log_entry = None;
        }
    }

    /// Records that the request is about to be forwarded. Returns the counter for the bytes of its body.
    pub(crate) fn forwarded(&mut self, request_id: &RequestId, upstream: &UpstreamKey) -> Rc<Cell<u64>> {
        self.notes.request_id = Some(request_id.clone());
        self.notes.upstream = Some(upstream.clone());
        Rc::clone(self.notes.received.get_or_insert_default())
    }

    /// Records the response of an endpoint.
    pub(crate) fn answered(&mut self, address: SocketAddr, status: u16) {
        self.notes.answer = Some(UpstreamAnswer { address, status, took: self.begun.elapsed() });
    }

    /// Returns the line that this log entry fills in.
    pub(crate) fn line(&self) -> PendingLine {
        self.line.clone()
    }

    fn fill(self, request: Parts, status: u16) {
        let Self { log, line, begun, client, secure, notes } = self;
        *line.0.borrow_mut() = Some(LogRecord { log, request, client, secure, begun, notes, status, sent: 0 });
    }
}
