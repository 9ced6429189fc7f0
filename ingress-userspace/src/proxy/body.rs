//! Bodies on their way through, counted as they pass. Nothing is buffered here.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use ingress_common::{HostL7Cell, StatusClass};
use tokio::time::timeout;

use super::{
    backlog::{Piece, Place},
    compress::Compressed,
    conn::Conn,
    counters::{self, Direction},
    headers,
    in_flight::InFlight,
    intake::Tap,
    mirror::BodyCopy,
    pipe::{Pipe, WORTHWHILE},
    rest::{Rest, Unread},
    upstream::{BodyError, BoxError, Outgoing, Part, ResponseBody, h2},
};
use crate::model::Offer;

/// Longest frame on an HTTP/2 stream. A client that shares a slow line between many streams takes one of each in turn,
/// and each frame taken is a sign of life: see `offers`. With its header it fills one record of TLS (RFC 8446, 5.1).
const FRAME_MAX: usize = RECORD_MAX - 9;
/// Most bytes in a record, and what reads bring. What is no longer is not worth another frame of nine bytes.
const RECORD_MAX: usize = 16 * 1024;

/// The body of a client's request.
#[derive(Debug)]
pub(super) struct RequestBody {
    incoming: Unread,
    /// Where it may come from through pipes.
    tap: Option<Tap>,
    /// How many bytes may still come.
    left: u64,
    bytes: counters::Bytes,
    /// Whether no trailers pass: what the rule changes of fields, nobody may say behind them.
    without_trailers: bool,
    /// Counts them once more, for the access log.
    told: Option<Rc<Cell<u64>>>,
    /// Where what comes is left for a mirror.
    copy: Option<BodyCopy>,
}

/// A body of a request that is longer than its rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request body is longer than allowed")]
pub(super) struct TooLarge;

/// The body of the response to a client. The request is in flight for as long as this lives.
pub(super) struct Body {
    source: Source,
    /// What is left of the latest frame.
    rest: Piece,
    /// Where what is handed over counts, over HTTP/2, once there is any.
    place: Option<Place>,
    bytes: counters::Bytes,
    class: StatusClass,
    /// Goes to the client through a pipe, unless something is put in between.
    is_piped: bool,
    /// None for a 101: the request goes on in its tunnel.
    in_flight: Option<InFlight>,
}

/// Where a body comes from.
pub(super) enum Source {
    Http1(ResponseBody<RequestBody>),
    Http2(Box<h2::ResponseBody<RequestBody>>),
    Compressed(Box<Compressed>),
    Own(Bytes),
}

// === impl RequestBody ===

impl RequestBody {
    /// A body of at most `max` bytes, of the request `in_flight`.
    ///
    /// # Errors
    /// If it says that it is longer.
    pub(super) fn new(incoming: Unread, max: Option<u64>, in_flight: &InFlight) -> Result<Self, TooLarge> {
        let left = max.unwrap_or(u64::MAX);
        if incoming.size_hint().lower() > left {
            return Err(TooLarge);
        }
        Ok(Self {
            tap: Tap::new(in_flight.conn(), incoming.size_hint().exact()),
            incoming,
            left,
            bytes: counters::Bytes::new(in_flight.cell(), Direction::In),
            without_trailers: false,
            told: None,
            copy: None,
        })
    }

    /// None, of a request whose bytes count in `cell`.
    pub(super) fn none(cell: &'static HostL7Cell) -> Self {
        let bytes = counters::Bytes::new(cell, Direction::In);
        Self { incoming: Unread::none(), tap: None, left: 0, bytes, without_trailers: false, told: None, copy: None }
    }

    /// Lets no trailers pass.
    pub(super) fn cut_trailers(&mut self) {
        self.without_trailers = true;
    }

    /// Adds what comes to `told`, too.
    pub(super) fn tell(&mut self, told: Option<Rc<Cell<u64>>>) {
        self.told = told;
    }

    /// Leaves what comes for a mirror, too.
    pub(super) fn copy_to(&mut self, copy: BodyCopy) {
        self.tap = None;
        self.copy = Some(copy);
    }

    /// Another of the same, if there is nothing to come.
    pub(super) fn spare(&self) -> Option<Self> {
        self.is_end_stream().then(|| Self {
            incoming: Unread::none(),
            tap: None,
            left: self.left,
            bytes: self.bytes.another(),
            without_trailers: self.without_trailers,
            told: None,
            copy: None,
        })
    }

    /// What comes next, where it is.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, BoxError>>> {
        if self.copy.as_ref().is_some_and(BodyCopy::is_behind) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let to_come = self.incoming.size_hint().lower();
        let frame = std::task::ready!(self.incoming.poll_frame(cx));
        let mut frame = frame.map(|frame| frame.map_err(BoxError::from));
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
            if let Some(told) = &self.told {
                told.set(told.get() + data.len() as u64);
            }
            match self.left.checked_sub(data.len() as u64) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(TooLarge.into()))),
            }
            if let Some(copy) = &self.copy {
                copy.push(data);
            }
            if let Some(tap) = &self.tap {
                pipe = tap.take(to_come, data.len())?;
            }
        }
        // A body is not polled again once its end is known, which trailers are, too.
        let is_last = frame.as_ref().is_none_or(|frame| frame.as_ref().is_ok_and(Frame::is_trailers));
        if (is_last || self.is_end_stream())
            && let Some(copy) = &self.copy
        {
            copy.end();
        }
        Poll::Ready(pipe.map_or_else(|| frame.map(|frame| frame.map(Part::Frame)), |pipe| Some(Ok(Part::Piped(pipe)))))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let part = std::task::ready!(self.poll_next(cx)).transpose()?;
        Poll::Ready(match part {
            // It was for somebody who takes pipes, and has left it to somebody who does not.
            Some(Part::Piped(mut pipe)) => {
                let bytes = pipe.take_bytes();
                self.take_back(pipe);
                Some(bytes.map(Frame::data).map_err(BoxError::from))
            }
            Some(Part::Frame(frame)) => Some(Ok(frame)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Outgoing for RequestBody {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, BoxError>>> {
        if let Some(tap) = &self.tap {
            tap.open();
        }
        self.poll_next(cx)
    }

    fn take_back(&mut self, pipe: Pipe) {
        if let Some(tap) = &self.tap {
            tap.give_back(pipe);
        }
    }
}

// === impl Body ===

impl Body {
    /// A response of an upstream. `bodiless` if its status or the request's method rule a body out (RFC 9110, 6.4.1).
    pub(super) fn upstream(source: Source, class: StatusClass, bodiless: bool, in_flight: InFlight) -> Self {
        let ended = bodiless || source.is_end_stream();
        let is_piped = !ended && source.unread() >= WORTHWHILE && in_flight.conn().takes_pipes();
        Self { is_piped, ..Self::new(source, class, ended, in_flight) }
    }

    /// That of a 101: none. `cell` is where nothing will be counted.
    pub(super) fn switched(cell: &'static HostL7Cell) -> Self {
        let bytes = counters::Bytes::new(cell, Direction::Out);
        let (source, class) = (Source::Own(Bytes::new()), StatusClass::Success);
        Self { source, rest: Piece::default(), place: None, bytes, class, is_piped: false, in_flight: None }
    }

    /// A response of our own.
    pub(super) fn own(text: Bytes, class: StatusClass, bodiless: bool, in_flight: InFlight) -> Self {
        let ended = bodiless || text.is_empty();
        Self::new(Source::Own(text), class, ended, in_flight)
    }

    fn new(mut source: Source, class: StatusClass, ended: bool, mut in_flight: InFlight) -> Self {
        let bytes = counters::Bytes::new(in_flight.cell(), Direction::Out);
        // Nothing to wait for: the head is the whole response.
        if ended {
            source.leave(in_flight.conn());
            in_flight.finish(class);
        }
        let in_flight = Some(in_flight);
        Self { source, rest: Piece::default(), place: None, bytes, class, is_piped: false, in_flight }
    }

    /// Whether it is a response of an upstream, and none of our own.
    pub(super) fn is_of_pod(&self) -> bool {
        matches!(self.source, Source::Http1(_) | Source::Http2(_))
    }

    /// How many bytes of the request's body are still to come at least, where the response is all there.
    pub(super) fn unsent(&self) -> u64 {
        if let Source::Http1(body) = &self.source { body.unsent() } else { 0 }
    }

    /// Has what is to come compressed. Before the first frame only.
    pub(super) fn compress(&mut self, offer: &Offer) {
        let source = std::mem::replace(&mut self.source, Source::Own(Bytes::new()));
        self.source = Source::Compressed(Box::new(Compressed::new(source, offer)));
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.rest)))));
        }
        let Some(in_flight) = &self.in_flight else { return Pin::new(&mut self.source).poll_frame(cx).map(plain) };
        let conn = in_flight.conn();
        if !in_flight.is_http2() {
            return match &mut self.source {
                Source::Http1(body) if self.is_piped => poll_piped(cx, body, conn, &mut self.is_piped),
                source => Pin::new(source).poll_frame(cx),
            }
            .map(plain);
        }
        let backlog = conn.backlog();
        self.source.read_small(backlog.is_long());
        let frame = std::task::ready!(Pin::new(&mut self.source).poll_frame(cx));
        let place = &mut self.place;
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| frame.map_data(|data| place.get_or_insert_with(|| Place::new(backlog)).piece(data)))
        }))
    }
}

/// What counts nowhere.
fn plain(frame: Option<Result<Frame<Bytes>, BodyError>>) -> Option<Result<Frame<Piece>, BodyError>> {
    frame.map(|frame| frame.map(|frame| frame.map_data(Piece::from)))
}

/// What was read along with the head as it is, and then stand-ins for what is moved into a pipe, or as it is where there
/// is no pipe to be had.
fn poll_piped(
    cx: &mut Context<'_>,
    body: &mut ResponseBody<RequestBody>,
    conn: &Conn,
    is_piped: &mut bool,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    if body.has_read() {
        return Pin::new(body).poll_frame(cx);
    }
    let piped = conn.piped();
    std::task::ready!(piped.poll_room());
    let pipe = std::task::ready!(body.poll_pipe(cx, &conn.worker.pipes));
    Poll::Ready(pipe.transpose().map(|pipe| {
        pipe.map(|pipe| match pipe {
            Pipe::Buffer(bytes) => {
                *is_piped = false;
                Frame::data(bytes.freeze())
            }
            Pipe::Kernel { .. } => Frame::data(piped.put(pipe)),
        })
    }))
}

impl HttpBody for Body {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        let this = self.get_mut();
        // Before it counts as taken what the client was given: a stream that waits here is one that owes it.
        if this.rest.is_empty()
            && let Some(place) = &this.place
        {
            std::task::ready!(place.poll_room(cx));
        }
        if let Some(in_flight) = &mut this.in_flight {
            in_flight.resume();
        }
        let mut frame = std::task::ready!(this.poll_next(cx));
        let Some(in_flight) = &mut this.in_flight else { return Poll::Ready(frame) };
        if in_flight.is_http2() {
            frame = frame.map(|frame| frame.map(|frame| split(frame, &mut this.rest)));
            in_flight.offer();
        }
        if matches!(frame, Some(Err(BodyError::Starved))) {
            in_flight.timed_out();
        }
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.bytes.add(data.remaining());
            in_flight.sent(data.remaining());
        }
        // hyper does not poll again once the end is known, so it is looked for after every frame.
        let ended = this.rest.is_empty() && this.source.is_end_stream();
        if frame.is_none() || (matches!(frame, Some(Ok(_))) && ended) {
            this.bytes.flush();
            this.source.leave(in_flight.conn());
            in_flight.finish(this.class);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.source.is_end_stream()
    }

    /// Asked before the first frame only, while nothing is kept back.
    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

// === impl Source ===

impl Source {
    /// Whether what is to be read is read in small pieces, where that can be chosen.
    fn read_small(&mut self, small: bool) {
        if let Self::Http1(body) = self {
            body.read_small(small);
        }
    }

    /// The response has ended: what the pod did not get yet of the request is left to the client's connection.
    fn leave(&mut self, conn: &Conn) {
        if let Self::Http1(body) = self
            && let Some(rest) = body.take_rest()
        {
            conn.leave(Rest::Upload(rest));
        }
    }

    /// Bytes that are still to come from a plain socket and are nothing but the body; 0 if that is not known.
    fn unread(&self) -> u64 {
        match self {
            Self::Http1(body) => body.unread(),
            Self::Http2(_) | Self::Compressed(_) | Self::Own(_) => 0,
        }
    }
}

impl HttpBody for Source {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => Pin::new(body).poll_frame(cx),
            Self::Compressed(body) => body.poll_frame(cx),
            Self::Own(text) if text.is_empty() => Poll::Ready(None),
            Self::Own(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Compressed(body) => body.is_end_stream(),
            Self::Own(text) => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Compressed(_) => SizeHint::default(),
            Self::Own(text) => SizeHint::with_exact(text.len() as u64),
        }
    }
}

/// Reads on to the end of a body that nobody gets, if that is near, so that its connection can be used again. What
/// takes longer ends with the connection.
pub(super) async fn discard<B: HttpBody<Data = Bytes> + Unpin>(mut body: B) {
    const REST_MAX: usize = 64 * 1024;
    const REST_TIME: Duration = Duration::from_millis(100);
    let read = async {
        let mut left = REST_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    if timeout(REST_TIME, read).await.is_err() {
        tracing::debug!("the rest of a response takes too long");
    }
}

/// The part of `frame` that is not too long; the other goes to `rest`.
fn split(frame: Frame<Piece>, rest: &mut Piece) -> Frame<Piece> {
    match frame.into_data() {
        Ok(mut data) => {
            if data.remaining() > RECORD_MAX {
                *rest = data.split_off(FRAME_MAX);
            }
            Frame::data(data)
        }
        Err(other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_frames_are_split_without_loss() {
        for (length, frames) in
            [(0, 0), (1, 1), (FRAME_MAX, 1), (RECORD_MAX, 1), (RECORD_MAX + 1, 2), (5 * FRAME_MAX, 5)]
        {
            let whole: Vec<u8> = (0..=250).cycle().take(length).collect();
            let (mut rest, mut joined, mut count) = (Piece::from(Bytes::from(whole.clone())), Vec::new(), 0);
            while !rest.is_empty() {
                let frame = split(Frame::data(std::mem::take(&mut rest)), &mut rest);
                let data = frame.into_data().expect("data");
                assert!(data.remaining() <= RECORD_MAX, "{length}");
                joined.extend_from_slice(data.chunk());
                count += 1;
            }
            assert_eq!(count, frames, "{length}");
            assert!(joined == whole, "{length}");
        }
        let mut rest = Piece::default();
        assert!(split(Frame::trailers(http::HeaderMap::new()), &mut rest).is_trailers() && rest.is_empty());
    }
}
