//! The body of a client's request: counted, bounded, paced, and copied for mirrors as it passes. Apart from bytes kept
//! on request, it is not buffered here.

use std::{
    cell::Cell,
    future::poll_fn,
    num::NonZeroU32,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::timeout;

use crate::{
    downstream::{
        conn::Conn,
        pace::Pace,
        upload_splice::{Misplaced, Tap},
    },
    http::headers,
    l4::pipe::Pipe,
    observe::counters::{self, Direction},
    request::{body_copy::BodyCopy, buffering::RequestBuffer, in_flight::InFlight, unread_body::UnreadBody},
    upstream::{BodyPart, BoxError, ExchangeError, Outgoing},
};

/// The body of a client's request. It is passed through many calls, so it is small: most requests have none.
#[derive(Debug, Default)]
pub(crate) struct RequestBody(Option<Box<UploadBody>>);

/// A body with bytes.
#[derive(Debug)]
struct UploadBody {
    incoming: UnreadBody,
    /// The upload splice, if the body may come through pipes.
    tap: Option<Tap>,
    /// Number of bytes that may still come.
    left: u64,
    bytes: counters::Bytes,
    /// Whether trailers are dropped: a rule that changes fields must not be bypassed by trailers.
    without_trailers: bool,
    /// A second counter, for the access log.
    counter: Option<Rc<Cell<u64>>>,
    /// The copies of the body for mirrors.
    copies: Vec<BodyCopy>,
    /// Buffered bytes that precede `incoming`.
    kept: Option<RequestBuffer>,
    pace: Pace,
    /// Minimum rate of the body in bytes per second.
    min_rate: Option<NonZeroU32>,
    /// Start of the current wait for the client.
    waiting: Option<Instant>,
}

/// A request body that is longer than its rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request body is longer than allowed")]
pub(crate) struct TooLarge;

/// A request body that arrives at less than the minimum rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request body comes too slowly")]
pub(crate) struct TooSlow;

// === impl RequestBody ===

impl RequestBody {
    /// Creates a body of at most `max` bytes for the request `in_flight`.
    ///
    /// # Errors
    /// If the announced length exceeds `max`.
    pub(crate) fn new(incoming: UnreadBody, max: Option<u64>, in_flight: &InFlight) -> Result<Self, TooLarge> {
        let left = max.unwrap_or(u64::MAX);
        if incoming.size_hint().lower() > left {
            return Err(TooLarge);
        }
        if incoming.is_end_stream() {
            return Ok(Self::default());
        }
        Ok(Self(Some(Box::new(UploadBody {
            tap: Tap::new(in_flight.conn(), incoming.size_hint().exact()),
            incoming,
            left,
            bytes: counters::Bytes::new(in_flight.cell(), Direction::In),
            without_trailers: false,
            counter: None,
            copies: Vec::new(),
            kept: None,
            pace: Pace::default(),
            min_rate: None,
            waiting: None,
        }))))
    }

    /// Sets the minimum rate, in bytes per second, below which the body fails. `min` is not called for a request
    /// without a body.
    pub(crate) fn hurry(&mut self, min: impl FnOnce() -> Option<NonZeroU32>) {
        if let Some(upload) = &mut self.0 {
            upload.min_rate = min();
        }
    }

    /// Buffers the body until it is complete, has `max` bytes, or no more may be buffered for pods of `namespace`.
    ///
    /// # Errors
    /// If the body fails, or no bytes arrive within `silence`.
    pub(crate) async fn keep(
        &mut self,
        conn: &Rc<Conn>,
        namespace: &str,
        max: usize,
        silence: Duration,
    ) -> Result<(), ExchangeError> {
        let Some(upload) = &mut self.0 else { return Ok(()) };
        // Buffered bytes are not in a pipe.
        upload.tap = None;
        let mut kept = RequestBuffer::new(conn, namespace);
        while !upload.incoming.is_end_stream() && kept.len() < max && kept.has_room() {
            let frame = timeout(silence, poll_fn(|cx| upload.poll_incoming(cx))).await;
            match frame.map_err(|_elapsed| ExchangeError::Starved)? {
                Some(Ok(BodyPart::Frame(frame))) => kept.put(frame),
                Some(Ok(BodyPart::Pipe(_))) => return Err(ExchangeError::RequestBody(Misplaced.into())),
                Some(Err(error)) => return Err(ExchangeError::RequestBody(error)),
                None => break,
            }
        }
        upload.kept = Some(kept);
        Ok(())
    }

    /// Drops the trailers.
    pub(crate) fn cut_trailers(&mut self) {
        if let Some(upload) = &mut self.0 {
            upload.without_trailers = true;
        }
    }

    /// Counts the bytes in `counter` as well.
    pub(crate) fn attach(&mut self, counter: Option<Rc<Cell<u64>>>) {
        if let Some(upload) = &mut self.0 {
            upload.counter = counter;
        }
    }

    /// Copies the bytes for one more mirror.
    pub(crate) fn copy_to(&mut self, copy: BodyCopy) {
        if let Some(upload) = &mut self.0 {
            upload.tap = None;
            upload.copies.push(copy);
        }
    }
}

impl UploadBody {
    /// Returns the next part, whether buffered or not.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<BodyPart, BoxError>>> {
        if let Some(frame) = self.kept.as_mut().and_then(RequestBuffer::take) {
            self.kept.take_if(|kept| kept.is_empty());
            return Poll::Ready(Some(Ok(BodyPart::Frame(frame))));
        }
        self.poll_incoming(cx)
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<BodyPart, BoxError>>> {
        if self.copies.iter().any(BodyCopy::is_behind) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let to_come = self.incoming.size_hint().lower();
        let Poll::Ready(mut frame) = self.incoming.poll_frame(cx) else {
            if self.min_rate.is_some() && self.waiting.is_none() {
                self.waiting = self.incoming.now();
            }
            return Poll::Pending;
        };
        if let Some(trailers) = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut()) {
            if self.without_trailers {
                frame = None;
            } else {
                headers::strip_trailers(trailers);
            }
        }
        let mut pipe = None;
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.bytes.add(data.len());
            self.pace = match self.waiting.take().zip(self.incoming.now()) {
                Some((since, now)) => self.pace.add(now.saturating_duration_since(since), data.len()),
                None => self.pace.with(data.len()),
            };
            if self.pace.is_below(self.min_rate) && !self.incoming.is_end_stream() {
                self.incoming.came_too_slowly();
                return Poll::Ready(Some(Err(TooSlow.into())));
            }
            if let Some(counter) = &self.counter {
                counter.set(counter.get() + data.len() as u64);
            }
            match self.left.checked_sub(data.len() as u64) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(TooLarge.into()))),
            }
            self.copies.iter().for_each(|copy| copy.push(data));
            if let Some(tap) = &self.tap {
                pipe = tap.take(to_come, data.len())?;
            }
        }
        // A body is not polled again once its end is known, and trailers are an end as well.
        let is_last = frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers));
        if !self.copies.is_empty() && (is_last || self.incoming.is_end_stream()) {
            self.copies.iter().for_each(BodyCopy::end);
        }
        Poll::Ready(
            pipe.map_or_else(|| frame.map(|frame| frame.map(BodyPart::Frame)), |pipe| Some(Ok(BodyPart::Pipe(pipe)))),
        )
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(upload) = &mut self.0 else { return Poll::Ready(None) };
        let part = std::task::ready!(upload.poll_next(cx)).transpose()?;
        Poll::Ready(match part {
            // The previous consumer accepted pipes, and the current one does not.
            Some(BodyPart::Pipe(mut pipe)) => {
                let bytes = pipe.take_bytes();
                self.take_back(pipe);
                Some(bytes.map(Frame::data).map_err(BoxError::from))
            }
            Some(BodyPart::Frame(frame)) => Some(Ok(frame)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|upload| {
            upload.kept.as_ref().is_none_or(RequestBuffer::is_empty) && upload.incoming.is_end_stream()
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(upload) = &self.0 else { return SizeHint::with_exact(0) };
        let rest = upload.incoming.size_hint();
        upload.kept.as_ref().map_or(rest, |kept| kept.size_hint(&rest))
    }
}

impl Outgoing for RequestBody {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<BodyPart, BoxError>>> {
        let Some(upload) = &mut self.0 else { return Poll::Ready(None) };
        if let Some(tap) = &upload.tap {
            tap.open();
        }
        upload.poll_next(cx)
    }

    fn take_back(&mut self, pipe: Pipe) {
        if let Some(tap) = self.0.as_ref().and_then(|upload| upload.tap.as_ref()) {
            tap.give_back(pipe);
        }
    }
}
