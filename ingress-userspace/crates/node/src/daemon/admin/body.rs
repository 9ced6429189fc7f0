//! Bodies of responses: a whole text, one in pieces, or a stream of events.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{
    stream::EventStream,
    text_stream::{TextStream, Unfinished},
};

/// Body of a response of the admin address.
#[derive(Debug)]
pub(crate) enum AdminBody {
    Whole(Full<Bytes>),
    Text(TextStream),
    /// Boxed, because it is large and rare.
    Events(Box<EventStream>),
}

impl AdminBody {
    pub(super) fn whole(text: String) -> Self {
        Self::Whole(Full::new(text.into()))
    }

    pub(super) fn fixed(bytes: &'static [u8]) -> Self {
        Self::Whole(Full::new(Bytes::from_static(bytes)))
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Text(text) => text.poll_chunk(cx).map_ok(Frame::data),
            Self::Events(events) => events.poll_event(cx).map(|event| Some(Ok(Frame::data(event?)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Text(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Text(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}
