//! The body of a response: reads the socket when polled, sends the rest of the request meanwhile, and returns the
//! connection to the pool.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{
    BodyError, Outgoing, TimeoutPhase,
    exchange::{RequestRemainder, Transfer},
    framing::{Decoded, Decoder, Framing},
};
use crate::l4::pipe::{Pipe, Pipes};

/// Number of outstanding body bytes from which a large buffer is used for reading.
const LARGE_FROM: u64 = 32 * 1024;

/// The body of an upstream's response.
///
/// Frames are slices of the read buffer; nothing is copied. An error means that the body is incomplete: it must reach
/// the client as a broken connection, never as a regular end. After the end or an error, no more frames follow.
pub struct ResponseBody<B> {
    /// `None` once the connection was returned to the pool or closed.
    transfer: Option<Box<Transfer<B>>>,
    decoder: Decoder,
    keep_alive: bool,
    /// The rest of the request, if the response has ended before it was sent.
    rest: Option<RequestRemainder<B>>,
    /// Whether the last read filled its buffer, which suggests that more is available.
    plenty: bool,
    /// Disables large buffers, regardless of the outstanding length.
    small: bool,
}

impl<B: Outgoing> ResponseBody<B> {
    pub(super) fn new(transfer: Box<Transfer<B>>, framing: Framing, keep_alive: bool) -> Self {
        let decoder = Decoder::new(framing, transfer.limits.headers_max);
        let mut body = Self { transfer: Some(transfer), decoder, keep_alive, rest: None, plenty: false, small: false };
        if body.decoder.is_end() {
            // An empty body is never polled, so it ends here.
            body.end(&mut Context::from_waker(std::task::Waker::noop()));
        }
        body
    }

    /// Sets whether large buffers are avoided from now on, because memory is scarce.
    pub(crate) fn read_small(&mut self, small: bool) {
        self.small = small;
    }

    /// Returns whether bytes were read that have not been returned as frames yet.
    pub(crate) fn has_read(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| !transfer.buffer.is_empty())
    }

    /// Returns the number of bytes to come from the upstream's socket that belong to the body without any framing; 0 if
    /// that is unknown, or with TLS.
    pub(crate) fn unread(&self) -> u64 {
        match (&self.transfer, self.decoder.remaining()) {
            (Some(transfer), Some(left)) if transfer.is_plain() => left.saturating_sub(transfer.buffer.len() as u64),
            _ => 0,
        }
    }

    /// Takes the unsent rest of the request after the response has ended, if its connection is worth keeping.
    pub(crate) fn take_remainder(&mut self) -> Option<RequestRemainder<B>> {
        self.rest.take()
    }

    /// Returns the minimum number of request body bytes still to come, if the whole response has been read, and
    /// otherwise 0.
    pub(crate) fn unsent(&self) -> u64 {
        match (&self.transfer, self.decoder.remaining()) {
            (Some(transfer), Some(left)) if left <= transfer.buffer.len() as u64 => transfer.unsent(),
            _ => 0,
        }
    }

    /// Moves the next bytes into a pipe; `None` at the end. Requires that [`Self::unread`] is not zero and that all
    /// bytes of [`Self::has_read`] have been returned.
    pub(crate) fn poll_pipe(&mut self, cx: &mut Context<'_>, pipes: &Pipes) -> Poll<Result<Option<Pipe>, BodyError>> {
        let next = ready!(self.poll_next_pipe(cx, pipes));
        if next.is_err() {
            self.transfer = None;
        }
        Poll::Ready(next)
    }

    fn poll_next_pipe(&mut self, cx: &mut Context<'_>, pipes: &Pipes) -> Poll<Result<Option<Pipe>, BodyError>> {
        let (Some(transfer), Some(left)) = (&mut self.transfer, self.decoder.remaining()) else {
            return Poll::Ready(Ok(None));
        };
        let Some(pipe) = ready!(transfer.poll_pipe(cx, pipes, left))? else {
            return Poll::Ready(Err(BodyError::Truncated));
        };
        self.decoder.pass(pipe.held() as u64);
        if self.decoder.is_end() {
            self.end(cx);
        }
        Poll::Ready(Ok(Some(pipe)))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, BodyError>> {
        loop {
            let Some(transfer) = &mut self.transfer else { return Poll::Ready(Ok(None)) };
            match self.decoder.decode(&mut transfer.buffer).map_err(BodyError::Malformed)? {
                Decoded::Data(data) => {
                    if self.decoder.is_end() {
                        // A caller that knows the length does not poll again.
                        self.end(cx);
                    } else {
                        transfer.poll_send(cx)?;
                    }
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Decoded::Trailers(trailers) => {
                    self.end(cx);
                    return Poll::Ready(Ok(Some(Frame::trailers(trailers))));
                }
                Decoded::End => {
                    self.end(cx);
                    return Poll::Ready(Ok(None));
                }
                Decoded::More => {}
            }
            let large = !self.small && (self.plenty || self.decoder.expected() >= LARGE_FROM);
            let read = ready!(transfer.poll_fill(cx, large, TimeoutPhase::Body))?;
            self.plenty = transfer.buffer.len() == transfer.buffer.capacity();
            if read == 0 && !self.decoder.close() {
                return Poll::Ready(Err(BodyError::Truncated));
            }
        }
    }

    /// Returns the connection to the pool if both sides have finished the exchange.
    fn end(&mut self, cx: &mut Context<'_>) {
        let Some(mut transfer) = self.transfer.take() else { return };
        let is_over = transfer.is_over(cx);
        if !self.keep_alive {
            return;
        }
        if is_over {
            transfer.connection.release();
        } else {
            self.rest = RequestRemainder::new(transfer);
        }
    }
}

impl<B: Outgoing> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let next = ready!(this.poll_next(cx));
        if next.is_err() {
            this.transfer = None;
        }
        Poll::Ready(next.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.transfer.is_none() && self.decoder.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder.remaining().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transfer: _, decoder, keep_alive, rest: _, plenty: _, small: _ } = self;
        f.debug_struct("ResponseBody").field("decoder", decoder).field("keep_alive", keep_alive).finish_non_exhaustive()
    }
}
