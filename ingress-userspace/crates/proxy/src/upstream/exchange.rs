//! Sends a request and reads the response head; [`ResponseBody`] continues the exchange from there.

use std::{
    future::{Future, poll_fn},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, Method, Response, StatusCode};

use super::{
    Connection, ExchangeError, ExchangeFailure, ExchangeLimits, Malformed, ResponseBody, TimeoutPhase,
    buffer::ReadBuffer,
    error::TransferError,
    framing::Framing,
    head::{Accept, HeadReader, ResponseHead},
    tunnel::UpstreamTunnel,
    upload::{Outgoing, RequestUpload, SendError, Sending},
};
use crate::l4::pipe::{Pipe, Pipes};

/// Longest time for which an upstream may block the rest of a request after its response has ended. Keeping the
/// connection is worth less than the time of a client that waits to send its next request.
const BLOCKED_MAX: Duration = Duration::from_millis(250);

/// Sends one request and returns as soon as the response head is there.
///
/// `write_head` appends the request line and the header fields, each with its line end, but neither `content-length`
/// nor `transfer-encoding` nor the empty line: the framing depends on `body` (exact size hint: `content-length`, none:
/// `chunked`, empty body: `content-length: 0` for POST, PUT and PATCH). It must not append hop-by-hop fields except
/// those named in its own `Connection` field. It is called at once, before the future is polled.
///
/// The head and the first frame of the body go out in one write, unless the first part of the body is in a pipe. A body
/// that is unfinished when the response begins is sent while the [`ResponseBody`] is polled. Dropping the future, or
/// the response body before its end, closes the connection.
///
/// # Errors
/// [`ExchangeFailure`] if there is no well-formed final response head within `limits`; the connection is closed then.
pub fn begin<B: Outgoing>(
    connection: Connection,
    limits: ExchangeLimits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> impl Future<Output = Result<BegunExchange<B>, ExchangeFailure<B>>> {
    // Created outside the future, so that the future holds nothing else. Boxed, because it is moved many times until
    // the response reaches the client.
    let mut transfer = Box::new(Transfer::new(connection, limits, RequestUpload::new(method, write_head, body)));
    async move {
        let mut reader = HeadReader::new(method, transfer.limits);
        match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
            Ok(start) => Ok(BegunExchange { start, transfer }),
            Err(error) => Err(transfer.fail(error)),
        }
    }
}

/// Like [`begin`], but returns the response at once.
///
/// # Errors
/// Like [`begin`].
pub async fn exchange<B: Outgoing>(
    connection: Connection,
    limits: ExchangeLimits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Response<ResponseBody<B>>, ExchangeFailure<B>> {
    begin(connection, limits, method, write_head, body).await.map(BegunExchange::into_response)
}

/// A response with a complete head. It is small, because the fields stay in the transfer until
/// [`BegunExchange::into_response`]. Dropping it closes the connection, even if the response has no body.
pub struct BegunExchange<B> {
    start: ResponseStart,
    transfer: Box<Transfer<B>>,
}

/// The head of a response without its fields.
struct ResponseStart {
    status: StatusCode,
    framing: Framing,
    keep_alive: bool,
}

impl<B: Outgoing> BegunExchange<B> {
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.start.status
    }

    /// Returns the response. If it has no body, its connection has already been returned to the pool.
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody<B>> {
        let Self { start: ResponseStart { status, framing, keep_alive }, mut transfer } = self;
        let headers = transfer.headers.take();
        let mut response = Response::new(ResponseBody::new(transfer, framing, keep_alive));
        *response.status_mut() = status;
        *response.headers_mut() = headers.unwrap_or_default();
        response
    }
}

/// The outcome of a WebSocket handshake.
pub enum Upgraded<B> {
    /// The head of the 101, without hop-by-hop fields.
    Switched(Box<Response<UpstreamTunnel>>),
    /// Any other response, which is handled like all others.
    Declined(BegunExchange<B>),
}

/// Sends a WebSocket handshake without a body. `write_head` appends its head as for [`begin`], and `accept` is the
/// value expected for its key.
///
/// # Errors
/// Like [`begin`]; also if the upstream switches protocols in a way that was not requested.
pub async fn upgrade<B: Outgoing>(
    connection: Connection,
    limits: ExchangeLimits,
    accept: Accept,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Upgraded<B>, ExchangeFailure<B>> {
    let mut transfer = Box::new(Transfer::new(connection, limits, RequestUpload::new(&Method::GET, write_head, body)));
    let mut reader = HeadReader::upgrading(accept, limits);
    let start = match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
        Ok(start) => start,
        Err(error) => return Err(transfer.fail(error)),
    };
    Ok(if start.status == StatusCode::SWITCHING_PROTOCOLS {
        let Transfer { connection, limits, buffer, headers, .. } = *transfer;
        let mut response = Response::new(UpstreamTunnel::new(connection, limits, buffer));
        *response.status_mut() = start.status;
        *response.headers_mut() = headers.unwrap_or_default();
        Upgraded::Switched(Box::new(response))
    } else {
        Upgraded::Declined(BegunExchange { start, transfer })
    })
}

/// Both directions of an exchange in progress.
pub(super) struct Transfer<B> {
    pub(super) connection: Connection,
    pub(super) limits: ExchangeLimits,
    upload: RequestUpload<B>,
    /// The outcome of sending, once it has ended.
    sent: Option<SendOutcome>,
    /// Whether any byte of a response has arrived.
    received: bool,
    pub(super) buffer: ReadBuffer,
    /// The response's fields, from parsing the head until they are taken. An empty map would cost more to drop.
    headers: Option<HeaderMap>,
}

/// The rest of a request after its response has ended. Dropping it closes the connection.
pub struct RequestRemainder<B>(Box<Transfer<B>>);

impl<B: Outgoing> RequestRemainder<B> {
    /// Returns `None` if sending has ended, or if the upstream sent more than its response.
    pub(super) fn new(transfer: Box<Transfer<B>>) -> Option<Self> {
        (transfer.sent.is_none() && transfer.buffer.is_empty()).then_some(Self(transfer))
    }

    /// Returns the minimum number of body bytes still to come.
    pub(crate) fn length(&self) -> u64 {
        self.0.unsent()
    }

    /// Sends the rest and returns the connection to the pool. Closes it instead if the upstream does not accept the
    /// rest, or if the client sends nothing for `silence`.
    pub(crate) async fn send(mut self, silence: Duration) {
        if poll_fn(|cx| self.0.poll_remainder(cx, silence)).await {
            self.0.connection.release();
        }
    }
}

/// The outcome of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendOutcome {
    /// The kernel has the whole request.
    Whole,
    /// Sending failed; the upstream may still send a response, for example with the reason.
    Broken,
}

impl<B: Outgoing> Transfer<B> {
    fn new(connection: Connection, limits: ExchangeLimits, upload: RequestUpload<B>) -> Self {
        Self { connection, limits, upload, sent: None, received: false, buffer: ReadBuffer::default(), headers: None }
    }

    /// Sends as much as possible, then reads once; `Ready(Ok(0))` is the end of the upstream's stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        large: bool,
        waiting: TimeoutPhase,
    ) -> Poll<Result<usize, TransferError>> {
        let sending = self.poll_send(cx)?;
        if let Poll::Ready(read) = self.connection.poll_read(cx, &mut self.buffer, large) {
            let read = read.map_err(TransferError::Read)?;
            self.received |= read > 0;
            return Poll::Ready(Ok(read));
        }
        // Flushes TLS records produced by the last read, such as the answer to a renegotiation request, even though the
        // request is sent. An error shows up at the next read.
        if self.sent == Some(SendOutcome::Whole) {
            let _told_by_reading = self.connection.poll_flush(cx).is_ready();
        }
        self.poll_overdue(cx, sending, waiting).map(Err)
    }

    /// Sends as much as possible, then moves up to `most` available bytes into a pipe; `None` is the end of the
    /// upstream's stream.
    pub(super) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: u64,
    ) -> Poll<Result<Option<Pipe>, TransferError>> {
        // All bytes read have been returned. The buffer's memory is freed for others while the rest bypasses it.
        self.buffer.rest();
        let sending = self.poll_send(cx)?;
        if let Poll::Ready(pipe) = self.connection.poll_pipe(cx, pipes, most) {
            return Poll::Ready(pipe.map_err(TransferError::Read));
        }
        self.poll_overdue(cx, sending, TimeoutPhase::Body).map(Err)
    }

    /// Ready once the current wait is too long. `sending` determines whether the client or the upstream is late; once
    /// the upstream has the whole request, it owes `waiting`.
    fn poll_overdue(&mut self, cx: &mut Context<'_>, sending: Sending, waiting: TimeoutPhase) -> Poll<TransferError> {
        let (limit, error) = sending.limit(&self.limits, waiting);
        ready!(self.connection.poll_overdue(cx, limit));
        Poll::Ready(error)
    }

    /// Returns whether the connection has no TLS.
    pub(super) fn is_plain(&self) -> bool {
        self.connection.is_plain()
    }

    /// Sends as much as possible.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<Sending, TransferError> {
        if self.sent.is_some() {
            return Ok(Sending::Finished);
        }
        let sending = match self.upload.poll(cx, &mut self.connection) {
            Ok(sending) => sending,
            Err(SendError::Body(error)) => return Err(TransferError::RequestBody(error)),
            Err(SendError::Write) => {
                // A response that the upstream sent before it stopped reading takes precedence.
                self.sent = Some(SendOutcome::Broken);
                return Ok(Sending::Finished);
            }
        };
        if sending == Sending::Finished {
            self.sent = Some(SendOutcome::Whole);
        }
        Ok(sending)
    }

    /// Returns the minimum number of request body bytes still to come.
    pub(super) fn unsent(&self) -> u64 {
        if self.sent.is_none() { self.upload.to_come() } else { 0 }
    }

    /// Returns whether both sides have finished, now that the response has ended.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.poll_send(cx).is_ok() && self.sent == Some(SendOutcome::Whole) && self.buffer.is_empty()
    }

    /// Continues sending after the end of the response. Resolves to `true` once the upstream has the whole request.
    /// Resolves to `false` if the upstream sends anything, blocks for [`BLOCKED_MAX`], or the client is silent for
    /// `silence`.
    fn poll_remainder(&mut self, cx: &mut Context<'_>, silence: Duration) -> Poll<bool> {
        if self.connection.poll_read(cx, &mut self.buffer, false).is_ready() {
            return Poll::Ready(false);
        }
        let Ok(sending) = self.poll_send(cx) else { return Poll::Ready(false) };
        let limit = match sending {
            Sending::Finished => return Poll::Ready(self.sent == Some(SendOutcome::Whole)),
            Sending::Blocked => BLOCKED_MAX,
            Sending::Starved => silence,
        };
        self.connection.poll_overdue(cx, limit).map(|()| false)
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut HeadReader,
    ) -> Poll<Result<ResponseStart, ExchangeError>> {
        loop {
            let read = ready!(self.poll_fill(cx, false, TimeoutPhase::Head))?;
            if read == 0 {
                let truncated = ExchangeError::Malformed(Malformed::TruncatedHead);
                return Poll::Ready(Err(if self.received { truncated } else { ExchangeError::Closed }));
            }
            if let Some(ResponseHead { status, headers, framing, keep_alive }) = reader.read(&mut self.buffer)? {
                self.headers = Some(headers);
                return Poll::Ready(Ok(ResponseStart { status, framing, keep_alive }));
            }
        }
    }

    fn fail(self, error: ExchangeError) -> ExchangeFailure<B> {
        let Self { connection, limits: _, upload, sent: _, received, buffer: _, headers: _ } = self;
        let (reused, written) = (connection.is_reused(), upload.written);
        ExchangeFailure { error, unsent: upload.unsent().filter(|_| !received), reused, written }
    }
}
