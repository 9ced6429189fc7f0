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
//! | no resources of this node for a connection | as for no connection, and the endpoint is not blamed |
//! | a stream of HTTP/2 refused by the endpoint, or left out by its GOAWAY | as for a closed connection; nothing was sent |
//! | a time-out, a malformed response, a stream reset | never: the endpoint may be at work on it |
//!
//! In every case only while the body is untouched.

use std::sync::atomic::Ordering::Relaxed;

use http::{Method, Response};

use super::{
    body::{RequestBody, Source},
    headers::Head,
    pick::{Picked, Tried, UpstreamState},
    upstream::{self, ConnectError, Connection, ExchangeError, Failure, Limits, Target, Transport, Upgraded, h2},
    worker::Worker,
};
use crate::model::Protocol;

/// Why no endpoint's response can be forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("the upstream has no endpoints")]
    NoEndpoints,
    #[error("no endpoint accepted a connection")]
    Connect { timed_out: bool },
    /// Nothing that an endpoint could help.
    #[error("this node has no resources for a connection")]
    Exhausted,
    #[error("the exchange with an endpoint failed")]
    Exchange(#[source] ExchangeError),
}

/// What an endpoint made of a request.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is nearly every request, and a box would be an allocation for each"
)]
pub(super) enum Forwarded {
    Response(Response<Source>),
    /// A WebSocket handshake was accepted.
    Switched(Response<upstream::Tunnel>),
}

/// Forwards a request and returns when the head of the response is there.
///
/// # Errors
/// If no endpoint brought one.
pub(super) async fn forward(
    worker: &Worker,
    limits: Limits,
    upstream: &UpstreamState,
    head: &Head<'_>,
    mut body: RequestBody,
) -> Result<Forwarded, ForwardError> {
    let mut tried = Tried::default();
    let mut error = ForwardError::NoEndpoints;
    let mut resent = false;
    while let Some(endpoint) = upstream.pick(|| worker.now_ms(), &mut tried) {
        let attempted = match upstream.protocol() {
            Protocol::Http1 => attempt(worker, limits, (endpoint, Transport::Plain), head, body).await,
            Protocol::Https => attempt(worker, limits, (endpoint, Transport::Tls), head, body).await,
            // Boxed, so that the common case does not carry its size.
            Protocol::H2c => Box::pin(attempt_http2(worker, limits, endpoint, head, body)).await,
        };
        match attempted {
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
    limits: Limits,
    (endpoint, transport): (Picked<'_>, Transport),
    head: &Head<'_>,
    mut body: RequestBody,
) -> Result<Forwarded, Attempt> {
    let target = Target { address: endpoint.address(), transport };
    if let Some(kept) = worker.pool.idle(target) {
        match exchange(limits, kept, head, body).await {
            Ok(response) => {
                endpoint.succeeded();
                return Ok(response);
            }
            // Closing an idle connection is the endpoint's right and says nothing of its health.
            Err(failure) => match retry(&failure.error, failure.written, failure.unsent, head.method()) {
                Some(unsent) => body = unsent,
                None => return Err(failed(worker, endpoint, failure.error, None)),
            },
        }
    }
    let connection = match worker.pool.connect(target, limits.connect_timeout).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
            return Err(Attempt { error: unconnected(&error, endpoint, worker.now_ms()), retry: Some(body) });
        }
    };
    match exchange(limits, connection, head, body).await {
        Ok(response) => {
            endpoint.succeeded();
            Ok(response)
        }
        Err(Failure { error, unsent, written, reused: _ }) => {
            let unsent = retry(&error, written, unsent, head.method());
            Err(failed(worker, endpoint, error, unsent))
        }
    }
}

/// Blames the endpoint, unless it is this node that failed.
fn unconnected(error: &ConnectError, endpoint: Picked<'_>, now_ms: u64) -> ForwardError {
    let timed_out = match error {
        ConnectError::Exhausted { .. } => return ForwardError::Exhausted,
        ConnectError::Timeout { .. } => true,
        ConnectError::Refused { .. } | ConnectError::Tls { .. } | ConnectError::Io { .. } => false,
    };
    endpoint.failed(now_ms);
    ForwardError::Connect { timed_out }
}

async fn exchange(
    limits: Limits,
    connection: Connection,
    head: &Head<'_>,
    body: RequestBody,
) -> Result<Forwarded, Failure<RequestBody>> {
    let Some(accept) = head.handshake else {
        let response = upstream::exchange(connection, limits, head.method(), |out| head.write(out), body).await?;
        return Ok(Forwarded::Response(response.map(Source::Http1)));
    };
    let upgraded = Box::pin(upstream::upgrade(connection, limits, *accept, |out| head.write(out), body));
    Ok(match upgraded.await? {
        Upgraded::Switched(response) => Forwarded::Switched(response),
        Upgraded::Declined(response) => Forwarded::Response(response.map(Source::Http1)),
    })
}

/// One endpoint that speaks HTTP/2: on an open connection if there is one, and once more if that proves stale.
async fn attempt_http2(
    worker: &Worker,
    limits: Limits,
    endpoint: Picked<'_>,
    head: &Head<'_>,
    mut body: RequestBody,
) -> Result<Forwarded, Attempt> {
    let mut again = true;
    loop {
        let lease = match worker.http2.lease(endpoint.address(), limits.connect_timeout).await {
            Ok(lease) => lease,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
                return Err(Attempt { error: unconnected(&error, endpoint, worker.now_ms()), retry: Some(body) });
            }
        };
        let write = |out: &mut Vec<u8>| {
            head.write(out);
            if head.takes_trailers() {
                out.extend_from_slice(b"te: trailers\r\n");
            }
        };
        let Failure { error, unsent, written, reused } =
            match h2::exchange(lease, limits, head.method(), write, body).await {
                Ok(response) => {
                    endpoint.succeeded();
                    let response = response.map(|body| Source::Http2(Box::new(body)));
                    return Ok(Forwarded::Response(response));
                }
                Err(failure) => failure,
            };
        match retry(&error, written, unsent, head.method()) {
            Some(unsent) if reused && std::mem::take(&mut again) => body = unsent,
            retry => return Err(failed(worker, endpoint, error, retry)),
        }
    }
}

/// The body, if the request may be sent once more.
fn retry(error: &ExchangeError, written: bool, unsent: Option<RequestBody>, method: &Method) -> Option<RequestBody> {
    let closed = match error {
        ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Io(_) => true,
        ExchangeError::Timeout { .. }
        | ExchangeError::Malformed(_)
        | ExchangeError::HeadTooLarge
        | ExchangeError::Aborted
        | ExchangeError::RequestBody(_)
        | ExchangeError::Starved => false,
    };
    unsent.filter(|_| closed && (!written || method.is_idempotent()))
}

fn failed(worker: &Worker, endpoint: Picked<'_>, error: ExchangeError, retry: Option<RequestBody>) -> Attempt {
    tracing::debug!(endpoint = %endpoint.address(), error = &error as &dyn std::error::Error, "exchange failed");
    match error {
        ExchangeError::RequestBody(_) => {}
        ExchangeError::Starved => {
            worker.shared.stats.timed_out.fetch_add(1, Relaxed);
        }
        // One bad answer is the answer's fault as likely as the endpoint's; only silence and closing keep it out.
        ExchangeError::Malformed(_) | ExchangeError::HeadTooLarge | ExchangeError::Aborted => {}
        ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Timeout { .. } | ExchangeError::Io(_) => {
            endpoint.failed(worker.now_ms());
        }
    }
    Attempt { error: ForwardError::Exchange(error), retry }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::model::{Endpoint, Upstream};

    #[test]
    fn what_this_node_lacks_is_not_the_endpoints_failure() {
        let address = ([10, 0, 0, 1], 80).into();
        let other = ([10, 0, 0, 2], 80).into();
        for (code, blamed) in [
            (libc::EMFILE, false),
            (libc::ENFILE, false),
            (libc::EADDRNOTAVAIL, false),
            (libc::ENOBUFS, false),
            (libc::ENOMEM, false),
            (libc::ECONNREFUSED, true),
            (libc::ETIMEDOUT, true),
            (libc::EHOSTUNREACH, true),
        ] {
            let endpoints = [address, other].map(|address| Endpoint { address }).into();
            let state = UpstreamState::carry(&Upstream { endpoints, ..Upstream::default() }, None);
            let picked = state.pick(|| 0, &mut Tried::default()).expect("an endpoint");
            let error = ConnectError::new(address, io::Error::from_raw_os_error(code));
            let failed = unconnected(&error, picked, 0);
            assert_eq!(matches!(failed, ForwardError::Exhausted), !blamed, "{error}");
            let next: Vec<_> =
                (0..2).filter_map(|_| state.pick(|| 1, &mut Tried::default())).map(Picked::address).collect();
            assert_eq!(next.contains(&address), !blamed, "{error}");
            assert_eq!(super::super::error::forward(&failed).status() == 503, !blamed, "{error}");
        }
    }
}
