//! Bodies on their way through, counted as they pass. Nothing is buffered here.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use ingress_common::{HostL7Cell, StatusClass};

use super::{
    conn::InFlight,
    counters::{self, Direction},
    upstream::{BodyError, ResponseBody},
};

/// The body of a client's request.
#[derive(Debug)]
pub(super) struct RequestBody {
    incoming: Incoming,
    bytes: counters::Bytes,
}

/// The body of the response to a client. The request is in flight for as long as this lives.
pub(super) struct Body {
    source: Source,
    bytes: counters::Bytes,
    class: StatusClass,
    in_flight: InFlight,
}

#[expect(clippy::large_enum_variant, reason = "the large variant is the common one; a box would cost each request")]
enum Source {
    Upstream(ResponseBody<RequestBody>),
    Own(Bytes),
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(incoming: Incoming, cell: &'static HostL7Cell) -> Self {
        Self { incoming, bytes: counters::Bytes::new(cell, Direction::In) }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.bytes.add(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

// === impl Body ===

impl Body {
    /// A response of an upstream. `bodiless` if its status or the request's method rule a body out (RFC 9110, 6.4.1).
    pub(super) fn upstream(
        source: ResponseBody<RequestBody>,
        class: StatusClass,
        bodiless: bool,
        in_flight: InFlight,
    ) -> Self {
        let ended = bodiless || source.is_end_stream();
        Self::new(Source::Upstream(source), class, ended, in_flight)
    }

    /// A response of our own.
    pub(super) fn own(text: Bytes, class: StatusClass, bodiless: bool, in_flight: InFlight) -> Self {
        let ended = bodiless || text.is_empty();
        Self::new(Source::Own(text), class, ended, in_flight)
    }

    fn new(source: Source, class: StatusClass, ended: bool, mut in_flight: InFlight) -> Self {
        let bytes = counters::Bytes::new(in_flight.cell(), Direction::Out);
        // Nothing to wait for: the head is the whole response.
        if ended {
            in_flight.finish(class);
        }
        Self { source, bytes, class, in_flight }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match &mut this.source {
            Source::Upstream(body) => std::task::ready!(Pin::new(body).poll_frame(cx)),
            Source::Own(text) if text.is_empty() => None,
            Source::Own(text) => Some(Ok(Frame::data(std::mem::take(text)))),
        };
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.bytes.add(data.remaining());
        }
        // hyper does not poll again once the end is known, so it is looked for after every frame.
        if frame.is_none() || (matches!(frame, Some(Ok(_))) && this.is_end_stream()) {
            this.bytes.flush();
            this.in_flight.finish(this.class);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Upstream(body) => body.is_end_stream(),
            Source::Own(text) => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Upstream(body) => body.size_hint(),
            Source::Own(text) => SizeHint::with_exact(text.len() as u64),
        }
    }
}
