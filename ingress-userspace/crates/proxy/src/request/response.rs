//! Prepares the response to the client: the proxy's own, or a pod's, which may be replaced by an error page,
//! compressed, or turned into a tunnel.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Version, header, response};
use http_body::Body as _;

use ingress_common::StatusClass;
use ingress_model::{
    Compression, ErrorPages,
    route::{
        Subject,
        filter::{self, Edits},
    },
};

use super::TunnelRequest;
use crate::{
    downstream::{
        conn::Conn,
        h3_tunnel,
        tunnel::{OpenedStream, Tunnel},
    },
    request::{
        context::RequestContext,
        error::{self, LocalReply},
        error_pages,
        in_flight::InFlight,
        request_body::RequestBody,
        response_body::{Body, BodySource},
    },
    upstream::{self, balance::UpstreamState, permit::UpstreamPermit, subrequest::discard},
};

pub(super) fn own(mut in_flight: InFlight, answer: LocalReply, bodiless: bool) -> Response<Body> {
    in_flight.answered(answer.status());
    let class = StatusClass::of(answer.status().as_u16());
    if !bodiless {
        return answer.map(|text| Body::own(text, class, in_flight));
    }
    // Over HTTP/2, hyper would send the content even to HEAD. Without the content, it knows no length.
    let (mut parts, text) = answer.into_parts();
    if !text.is_empty() {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| text.len().into());
    }
    Response::from_parts(parts, Body::own(Bytes::new(), class, in_flight))
}

/// Turns an upstream's response into the response to the client. Its head has no hop-by-hop fields left.
pub(super) fn relay(mut response: Response<BodySource>, bodiless: bool, mut in_flight: InFlight) -> Response<Body> {
    let status = response.status();
    in_flight.answered(status);
    response.headers_mut().entry(header::SERVER).or_insert(error::SERVER);
    // hyper sets the version of the client; the version of the upstream is not passed on.
    *response.version_mut() = Version::HTTP_11;
    let bodiless = bodiless || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    response.map(|body| Body::upstream(body, StatusClass::of(status.as_u16()), bodiless, in_flight))
}

/// Returns the page that replaces a pod's response, or a response of the proxy if the page cannot be fetched. The
/// status of the pod's response stays, and so do the authentication challenges of a 401.
pub(super) async fn replace(
    response: Response<BodySource>,
    pages: &ErrorPages,
    upstream: &UpstreamState,
    context: &RequestContext<'_>,
    edits: &Edits<'_>,
    mut in_flight: InFlight,
) -> Response<Body> {
    let (response::Parts { status, mut headers, .. }, rest) = response.into_parts();
    discard(rest).await;
    // The pod has finished the request, however long the client takes to read the page.
    in_flight.hold(UpstreamPermit::default());
    let answer = error::without_page(status);
    let mut response = page_or(answer, pages, upstream, context, edits, in_flight).await;
    response.headers_mut().remove(header::WWW_AUTHENTICATE);
    if status == StatusCode::UNAUTHORIZED
        && let header::Entry::Occupied(challenges) = headers.entry(header::WWW_AUTHENTICATE)
    {
        let (_, challenges) = challenges.remove_entry_mult();
        for challenge in challenges {
            response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
        }
    }
    response
}

/// Returns the page for the status of `answer`, or `answer` itself if the page cannot be fetched.
pub(super) async fn page_or(
    answer: LocalReply,
    pages: &ErrorPages,
    upstream: &UpstreamState,
    context: &RequestContext<'_>,
    edits: &Edits<'_>,
    mut in_flight: InFlight,
) -> Response<Body> {
    let bodiless = *context.subject.method == Method::HEAD;
    let body = RequestBody::default();
    match error_pages::page(pages, answer.status(), upstream.key(), context, edits, body).await {
        Some((page, permit)) => {
            in_flight.hold(permit);
            relay(page, bodiless, in_flight)
        }
        None => own(in_flight, answer, bodiless),
    }
}

/// Compresses the response if that is allowed and the client accepts it.
pub(super) fn compress(compression: &Compression, subject: &Subject<'_>, response: &mut Response<Body>) {
    let has_body = !response.body().is_end_stream() || *subject.method == Method::HEAD;
    if !has_body || !response.body().is_of_pod() {
        return;
    }
    let stated = response.headers().get(header::CONTENT_LENGTH);
    let stated = stated.and_then(|length| length.to_str().ok()?.parse().ok());
    // The length of a response to HEAD does not tell the length of the body that GET would get.
    let known = || response.body().size_hint().exact().filter(|_| *subject.method != Method::HEAD);
    let (status, length) = (response.status(), stated.or_else(known));
    if let Some(offer) = filter::compress(compression, subject, status, length, response.headers_mut()) {
        response.body_mut().compress(offer);
    }
}

/// Accepts a WebSocket handshake as the endpoint did, and hands the connection or stream to the tunnel.
pub(super) fn switch(
    conn: &Rc<Conn>,
    asked: TunnelRequest,
    response: Response<upstream::UpstreamTunnel>,
    mut in_flight: InFlight,
) -> Response<Body> {
    let (mut parts, endpoint) = response.into_parts();
    in_flight.answered(parts.status);
    parts.headers.entry(header::SERVER).or_insert(error::SERVER);
    let mut body = Body::switched(in_flight.cell());
    let tunnel = Tunnel::new(endpoint, in_flight);
    match asked {
        TunnelRequest::Stream(opened) => {
            parts.status = StatusCode::OK;
            parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
            // The tasks are owned by the worker's runtime. They end with the stream, which ends with the connection.
            match opened {
                OpenedStream::Http2(opened) => {
                    tokio::task::spawn_local(tunnel.run_stream(Rc::clone(conn), tokio::task::id(), opened));
                }
                OpenedStream::Http3(received) => {
                    let (stream, sent) = h3_tunnel::pair(*received);
                    tokio::task::spawn_local(tunnel.run_http3(Rc::clone(conn), stream));
                    body.tunnel(sent);
                }
            }
        }
        TunnelRequest::Connection | TunnelRequest::Nothing => {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            conn.switch(tunnel);
        }
    }
    Response::from_parts(parts, body)
}
