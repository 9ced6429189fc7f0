//! What an endpoint made of a request, while it is handed on: small, until it is a response, or nobody wants it.

use http::{Response, StatusCode};
use http_body::Body as _;

use super::{
    body::{RequestBody, Source, discard},
    upstream,
};

/// What an endpoint made of a request.
pub(super) enum Forwarded {
    Response(Begun),
    /// A WebSocket handshake was accepted.
    Switched(Box<Response<upstream::Tunnel>>),
}

/// A response whose head is there.
pub(super) enum Begun {
    Http1(upstream::Begun<RequestBody>),
    Http2(Box<Response<Source>>),
}

// === impl Forwarded ===

impl Forwarded {
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Response(response) => response.status().as_u16(),
            Self::Switched(response) => response.status().as_u16(),
        }
    }

    /// Nobody wants it.
    pub(super) fn discard(self) {
        match self {
            Self::Response(response) => response.discard(),
            Self::Switched(_) => {}
        }
    }
}

// === impl Begun ===

impl Begun {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Http1(response) => response.status(),
            Self::Http2(response) => response.status(),
        }
    }

    pub(super) fn into_response(self) -> Response<Source> {
        match self {
            Self::Http1(response) => response.into_response().map(Source::Http1),
            Self::Http2(response) => *response,
        }
    }

    /// Nobody wants it. Its body is read to the end, if that is near, so that its connection can be used again; nobody
    /// waits for that.
    pub(super) fn discard(self) {
        let body = self.into_response().into_body();
        if !body.is_end_stream() {
            // The worker's runtime owns it, and the worker does not wait for it.
            tokio::task::spawn_local(discard(body));
        }
    }
}
