//! Forwards an admitted request to an endpoint, and passes on the response.

use http::{Method, Response, header};
use http_body::Body as _;

use ingress_model::{
    Balance, ErrorPages, Uploads,
    route::{
        Subject,
        filter::{Edits, rewrite_urls},
        template::render,
    },
};

use super::{
    TunnelRequest,
    response::{own, page_or, relay, replace, switch},
};
use crate::{
    http::{headers::ForwardedHead, websocket::Handshake},
    observe::access_log::LogEntry,
    request::{
        context::RequestContext,
        error::{self, LocalReply},
        in_flight::InFlight,
        request_body::RequestBody,
        response_body::{Body, BodySource},
        session_affinity::AffinitySession,
    },
    upstream::{
        ExchangeError,
        balance::{Choice, UpstreamState, hash},
        subrequest::{Deadline, Outcome, SubrequestError, by, send},
    },
};

/// A request that its rule admits, with the data sent to the endpoint. Passed by reference, because moving it through
/// many functions copies it each time (ADR 0034).
pub(super) struct Admitted<'r> {
    pub(super) upstream: &'r UpstreamState,
    pub(super) session: Option<AffinitySession<'r>>,
    pub(super) handshake: Option<Handshake>,
    /// Present until an endpoint has taken the body.
    pub(super) body: Option<RequestBody>,
}

/// Forwards a request with the changes in `edits`, and turns the outcome into the client's response.
pub(super) async fn exchange(
    context: &RequestContext<'_>,
    admitted: &mut Admitted<'_>,
    edits: &Edits<'_>,
    pages: Option<&ErrorPages>,
    asked: TunnelRequest,
    mut in_flight: InFlight,
    log_entry: &mut Option<Box<LogEntry>>,
) -> Response<Body> {
    let RequestContext { conn, forwarding, subject, .. } = *context;
    let Admitted { upstream, session, handshake, body } = admitted;
    let upstream = *upstream;
    let bodiless = *subject.method == Method::HEAD;
    // Responses of the error page backend are not replaced by error pages.
    let pages = pages.filter(|pages| pages.backend != *upstream.key());
    let deadline = forwarding.request_timeout.and_then(|limit| in_flight.deadline(limit));
    if let (Uploads::Buffered, Some(upload), None) = (forwarding.uploads, body.as_mut(), &*handshake)
        && !upload.is_end_stream()
    {
        let silence = context.snapshot.settings.stall_timeout;
        // Boxed so that other requests do not carry its size.
        let namespace = upstream.key().namespace();
        let keep = async {
            let kept = upload.keep(conn, namespace, forwarding.body_buffer, silence);
            kept.await.map_err(SubrequestError::Exchange)
        };
        let kept = match deadline {
            None => Box::pin(keep).await,
            Some(deadline) => Box::pin(by(deadline, keep)).await,
        };
        if let Err(error) = kept {
            *body = None;
            let answer = failure(&error, &in_flight);
            return own(in_flight, answer, bodiless);
        }
    }
    let head = ForwardedHead { handshake: handshake.as_ref(), ..context.head(subject, edits) };
    let choice = choice(&forwarding.balance, session.as_ref(), upstream, subject);
    let mut plan = context.plan(upstream, choice, &forwarding.retry);
    plan.try_timeout = forwarding.backend_request_timeout;
    let connections = conn.worker.connections();
    let sent = match deadline {
        None => send(connections, upstream, &plan, &head, body).await,
        // Boxed so that requests of other rules do not carry its size.
        Some(deadline) => Box::pin(by(deadline, send(connections, upstream, &plan, &head, body))).await,
    };
    match sent {
        Ok((outcome, mut served)) => {
            in_flight.hold(std::mem::take(&mut served.permit));
            // A tunnel has no deadline.
            if (deadline.is_some() || served.deadline.is_some()) && matches!(outcome, Outcome::Response(_)) {
                end_by(&mut in_flight, deadline, served.deadline.as_deref());
            }
            if let Some(log_entry) = log_entry {
                log_entry.answered(served.endpoint.address(), outcome.status());
            }
            let cookie = session.as_ref().and_then(|session| session.set(upstream, &served, subject));
            let mut response = match outcome {
                Outcome::Response(response)
                    if matches!(asked, TunnelRequest::Stream(_)) && response.status().is_success() =>
                {
                    response.discard();
                    own(in_flight, error::not_switched(), bodiless)
                }
                Outcome::Response(response) => {
                    match pages.filter(|pages| pages.replace(response.status().as_u16())) {
                        None => {
                            let mut response = response.into_response(BodySource::Http1, BodySource::Http2);
                            if let Some(rewrites) = &forwarding.url_rewrites {
                                rewrite_urls(rewrites, subject, response.headers_mut());
                            }
                            let mut response = relay(response, bodiless, in_flight);
                            if let Some(rate) = forwarding.response_rate {
                                response.body_mut().throttle(rate);
                            }
                            response
                        }
                        // Boxed so that other requests do not carry its size.
                        Some(pages) => {
                            let response = response.into_response(BodySource::Http1, BodySource::Http2);
                            Box::pin(replace(response, pages, upstream, context, edits, in_flight)).await
                        }
                    }
                }
                Outcome::Switched(response) => switch(conn, asked, *response, in_flight),
            };
            if let Some(cookie) = cookie {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }
        Err(error) => {
            // The body is not read any further.
            *body = None;
            let answer = failure(&error, &in_flight);
            let status = answer.status();
            // A client that sent half a request waits for a response, and gets no error page.
            match pages.filter(|pages| status.is_server_error() && pages.replace(status.as_u16())) {
                None => own(in_flight, answer, bodiless),
                Some(pages) => Box::pin(page_or(answer, pages, upstream, context, edits, in_flight)).await,
            }
        }
    }
}

/// Ends the request at the earlier of the deadlines of the whole and of the try.
#[cold]
fn end_by(in_flight: &mut InFlight, whole: Option<Deadline>, of_try: Option<&Deadline>) {
    if let Some(deadline) = whole.into_iter().chain(of_try.copied()).min() {
        in_flight.end_by(deadline);
    }
}

/// Returns the response to a request that failed, and counts a client that sent no more of its body.
fn failure(error: &SubrequestError, in_flight: &InFlight) -> LocalReply {
    if matches!(error, SubrequestError::Exchange(ExchangeError::Starved)) {
        in_flight.timed_out();
    }
    error::forward(error)
}

/// Returns the load-balancing policy for the request.
fn choice(
    balance: &Balance,
    session: Option<&AffinitySession<'_>>,
    upstream: &UpstreamState,
    subject: &Subject<'_>,
) -> Choice {
    let choice = match balance {
        Balance::RoundRobin => Choice::Next,
        Balance::LeastRequest => Choice::LeastRequest,
        Balance::Ewma => Choice::Ewma,
        Balance::Hash(template) => Choice::Hash(hash(render(template, subject, None).as_bytes())),
        Balance::Subset { by, size } => Choice::Subset(hash(render(by, subject, None).as_bytes()), *size),
    };
    session.map_or(choice, |session| session.choice(upstream, choice))
}
