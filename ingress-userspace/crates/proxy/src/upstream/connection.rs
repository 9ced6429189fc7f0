//! A connection to an endpoint, plain or TLS: non-blocking reads and writes, and the timeout of the current wait.

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
    stream::TransportStream,
    timer::Timer,
    tls::{Connector, ConnectorId},
};
use crate::{
    downstream::proxy_protocol::ProxyHeader,
    l4::pipe::{Pipe, Pipes},
};

/// An open connection, ready for one exchange. Dropping it closes the connection. Boxed, because it is moved often: out
/// of the pool, through an exchange, and back.
pub struct Connection(Box<ConnectionState>);

struct ConnectionState {
    stream: TransportStream,
    lane: PoolKey,
    /// Whether the connection began with a PROXY protocol header.
    has_proxy_header: bool,
    /// Whether no request follows the current one.
    is_last: bool,
    reused: bool,
    timer: Timer,
    pool: Pool,
}

/// The destination of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTarget<'t> {
    pub address: SocketAddr,
    pub transport: UpstreamTransport<'t>,
    /// The PROXY protocol header to begin with, if the endpoint expects one. Such a connection is used for a single
    /// request and never pooled, because its header would be wrong for the next client. Pooling it for its own client
    /// would be safe, but each client would take places in the pool from endpoints with connections for all clients,
    /// and most of these connections would never be used again. For HTTP/2, with no such bound on connections, there
    /// would be one connection for each client.
    pub proxy_header: Option<&'t ProxyHeader>,
}

/// The transport below HTTP.
#[derive(Clone, Copy, Debug)]
pub enum UpstreamTransport<'t> {
    Plain,
    Tls(&'t Connector),
}

/// The key of pooled connections: connections with an equal key are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) address: SocketAddr,
    /// `None` for plain TCP.
    pub(super) connector: Option<ConnectorId>,
}

// === impl ConnectTarget ===

impl ConnectTarget<'_> {
    pub(super) fn lane(&self) -> PoolKey {
        let connector = match self.transport {
            UpstreamTransport::Plain => None,
            UpstreamTransport::Tls(connector) => Some(connector.id()),
        };
        PoolKey { address: self.address, connector }
    }
}

// === impl Connection ===

impl Connection {
    /// Creates a connection from `stream`, which leads to `target`.
    pub(super) fn new(stream: TransportStream, target: ConnectTarget<'_>, pool: Pool) -> Self {
        let has_proxy_header = target.proxy_header.is_some();
        let (lane, timer) = (target.lane(), Timer::default());
        Self(Box::new(ConnectionState {
            stream,
            lane,
            has_proxy_header,
            is_last: has_proxy_header,
            reused: false,
            timer,
            pool,
        }))
    }

    pub(super) fn lane(&self) -> PoolKey {
        self.0.lane
    }

    /// Returns whether the connection has served a request before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.0.reused
    }

    /// Returns whether the connection began with a PROXY protocol header, and so serves only one request.
    pub(crate) fn has_proxy_header(&self) -> bool {
        self.0.has_proxy_header
    }

    /// Makes the current request the last one of the connection, which is not pooled then.
    pub(super) fn end_after_request(&mut self) {
        self.0.is_last = true;
    }

    /// Returns the stream, so that the connection is never pooled.
    pub(super) fn into_stream(self) -> TransportStream {
        self.0.stream
    }

    /// Returns the connection to the pool if it may serve another request.
    pub(super) fn release(mut self) {
        let ConnectionState { stream: _, lane: _, has_proxy_header: _, is_last, reused, timer, pool } = &mut *self.0;
        if *is_last {
            return;
        }
        *reused = true;
        timer.progress();
        let pool = pool.clone();
        pool.keep(self);
    }

    /// Returns whether the connection is open and has nothing to read, as far as the reactor knows. Makes no system
    /// call unless the reactor has seen an event.
    pub(super) fn is_silent(&mut self) -> bool {
        self.0.stream.is_silent()
    }

    /// Reads available bytes into `buffer`, which allocates memory only if there are any. 0 is the end of the stream.
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

    /// Returns whether the connection has no TLS, so that bytes may be spliced.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.0.stream, TransportStream::Plain(_))
    }

    /// Moves up to `most` available bytes into a pipe; `None` is the end of the stream. For plain connections only.
    pub(super) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: u64,
    ) -> Poll<io::Result<Option<Pipe>>> {
        let TransportStream::Plain(tcp) = &self.0.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let pipe = ready!(pipes.poll_fill(cx, tcp, usize::try_from(most).unwrap_or(usize::MAX)));
        self.0.timer.progress();
        Poll::Ready(pipe)
    }

    /// Writes as many bytes of `pipe` as the socket accepts. For plain connections only.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let TransportStream::Plain(tcp) = &self.0.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let drained = ready!(pipe.poll_drain(cx, tcp));
        self.0.timer.progress();
        Poll::Ready(drained)
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.0.stream).poll_write_vectored(cx, parts));
        self.0.timer.progress();
        Poll::Ready(written)
    }

    /// Ready once the kernel has accepted all written bytes.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.stream).poll_flush(cx)
    }

    /// Ready once the current wait has lasted for `limit`. Starts the wait if none is in progress.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        self.0.timer.poll_overdue(cx, limit)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionState { stream: _, lane, has_proxy_header: _, is_last: _, reused, timer: _, pool: _ } = &*self.0;
        f.debug_struct("Connection").field("lane", lane).field("reused", reused).finish_non_exhaustive()
    }
}
