//! Fetches a page from the default backend to replace the error response of a pod. The status of the error is kept.
//! Only requests that have passed all filters of the rule get such a page.

use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};

use ingress_model::{
    ErrorPages, UpstreamKey,
    route::{Subject, filter::Edits},
};

use crate::{
    request::{context::RequestContext, request_body::RequestBody, response_body::BodySource},
    upstream::{
        balance::Choice,
        permit::UpstreamPermit,
        subrequest::{DEFAULT_RETRY, Outcome, send},
    },
};

/// Returns the page for `status`, the error of a pod of `upstream`, and the permit held on the default backend. `edits`
/// are those of the failed request. Returns `None` if the page cannot be fetched.
pub(crate) async fn page(
    pages: &ErrorPages,
    status: StatusCode,
    upstream: &UpstreamKey,
    context: &RequestContext<'_>,
    edits: &Edits<'_>,
    body: RequestBody,
) -> Option<(Response<BodySource>, UpstreamPermit)> {
    let RequestContext { conn, snapshot, subject, .. } = *context;
    let method = if *subject.method == Method::HEAD { Method::HEAD } else { Method::GET };
    let question = Subject { method: &method, target: "/", ..*subject };
    let mut found = edits.found.clone();
    found.extend(fields(pages, status, Some(upstream), subject));
    // Fields that concern the requested resource, not the page.
    let is_about_it = |name: &&HeaderName| {
        ["if-", "sec-websocket-", "content-"].iter().any(|start| name.as_str().starts_with(start))
            || **name == header::RANGE
    };
    found.extend(subject.headers.keys().filter(is_about_it).map(|name| (name.clone(), None)));
    let edits = Edits { target: None, host: None, found, headers: edits.headers.clone() };
    let head = context.head(&question, &edits);
    let backend = snapshot.upstream(snapshot.upstream_id(&pages.backend)?)?;
    let plan = context.plan(backend, Choice::Next, &DEFAULT_RETRY);
    match send(conn.worker.connections(), backend, &plan, &head, &mut Some(body)).await {
        Ok((Outcome::Response(response), served)) if is_page(response.status()) => {
            let mut response = response.into_response(BodySource::Http1, BodySource::Http2);
            *response.status_mut() = status;
            Some((response, served.permit))
        }
        Ok((other, _)) => {
            other.discard();
            None
        }
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "the default backend has no page");
            None
        }
    }
}

/// Returns the fields that ingress-nginx sends to the default backend; they replace the client's.
pub(crate) fn fields(
    pages: &ErrorPages,
    status: StatusCode,
    upstream: Option<&UpstreamKey>,
    subject: &Subject<'_>,
) -> Vec<(HeaderName, Option<HeaderValue>)> {
    let name = HeaderName::from_static;
    let text = |text: &str| HeaderValue::from_str(text).ok();
    let (namespace, ingress) = pages.owner.split_once('/').unwrap_or_default();
    let (service, port) = upstream.and_then(UpstreamKey::service).unzip();
    vec![
        (name("x-code"), Some(status.as_u16().into())),
        (name("x-format"), subject.headers.get(header::ACCEPT).cloned()),
        (name("x-original-uri"), text(subject.target)),
        (name("x-namespace"), text(namespace)),
        (name("x-ingress-name"), text(ingress)),
        (name("x-service-name"), service.and_then(text)),
        (name("x-service-port"), port.and_then(text)),
    ]
}

/// Returns whether the response has a body that can be sent with another status.
fn is_page(status: StatusCode) -> bool {
    !status.is_informational()
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED)
}
