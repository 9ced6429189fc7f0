//! External authorization (`auth-url`), compatible with nginx's `auth_request`.
//!
//! The authorization request has the fields of the client's request but no body. Responses with 2xx admit the request,
//! 401 and 403 are passed on, and any other response is an error. This fails closed: a broken service admits no
//! requests.

use std::{borrow::Cow, sync::Arc, time::Instant};

use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use ingress_model::{
    AuthCache, AuthService, ExtAuthz, RequestHead, request_path,
    route::{
        Matched, RouteTarget as Action, Subject, UpstreamId,
        filter::{self, Edits, Verdict},
        template::{is_faithful, render},
    },
};

use crate::{
    auth::{
        authz_cache::{AuthzResponse, Cookies},
        hmac_cache::Tag,
    },
    http::{client_address::RequestClient, headers::ForwardedHead, target::target},
    request::{
        body_copy::CopiedBody,
        context::RequestContext,
        error::{self, LocalReply},
    },
    upstream::{
        ExchangeLimits,
        balance::Choice,
        subrequest::{DEFAULT_RETRY, OwnMessage, Plan, SubrequestError, send, skip, within},
    },
};

/// Longest response body that is read, so that its connection can be reused; the body itself is ignored.
const BODY_MAX: usize = 64 * 1024;

/// The reason why an authentication service has not decided about a request.
#[derive(Debug, thiserror::Error)]
enum AuthzError {
    /// Caused by the client, not by the service.
    #[error("the target with the client's text has no normal path")]
    Path,
    #[error("the service is in no rule any more")]
    Gone,
    #[error("no rule of the host forwards the target to an upstream without authentication")]
    NoRoute,
    #[error(transparent)]
    Subrequest(#[from] SubrequestError),
    #[error("it answered {}, which neither admits nor rejects a request", .0.as_u16())]
    Status(StatusCode),
}

/// Admits the request and returns fields for the pod, or returns the response to send. `added` are fields found by
/// previous methods.
pub(crate) async fn ask(
    ext_authz: &ExtAuthz,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
    cookies: &mut Cookies,
) -> Result<Vec<(HeaderName, Option<HeaderValue>)>, LocalReply> {
    let authz_response =
        authz_response(ext_authz, context, added).await.map_err(|_logged| error::no_authz_response())?;
    let AuthzResponse { status, challenges, found, cookies: fields } = &*authz_response;
    *cookies = Cookies { fields: fields.clone(), always: ext_authz.always_set_cookie };
    match (*status, &ext_authz.sign_in) {
        (status, _) if status.is_success() => {
            Ok(found.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect())
        }
        (StatusCode::UNAUTHORIZED, Some(location)) => {
            Err(error::redirect(StatusCode::FOUND.as_u16(), &render(location, context.subject, None)))
        }
        (status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _) => Err(error::rejected(status, challenges)),
        _ => Err(error::no_authz_response()),
    }
}

/// Returns the cached response, or sends an authorization request.
async fn authz_response(
    ext_authz: &ExtAuthz,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
) -> Result<Arc<AuthzResponse>, AuthzError> {
    let target = target(&render(&ext_authz.target, context.subject, None));
    let authz_cache = &context.conn.worker.shared.authz_cache;
    let kept = ext_authz
        .cache
        .as_ref()
        .and_then(|cache| Some((tag(ext_authz, cache, &target, context, added)?, &cache.times)));
    if let Some((tag, _)) = &kept
        && let Some((until, authz_response)) = authz_cache.get(tag)
        && Instant::now() < until
    {
        return Ok(authz_response);
    }
    let limits = limits(ext_authz, context);
    // Longer than the timeout of an exchange, which counts against an endpoint that does not answer.
    let deadline = limits.connect_timeout.saturating_add(limits.read_timeout);
    let answered = within(deadline, converse(ext_authz, context, added, limits, &target)).await;
    note(context, &answered);
    let (parts, ()) = answered?.into_parts();
    let authz_response = Arc::new(AuthzResponse::of(&ext_authz.response_headers, parts.status, &parts.headers));
    if let Some((tag, times)) = kept
        && let Some(time) = times.of(authz_response.status.as_u16())
        && authz_response.is_memorable(&parts.headers)
    {
        authz_cache.insert(tag, (Instant::now() + time, Arc::clone(&authz_response)));
    }
    Ok(authz_response)
}

/// Returns the cache key, which is common to all requests that get the same response. Returns `None` if the request has
/// none of the values that the cache is keyed by, or if they are ambiguous.
fn tag(
    ext_authz: &ExtAuthz,
    cache: &AuthCache,
    target: &str,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
) -> Option<Tag> {
    if !is_faithful(&cache.key, context.subject) {
        return None;
    }
    let key = render(&cache.key, context.subject, None);
    let host = match &ext_authz.service {
        AuthService::Upstream { key: _, host } => host.as_bytes(),
        AuthService::SameHost => b"",
    };
    // Rules that send different requests, or use other fields of the response, share no entries.
    let own = ext_authz.to_string();
    let mut parts = vec![own.as_bytes(), host, context.subject.host.as_bytes(), target.as_bytes(), key.as_bytes()];
    for (name, value) in added {
        // Distinguishes a removed field from an empty one; no value contains a line feed.
        parts.extend([name.as_str().as_bytes(), value.as_ref().map_or(&b"\n"[..], HeaderValue::as_bytes)]);
    }
    (!key.is_empty()).then(|| context.conn.worker.shared.authz_cache.tag(&parts))
}

/// Returns the limits of an authorization request.
fn limits(ext_authz: &ExtAuthz, context: &RequestContext<'_>) -> ExchangeLimits {
    let limits = context.snapshot.limits(context.forwarding);
    ExchangeLimits { read_timeout: limits.read_timeout.min(ext_authz.timeout), ..limits }
}

/// Sends one authorization request and reads its response to the end.
async fn converse(
    ext_authz: &ExtAuthz,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
    limits: ExchangeLimits,
    target: &str,
) -> Result<Response<()>, AuthzError> {
    let RequestContext { conn, snapshot, client, subject, .. } = *context;
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    // Text from the client must not change the path that is requested.
    if request_path::normalise(path).ok().as_deref() != Some(path) {
        return Err(AuthzError::Path);
    }
    let question = Subject { method: &ext_authz.method, target, ..*subject };
    let own = fields(ext_authz, context);
    // Sends the verified fields instead of the client's. The password is still sent, because the service may check it.
    let is_kept = |name: &HeaderName| *name != header::AUTHORIZATION && !own.iter().any(|(known, _)| known == name);
    let mut found: Vec<_> = added.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    found.extend(own);
    let mut edits = Edits { found, ..Edits::default() };
    let (id, is_judged) = match &ext_authz.service {
        AuthService::Upstream { key, host } => {
            edits.host = Some(Cow::Borrowed(host));
            (snapshot.upstream_id(key).ok_or(AuthzError::Gone)?, true)
        }
        // The endpoints belong to another rule, perhaps of another namespace. The rule that authenticates controls the
        // request and its timeout, and must not be able to eject those endpoints.
        AuthService::SameHost => (same_host(context, &question, path, &mut edits)?, false),
    };
    // The client's address is among the fields of the request already.
    let client = RequestClient { forwarded: Cow::Borrowed(b""), host: None, ..*client };
    let head = ForwardedHead { identity: None, client: &client, ..context.head(&question, &edits) };
    let upstream = snapshot.upstream(id).ok_or(AuthzError::Gone)?;
    let mut text = Vec::new();
    head.write(&mut text);
    let message = OwnMessage { method: &ext_authz.method, text: &text, is_last: false };
    let plan = Plan { limits, is_judged, ..context.plan(upstream, Choice::Next, &DEFAULT_RETRY) };
    let body = &mut Some(CopiedBody::default());
    let (outcome, _served) = send(conn.worker.own_connections(), upstream, &plan, &message, body).await?;
    let (parts, body) = outcome.into_response()?.into_parts();
    // The rest of a longer body is not needed. Its connection is closed.
    skip(body, BODY_MAX).await?;
    Ok(Response::from_parts(parts, ()))
}

/// Returns the upstream of the rule for `path` of the request's own host, and adds the edits of that rule.
fn same_host<'r>(
    context: &RequestContext<'r>,
    question: &Subject<'_>,
    path: &str,
    edits: &mut Edits<'r>,
) -> Result<UpstreamId, AuthzError> {
    let RequestContext { snapshot, subject, .. } = *context;
    let head = RequestHead { method: question.method, headers: question.headers, target: None };
    let Matched::Route(route) = snapshot.routes.find(subject.host, path, &head).matched else {
        return Err(AuthzError::NoRoute);
    };
    // The service's own rule must not require authentication in turn. This request does not come from the client, so
    // limits do not count it.
    let mut passes = |filter| matches!(filter::apply(filter, question, edits), Verdict::Continue | Verdict::Limit(_));
    if !route.filters.iter().all(&mut passes) {
        return Err(AuthzError::NoRoute);
    }
    match &route.target {
        Action::Forward(id) => Ok(*id),
        Action::Split(branches) => Ok(branches.reached(branches.main, context.conn.secure)),
        Action::Refuse(_) | Action::Redirect(_) | Action::Weighted(_) => Err(AuthzError::NoRoute),
    }
}

/// Verdict about an authentication service by its answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// The service admits or rejects the request.
    Decides,
    /// The service answers with a redirect or an error of the client. A client or a wrong `auth-url` can cause that.
    Undecided(StatusCode),
    /// The service reports an error of its own.
    Failed(StatusCode),
}

/// Logs the service of an Ingress that fails, once until it answers again, and one that answers without a decision.
fn note(context: &RequestContext<'_>, answered: &Result<Response<()>, AuthzError>) {
    let health = answered.as_ref().map(|response| Health::of(response.status()));
    let status = match health {
        Err(AuthzError::Path) => return,
        Ok(Health::Undecided(status) | Health::Failed(status)) => Some(AuthzError::Status(status)),
        Ok(Health::Decides) | Err(_) => None,
    };
    let error = answered.as_ref().err().or(status.as_ref()).map(|error| error as &dyn std::error::Error);
    let (failures, undecided) =
        (&context.conn.worker.shared.authz_failures, &context.conn.worker.shared.authz_undecided);
    if error.is_none() && failures.is_empty() && undecided.is_empty() {
        return;
    }
    // The Ingress names the service. Its URL may contain a secret, and the host may be a text of the client.
    let (ingress, now) = (context.owner, context.conn.worker.clock());
    if let Err(_) | Ok(Health::Failed(_)) = health {
        if failures.fail(ingress, now) {
            tracing::warn!(
                ingress,
                error,
                "the authentication service of an Ingress fails, so that its rules answer 500; this is logged once \
                 until it works again"
            );
        } else {
            tracing::debug!(ingress, error, "the authentication service of an Ingress fails");
        }
        return;
    }
    if failures.recover(ingress, now) {
        tracing::info!(ingress, "the authentication service of an Ingress works again");
    }
    if error.is_none() {
        undecided.recover(ingress, now);
    } else if undecided.fail(ingress, now) {
        tracing::warn!(
            ingress,
            error,
            "the authentication service of an Ingress does not decide, so that clients get 500; if that concerns each \
             request, correct `auth-url`; this is logged once until it decides again"
        );
    } else {
        tracing::debug!(ingress, error, "the authentication service of an Ingress does not decide");
    }
}

/// Returns the fields to set in the authorization request, and with `None` those of the client to remove.
fn fields(ext_authz: &ExtAuthz, context: &RequestContext<'_>) -> Vec<(HeaderName, Option<HeaderValue>)> {
    let RequestContext { authority, subject, .. } = context;
    let name = HeaderName::from_static;
    let mut url = if subject.secure { b"https://".to_vec() } else { b"http://".to_vec() };
    url.extend_from_slice(authority.as_str().as_bytes());
    url.extend_from_slice(subject.target.as_bytes());
    let client = HeaderValue::try_from(subject.client.to_string()).ok();
    let redirect = render(&ext_authz.request_redirect, subject, None);
    let mut fields = vec![
        (name("x-original-url"), HeaderValue::from_bytes(&url).ok()),
        (name("x-original-method"), HeaderValue::from_str(subject.method.as_str()).ok()),
        (name("x-original-uri"), HeaderValue::from_bytes(subject.target.as_bytes()).ok()),
        (name("x-scheme"), Some(HeaderValue::from_static(if subject.secure { "https" } else { "http" }))),
        (name("x-auth-request-redirect"), HeaderValue::try_from(redirect).ok()),
        (name("x-sent-from"), Some(HeaderValue::from_static("nginx-ingress-controller"))),
        (name("x-real-ip"), client.clone()),
        (name("x-forwarded-for"), client),
        // These concern the client's request, not the authorization request.
        (name("x-forwarded-host"), None),
        (header::RANGE, None),
    ];
    let is_about_the_resource =
        |name: &&HeaderName| ["if-", "sec-websocket-"].iter().any(|of| name.as_str().starts_with(of));
    fields.extend(subject.headers.keys().filter(is_about_the_resource).map(|name| (name.clone(), None)));
    let edits = Edits { headers: ext_authz.headers.iter().collect(), ..Edits::default() };
    fields.retain(|(name, _)| !edits.replace(name.as_str()));
    fields.extend(edits.headers.iter().filter(|edit| edit.replaces()).map(|edit| (edit.name().clone(), None)));
    fields.extend(edits.fields(subject).map(|(name, value)| (name.clone(), Some(value))));
    fields
}

// === impl Health ===

impl Health {
    fn of(status: StatusCode) -> Self {
        if status.is_success() || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            Self::Decides
        } else if status.is_redirection() || status.is_client_error() {
            Self::Undecided(status)
        } else {
            Self::Failed(status)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_its_own_make_a_service_fail() {
        for (statuses, expect) in [
            (&[200, 204, 299, 401, 403][..], (|_| Health::Decides) as fn(StatusCode) -> Health),
            (&[300, 302, 304, 307, 400, 404, 429, 499], Health::Undecided),
            (&[500, 502, 503, 599, 600], Health::Failed),
        ] {
            for status in statuses {
                let status = StatusCode::from_u16(*status).expect("a status");
                assert_eq!(Health::of(status), expect(status));
            }
        }
    }
}
