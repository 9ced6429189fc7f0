//! Brings a request that is let through to an endpoint, and hands on what comes of that.

use http::{Method, Response, header};

use crate::{
    model::{Balance, ErrorPages},
    route::{Subject, filter::Edits, template::render},
};

use super::{
    super::{
        access_log::Teller,
        authenticate::Asking,
        body::{Body, RequestBody},
        error,
        forward::{Plan, forward},
        forwarded::Forwarded,
        headers::Head,
        in_flight::InFlight,
        pick::{Choice, UpstreamState, hash},
        session::Session,
        websocket::Handshake,
    },
    Asked,
    response::{own, page_or, relay, replace, switch},
};

/// A request that its rule lets through, and what goes to an endpoint. Handed on by reference: what is moved through
/// many hands is copied (ADR 0034).
pub(super) struct Admitted<'r> {
    pub(super) upstream: &'r UpstreamState,
    pub(super) session: Option<Session<'r>>,
    pub(super) handshake: Option<Handshake>,
    /// Until an endpoint has it.
    pub(super) body: Option<RequestBody>,
}

/// Forwards a request, as `edits` changes it, and makes what comes of that the client's response.
pub(super) async fn exchange(
    asking: &Asking<'_>,
    admitted: &mut Admitted<'_>,
    edits: &Edits<'_>,
    pages: Option<&ErrorPages>,
    asked: Asked,
    mut in_flight: InFlight,
    teller: &mut Option<Box<Teller>>,
) -> Response<Body> {
    let Asking { conn, forwarding, subject, .. } = *asking;
    let Admitted { upstream, session, handshake, body } = admitted;
    let upstream = *upstream;
    let bodiless = *subject.method == Method::HEAD;
    // Whoever makes the pages is not asked for others.
    let pages = pages.filter(|pages| pages.backend != *upstream.key());
    let head = Head { handshake: handshake.as_ref(), ..asking.head(subject, edits) };
    let choice = choice(&forwarding.balance, session.as_ref(), upstream, subject);
    let plan = Plan { choice, retry: &forwarding.retry };
    match forward(conn, &asking.limits(), upstream, plan, &head, body).await {
        Ok((forwarded, mut served)) => {
            in_flight.hold(std::mem::take(&mut served.held));
            if let Some(teller) = teller {
                teller.answered(served.endpoint.address(), forwarded.status());
            }
            let cookie = session.as_ref().and_then(|session| session.set(upstream, &served, subject));
            let mut response = match forwarded {
                Forwarded::Response(response)
                    if matches!(asked, Asked::Stream(_)) && response.status().is_success() =>
                {
                    response.discard();
                    own(in_flight, error::not_switched(), bodiless)
                }
                Forwarded::Response(response) => {
                    match pages.filter(|pages| pages.replace(response.status().as_u16())) {
                        None => relay(response.into_response(), bodiless, in_flight),
                        // Boxed, so that other requests do not carry its size.
                        Some(pages) => {
                            let response = response.into_response();
                            Box::pin(replace(response, pages, upstream, asking, edits, in_flight)).await
                        }
                    }
                }
                Forwarded::Switched(response) => switch(conn, asked, *response, in_flight),
            };
            if let Some(cookie) = cookie {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }
        Err(failed) => {
            // Nobody reads on.
            *body = None;
            let answer = error::forward(&failed);
            let status = answer.status();
            // Whoever sent half a request waits for an answer and no page.
            match pages.filter(|pages| status.is_server_error() && pages.replace(status.as_u16())) {
                None => own(in_flight, answer, bodiless),
                Some(pages) => Box::pin(page_or(answer, pages, upstream, asking, edits, in_flight)).await,
            }
        }
    }
}

/// How the endpoint is chosen.
fn choice(balance: &Balance, session: Option<&Session<'_>>, upstream: &UpstreamState, subject: &Subject<'_>) -> Choice {
    let choice = match balance {
        Balance::RoundRobin => Choice::Next,
        Balance::LeastRequest => Choice::LeastRequest,
        Balance::Ewma => Choice::Ewma,
        Balance::Hash(template) => Choice::Hash(hash(render(template, subject, None).as_bytes())),
    };
    session.map_or(choice, |session| session.choice(upstream, choice))
}
