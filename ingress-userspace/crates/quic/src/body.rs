//! The body of a request: read from the stream when the service asks for it, so that a service that does not read stops
//! the client by flow control.

use std::{
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use quinn_proto::StreamId;

use crate::conn::{Conn, Part};

/// The body of a request. A service that drops it before its end tells the client to stop sending.
#[derive(Default)]
pub struct RequestBody {
    /// `None` at the end.
    source: Option<(Rc<Conn>, StreamId)>,
    /// Bytes that are to come, if announced.
    left: Option<u64>,
}

/// The reason why a request's body does not reach its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The client reset the stream.
    #[error("the client cancelled the request with code {0:#x}")]
    Cancelled(u64),
    /// The client violated the protocol.
    #[error("the request is malformed")]
    Malformed(#[source] ingress_http3::Error),
    /// The stream or the connection has ended.
    #[error("the stream has ended")]
    Gone,
}

impl RequestBody {
    /// A body on the stream `id`, of `left` bytes if announced.
    pub(crate) fn new(conn: Rc<Conn>, id: StreamId, left: Option<u64>) -> Self {
        Self { source: Some((conn, id)), left }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some((conn, id)) = &self.source else { return Poll::Ready(None) };
        let Poll::Ready(part) = conn.poll_body(cx, *id) else { return Poll::Pending };
        Poll::Ready(match part {
            Ok(Part::Data(data)) => {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Ok(Part::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(Part::End) => {
                self.source = None;
                None
            }
            Err(error) => {
                self.source = None;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.source, self.left) {
            (None, _) => SizeHint::with_exact(0),
            (Some(_), Some(left)) => SizeHint::with_exact(left),
            (Some(_), None) => SizeHint::default(),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some((conn, id)) = self.source.take() {
            conn.stop_reading(id);
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, left } = self;
        f.debug_struct("RequestBody").field("ended", &source.is_none()).field("left", left).finish_non_exhaustive()
    }
}
