//! External authorization (`auth-url`), compatible with nginx's `auth_request`.
//!
//! The authorization request has the fields of the client's request but no body. Responses with 2xx admit the request,
//! 401 and 403 are passed on, and any other response is an error. This fails closed: a broken service admits no
//! requests.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use tokio::time::timeout;

use ingress_model::{
    AuthCache, AuthService, ExtAuthz, Protocol,
    route::{
        Matched, Subject, Target as Action,
        filter::{self, Edits, Verdict},
        template::{is_faithful, render},
    },
};

use crate::{
    auth::{
        authz_cache::{AuthzResponse, Cookies},
        hmac_cache::Tag,
    },
    downstream::conn::Conn,
    http::{client_address::Client, headers::Head, path, target::target},
    request::{
        context::RequestContext,
        error::{self, Answer},
    },
    upstream::{
        self, ConnectError, Limits, ResponseBody, Target,
        balance::{Choice, Tried, UpstreamState},
    },
};

/// Timeout of the authorization request, from connecting to the end of the response, unless the rule's read timeout is
/// shorter.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Number of endpoints that are tried for one request.
const TRIES: usize = 3;

/// Longest response body that is read, so that its connection can be reused; the body itself is ignored.
const BODY_MAX: usize = 64 * 1024;

/// Whether the outcome of an exchange counts for the health of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Judged,
    Unjudged,
}

/// Admits the request and returns fields for the pod, or returns the response to send. `added` are fields found by
/// previous methods.
pub(crate) async fn ask(
    ext_authz: &ExtAuthz,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
    cookies: &mut Cookies,
) -> Result<Vec<(HeaderName, Option<HeaderValue>)>, Answer> {
    let authz_response = authz_response(ext_authz, context, added).await.ok_or_else(error::no_authz_response)?;
    let AuthzResponse { status, challenges, found, cookies: fields } = &*authz_response;
    *cookies = Cookies { fields: fields.clone(), always: ext_authz.always_set_cookie };
    match (*status, &ext_authz.sign_in) {
        (status, _) if status.is_success() => Ok(found.clone()),
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
) -> Option<Arc<AuthzResponse>> {
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
        return Some(authz_response);
    }
    let answered =
        timeout(TIMEOUT.min(context.forwarding.read_timeout), converse(ext_authz, context, added, &target)).await;
    let headers =
        answered.inspect_err(|_elapsed| tracing::debug!("an authentication service took too long")).ok()??;
    let (parts, ()) = headers.into_parts();
    let authz_response = Arc::new(AuthzResponse::of(&ext_authz.response_headers, parts.status, &parts.headers));
    if let Some((tag, times)) = kept
        && let Some(time) = times.of(authz_response.status.as_u16())
        && authz_response.is_memorable(&parts.headers)
    {
        authz_cache.insert(tag, (Instant::now() + time, Arc::clone(&authz_response)));
    }
    Some(authz_response)
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

/// Sends one authorization request and reads its response to the end.
async fn converse(
    ext_authz: &ExtAuthz,
    context: &RequestContext<'_>,
    added: &[(HeaderName, Option<HeaderValue>)],
    target: &str,
) -> Option<Response<()>> {
    let RequestContext { conn, snapshot, forwarding, client, subject, .. } = *context;
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    // Text from the client must not change the path that is requested.
    if path::normalise(path).ok().as_deref() != Some(path) {
        return None;
    }
    let question = Subject { method: &ext_authz.method, target, ..*subject };
    let own = fields(ext_authz, context);
    // Sends the verified fields instead of the client's. The password is still sent, because the service may check it.
    let is_kept = |name: &HeaderName| *name != header::AUTHORIZATION && !own.iter().any(|(known, _)| known == name);
    let mut found: Vec<_> = added.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    found.extend(own);
    let mut edits = Edits { found, ..Edits::default() };
    let (id, health) = match &ext_authz.service {
        AuthService::Upstream { key, host } => {
            edits.host = Some(host);
            (snapshot.upstream_id(key)?, Health::Judged)
        }
        AuthService::SameHost => {
            let Matched::Route(route) = snapshot.routes.find(subject.host, path).matched else { return None };
            // The service's own rule must not require authentication in turn. This request does not come from the
            // client, so limits do not count it.
            let mut passes =
                |filter| matches!(filter::apply(filter, &question, &mut edits), Verdict::Continue | Verdict::Limit(_));
            if !route.filters.iter().all(&mut passes) {
                return None;
            }
            let id = match &route.target {
                Action::Forward(id) => *id,
                Action::Split(branches) => branches.main,
                Action::Refuse(_) | Action::Redirect(_) => return None,
            };
            // The endpoints belong to another rule, perhaps of another namespace. The rule that authenticates controls
            // the request and its timeout, and must not be able to eject those endpoints.
            (id, Health::Unjudged)
        }
    };
    // The client's address is among the fields of the request already.
    let client = Client { forwarded: Cow::Borrowed(b""), host: None, ..*client };
    let head = Head { identity: None, client: &client, ..context.head(&question, &edits) };
    let response = exchange(conn, snapshot.limits(forwarding), snapshot.upstream(id)?, health, &head).await?;
    let (parts, mut body) = response.into_parts();
    let mut left = BODY_MAX;
    while let Some(frame) = body.frame().await {
        let length = frame.ok()?.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            // Dropping the body closes the connection.
            None => break,
        }
    }
    Some(Response::from_parts(parts, ()))
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

/// Returns the response head from the first endpoint that accepts a connection.
async fn exchange(
    conn: &Conn,
    limits: Limits,
    upstream: &UpstreamState,
    health: Health,
    head: &Head<'_>,
) -> Option<Response<ResponseBody<Empty<Bytes>>>> {
    let transport = match upstream.protocol() {
        Protocol::Http1 | Protocol::Https => upstream.transport(),
        Protocol::H2c | Protocol::H2 => return None,
    };
    let worker = &conn.worker;
    let proxy_header = upstream.proxy_header().map(|version| conn.proxy_header(version, head.client.address));
    let mut tried = Tried::up_to(TRIES);
    while let Some(endpoint) = upstream.pick(Choice::Next, || worker.now_ms(), &mut tried) {
        let target = Target { address: endpoint.address(), transport, proxy_header: proxy_header.as_ref() };
        for kept in [worker.pool.idle(target), None] {
            let was_kept = kept.is_some();
            let connection = match kept {
                Some(kept) => kept,
                None => match worker.pool.connect(target, limits.connect_timeout).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
                        if health == Health::Judged && !matches!(error, ConnectError::Exhausted { .. }) {
                            endpoint.failed(worker.now_ms());
                        }
                        break;
                    }
                },
            };
            let has_proxy_header = connection.has_proxy_header();
            let write = |out: &mut Vec<u8>| {
                head.write(out);
                if has_proxy_header {
                    out.extend_from_slice(b"connection: close\r\n");
                }
            };
            match upstream::exchange(connection, limits, head.method(), write, Empty::new()).await {
                Ok(response) => {
                    if health == Health::Judged {
                        endpoint.succeeded();
                    }
                    return Some(response);
                }
                // An endpoint may close an idle connection at any time.
                Err(failure) if was_kept && (!failure.written || head.method().is_idempotent()) => {}
                Err(failure) => {
                    tracing::debug!(error = &failure.error as &dyn std::error::Error, "exchange failed");
                    if health == Health::Judged {
                        endpoint.failed(worker.now_ms());
                    }
                    return None;
                }
            }
        }
    }
    None
}
