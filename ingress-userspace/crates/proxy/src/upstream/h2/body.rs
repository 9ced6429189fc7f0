//! The body of a response on an HTTP/2 stream. At its end, the stream no longer counts against its connection.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{Http2Fault, Lease, Wait};
use crate::upstream::{BodyError, TimeoutPhase, head};

/// The body of an endpoint's response. An error means that the body is incomplete.
pub struct Http2ResponseBody<B> {
    incoming: Incoming,
    wait: Wait<B>,
    /// `None` after the end.
    lease: Option<Lease<B>>,
}

impl<B> Http2ResponseBody<B> {
    pub(super) fn new(incoming: Incoming, lease: Lease<B>, wait: Wait<B>) -> Self {
        let lease = (!incoming.is_end_stream()).then_some(lease);
        let mut body = Self { incoming, wait, lease };
        body.wait.timer.progress();
        body
    }
}

impl<B: Unpin> Body for Http2ResponseBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { incoming, wait, lease } = self.get_mut();
        let frame = match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Pending => return wait.poll_overdue(cx, TimeoutPhase::Body).map(|overdue| Some(Err(overdue.into()))),
            Poll::Ready(frame) => frame,
        };
        wait.timer.progress();
        let ended = incoming.is_end_stream() || !matches!(&frame, Some(Ok(frame)) if frame.is_data());
        if ended {
            *lease = None;
        }
        Poll::Ready(frame.map(|frame| match frame {
            Ok(mut frame) => {
                if let Some(trailers) = frame.trailers_mut() {
                    head::retain_trailers(trailers);
                }
                Ok(frame)
            }
            Err(error) => Err(match wait.upload.take_error() {
                Some(error) => BodyError::RequestBody(error),
                None => Http2Fault::of(&error).into(),
            }),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
