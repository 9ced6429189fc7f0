//! The body of a response: reads the socket when polled, sends the rest of the request meanwhile, and gives the
//! connection back.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{
    BodyError, BoxError, Waiting,
    exchange::Transfer,
    framing::{Decoded, Decoder, Framing},
};

/// From how many bytes to come on a body is read into a large buffer.
const LARGE_FROM: u64 = 32 * 1024;

/// The body of an upstream's response.
///
/// Frames are slices of what was read; nothing is copied. An error means that the body is not whole: it must reach the
/// client as a broken connection, never as an end. After the end or an error there is nothing more.
pub struct ResponseBody<B> {
    /// None once the connection has gone back or was closed.
    transfer: Option<Transfer<B>>,
    decoder: Decoder,
    keep_alive: bool,
    /// The last read filled its buffer: there is more where it came from.
    plenty: bool,
}

impl<B> ResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(transfer: Transfer<B>, framing: Framing, keep_alive: bool) -> Self {
        let decoder = Decoder::new(framing, transfer.limits.headers_max);
        let mut body = Self { transfer: Some(transfer), decoder, keep_alive, plenty: false };
        if body.decoder.is_end() {
            // Nobody polls a body that is empty.
            body.end(&mut Context::from_waker(std::task::Waker::noop()));
        }
        body
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, BodyError>> {
        loop {
            let Some(transfer) = &mut self.transfer else { return Poll::Ready(Ok(None)) };
            match self.decoder.decode(&mut transfer.buffer).map_err(BodyError::Malformed)? {
                Decoded::Data(data) => {
                    if self.decoder.is_end() {
                        // Who knows the length does not ask again.
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
            let large = self.plenty || self.decoder.expected() >= LARGE_FROM;
            let read = ready!(transfer.poll_fill(cx, large, Waiting::Body))?;
            self.plenty = transfer.buffer.len() == transfer.buffer.capacity();
            if read == 0 && !self.decoder.close() {
                return Poll::Ready(Err(BodyError::Truncated));
            }
        }
    }

    fn end(&mut self, cx: &mut Context<'_>) {
        if let Some(transfer) = self.transfer.take() {
            transfer.end(cx, self.keep_alive);
        }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
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
        let Self { transfer: _, decoder, keep_alive, plenty: _ } = self;
        f.debug_struct("ResponseBody").field("decoder", decoder).field("keep_alive", keep_alive).finish_non_exhaustive()
    }
}
