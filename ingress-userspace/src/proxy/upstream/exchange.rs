//! One request out, one response head in; the body of the response goes on from there.

use std::{
    future::{Future, poll_fn},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, Method, Response, StatusCode};

use super::{
    Connection, ExchangeError, Failure, Limits, Malformed, ResponseBody, Waiting,
    buffer::ReadBuffer,
    error::TransferError,
    framing::Framing,
    head::{Accept, Head, Reader},
    tunnel::Tunnel,
    upload::{Outgoing, SendError, Sending, Upload},
};
use crate::proxy::pipe::{Pipe, Pipes};

/// How long an upstream that has answered may take nothing of the rest of a request: its connection is worth less than
/// the time of a client that waits for its next request.
const BLOCKED_MAX: Duration = Duration::from_millis(250);

/// Sends one request and returns as soon as the response head is there.
///
/// `write_head` appends the request line and the header fields, each with its line end, but neither `content-length`
/// nor `transfer-encoding` nor the empty line: framing follows from `body` (exact size hint: `content-length`, none:
/// `chunked`, nothing to send: `content-length: 0` for POST, PUT and PATCH). What it appends must hold no hop-by-hop
/// fields but those that it names itself. It is called at once, before the future is polled.
///
/// The head and the first frame of the body go out in one write, but for what is in a pipe. A body that is not finished when the response begins
/// goes on while the [`ResponseBody`] is polled. Dropping the future, or the response body before its end, closes the
/// connection.
///
/// # Errors
/// [`Failure`] if there is no well-formed final response head within `limits`; the connection is closed then.
pub fn begin<B: Outgoing>(
    connection: Connection,
    limits: Limits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> impl Future<Output = Result<Begun<B>, Failure<B>>> {
    // Made before the future is, which so has nothing to carry but this. It is boxed, because until the response is the
    // client's it is moved from hand to hand.
    let mut transfer = Box::new(Transfer::new(connection, limits, Upload::new(method, write_head, body)));
    async move {
        let mut reader = Reader::new(method, transfer.limits);
        match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
            Ok(start) => Ok(Begun { start, transfer }),
            Err(error) => Err(transfer.fail(error)),
        }
    }
}

/// [`begin`], for who wants the response at once.
///
/// # Errors
/// As [`begin`].
pub async fn exchange<B: Outgoing>(
    connection: Connection,
    limits: Limits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Response<ResponseBody<B>>, Failure<B>> {
    begin(connection, limits, method, write_head, body).await.map(Begun::into_response)
}

/// A response that has begun: its head is there. It is small, because its fields stay where they are until
/// [`Begun::into_response`]. Dropping it closes the connection, even if the head is all there is.
pub struct Begun<B> {
    start: Start,
    transfer: Box<Transfer<B>>,
}

/// What the head of a response says, but for its fields.
struct Start {
    status: StatusCode,
    framing: Framing,
    keep_alive: bool,
}

impl<B: Outgoing> Begun<B> {
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.start.status
    }

    /// The response itself. If it has no body, its connection is free already.
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody<B>> {
        let Self { start: Start { status, framing, keep_alive }, mut transfer } = self;
        let headers = std::mem::take(&mut transfer.headers);
        let mut response = Response::new(ResponseBody::new(transfer, framing, keep_alive));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// What became of a WebSocket handshake.
pub enum Upgraded<B> {
    /// The head of the 101, without fields of the connection.
    Switched(Box<Response<Tunnel>>),
    /// Any other response is one like all others.
    Declined(Begun<B>),
}

/// Sends a WebSocket handshake, whose head `write_head` appends as for [`begin`], and which has no body. `accept` is
/// what its key calls for.
///
/// # Errors
/// As [`begin`]; also if the upstream switches protocols otherwise than was asked for.
pub async fn upgrade<B: Outgoing>(
    connection: Connection,
    limits: Limits,
    accept: Accept,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Upgraded<B>, Failure<B>> {
    let mut transfer = Box::new(Transfer::new(connection, limits, Upload::new(&Method::GET, write_head, body)));
    let mut reader = Reader::upgrading(accept, limits);
    let start = match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
        Ok(start) => start,
        Err(error) => return Err(transfer.fail(error)),
    };
    Ok(if start.status == StatusCode::SWITCHING_PROTOCOLS {
        let Transfer { connection, limits, buffer, headers, .. } = *transfer;
        let mut response = Response::new(Tunnel::new(connection, limits, buffer));
        *response.status_mut() = start.status;
        *response.headers_mut() = headers;
        Upgraded::Switched(Box::new(response))
    } else {
        Upgraded::Declined(Begun { start, transfer })
    })
}

/// Both directions of an exchange under way.
pub(super) struct Transfer<B> {
    pub(super) connection: Connection,
    pub(super) limits: Limits,
    upload: Upload<B>,
    /// How sending ended, once it has.
    sent: Option<Sent>,
    /// Any byte of a response arrived.
    received: bool,
    pub(super) buffer: ReadBuffer,
    /// Fields of the response, from when they are there until somebody takes them.
    headers: HeaderMap,
}

/// The rest of a request whose response has ended. Dropping it closes the connection.
pub struct Rest<B>(Box<Transfer<B>>);

impl<B: Outgoing> Rest<B> {
    /// `None` if sending has ended, or the upstream has said more than its response.
    pub(super) fn new(transfer: Box<Transfer<B>>) -> Option<Self> {
        (transfer.sent.is_none() && transfer.buffer.is_empty()).then_some(Self(transfer))
    }

    /// Bytes of the body that are still to come, at least.
    pub(in crate::proxy) fn length(&self) -> u64 {
        self.0.unsent()
    }

    /// Sends it, and frees the connection for other requests; or drops it if the upstream does not take it, or the client
    /// is silent for `silence`.
    pub(in crate::proxy) async fn send(mut self, silence: Duration) {
        if poll_fn(|cx| self.0.poll_rest(cx, silence)).await {
            self.0.connection.release();
        }
    }
}

/// How sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The kernel has the whole request.
    Whole,
    /// It failed; the upstream may still answer, for example to say why it would not read on.
    Broken,
}

impl<B: Outgoing> Transfer<B> {
    fn new(connection: Connection, limits: Limits, upload: Upload<B>) -> Self {
        let (buffer, headers) = (ReadBuffer::default(), HeaderMap::new());
        Self { connection, limits, upload, sent: None, received: false, buffer, headers }
    }

    /// Sends what can be sent, then reads once; `Ready(Ok(0))` is the end of what the upstream sends.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        large: bool,
        waiting: Waiting,
    ) -> Poll<Result<usize, TransferError>> {
        let sending = self.poll_send(cx)?;
        if let Poll::Ready(read) = self.connection.poll_read(cx, &mut self.buffer, large) {
            let read = read.map_err(TransferError::Read)?;
            self.received |= read > 0;
            return Poll::Ready(Ok(read));
        }
        // What TLS answers to what it has just read, such as a wish to renegotiate, goes out though the request is sent.
        // If that fails, reading tells.
        if self.sent == Some(Sent::Whole) {
            let _told_by_reading = self.connection.poll_flush(cx).is_ready();
        }
        self.poll_overdue(cx, sending, waiting).map(Err)
    }

    /// Sends what can be sent, then moves what there is, at most `most` bytes, into a pipe; `None` is the end of what the
    /// upstream sends.
    pub(super) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: u64,
    ) -> Poll<Result<Option<Pipe>, TransferError>> {
        // All that was read is handed out: the memory is for others while the rest goes past it.
        self.buffer.rest();
        let sending = self.poll_send(cx)?;
        if let Poll::Ready(pipe) = self.connection.poll_pipe(cx, pipes, most) {
            return Poll::Ready(pipe.map_err(TransferError::Read));
        }
        self.poll_overdue(cx, sending, Waiting::Body).map(Err)
    }

    /// Ready when who is waited for takes too long: the client or the upstream, as `sending` says, or the upstream for
    /// what it owes once it has the whole request, which is `waiting`.
    fn poll_overdue(&mut self, cx: &mut Context<'_>, sending: Sending, waiting: Waiting) -> Poll<TransferError> {
        let (limit, error) = sending.limit(&self.limits, waiting);
        ready!(self.connection.poll_overdue(cx, limit));
        Poll::Ready(error)
    }

    /// Whether what the upstream sends comes as it is.
    pub(super) fn is_plain(&self) -> bool {
        self.connection.is_plain()
    }

    /// Sends what can be sent.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<Sending, TransferError> {
        if self.sent.is_some() {
            return Ok(Sending::Finished);
        }
        let sending = match self.upload.poll(cx, &mut self.connection) {
            Ok(sending) => sending,
            Err(SendError::Body(error)) => return Err(TransferError::RequestBody(error)),
            Err(SendError::Write) => {
                // What the upstream said before it stopped listening counts for more.
                self.sent = Some(Sent::Broken);
                return Ok(Sending::Finished);
            }
        };
        if sending == Sending::Finished {
            self.sent = Some(Sent::Whole);
        }
        Ok(sending)
    }

    /// How many bytes of the request's body are still to come at least.
    pub(super) fn unsent(&self) -> u64 {
        if self.sent.is_none() { self.upload.to_come() } else { 0 }
    }

    /// Whether both sides are done with each other, now that the response has ended.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.poll_send(cx).is_ok() && self.sent == Some(Sent::Whole) && self.buffer.is_empty()
    }

    /// Sends on after the response has ended, until the upstream has the whole request: `true`, or until it says
    /// something, takes nothing, or the client is silent for so long: `false`.
    fn poll_rest(&mut self, cx: &mut Context<'_>, silence: Duration) -> Poll<bool> {
        if self.connection.poll_read(cx, &mut self.buffer, false).is_ready() {
            return Poll::Ready(false);
        }
        let Ok(sending) = self.poll_send(cx) else { return Poll::Ready(false) };
        let limit = match sending {
            Sending::Finished => return Poll::Ready(self.sent == Some(Sent::Whole)),
            Sending::Blocked => BLOCKED_MAX,
            Sending::Starved => silence,
        };
        self.connection.poll_overdue(cx, limit).map(|()| false)
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, reader: &mut Reader) -> Poll<Result<Start, ExchangeError>> {
        loop {
            let read = ready!(self.poll_fill(cx, false, Waiting::Head))?;
            if read == 0 {
                let truncated = ExchangeError::Malformed(Malformed::TruncatedHead);
                return Poll::Ready(Err(if self.received { truncated } else { ExchangeError::Closed }));
            }
            if let Some(Head { status, headers, framing, keep_alive }) = reader.read(&mut self.buffer)? {
                self.headers = headers;
                return Poll::Ready(Ok(Start { status, framing, keep_alive }));
            }
        }
    }

    fn fail(self, error: ExchangeError) -> Failure<B> {
        let Self { connection, limits: _, upload, sent: _, received, buffer: _, headers: _ } = self;
        let (reused, written) = (connection.is_reused(), upload.written);
        Failure { error, unsent: upload.unsent().filter(|_| !received), reused, written }
    }
}
