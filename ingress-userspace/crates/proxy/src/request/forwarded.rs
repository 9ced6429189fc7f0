//! The outcome of forwarding a request, kept small while it is passed on, until it is converted into a response or
//! discarded.

use http::{Response, StatusCode};
use http_body::Body as _;

use crate::{
    request::body::{RequestBody, Source, discard},
    upstream,
};

/// The outcome of forwarding a request.
pub(crate) enum Forwarded {
    Response(Begun),
    /// The endpoint accepted a WebSocket handshake.
    Switched(Box<Response<upstream::Tunnel>>),
}

/// A response with a complete head.
pub(crate) enum Begun {
    Http1(upstream::Begun<RequestBody>),
    Http2(Box<Response<Source>>),
}

// === impl Forwarded ===

impl Forwarded {
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Response(response) => response.status().as_u16(),
            Self::Switched(response) => response.status().as_u16(),
        }
    }

    /// Discards the outcome.
    pub(crate) fn discard(self) {
        match self {
            Self::Response(response) => response.discard(),
            Self::Switched(_) => {}
        }
    }
}

// === impl Begun ===

impl Begun {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Http1(response) => response.status(),
            Self::Http2(response) => response.status(),
        }
    }

    pub(crate) fn into_response(self) -> Response<Source> {
        match self {
            Self::Http1(response) => response.into_response().map(Source::Http1),
            Self::Http2(response) => *response,
        }
    }

    /// Discards the response. The body is read to its end in the background if little remains, so that its connection
    /// can be reused.
    pub(crate) fn discard(self) {
        let body = self.into_response().into_body();
        if !body.is_end_stream() {
            // The task is owned by the worker's runtime, and the worker does not wait for it.
            tokio::task::spawn_local(discard(body));
        }
    }
}
