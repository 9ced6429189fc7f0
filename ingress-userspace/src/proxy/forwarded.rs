//! What an endpoint made of a request, while it is handed on: small, until it is a response. It reads no body.

use http::{Response, StatusCode};

use super::{
    body::{RequestBody, Source},
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

    /// Nobody wants it. Its connection can be used again where the head was all there was.
    pub(super) fn discard(self) {
        match self {
            Self::Response(response) => drop(response.into_response()),
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
}
