//! The body of a request as it comes from the client: from hyper for HTTP/1 and HTTP/2, from QUIC for HTTP/3.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::upstream::BoxError;

/// The body of a client's request.
#[derive(Debug)]
pub(crate) enum ClientBody {
    Hyper(Incoming),
    /// If it is dropped before its end, the client is told to stop sending.
    Http3(ingress_quic::RequestBody),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Hyper(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            Self::Http3(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            Self::Http3(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            Self::Http3(body) => body.size_hint(),
        }
    }
}
