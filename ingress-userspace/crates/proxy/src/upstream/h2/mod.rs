//! HTTP/2 to endpoints, over plain TCP with prior knowledge or over TLS (RFC 9113, sections 3.2 and 3.3; ADR 0011):
//! hyper's client, one stream per request.
//!
//! ```text
//! Clients ── Lease on a connection ──▶ exchange ──▶ Response<ResponseBody>
//!    hyper's tasks (connection, body of the request) run in the worker's runtime ──┘
//! ```
//!
//! The interface is that of the HTTP/1.1 exchange, with the same head, limits and failures. This module chooses no
//! endpoint and sends nothing twice.

mod body;
mod clients;
mod request;
mod upload;

use std::{
    error::Error as _,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body::Body;

pub use body::Http2ResponseBody;
pub use clients::{Http2Clients, Lease};

use super::{
    BodyError, BoxError, ExchangeError, ExchangeFailure, ExchangeLimits, Malformed, TimeoutPhase, error::TransferError,
    head, timer::Timer,
};
use upload::UploadHandle;

/// Sends one request on a stream of its own and returns as soon as the response head is there; see
/// [`super::exchange()`] for `write_head`, except that it may also append `te: trailers` (RFC 9113, section 8.2.2).
///
/// Dropping the future, or the response body before its end, resets the stream.
///
/// # Errors
/// [`ExchangeFailure`] if there is no response head within `limits`. A request counts as not written if the endpoint refused
/// it, or excluded it with GOAWAY (RFC 9113, sections 6.8 and 8.7).
pub async fn exchange<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + 'static>(
    mut lease: Lease<B>,
    limits: ExchangeLimits,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Response<Http2ResponseBody<B>>, ExchangeFailure<B>> {
    let (reused, scheme) = (lease.is_reused(), lease.scheme());
    let upload = UploadHandle::new(body, lease.tasks());
    let mut wait = Wait { limits, timer: Timer::default(), upload };
    let request = match request::build(scheme, method, write_head, wait.upload.upload()) {
        Ok(request) => request,
        Err(error) => {
            let error = ExchangeError::RequestBody(error.into());
            return Err(ExchangeFailure { error, unsent: None, reused, written: false });
        }
    };
    let outcome = {
        let mut sent = pin!(lease.send(request));
        poll_fn(|cx| match sent.as_mut().poll(cx) {
            Poll::Ready(response) => Poll::Ready(Ok(response)),
            Poll::Pending => wait.poll_overdue(cx, TimeoutPhase::Head).map(Err),
        })
        .await
    };
    let (error, written) = match outcome {
        Ok(Ok(response)) => return Ok(receive(response, lease, wait)),
        Ok(Err(mut failed)) => {
            let untouched = failed.take_message().is_some();
            let fault = Http2Fault::of(failed.error());
            let error = match wait.upload.take_error() {
                Some(error) => ExchangeError::RequestBody(error),
                None => fault.into(),
            };
            (error, !untouched && fault != Http2Fault::Refused)
        }
        Err(overdue) => (overdue.into(), true),
    };
    Err(ExchangeFailure { error, unsent: wait.upload.reclaim(), reused, written })
}

fn receive<B>(
    response: Response<hyper::body::Incoming>,
    lease: Lease<B>,
    wait: Wait<B>,
) -> Response<Http2ResponseBody<B>> {
    let mut response = response.map(|incoming| Http2ResponseBody::new(incoming, lease, wait));
    let no_content = response.status() == StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    head::strip_hop_by_hop(headers);
    if no_content {
        headers.remove(header::CONTENT_LENGTH);
    }
    response
}

/// The timeout of the current wait, for the client or for the endpoint.
struct Wait<B> {
    limits: ExchangeLimits,
    timer: Timer,
    upload: UploadHandle<B>,
}

impl<B> Wait<B> {
    fn poll_overdue(&mut self, cx: &mut Context<'_>, waiting: TimeoutPhase) -> Poll<TransferError> {
        let (sending, latest) = self.upload.state();
        self.timer.not_before(latest);
        let (limit, error) = sending.limit(&self.limits, waiting);
        ready!(self.timer.poll_overdue(cx, limit));
        Poll::Ready(error)
    }
}

/// The classification of a hyper error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http2Fault {
    /// The endpoint has not processed the request.
    Refused,
    Aborted,
    Closed,
    Malformed,
    Timeout,
}

impl Http2Fault {
    fn of(error: &hyper::Error) -> Self {
        let h2 = error.source().and_then(|source| source.downcast_ref::<::h2::Error>());
        match h2 {
            // Only open streams that the endpoint will not process get this error.
            Some(h2) if h2.is_go_away() && h2.is_remote() => Self::Refused,
            Some(h2) if h2.is_reset() && h2.is_remote() => match h2.reason() {
                Some(::h2::Reason::REFUSED_STREAM) => Self::Refused,
                _ => Self::Aborted,
            },
            Some(h2) if h2.is_io() => Self::Closed,
            Some(_) => Self::Malformed,
            None if error.is_timeout() => Self::Timeout,
            None => Self::Closed,
        }
    }
}

impl From<Http2Fault> for ExchangeError {
    fn from(fault: Http2Fault) -> Self {
        match fault {
            Http2Fault::Refused | Http2Fault::Closed => Self::Closed,
            Http2Fault::Aborted => Self::Aborted,
            Http2Fault::Malformed => Self::Malformed(Malformed::Http2),
            Http2Fault::Timeout => Self::Timeout { what: TimeoutPhase::Head },
        }
    }
}

impl From<Http2Fault> for BodyError {
    fn from(fault: Http2Fault) -> Self {
        match fault {
            Http2Fault::Refused | Http2Fault::Closed => Self::Truncated,
            Http2Fault::Aborted => Self::Reset,
            Http2Fault::Malformed => Self::Malformed(Malformed::Http2),
            Http2Fault::Timeout => Self::Timeout { what: TimeoutPhase::Body },
        }
    }
}
