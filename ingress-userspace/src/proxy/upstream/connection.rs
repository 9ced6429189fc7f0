//! One connection to an endpoint, plain or TLS: non-blocking reads and writes, and the time-out of whoever waits for
//! them.

use std::{
    fmt,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::AsyncWrite;

use super::{
    buffer::ReadBuffer,
    pool::Pool,
    stream::Stream,
    timer::Timer,
    tls::{Connector, ConnectorId},
};
use crate::proxy::{
    pipe::{Pipe, Pipes},
    proxy_protocol::Introduction,
};

/// An open connection, fit for one exchange. Dropping it closes it. Boxed, because it goes from hand to hand: out of the
/// pool, through an exchange, and back.
pub struct Connection(Box<State>);

struct State {
    stream: Stream,
    lane: Lane,
    /// Whether its endpoint was told whose it is.
    is_introduced: bool,
    reused: bool,
    timer: Timer,
    pool: Pool,
}

/// Where a connection leads.
#[derive(Clone, Copy, Debug)]
pub struct Target<'t> {
    pub address: SocketAddr,
    pub transport: Transport<'t>,
    /// What it begins with, if the endpoint wants to know whose it is. Such a connection is for one request and never
    /// kept: what was said of it would be a lie for the next client. Kept for its own client it would be safe, but each
    /// client would take places in the pool from endpoints whose connections serve everybody, most of them never to be
    /// asked for again; and of HTTP/2, whose connections have no such bound, there would be as many as clients.
    pub introduction: Option<&'t Introduction>,
}

/// What carries HTTP.
#[derive(Clone, Copy, Debug)]
pub enum Transport<'t> {
    Plain,
    Tls(&'t Connector),
}

/// What connections must have in common to be used for the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) address: SocketAddr,
    /// `None` in the clear.
    pub(super) connector: Option<ConnectorId>,
}

// === impl Target ===

impl Target<'_> {
    pub(super) fn lane(&self) -> Lane {
        let connector = match self.transport {
            Transport::Plain => None,
            Transport::Tls(connector) => Some(connector.id()),
        };
        Lane { address: self.address, connector }
    }
}

// === impl Connection ===

impl Connection {
    /// `stream` leads to `target`.
    pub(super) fn new(stream: Stream, target: Target<'_>, pool: Pool) -> Self {
        let is_introduced = target.introduction.is_some();
        let (lane, timer) = (target.lane(), Timer::default());
        Self(Box::new(State { stream, lane, is_introduced, reused: false, timer, pool }))
    }

    pub(super) fn lane(&self) -> Lane {
        self.0.lane
    }

    /// Whether it has served a request before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.0.reused
    }

    /// Whether its endpoint was told whose it is: then it serves one request and no other.
    pub(in crate::proxy) fn is_introduced(&self) -> bool {
        self.0.is_introduced
    }

    /// The stream, which is never given back.
    pub(super) fn into_stream(self) -> Stream {
        self.0.stream
    }

    /// Gives it back for another request, if it may serve another.
    pub(super) fn release(mut self) {
        let State { stream: _, lane: _, is_introduced, reused, timer, pool } = &mut *self.0;
        if *is_introduced {
            return;
        }
        *reused = true;
        timer.progress();
        let pool = pool.clone();
        pool.keep(self);
    }

    /// Whether it is open and silent, as far as the reactor knows by now: no system call unless something happened to
    /// it.
    pub(super) fn is_silent(&mut self) -> bool {
        self.0.stream.is_silent()
    }

    /// Reads what is there into `buffer`, which gets memory only when there is something. 0 is the end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuffer,
        large: bool,
    ) -> Poll<io::Result<usize>> {
        let read = ready!(self.0.stream.poll_fill(cx, buffer, large));
        self.0.timer.progress();
        Poll::Ready(read)
    }

    /// Whether nothing is between the socket and whoever reads.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.0.stream, Stream::Plain(_))
    }

    /// Moves what is there, at most `most` bytes, into a pipe; `None` is the end. For one that is plain.
    pub(super) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: u64,
    ) -> Poll<io::Result<Option<Pipe>>> {
        let Stream::Plain(tcp) = &self.0.stream else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        let pipe = ready!(pipes.poll_fill(cx, tcp, usize::try_from(most).unwrap_or(usize::MAX)));
        self.0.timer.progress();
        Poll::Ready(pipe)
    }

    /// Hands on what the socket takes of what is in `pipe`. For one that is plain.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Stream::Plain(tcp) = &self.0.stream else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        let drained = ready!(pipe.poll_drain(cx, tcp));
        self.0.timer.progress();
        Poll::Ready(drained)
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0.stream).poll_write_vectored(cx, parts));
        self.0.timer.progress();
        Poll::Ready(written)
    }

    /// Ready when the kernel has everything that was written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.stream).poll_flush(cx)
    }

    /// Ready when the present wait, which begins now if none has begun, is `limit` old.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        self.0.timer.poll_overdue(cx, limit)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { stream: _, lane, is_introduced: _, reused, timer: _, pool: _ } = &*self.0;
        f.debug_struct("Connection").field("lane", lane).field("reused", reused).finish_non_exhaustive()
    }
}
