//! One request out, one response head in; the body of the response goes on from there.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body::Body;

use super::{
    BoxError, Connection, ExchangeError, Failure, Limits, Malformed, ResponseBody, Waiting,
    buffer::ReadBuffer,
    error::TransferError,
    head::{Accept, Head, Reader},
    tunnel::Tunnel,
    upload::{SendError, Sending, Upload},
};

/// Sends one request and returns as soon as the response head is there.
///
/// `write_head` appends the request line and the header fields, each with its line end, but neither `content-length`
/// nor `transfer-encoding` nor the empty line: framing follows from `body` (exact size hint: `content-length`, none:
/// `chunked`, nothing to send: `content-length: 0` for POST, PUT and PATCH). What it appends must hold no hop-by-hop
/// fields but those that it names itself.
///
/// The head and the first frame of the body go out in one write. A body that is not finished when the response begins
/// goes on while the [`ResponseBody`] is polled. Dropping the future, or the response body before its end, closes the
/// connection.
///
/// # Errors
/// [`Failure`] if there is no well-formed final response head within `limits`; the connection is closed then.
pub async fn exchange<B>(
    connection: Connection,
    limits: Limits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Response<ResponseBody<B>>, Failure<B>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut transfer = Transfer::new(connection, limits, Upload::new(method, write_head, body));
    let mut reader = Reader::new(method, limits);
    match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
        Ok(head) => {
            let Head { status, version: _, headers, framing, keep_alive } = head;
            let mut response = Response::new(ResponseBody::new(transfer, framing, keep_alive));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            Ok(response)
        }
        Err(error) => Err(transfer.fail(error)),
    }
}

/// What became of a WebSocket handshake.
pub enum Upgraded<B> {
    /// The head of the 101, without fields of the connection.
    Switched(Response<Tunnel>),
    /// Any other response is one like all others.
    Declined(Response<ResponseBody<B>>),
}

/// Sends a WebSocket handshake, whose head `write_head` appends as for [`exchange`], and which has no body. `accept` is
/// what its key calls for.
///
/// # Errors
/// As [`exchange`]; also if the upstream switches protocols otherwise than was asked for.
pub async fn upgrade<B>(
    connection: Connection,
    limits: Limits,
    accept: Accept,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Upgraded<B>, Failure<B>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut transfer = Transfer::new(connection, limits, Upload::new(&Method::GET, write_head, body));
    let mut reader = Reader::upgrading(accept, limits);
    let head = match poll_fn(|cx| transfer.poll_head(cx, &mut reader)).await {
        Ok(head) => head,
        Err(error) => return Err(transfer.fail(error)),
    };
    let Head { status, version: _, headers, framing, keep_alive } = head;
    let mut parts = Response::new(()).into_parts().0;
    (parts.status, parts.headers) = (status, headers);
    Ok(if status == StatusCode::SWITCHING_PROTOCOLS {
        let Transfer { connection, limits, buffer, .. } = transfer;
        Upgraded::Switched(Response::from_parts(parts, Tunnel::new(connection, limits, buffer)))
    } else {
        Upgraded::Declined(Response::from_parts(parts, ResponseBody::new(transfer, framing, keep_alive)))
    })
}

/// Both directions of an exchange under way.
pub(super) struct Transfer<B> {
    connection: Connection,
    pub(super) limits: Limits,
    upload: Upload<B>,
    /// Sending failed; the upstream may still answer, for example to say why it would not read on.
    broken: bool,
    /// Any byte of a response arrived.
    received: bool,
    pub(super) buffer: ReadBuffer,
}

impl<B> Transfer<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn new(connection: Connection, limits: Limits, upload: Upload<B>) -> Self {
        Self { connection, limits, upload, broken: false, received: false, buffer: ReadBuffer::default() }
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
        let (limit, error) = sending.limit(&self.limits, waiting);
        ready!(self.connection.poll_overdue(cx, limit));
        Poll::Ready(Err(error))
    }

    /// Sends what can be sent.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<Sending, TransferError> {
        if self.broken {
            return Ok(Sending::Finished);
        }
        match self.upload.poll(cx, &mut self.connection) {
            Ok(sending) => Ok(sending),
            Err(SendError::Body(error)) => Err(TransferError::RequestBody(error)),
            Err(SendError::Write) => {
                // What the upstream said before it stopped listening counts for more.
                self.broken = true;
                Ok(Sending::Finished)
            }
        }
    }

    /// Ends the exchange after the end of the response: the connection serves again if both sides are done with each
    /// other.
    pub(super) fn end(mut self, cx: &mut Context<'_>, keep_alive: bool) {
        let sent = !self.broken && matches!(self.poll_send(cx), Ok(Sending::Finished));
        if keep_alive && sent && !self.broken && self.buffer.is_empty() {
            self.connection.release();
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, reader: &mut Reader) -> Poll<Result<Head, ExchangeError>> {
        loop {
            let read = ready!(self.poll_fill(cx, false, Waiting::Head))?;
            if read == 0 {
                let truncated = ExchangeError::Malformed(Malformed::TruncatedHead);
                return Poll::Ready(Err(if self.received { truncated } else { ExchangeError::Closed }));
            }
            if let Some(head) = reader.read(&mut self.buffer)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    fn fail(self, error: ExchangeError) -> Failure<B> {
        let Self { connection, limits: _, upload, broken: _, received, buffer: _ } = self;
        let (reused, written) = (connection.is_reused(), upload.written);
        Failure { error, unsent: upload.unsent().filter(|_| !received), reused, written }
    }
}
