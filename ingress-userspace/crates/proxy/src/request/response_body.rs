//! The body of the response to a client: counted as it passes, compressed, spliced, or cut into frames. Nothing is
//! buffered here.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};

use ingress_common::{HostL7Cell, StatusClass};
use ingress_model::{Offer, ResponseRate};

use crate::{
    downstream::{
        conn::Conn,
        h2_backlog::{Piece, StreamBacklog},
        h3_tunnel::TunnelBody,
    },
    l4::pipe::{Pipe, WORTHWHILE},
    observe::counters::{self, Direction},
    request::{
        compress::Compressed, in_flight::InFlight, request_body::RequestBody, throttle::Throttle,
        unread_body::BodyRemainder,
    },
    upstream::{BodyError, ResponseBody, TimeoutPhase, h2},
};

/// Longest frame on an HTTP/2 stream. A client that shares a slow line between many streams takes one frame of each in
/// turn, and each frame taken shows that it is alive: see `h2_stalled_frames`. With its header, the frame fills one TLS
/// record (RFC 8446, section 5.1).
const FRAME_MAX: usize = RECORD_MAX - 9;
/// Most bytes in a TLS record, and in one read. Data up to this size is not split, because that would cost another
/// frame header of nine bytes.
const RECORD_MAX: usize = 16 * 1024;

/// The body of the response to a client. The request is in flight for the lifetime of this value.
pub(crate) struct Body {
    source: BodySource,
    /// Frames over HTTP/2; created for the first one. Boxed, because HTTP/1 has none and a response is moved many times.
    frames: Option<Box<Http2BodyFrames>>,
    bytes: counters::Bytes,
    class: StatusClass,
    /// Whether the body goes to the client through a pipe, unless it must be changed on the way.
    is_piped: bool,
    /// Boxed, because few bodies have a rate.
    throttle: Option<Box<Throttle>>,
    /// `None` for a 101: the request continues in its tunnel.
    in_flight: Option<InFlight>,
}

/// The frames of a body over HTTP/2.
struct Http2BodyFrames {
    /// Counts the bytes that wait within HTTP/2.
    place: StreamBacklog,
    /// The rest of the latest frame.
    rest: Piece,
}

/// The source of a body.
pub(crate) enum BodySource {
    Http1(ResponseBody<RequestBody>),
    Http2(Box<h2::Http2ResponseBody<RequestBody>>),
    Compressed(Box<Compressed>),
    Own(Bytes),
    /// The bytes of a tunnel on a stream of HTTP/3.
    Tunnel(TunnelBody),
}

// === impl Body ===

impl Body {
    /// Creates the body of an upstream's response. `bodiless` if its status or the request's method excludes a body
    /// (RFC 9110, section 6.4.1).
    pub(crate) fn upstream(source: BodySource, class: StatusClass, bodiless: bool, in_flight: InFlight) -> Self {
        let ended = bodiless || source.is_end_stream();
        let is_piped = !ended && source.unread() >= WORTHWHILE && in_flight.conn().takes_pipes();
        Self { is_piped, ..Self::new(source, class, ended, in_flight) }
    }

    /// Creates the empty body of a 101. `cell` is required, but no bytes are counted in it.
    pub(crate) fn switched(cell: &'static HostL7Cell) -> Self {
        let bytes = counters::Bytes::new(cell, Direction::Out);
        let (source, class) = (BodySource::Own(Bytes::new()), StatusClass::Success);
        Self { source, frames: None, bytes, class, is_piped: false, throttle: None, in_flight: None }
    }

    /// Turns the body of a 101 into the bytes of its tunnel.
    pub(crate) fn tunnel(&mut self, sent: TunnelBody) {
        self.source = BodySource::Tunnel(sent);
    }

    /// Creates the body of a response by the proxy itself.
    pub(crate) fn own(text: Bytes, class: StatusClass, in_flight: InFlight) -> Self {
        let ended = text.is_empty();
        Self::new(BodySource::Own(text), class, ended, in_flight)
    }

    fn new(mut source: BodySource, class: StatusClass, ended: bool, mut in_flight: InFlight) -> Self {
        let bytes = counters::Bytes::new(in_flight.cell(), Direction::Out);
        // The response consists of its head and has ended already.
        if ended {
            source.leave(in_flight.conn());
            in_flight.finish(class);
        }
        let in_flight = Some(in_flight);
        Self { source, frames: None, bytes, class, is_piped: false, throttle: None, in_flight }
    }

    /// Returns whether the response is an upstream's and not the proxy's own.
    pub(crate) fn is_of_pod(&self) -> bool {
        matches!(self.source, BodySource::Http1(_) | BodySource::Http2(_))
    }

    /// Returns the minimum number of request body bytes still to come, once the response is complete.
    pub(crate) fn unsent(&self) -> u64 {
        if let BodySource::Http1(body) = &self.source { body.unsent() } else { 0 }
    }

    /// Compresses the body. To be called before the first frame only.
    pub(crate) fn compress(&mut self, offer: &Offer) {
        let source = std::mem::replace(&mut self.source, BodySource::Own(Bytes::new()));
        self.source = BodySource::Compressed(Box::new(Compressed::new(source, offer)));
    }

    /// Slows the body down to `rate`. To be called before the first frame only.
    pub(crate) fn throttle(&mut self, rate: ResponseRate) {
        self.is_piped = false;
        self.throttle = Some(Box::new(Throttle::new(rate)));
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        if let Some(frames) = self.frames.as_mut().filter(|frames| !frames.rest.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut frames.rest)))));
        }
        let Some(in_flight) = &self.in_flight else { return Pin::new(&mut self.source).poll_frame(cx).map(plain) };
        let conn = in_flight.conn();
        if !in_flight.is_http2() {
            return match &mut self.source {
                BodySource::Http1(body) if self.is_piped => poll_piped(cx, body, conn, &mut self.is_piped),
                source => Pin::new(source).poll_frame(cx),
            }
            .map(plain);
        }
        let backlog = conn.backlog();
        self.source.read_small(backlog.is_long() || self.throttle.is_some());
        let frame = std::task::ready!(Pin::new(&mut self.source).poll_frame(cx));
        let frames = &mut self.frames;
        let new = || {
            Box::new(Http2BodyFrames { place: StreamBacklog::new(backlog, in_flight.stream()), rest: Piece::default() })
        };
        Poll::Ready(
            frame.map(|frame| {
                frame.map(|frame| frame.map_data(|data| frames.get_or_insert_with(new).place.piece(data)))
            }),
        )
    }
}

/// Converts a frame into one with bytes that count in no backlog.
fn plain(frame: Option<Result<Frame<Bytes>, BodyError>>) -> Option<Result<Frame<Piece>, BodyError>> {
    frame.map(|frame| frame.map(|frame| frame.map_data(Piece::from)))
}

/// Yields bytes buffered with the head, then placeholder frames for spliced data. Falls back to plain frames when no
/// pipe is available.
fn poll_piped(
    cx: &mut Context<'_>,
    body: &mut ResponseBody<RequestBody>,
    conn: &Conn,
    is_piped: &mut bool,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    if body.has_read() {
        return Pin::new(body).poll_frame(cx);
    }
    let response_splice = conn.response_splice();
    std::task::ready!(response_splice.poll_room());
    let pipe = std::task::ready!(body.poll_pipe(cx, &conn.worker.pipes));
    Poll::Ready(pipe.transpose().map(|pipe| {
        pipe.map(|pipe| match pipe {
            Pipe::Buffer(bytes) => {
                *is_piped = false;
                Frame::data(bytes.freeze())
            }
            Pipe::Kernel { .. } => Frame::data(response_splice.put(pipe)),
        })
    }))
}

impl HttpBody for Body {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        let this = self.get_mut();
        if this.in_flight.as_mut().is_some_and(|in_flight| in_flight.is_overdue(cx)) {
            this.bytes.flush();
            return Poll::Ready(Some(Err(BodyError::Timeout { what: TimeoutPhase::Body })));
        }
        // Before the previous frame counts as taken by the client: a stream that waits here still has unsent bytes.
        if let Some(frames) = this.frames.as_ref().filter(|frames| frames.rest.is_empty())
            && frames.place.poll_room(cx).is_pending()
        {
            // The client may take its time, and the counters show the bytes that wait for it.
            this.bytes.flush();
            return Poll::Pending;
        }
        // The client has taken the previous frame; a wait that follows is the proxy's own.
        if let Some(in_flight) = &mut this.in_flight {
            in_flight.resume();
        }
        if let Some(throttle) = &mut this.throttle {
            if throttle.poll_ready(cx).is_pending() {
                this.bytes.flush();
                return Poll::Pending;
            }
            // A long piece would come at once.
            this.source.read_small(true);
        }
        let mut frame = std::task::ready!(this.poll_next(cx));
        let Some(in_flight) = &mut this.in_flight else { return Poll::Ready(frame) };
        if in_flight.is_http2() {
            if let Some(frames) = &mut this.frames {
                frame = frame.map(|frame| frame.map(|frame| split(frame, &mut frames.rest)));
            }
            in_flight.offer();
        }
        if matches!(frame, Some(Err(BodyError::Starved))) {
            in_flight.timed_out();
        }
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.bytes.add(data.remaining());
            if let Some(throttle) = &mut this.throttle {
                throttle.add(data.remaining());
            }
            in_flight.sent(data.remaining());
        }
        // hyper does not poll again once the end is known, so it is checked after every frame.
        let ended = this.frames.as_ref().is_none_or(|frames| frames.rest.is_empty()) && this.source.is_end_stream();
        if frame.is_none() || (matches!(frame, Some(Ok(_))) && ended) {
            this.bytes.flush();
            this.source.leave(in_flight.conn());
            in_flight.finish(this.class);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.as_ref().is_none_or(|frames| frames.rest.is_empty()) && self.source.is_end_stream()
    }

    /// Called before the first frame only, while there is no rest.
    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

// === impl BodySource ===

impl BodySource {
    /// Sets whether the source is read in small pieces, where that is supported.
    pub(super) fn read_small(&mut self, small: bool) {
        match self {
            Self::Http1(body) => body.read_small(small),
            Self::Compressed(body) => body.read_small(small),
            Self::Http2(_) | Self::Own(_) | Self::Tunnel(_) => {}
        }
    }

    /// Hands the unsent part of the request over to the client's connection, now that the response has ended.
    fn leave(&mut self, conn: &Conn) {
        if let Self::Http1(body) = self
            && let Some(rest) = body.take_remainder()
        {
            conn.leave(BodyRemainder::Upload(rest));
        }
    }

    /// Returns the number of bytes to come from a plain socket that belong to the body without any framing; 0 if that
    /// is unknown.
    fn unread(&self) -> u64 {
        match self {
            Self::Http1(body) => body.unread(),
            Self::Http2(_) | Self::Compressed(_) | Self::Own(_) | Self::Tunnel(_) => 0,
        }
    }
}

impl HttpBody for BodySource {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => Pin::new(body).poll_frame(cx),
            Self::Compressed(body) => body.poll_frame(cx),
            Self::Own(text) if text.is_empty() => Poll::Ready(None),
            Self::Own(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
            Self::Tunnel(sent) => sent.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Compressed(body) => body.is_end_stream(),
            Self::Own(text) => text.is_empty(),
            Self::Tunnel(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Compressed(_) | Self::Tunnel(_) => SizeHint::default(),
            Self::Own(text) => SizeHint::with_exact(text.len() as u64),
        }
    }
}

/// Returns the first part of `frame`, up to the longest frame size, and moves the other part to `rest`.
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
