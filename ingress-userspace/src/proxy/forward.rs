//! Brings one request to an endpoint: picks, connects, exchanges, and tries again where that is safe. It makes no
//! response of its own.
//!
//! What may be tried again (RFC 9110, 9.2.2), and how often:
//!
//! | what happened | next |
//! |---|---|
//! | no connection | another endpoint, at most three in all; the request was not touched |
//! | a kept connection turned out closed | the same endpoint on a new connection, if nothing was sent or the method is idempotent |
//! | a new connection closed before any byte of a response | another endpoint, once, if nothing was sent or the method is idempotent |
//! | a time-out, a malformed response | never: the endpoint may be at work on it |
//!
//! In every case only while the body is untouched.

use http::{Method, Response};

use super::{
    body::RequestBody,
    headers::Head,
    pick::{EndpointState, Tried, UpstreamState},
    upstream::{self, ConnectError, Connection, ExchangeError, Failure, ResponseBody},
    worker::Worker,
};

/// Why no endpoint's response can be forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("the upstream has no endpoints")]
    NoEndpoints,
    #[error("no endpoint accepted a connection")]
    Connect { timed_out: bool },
    #[error("the exchange with an endpoint failed")]
    Exchange(#[source] ExchangeError),
}

/// Forwards a request and returns when the head of the response is there.
///
/// # Errors
/// If no endpoint brought one.
pub(super) async fn forward(
    worker: &Worker,
    upstream: &UpstreamState,
    head: &Head<'_>,
    mut body: RequestBody,
) -> Result<Response<ResponseBody<RequestBody>>, ForwardError> {
    let mut tried = Tried::default();
    let mut error = ForwardError::NoEndpoints;
    let mut resent = false;
    while let Some(endpoint) = upstream.pick(|| worker.now_ms(), &mut tried) {
        match attempt(worker, endpoint, head, body).await {
            Ok(response) => return Ok(response),
            Err(Attempt { error: failed, retry: Some(unsent) }) => {
                // A request that endpoint after endpoint answers by closing is more likely the cause than the victim.
                if matches!(failed, ForwardError::Exchange(_)) && std::mem::replace(&mut resent, true) {
                    return Err(failed);
                }
                error = failed;
                body = unsent;
            }
            Err(Attempt { error, retry: None }) => return Err(error),
        }
    }
    Err(error)
}

/// A failed attempt, with the body if another may follow.
struct Attempt {
    error: ForwardError,
    retry: Option<RequestBody>,
}

/// One endpoint: on a kept connection first, and on a new one if that proves stale.
async fn attempt(
    worker: &Worker,
    endpoint: &EndpointState,
    head: &Head<'_>,
    mut body: RequestBody,
) -> Result<Response<ResponseBody<RequestBody>>, Attempt> {
    if let Some(kept) = worker.pool.idle(endpoint.address) {
        match exchange(worker, kept, head, body).await {
            Ok(response) => {
                endpoint.succeeded();
                return Ok(response);
            }
            // Closing an idle connection is the endpoint's right and says nothing of its health.
            Err(failure) => match retry(&failure.error, failure.written, failure.unsent, head.method) {
                Some(unsent) => body = unsent,
                None => return Err(failed(worker, endpoint, failure.error, None)),
            },
        }
    }
    let connection = match worker.pool.connect(endpoint.address).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
            endpoint.failed(worker.now_ms());
            let timed_out = matches!(error, ConnectError::Timeout { .. });
            return Err(Attempt { error: ForwardError::Connect { timed_out }, retry: Some(body) });
        }
    };
    match exchange(worker, connection, head, body).await {
        Ok(response) => {
            endpoint.succeeded();
            Ok(response)
        }
        Err(Failure { error, unsent, written, reused: _ }) => {
            let unsent = retry(&error, written, unsent, head.method);
            Err(failed(worker, endpoint, error, unsent))
        }
    }
}

async fn exchange(
    worker: &Worker,
    connection: Connection,
    head: &Head<'_>,
    body: RequestBody,
) -> Result<Response<ResponseBody<RequestBody>>, Failure<RequestBody>> {
    upstream::exchange(connection, worker.limits, head.method, |out| head.write(out), body).await
}

/// The body, if the request may be sent once more.
fn retry(error: &ExchangeError, written: bool, unsent: Option<RequestBody>, method: &Method) -> Option<RequestBody> {
    let closed = match error {
        ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Io(_) => true,
        ExchangeError::Timeout { .. }
        | ExchangeError::Malformed(_)
        | ExchangeError::HeadTooLarge
        | ExchangeError::RequestBody(_) => false,
    };
    unsent.filter(|_| closed && (!written || method.is_idempotent()))
}

fn failed(worker: &Worker, endpoint: &EndpointState, error: ExchangeError, retry: Option<RequestBody>) -> Attempt {
    tracing::debug!(endpoint = %endpoint.address, error = &error as &dyn std::error::Error, "exchange failed");
    match error {
        ExchangeError::RequestBody(_) => {}
        // One bad answer is the answer's fault as likely as the endpoint's; only silence and closing keep it out.
        ExchangeError::Malformed(_) | ExchangeError::HeadTooLarge => {}
        ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Timeout { .. } | ExchangeError::Io(_) => {
            endpoint.failed(worker.now_ms());
        }
    }
    Attempt { error: ForwardError::Exchange(error), retry }
}
