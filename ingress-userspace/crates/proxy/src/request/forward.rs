//! Forwards one request to an endpoint: picks, connects, exchanges, and retries where that is safe. It creates no
//! responses of its own.
//!
//! The cases for a retry (RFC 9110, section 9.2.2), and their number, unless the rule configures them ([`Retry`]):
//!
//! | failure | next |
//! |---|---|
//! | no connection | another endpoint, at most three in all; the request was not touched |
//! | a reused connection turned out closed | the same endpoint on a new connection, if nothing was sent or the method is idempotent |
//! | a new connection closed before any byte of a response | another endpoint, once, if nothing was sent or the method is idempotent |
//! | no resources of this node for a connection | as for no connection, and the endpoint is not blamed |
//! | an HTTP/2 stream refused by the endpoint, or excluded by its GOAWAY | as for a closed connection; nothing was sent |
//! | a timeout, a malformed response, a stream reset | never: the endpoint may still be processing the request |
//!
//! All cases require that the body is untouched.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use ingress_model::{Protocol, Retry};

use crate::{
    downstream::conn::Conn,
    http::{headers::Head, websocket::Handshake},
    request::{
        body::{RequestBody, Source},
        forward_error::ForwardError,
        forwarded::{Begun, Forwarded},
    },
    server::worker::Worker,
    upstream::{
        self, ConnectError, Connection, ExchangeError, Failure, Limits, Target, Upgraded,
        balance::{Choice, Picked, Tried, UpstreamState},
        h2,
        permit::{Served, UpstreamPermit},
    },
};

/// The load-balancing and retry policies for a request.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'r> {
    pub(crate) choice: Choice,
    pub(crate) retry: &'r Retry,
}

/// Forwards a request and returns when the head of the response is there. `body` is present until an endpoint has it.
///
/// # Errors
/// If no endpoint returned a response head.
pub(crate) async fn forward<'u>(
    conn: &Conn,
    limits: &Limits,
    upstream: &'u UpstreamState,
    Plan { choice, retry }: Plan<'_>,
    head: &Head<'_>,
    body: &mut Option<RequestBody>,
) -> Result<(Forwarded, Served<'u>), ForwardError> {
    let worker = &*conn.worker;
    // Boxed so that requests of other rules do not carry its size.
    let proxy_header = upstream.proxy_header().map(|version| Box::new(conn.proxy_header(version, head.client.address)));
    let place = upstream.enter(limits.connect_timeout).await.map_err(ForwardError::Full)?;
    let mut tried = Tried::up_to(retry.tries);
    let mut was_closed = false;
    let until = retry.within.map(|within| Instant::now() + within);
    let mut pick = || upstream.engage(choice, || worker.now_ms(), &mut tried).filter(|_| is_before(until));
    let (mut endpoint, mut busy) =
        pick().ok_or_else(|| upstream.refuse().map_or(ForwardError::NoEndpoints, ForwardError::Full))?;
    loop {
        let spare = body.as_ref().filter(|_| retry.repeats_answers()).and_then(RequestBody::spare);
        let begun = (choice == Choice::Ewma).then(Instant::now);
        let (address, transport) = (endpoint.address(), upstream.transport());
        let way = (endpoint, Target { address, transport, proxy_header: proxy_header.as_deref() });
        let attempted = match upstream.protocol() {
            Protocol::Http1 | Protocol::Https => attempt(worker, limits, retry, way, head, body).await,
            // Boxed so that the common case does not carry its size.
            Protocol::H2c | Protocol::H2 => Box::pin(attempt_http2(worker, limits, retry, way, head, body)).await,
        };
        match attempted {
            Ok(response) => {
                if let Some(begun) = begun {
                    endpoint.observe(begun.elapsed(), worker.now_ms());
                }
                let spare = spare.filter(|_| retry.statuses.contains(&response.status()) && is_repeatable(head, retry));
                match spare.and_then(|spare| Some((pick()?, spare))) {
                    Some((other, spare)) => {
                        upstream.retried();
                        response.discard();
                        (endpoint, busy) = other;
                        *body = Some(spare);
                    }
                    None => {
                        return Ok((
                            response,
                            Served { endpoint, permit: UpstreamPermit { _busy: busy, _place: place } },
                        ));
                    }
                }
            }
            Err(Attempt { error, retry: unsent }) => {
                let spare = spare.filter(|_| retry.invalid_header && is_invalid(&error) && is_repeatable(head, retry));
                let Some(unsent) = unsent.or(spare) else { return Err(error) };
                if is_closed(&error) && std::mem::replace(&mut was_closed, true) {
                    return Err(error);
                }
                let Some(other) = pick() else { return Err(error) };
                upstream.retried();
                (endpoint, busy) = other;
                *body = Some(unsent);
            }
        }
    }
}

fn is_before(until: Option<Instant>) -> bool {
    until.is_none_or(|until| Instant::now() < until)
}

fn is_closed(error: &ForwardError) -> bool {
    use ExchangeError::{Closed, Io, Reset};
    matches!(error, ForwardError::Exchange(Closed | Reset | Io(_)))
}

fn is_invalid(error: &ForwardError) -> bool {
    matches!(error, ForwardError::Exchange(ExchangeError::Malformed(_) | ExchangeError::HeadTooLarge))
}

/// Returns whether the request may be repeated: its method is idempotent (RFC 9110, section 9.2.2), or the rule allows
/// it.
fn is_repeatable(head: &Head<'_>, retry: &Retry) -> bool {
    head.method().is_idempotent() || retry.non_idempotent
}

/// A failed attempt, with the body if another attempt may follow.
struct Attempt {
    error: ForwardError,
    retry: Option<RequestBody>,
}

/// Tries one endpoint: on an idle connection first, and on a new one if that turns out closed.
async fn attempt(
    worker: &Worker,
    limits: &Limits,
    retry: &Retry,
    (endpoint, target): (Picked<'_>, Target<'_>),
    head: &Head<'_>,
    body: &mut Option<RequestBody>,
) -> Result<Forwarded, Attempt> {
    if let Some(kept) = worker.pool.idle(target) {
        match exchange(limits, kept, head, body).await {
            Ok(response) => {
                endpoint.answered(response.status(), || worker.now_ms());
                return Ok(response);
            }
            // An endpoint may close an idle connection at any time, so this does not affect its health.
            Err(failure) => match unsent(&failure.error, failure.written, failure.unsent, head, &Retry::DEFAULT) {
                Some(unsent) => *body = Some(unsent),
                None => return Err(failed(worker, endpoint, failure.error, None)),
            },
        }
    }
    let connection = match worker.pool.connect(target, limits.connect_timeout).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
            return Err(unreached(worker, endpoint, &error, retry, body.take()));
        }
    };
    match exchange(limits, connection, head, body).await {
        Ok(response) => {
            endpoint.answered(response.status(), || worker.now_ms());
            Ok(response)
        }
        Err(Failure { error, unsent, written, reused: _ }) => {
            let unsent = self::unsent(&error, written, unsent, head, retry);
            Err(failed(worker, endpoint, error, unsent))
        }
    }
}

/// Handles a failed connect, before which the request was not touched.
fn unreached(
    worker: &Worker,
    endpoint: Picked<'_>,
    error: &ConnectError,
    retry: &Retry,
    body: Option<RequestBody>,
) -> Attempt {
    let error = unconnected(error, endpoint, worker.now_ms());
    Attempt { error, retry: body.filter(|_| retry.error || retry.timeout) }
}

/// Marks the endpoint as failed, unless this node lacks resources.
fn unconnected(error: &ConnectError, endpoint: Picked<'_>, now_ms: u64) -> ForwardError {
    let timed_out = match error {
        ConnectError::Exhausted { .. } => return ForwardError::Exhausted,
        ConnectError::Timeout { .. } => true,
        ConnectError::Refused { .. } | ConnectError::Tls { .. } | ConnectError::Io { .. } => false,
    };
    endpoint.failed(now_ms);
    ForwardError::Connect { timed_out }
}

/// Takes the body; the failure returns it if it may be sent again.
async fn exchange(
    limits: &Limits,
    connection: Connection,
    head: &Head<'_>,
    body: &mut Option<RequestBody>,
) -> Result<Forwarded, Failure<RequestBody>> {
    let Some(body) = body.take() else {
        return Err(Failure { error: spent(), unsent: None, reused: connection.is_reused(), written: false });
    };
    let Some(Handshake { accept, key: _ }) = head.handshake else {
        let has_proxy_header = connection.has_proxy_header();
        let write = |out: &mut Vec<u8>| {
            head.write(out);
            // Hop-by-hop fields are named in `Connection` (RFC 9110, section 10.1.4), and a connection for a single
            // request announces its close (RFC 9112, section 9.6).
            let fields: &[u8] = match (has_proxy_header, head.takes_trailers()) {
                (true, true) => b"connection: close, te\r\nte: trailers\r\n",
                (true, false) => b"connection: close\r\n",
                (false, true) => b"connection: te\r\nte: trailers\r\n",
                (false, false) => b"",
            };
            out.extend_from_slice(fields);
        };
        let response = upstream::begin(connection, *limits, head.method(), write, body).await?;
        return Ok(Forwarded::Response(Begun::Http1(response)));
    };
    let upgraded = Box::pin(upstream::upgrade(connection, *limits, *accept, |out| head.write(out), body));
    Ok(match upgraded.await? {
        Upgraded::Switched(response) => Forwarded::Switched(response),
        Upgraded::Declined(response) => Forwarded::Response(Begun::Http1(response)),
    })
}

fn spent() -> ExchangeError {
    tracing::error!("an attempt has no body to send, which is a defect; the request fails");
    ExchangeError::Aborted
}

/// Tries one HTTP/2 endpoint: on an open connection if there is one, and once more if that turns out closed.
async fn attempt_http2(
    worker: &Worker,
    limits: &Limits,
    retry: &Retry,
    (endpoint, target): (Picked<'_>, Target<'_>),
    head: &Head<'_>,
    body: &mut Option<RequestBody>,
) -> Result<Forwarded, Attempt> {
    let mut again = true;
    loop {
        let lease = match worker.http2.lease(target, limits.connect_timeout).await {
            Ok(lease) => lease,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
                return Err(unreached(worker, endpoint, &error, retry, body.take()));
            }
        };
        let Some(sent) = body.take() else { return Err(failed(worker, endpoint, spent(), None)) };
        let write = |out: &mut Vec<u8>| {
            head.write(out);
            if head.takes_trailers() {
                out.extend_from_slice(b"te: trailers\r\n");
            }
        };
        let Failure { error, unsent, written, reused } =
            match h2::exchange(lease, *limits, head.method(), write, sent).await {
                Ok(response) => {
                    endpoint.answered(response.status().as_u16(), || worker.now_ms());
                    let response = Box::new(response.map(|body| Source::Http2(Box::new(body))));
                    return Ok(Forwarded::Response(Begun::Http2(response)));
                }
                Err(failure) => failure,
            };
        let rules = if reused && again { &Retry::DEFAULT } else { retry };
        match self::unsent(&error, written, unsent, head, rules) {
            Some(unsent) if reused && std::mem::take(&mut again) => *body = Some(unsent),
            unsent => return Err(failed(worker, endpoint, error, unsent)),
        }
    }
}

/// Returns the body if the request may be sent again.
fn unsent(
    error: &ExchangeError,
    written: bool,
    unsent: Option<RequestBody>,
    head: &Head<'_>,
    retry: &Retry,
) -> Option<RequestBody> {
    let wanted = match error {
        ExchangeError::Closed | ExchangeError::Reset | ExchangeError::Io(_) => retry.error,
        ExchangeError::Timeout { .. } => retry.timeout,
        ExchangeError::Malformed(_)
        | ExchangeError::HeadTooLarge
        | ExchangeError::Aborted
        | ExchangeError::RequestBody(_)
        | ExchangeError::Starved => false,
    };
    unsent.filter(|_| wanted && (!written || is_repeatable(head, retry)))
}

fn failed(worker: &Worker, endpoint: Picked<'_>, error: ExchangeError, retry: Option<RequestBody>) -> Attempt {
    tracing::debug!(endpoint = %endpoint.address(), error = &error as &dyn std::error::Error, "exchange failed");
    match error {
        ExchangeError::RequestBody(_) => {}
        ExchangeError::Starved => {
            worker.shared.stats.timed_out.fetch_add(1, Relaxed);
        }
        // A malformed response may be caused by the request rather than by the endpoint, so only timeouts and closed
        // connections count against the endpoint.
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
    use ingress_model::{Endpoint, Upstream, UpstreamKey};

    #[test]
    fn what_this_node_lacks_is_not_the_endpoints_failure() {
        let address = ([10, 0, 0, 1], 80).into();
        let other = ([10, 0, 0, 2], 80).into();
        for (code, blamed) in [
            (libc::EMFILE, false),
            (libc::ENFILE, false),
            (libc::EADDRNOTAVAIL, false),
            (libc::EAGAIN, false),
            (libc::ENOBUFS, false),
            (libc::ENOMEM, false),
            (libc::ECONNREFUSED, true),
            (libc::ETIMEDOUT, true),
            (libc::EHOSTUNREACH, true),
        ] {
            let endpoints = [address, other].map(|address| Endpoint { address }).into();
            let state = UpstreamState::carry(
                &UpstreamKey::new("default", "web", "80"),
                &Upstream { endpoints, ..Upstream::default() },
                None,
                None,
            );
            let picked = state.pick(Choice::Next, || 0, &mut Tried::up_to(3)).expect("an endpoint");
            let error = ConnectError::new(address, io::Error::from_raw_os_error(code));
            let failed = unconnected(&error, picked, 0);
            assert_eq!(matches!(failed, ForwardError::Exhausted), !blamed, "{error}");
            let next: Vec<_> = (0..2)
                .filter_map(|_| state.pick(Choice::Next, || 1, &mut Tried::up_to(3)))
                .map(Picked::address)
                .collect();
            assert_eq!(next.contains(&address), !blamed, "{error}");
            assert_eq!(crate::request::error::forward(&failed).status() == 503, !blamed, "{error}");
        }
    }
}
