//! Copies bytes both ways between a client's stream and an endpoint's, once they have switched protocols. The bytes are
//! not parsed.
//!
//! A tunnel in which neither side sends anything has the read timeout of a response, as in nginx; applications with
//! longer pauses send pings. Dead peers are found by TCP keep-alive. The timeouts of a stalled exchange apply to a side
//! that does not read, and to a side that stays silent after the other one has ended.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{
    Connection, ExchangeLimits,
    buffer::ReadBuffer,
    stream::{TransportStream, read_into},
    timer::Timer,
};

/// A peer counts as dead after 60 s + 4 × 15 s without an answer.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4);

/// The endpoint's side, and the bytes buffered in both directions.
pub struct UpstreamTunnel {
    stream: TransportStream,
    limits: ExchangeLimits,
    timer: Timer,
    /// From the client to the endpoint.
    up: TunnelFlow,
    down: TunnelFlow,
}

/// Bytes taken from each side since the last check, and whether the client is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelBytes {
    pub up: usize,
    pub down: usize,
    /// Whether the client does not read the bytes buffered for it.
    pub client_blocked: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error("a side broke off")]
    Io(#[source] io::Error),
    #[error("the endpoint took no byte in time")]
    Blocked,
    #[error("one side has ended and the other did not continue")]
    HalfOpen,
    #[error("neither side has sent anything in time")]
    Silent,
}

#[derive(Default)]
struct TunnelFlow {
    buffer: ReadBuffer,
    /// Whether bytes were written but perhaps not flushed.
    unflushed: bool,
    end: TunnelEnd,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TunnelEnd {
    #[default]
    Open,
    /// The reading side has ended; the writing side is shut down once it has the remaining bytes.
    Read,
    Closed,
}

/// The operation that a flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowWait {
    Read,
    Write,
    Nothing,
}

// === impl UpstreamTunnel ===

impl UpstreamTunnel {
    /// Creates a tunnel; `rest` holds the bytes after the endpoint's head.
    pub(super) fn new(connection: Connection, limits: ExchangeLimits, rest: ReadBuffer) -> Self {
        let stream = connection.into_stream();
        watch(stream.tcp());
        let down = TunnelFlow { buffer: rest, ..TunnelFlow::default() };
        Self { stream, limits, timer: Timer::default(), up: TunnelFlow::default(), down }
    }

    /// Creates a tunnel over a connection on which nothing was exchanged yet.
    pub(crate) fn over(connection: Connection, limits: ExchangeLimits) -> Self {
        Self::new(connection, limits, ReadBuffer::default())
    }

    /// Takes over the client's side, where `early` holds the bytes after its head. Returns the bytes buffered already.
    pub fn begin(&mut self, early: &[u8]) -> TunnelBytes {
        if !early.is_empty() {
            self.up.buffer.prepare(false);
            self.up.buffer.extend_from_slice(early);
        }
        TunnelBytes { up: early.len(), down: self.down.buffer.len(), client_blocked: false }
    }

    /// Copies until both sides have ended. Adds the bytes taken from each side to `passed`.
    ///
    /// # Errors
    /// If a side fails, or makes no progress within its timeout. The caller has to time out a client that does not
    /// read.
    pub fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut S,
        passed: &mut TunnelBytes,
    ) -> Poll<Result<(), TunnelError>> {
        let Self { stream, limits, timer, up, down } = self;
        let before = (passed.up, passed.down, up.buffer.len(), down.buffer.len());
        let to_endpoint = up.poll(cx, client, stream, &mut passed.up).map_err(TunnelError::Io)?;
        let to_client = down.poll(cx, stream, client, &mut passed.down).map_err(TunnelError::Io)?;
        if before != (passed.up, passed.down, up.buffer.len(), down.buffer.len()) {
            timer.progress();
        }
        passed.client_blocked = to_client == FlowWait::Write;
        let (limit, error) = match (to_endpoint, to_client) {
            (FlowWait::Nothing, FlowWait::Nothing) => return Poll::Ready(Ok(())),
            (FlowWait::Write, _) => (limits.send_timeout, TunnelError::Blocked),
            (FlowWait::Nothing, _) => (limits.read_timeout, TunnelError::HalfOpen),
            (_, FlowWait::Nothing) => (limits.client_timeout, TunnelError::HalfOpen),
            (FlowWait::Read, FlowWait::Read) => (limits.read_timeout, TunnelError::Silent),
            // The client is late, which the caller handles.
            (FlowWait::Read, FlowWait::Write) => {
                timer.progress();
                return Poll::Pending;
            }
        };
        ready!(timer.poll_overdue(cx, limit));
        Poll::Ready(Err(error))
    }
}

// === impl TunnelFlow ===

impl TunnelFlow {
    /// Copies as much as possible now. At most one buffer of bytes is read before it is written.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W, taken: &mut usize) -> io::Result<FlowWait>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            while !self.buffer.is_empty() {
                match Pin::new(&mut *to).poll_write(cx, &self.buffer) {
                    Poll::Pending => return Ok(FlowWait::Write),
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(written) => self.buffer.advance(written?),
                }
                self.unflushed = true;
            }
            if self.unflushed {
                if Pin::new(&mut *to).poll_flush(cx)?.is_pending() {
                    return Ok(FlowWait::Write);
                }
                self.unflushed = false;
            }
            match self.end {
                TunnelEnd::Open => match read_into(from, cx, &mut self.buffer, false) {
                    Poll::Pending => return Ok(FlowWait::Read),
                    Poll::Ready(Ok(0)) => self.end = TunnelEnd::Read,
                    // Browsers close TLS without `close_notify`. The frames of the protocol show whether anything is
                    // missing.
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        self.end = TunnelEnd::Read
                    }
                    Poll::Ready(read) => *taken += read?,
                },
                TunnelEnd::Read => match Pin::new(&mut *to).poll_shutdown(cx)? {
                    Poll::Pending => return Ok(FlowWait::Write),
                    Poll::Ready(()) => self.end = TunnelEnd::Closed,
                },
                TunnelEnd::Closed => return Ok(FlowWait::Nothing),
            }
        }
    }
}

/// Enables keep-alive, so that the kernel detects a dead peer of a tunnel. A socket that refuses this is probably
/// closed.
pub fn watch(tcp: &TcpStream) {
    if let Err(error) = SockRef::from(tcp).set_tcp_keepalive(&KEEPALIVE) {
        tracing::debug!(error = &error as &dyn std::error::Error, "no keep-alive");
    }
}
