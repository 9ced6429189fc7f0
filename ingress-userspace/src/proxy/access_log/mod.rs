//! The access log: one line for each request, when its response has ended.

use std::{
    cell::{Cell, RefCell},
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::request::Parts;

use crate::model::{AccessLog, Trust, UpstreamKey};

use super::{client::Client, conn::Conn, request_id::RequestId, snapshot::Snapshot};

mod format;
mod sink;

pub(super) use sink::Lines;
pub use sink::{Sink, SinkGuard};

/// What there is to say of a request.
struct Entry {
    log: Arc<AccessLog>,
    request: Parts,
    client: IpAddr,
    secure: bool,
    begun: Instant,
    notes: Notes,
    status: u16,
    sent: u64,
}

/// The line of a request that is under way, filled in when its response begins. Where it is not, nothing is written.
#[derive(Clone, Default)]
pub(super) struct Line(Rc<RefCell<Option<Entry>>>);

/// A request that is served. One that is dropped before its response begins is told as nginx tells it, under a status
/// of its own: the client has left.
pub(super) struct Telling<'c> {
    conn: &'c Conn,
    trust: &'c Trust,
    pub(super) request: &'c mut Parts,
    /// Boxed, so that requests that are not told do not carry its size.
    pub(super) teller: Option<Box<Teller>>,
}

/// Of requests whose client has left, as nginx has it; no client ever sees it.
const LEFT: u16 = 499;

/// Notes what there is to say of a request while it is served.
pub(super) struct Teller {
    log: Arc<AccessLog>,
    line: Line,
    begun: Instant,
    notes: Notes,
}

/// What is found out on the way.
#[derive(Debug, Default)]
struct Notes {
    /// `namespace/name` of the Ingress.
    owner: Option<Arc<str>>,
    upstream: Option<UpstreamKey>,
    answer: Option<UpstreamAnswer>,
    request_id: Option<RequestId>,
    /// Bytes of the request's body, as they come.
    received: Option<Rc<Cell<u64>>>,
}

/// The response of an endpoint.
#[derive(Clone, Copy, Debug)]
struct UpstreamAnswer {
    address: SocketAddr,
    status: u16,
    took: Duration,
}

// === impl Telling ===

impl<'c> Telling<'c> {
    pub(super) fn new(conn: &'c Conn, snapshot: &'c Snapshot, request: &'c mut Parts) -> Self {
        Self { conn, trust: &snapshot.settings.trust, request, teller: Teller::of(conn, snapshot) }
    }

    /// The response begins, with the status that the client gets.
    pub(super) fn answered(&mut self, status: u16) {
        self.fill(status);
    }

    fn fill(&mut self, status: u16) -> Option<Line> {
        let teller = self.teller.take()?;
        let line = teller.line();
        let request = std::mem::replace(self.request, http::Request::new(()).into_parts().0);
        teller.fill(self.conn, self.trust, request, status);
        Some(line)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.fill(LEFT) {
            line.finish(&self.conn.worker.lines);
        }
    }
}

// === impl Teller ===

impl Teller {
    /// One for a request that begins now, if it is to be told.
    fn of(conn: &Conn, snapshot: &Snapshot) -> Option<Box<Self>> {
        let log = snapshot.settings.access_log.clone().filter(|_| conn.worker.shared.sink.get().is_some())?;
        Some(Box::new(Self { log, line: Line::default(), begun: Instant::now(), notes: Notes::default() }))
    }

    /// A rule of `owner` was found; `None` if that does not want it told.
    pub(super) fn matched(teller: &mut Option<Box<Self>>, owner: &Arc<str>, logged: bool) {
        match teller {
            Some(teller) if logged => teller.notes.owner = Some(Arc::clone(owner)),
            _ => *teller = None,
        }
    }

    /// `None` if nothing is told of requests for this target.
    pub(super) fn skip(teller: &mut Option<Box<Self>>, target: &str) {
        let Some(known) = teller else { return };
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if known.log.skip.iter().any(|skip| skip.matches(path)) {
            *teller = None;
        }
    }

    /// It is about to be forwarded. Returns what counts its body.
    pub(super) fn forwarded(&mut self, request_id: &RequestId, upstream: &UpstreamKey) -> Rc<Cell<u64>> {
        self.notes.request_id = Some(request_id.clone());
        self.notes.upstream = Some(upstream.clone());
        Rc::clone(self.notes.received.get_or_insert_default())
    }

    /// An endpoint has answered.
    pub(super) fn answered(&mut self, address: SocketAddr, status: u16) {
        self.notes.answer = Some(UpstreamAnswer { address, status, took: self.begun.elapsed() });
    }

    /// The line that it fills in.
    pub(super) fn line(&self) -> Line {
        self.line.clone()
    }

    fn fill(self, conn: &Conn, trust: &Trust, request: Parts, status: u16) {
        let Self { log, line, begun, notes } = self;
        let Client { address: client, secure, .. } = conn.peer().client(trust, &request.headers);
        *line.0.borrow_mut() = Some(Entry { log, request, client, secure, begun, notes, status, sent: 0 });
    }
}

// === impl Line ===

impl Line {
    /// Bytes of the response's body went out.
    pub(super) fn sent(&self, count: usize) {
        if let Some(entry) = &mut *self.0.borrow_mut() {
            entry.sent += count as u64;
        }
    }

    /// The response has ended, or the client has gone: it is one of `lines` now.
    pub(super) fn finish(self, lines: &Lines) {
        if let Some(entry) = self.0.take() {
            lines.add(|line| format::line(line, &entry, entry.begun.elapsed(), jiff::Timestamp::now()));
        }
    }
}
