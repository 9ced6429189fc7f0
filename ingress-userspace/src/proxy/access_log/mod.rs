//! The access log: one line for each request, when its response has ended. Nothing waits for it: a line that finds the
//! queue full is dropped and counted.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use http::request::Parts;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::model::{AccessLog, Trust, UpstreamKey};

use super::{client::Client, conn::Conn, request_id::RequestId, snapshot::Snapshot};

mod format;

/// Lines that wait to be written.
const QUEUE_MAX: usize = 32 * 1024;
/// How long whoever writes pauses when nothing waits, so that the lines that come meanwhile are written at once, and no
/// request has to wake it for its own.
const PAUSE: Duration = Duration::from_millis(10);

/// Where lines go.
#[derive(Clone, Debug)]
pub struct Sink(NonBlocking);

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub struct SinkGuard(#[expect(dead_code, reason = "held for what its drop does")] WorkerGuard);

/// A writer that pauses after each flush, which is when the queue is empty.
struct Pausing<W>(W);

/// What there is to say of a request.
struct Entry {
    log: Arc<AccessLog>,
    sink: Sink,
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
    sink: Sink,
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

// === impl Sink ===

impl Sink {
    /// A sink that a thread of its own empties into `writer`.
    pub fn new(writer: impl Write + Send + 'static) -> (Self, SinkGuard) {
        let builder =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE_MAX).thread_name("access-log");
        let (sink, guard) = builder.finish(Pausing(writer));
        (Self(sink), SinkGuard(guard))
    }

    /// Lines that were dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.error_counter().dropped_lines() as u64
    }

    fn write(&mut self, line: &[u8]) {
        // It takes all or counts it as dropped, and does not fail.
        self.0.write_all(line).unwrap_or_default();
    }
}

// === impl Pausing ===

impl<W: Write> Write for Pausing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        thread::sleep(PAUSE);
        Ok(())
    }
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
            line.finish();
        }
    }
}

// === impl Teller ===

impl Teller {
    /// One for a request that begins now, if it is to be told.
    fn of(conn: &Conn, snapshot: &Snapshot) -> Option<Box<Self>> {
        let (log, sink) = (snapshot.settings.access_log.clone()?, conn.worker.shared.sink.get()?.clone());
        let (line, notes) = (Line::default(), Notes::default());
        Some(Box::new(Self { log, sink, line, begun: Instant::now(), notes }))
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
        let Self { log, sink, line, begun, notes } = self;
        let Client { address: client, secure, .. } = conn.peer().client(trust, &request.headers);
        *line.0.borrow_mut() = Some(Entry { log, sink, request, client, secure, begun, notes, status, sent: 0 });
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

    /// The response has ended, or the client has gone.
    pub(super) fn finish(self) {
        if let Some(mut entry) = self.0.take() {
            let line = format::line(&entry, entry.begun.elapsed(), jiff::Timestamp::now());
            entry.sink.write(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, sync::mpsc};

    use super::*;

    /// Writes nothing before `gate` is closed, and tells what it writes; `None` is a flush.
    struct Gated {
        gate: mpsc::Receiver<()>,
        told: mpsc::Sender<Option<Vec<u8>>>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _closed = self.gate.recv().is_err();
            self.told.send(Some(bytes.to_vec())).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.told.send(None).map_err(io::Error::other)
        }
    }

    /// Rests on the worker of `tracing-appender`, which flushes once it has emptied its queue.
    #[test]
    fn lines_that_wait_are_written_without_a_pause_between_them() {
        let ((open, gate), (told, tells)) = (mpsc::channel(), mpsc::channel());
        let (mut sink, _guard) = Sink::new(Gated { gate, told });
        let lines: Vec<_> = (0..1000).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            sink.write(line.as_bytes());
        }
        drop(open);
        let before_pause: Vec<_> = iter::from_fn(|| tells.recv().expect("the worker goes on")).collect();
        assert_eq!(before_pause.concat(), lines.concat().into_bytes());
        assert_eq!(sink.dropped(), 0);
    }
}
