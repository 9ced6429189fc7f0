//! Sends one request to an upstream: permit → endpoint → connection → exchange → retry. Requests of clients are sent
//! here, and those of the proxy itself (external authorization, mirrors, key sets). Health checks and the export of
//! spans choose their addresses themselves, and use [`Connections::attempt`]. No response is created here.
//!
//! [`retry`] has the errors that lead to a retry, and those that count against an endpoint. Each wait has its limit of
//! [`ExchangeLimits`]; if the whole has a deadline, it is that of [`within`].

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Collected, Either, LengthLimitError, Limited};
use tokio::time::{self, timeout, timeout_at};

use super::{
    Accept, BegunExchange, BoxError, ConnectError, ConnectTarget, ExchangeError, ExchangeLimits, Malformed, Outgoing,
    Pool, ResponseBody, UpstreamTunnel,
    balance::{Choice, Full, Tried, UpstreamState},
    h2,
    permit::{Served, UpstreamPermit},
};
use crate::{downstream::proxy_protocol::ProxyHeader, server::clock};
use attempt::Failed;
use ingress_model::Retry;

mod attempt;
mod discard;
mod retry;

pub(crate) use attempt::Attempt;
pub(crate) use discard::discard;

/// The head of a request.
pub(crate) trait Message {
    fn method(&self) -> &Method;

    /// Appends request line and fields, without framing fields, hop-by-hop fields and the final line end.
    fn write(&self, out: &mut Vec<u8>);

    /// Returns whether the client accepts trailers.
    fn takes_trailers(&self) -> bool {
        false
    }

    /// Returns the answer that a WebSocket handshake must get; `None` for other requests.
    fn accept(&self) -> Option<Accept> {
        None
    }

    /// Returns whether no request follows on the connection.
    fn is_last(&self) -> bool {
        false
    }
}

/// The head of a request by the proxy itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnMessage<'m> {
    pub(crate) method: &'m Method,
    pub(crate) text: &'m [u8],
    pub(crate) is_last: bool,
}

/// The body of a request. Its default is empty.
pub(crate) trait Payload: Outgoing + Default + 'static {}

impl<B: Outgoing + Default + 'static> Payload for B {}

/// The idle connections of one thread, for requests with bodies of one type.
pub(crate) struct Connections<'c, B> {
    pub(crate) pool: &'c Pool,
    pub(crate) http2: &'c h2::Http2Clients<B>,
}

/// The retries of requests by no rule.
pub(crate) static DEFAULT_RETRY: Retry = Retry::DEFAULT;

/// The policies for a request.
pub(crate) struct Plan<'r> {
    pub(crate) choice: Choice,
    pub(crate) retry: &'r Retry,
    pub(crate) limits: ExchangeLimits,
    /// Boxed so that requests of other rules do not carry its size.
    pub(crate) proxy_header: Option<Box<ProxyHeader>>,
    /// Whether the request takes a place of the upstream's circuit breaker, and its outcome counts for the health of the
    /// endpoints.
    pub(crate) is_judged: bool,
    /// Whether the time to the head of the response is counted for the upstream.
    pub(crate) is_timed: bool,
    /// Maximum time of each try.
    pub(crate) try_timeout: Option<Duration>,
}

/// The time at which a request or a try must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    pub(crate) at: time::Instant,
    /// Time that it had.
    limit: Duration,
}

/// The outcome of a request.
pub(crate) enum Outcome<B> {
    Response(Started<B>),
    /// The endpoint accepted a WebSocket handshake.
    Switched(Box<Response<UpstreamTunnel>>),
}

/// A response with a complete head, kept small while it is passed on.
pub(crate) enum Started<B> {
    Http1(BegunExchange<B>),
    Http2(Box<Response<Box<h2::Http2ResponseBody<B>>>>),
}

/// The body of a response over either protocol.
pub(crate) type EitherBody<B> = Either<ResponseBody<B>, Box<h2::Http2ResponseBody<B>>>;

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubrequestError {
    #[error("the upstream has no endpoints")]
    NoEndpoints,
    /// The number of requests in flight has reached the upstream's limit.
    #[error("the upstream is full")]
    Full(Full),
    /// Boxed so that responses do not carry its size.
    #[error("no endpoint accepted a connection")]
    Connect(#[source] Box<ConnectError>),
    #[error("the exchange with an endpoint failed")]
    Exchange(#[source] ExchangeError),
    #[error("the request took longer than {} ms", .0.as_millis())]
    Deadline(Duration),
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
    #[error("the response broke off")]
    Body(#[source] BoxError),
}

/// Sends a request, and returns when the head of the response is there. `body` is present until an endpoint has it.
///
/// # Errors
/// If no endpoint returned a response head.
pub(crate) async fn send<'u, B: Payload>(
    connections: Connections<'_, B>,
    upstream: &'u UpstreamState,
    plan: &Plan<'_>,
    message: &impl Message,
    body: &mut Option<B>,
) -> Result<(Outcome<B>, Served<'u>), SubrequestError> {
    let Plan { choice, retry, ref limits, ref proxy_header, is_judged, is_timed, try_timeout } = *plan;
    let place = match is_judged {
        true => upstream.enter(limits.connect_timeout).await.map_err(SubrequestError::Full)?,
        false => None,
    };
    let mut tried = Tried::up_to(retry.tries);
    let (mut was_closed, mut retries) = (false, 0_u32);
    let until = retry.within.map(|within| Instant::now() + within);
    let mut pick = || loop {
        let picked = match is_judged {
            true => upstream.engage(choice, clock::now_ms, &mut tried),
            false => upstream.pick(choice, clock::now_ms, &mut tried).map(|picked| (picked, None)),
        };
        if picked.is_some() || !retry.same_endpoint || !tried.begin_again(retry.tries) {
            return picked.filter(|_| is_before(until));
        }
    };
    let (mut endpoint, mut busy) =
        pick().ok_or_else(|| upstream.refuse().map_or(SubrequestError::NoEndpoints, SubrequestError::Full))?;
    loop {
        let may_repeat = retry.repeats_answers() || (retry.timeout && try_timeout.is_some());
        let spare = body.as_ref().filter(|body| may_repeat && body.is_end_stream()).map(|_| B::default());
        // Other requests do not read the clock.
        let begun = (choice == Choice::Ewma || is_timed).then(Instant::now);
        let (address, transport) = (endpoint.address(), upstream.transport());
        let target = ConnectTarget { address, transport, proxy_header: proxy_header.as_deref() };
        let attempt = Attempt { target, limits, retry, message };
        // Boxed so that requests of other rules do not carry its size.
        let deadline = try_timeout.and_then(Deadline::after).map(Box::new);
        let has_body = deadline.is_some() && body.as_ref().is_some_and(|body| !body.is_end_stream());
        let result = {
            let attempt = pin!(connections.attempt(upstream.protocol(), attempt, body));
            unless_late(deadline.as_deref(), attempt).await
        };
        // The pause stands behind the match: what lives across an await is copied into the future.
        let (last, unsent) = match result {
            Ok(outcome) => {
                let status = outcome.status();
                if is_judged {
                    endpoint.answered(status, clock::now_ms);
                }
                if let Some(begun) = begun {
                    let took = begun.elapsed();
                    if choice == Choice::Ewma {
                        endpoint.observe(took, clock::now_ms());
                    }
                    if is_timed {
                        upstream.answered_after(took);
                    }
                }
                let is_repeated = || retry.statuses.contains(&status) && retry::is_repeatable(message.method(), retry);
                let Some(spare) = spare.filter(|_| is_repeated()) else {
                    let permit = UpstreamPermit { _busy: busy, _place: place };
                    return Ok((outcome, Served { endpoint, permit, deadline }));
                };
                (Ok(Box::new(outcome)), spare)
            }
            Err(failed) => {
                let failed = if deadline.is_some() { failed.or_late(body, has_body, retry) } else { failed };
                let Failed { error, unsent, is_unseen: _ } = failed;
                tracing::debug!(endpoint = %address, error = &error as &dyn std::error::Error, "attempt failed");
                if is_judged && retry::is_blamed(&error) {
                    endpoint.failed(clock::now_ms());
                }
                let is_repeated = || {
                    retry::is_repeated_invalid(&error, message.method(), retry)
                        || (deadline.is_some() && retry::is_repeated_late(&error, message.method(), retry))
                };
                let Some(unsent) = unsent.or(spare.filter(|_| is_repeated())) else { return Err(error) };
                if retry::is_closed(&error) && std::mem::replace(&mut was_closed, true) {
                    return Err(error);
                }
                // The endpoint has room again during the pause.
                busy = None;
                (Err(error), unsent)
            }
        };
        pause(retry, &mut retries).await;
        let Some(other) = pick() else {
            let permit = UpstreamPermit { _busy: busy, _place: place };
            return last.map(|outcome| (*outcome, Served { endpoint, permit, deadline }));
        };
        if let Ok(outcome) = last {
            outcome.discard();
        }
        (endpoint, busy) = other;
        *body = Some(unsent);
        upstream.retried();
    }
}

/// Waits before the next retry, if the rule asks for that. The endpoint is chosen afterwards, since the health of
/// endpoints may change meanwhile.
async fn pause(retry: &Retry, retries: &mut u32) {
    *retries += 1;
    if let Some(pause) = retry.pause(*retries, || fastrand::u8(..)) {
        // Boxed so that other requests do not carry its size.
        Box::pin(time::sleep(pause)).await;
    }
}

fn is_before(until: Option<Instant>) -> bool {
    until.is_none_or(|until| Instant::now() < until)
}

/// Performs `work` within the deadline of a request. A missed deadline counts against no endpoint, because several may
/// have used it up.
///
/// # Errors
/// Those of `work`, or [`SubrequestError::Deadline`].
pub(crate) async fn within<T, E: From<SubrequestError>>(
    deadline: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    timeout(deadline, work).await.unwrap_or_else(|_elapsed| Err(SubrequestError::Deadline(deadline).into()))
}

/// The same until a given time.
///
/// # Errors
/// Those of `work`, or [`SubrequestError::Deadline`].
pub(crate) async fn by<T>(
    Deadline { at, limit }: Deadline,
    work: impl Future<Output = Result<T, SubrequestError>>,
) -> Result<T, SubrequestError> {
    timeout_at(at, work).await.unwrap_or(Err(SubrequestError::Deadline(limit)))
}

/// Performs an attempt until the deadline, if there is one. There is a single place that polls the attempt, so that the
/// compiler makes no second copy for the deadline.
///
/// # Errors
/// Those of the attempt, and [`Failed::overdue`] once the deadline is over.
fn unless_late<T, B: Payload>(
    deadline: Option<&Deadline>,
    mut work: Pin<&mut impl Future<Output = Result<T, Failed<B>>>>,
) -> impl Future<Output = Result<T, Failed<B>>> {
    let mut end = deadline.map(|Deadline { at, limit }| (Box::pin(time::sleep_until(*at)), *limit));
    poll_fn(move |cx| match work.as_mut().poll(cx) {
        Poll::Pending => match &mut end {
            Some((end, limit)) => end.as_mut().poll(cx).map(|()| Err(Failed::overdue(*limit))),
            None => Poll::Pending,
        },
        done => done,
    })
}

/// Reads a body to its end, or its first `max` bytes, and keeps nothing of it.
///
/// # Errors
/// If the body breaks off.
pub(crate) async fn skip<B: Payload>(mut body: EitherBody<B>, max: usize) -> Result<(), SubrequestError> {
    let mut left = max;
    while let Some(frame) = body.frame().await {
        let length = frame.map_err(SubrequestError::Body)?.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(length) else { break };
        left = less;
    }
    Ok(())
}

/// Reads a body of at most `max` bytes to its end.
///
/// # Errors
/// If the body is longer, or breaks off.
pub(crate) async fn read<B: Payload>(body: EitherBody<B>, max: usize) -> Result<Collected<Bytes>, SubrequestError> {
    Limited::new(body, max).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
        true => SubrequestError::TooLong(max),
        false => SubrequestError::Body(error),
    })
}

impl Message for OwnMessage<'_> {
    fn method(&self) -> &Method {
        self.method
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.text);
    }

    fn is_last(&self) -> bool {
        self.is_last
    }
}

// === impl Deadline ===

impl Deadline {
    /// Returns the time in `limit` from now; `None` if that is too far away to be told.
    fn after(limit: Duration) -> Option<Self> {
        Some(Self { at: time::Instant::now().checked_add(limit)?, limit })
    }

    /// Returns the time when `limit` has passed since `begun`; `None` if that is too far away to be told.
    pub(crate) fn since(begun: Instant, limit: Duration) -> Option<Self> {
        Some(Self { at: time::Instant::from_std(begun).checked_add(limit)?, limit })
    }
}

// === impl Outcome ===

impl<B: Payload> Outcome<B> {
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

    /// Returns the response to a request that is no WebSocket handshake.
    ///
    /// # Errors
    /// If the endpoint has switched protocols all the same.
    pub(crate) fn into_response(self) -> Result<Response<EitherBody<B>>, SubrequestError> {
        match self {
            Self::Response(response) => Ok(response.into_response(Either::Left, Either::Right)),
            Self::Switched(_) => {
                Err(SubrequestError::Exchange(ExchangeError::Malformed(Malformed::SwitchingProtocols)))
            }
        }
    }
}

// === impl Started ===

impl<B: Payload> Started<B> {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Http1(response) => response.status(),
            Self::Http2(response) => response.status(),
        }
    }

    /// Returns the response, with its body turned into a `T`.
    pub(crate) fn into_response<T>(
        self,
        http1: impl FnOnce(ResponseBody<B>) -> T,
        http2: impl FnOnce(Box<h2::Http2ResponseBody<B>>) -> T,
    ) -> Response<T> {
        match self {
            Self::Http1(response) => response.into_response().map(http1),
            Self::Http2(response) => response.map(http2),
        }
    }

    /// Discards the response. The body is read to its end in the background if little remains, so that its connection
    /// can be reused.
    pub(crate) fn discard(self) {
        discard::in_background(self.into_response(Either::Left, Either::Right).into_body());
    }
}
