//! Converts errors into responses, in this file only. Bodies contain the status and a short reason, but no internals
//! such as addresses or pod names. The response also records whether the error is a violation by the client
//! ([`Violation`]).

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use ingress_model::{Unavailable, filter::Limit, request_path::RequestPathError, route::filter::Lack};

use crate::{
    auth::jwt::TokenRejection,
    downstream::upload_splice::Misplaced,
    http::{authority::AuthorityError, websocket::HandshakeError},
    limits::{Excess, violations::Violation},
    request::request_body::{TooLarge, TooSlow},
    upstream::{ConnectError, ExchangeError, balance::Full, subrequest::SubrequestError},
};

/// A response of the proxy itself, with its whole body in memory.
pub(crate) type LocalReply = Response<Bytes>;

/// The product name in the `Server` field of responses.
pub(crate) const SERVER: HeaderValue = HeaderValue::from_static("xdp-ingress");

// The texts of `AuthorityError`, `RequestPathError` and `HandshakeError` are written for clients.

pub(crate) fn authority(error: AuthorityError) -> LocalReply {
    let answer = closing(answer(StatusCode::BAD_REQUEST, &error.to_string()));
    match error {
        // A web page may be served below any name in its owner's DNS, even with characters that are not accepted here.
        AuthorityError::Invalid => answer,
        AuthorityError::Missing | AuthorityError::Several | AuthorityError::Disagree => malformed(answer),
    }
}

/// Not a violation, like [`ambiguous_path`]: a web page can make its visitors' browsers request any path.
pub(crate) fn path(error: RequestPathError) -> LocalReply {
    answer(StatusCode::BAD_REQUEST, &error.to_string())
}

/// A `Transfer-Encoding` other than one `chunked`: the end of the body is ambiguous, so the connection is closed.
pub(crate) fn transfer_encoding() -> LocalReply {
    malformed(closing(answer(StatusCode::BAD_REQUEST, "transfer-encoding must be `chunked`")))
}

/// A field of HTTP/2 or HTTP/3 that could not be sent in HTTP/1.
pub(crate) fn field() -> LocalReply {
    malformed(answer(StatusCode::BAD_REQUEST, "a header has white space around its value, or a quote in its name"))
}

/// `CONNECT` is for forward proxies.
pub(crate) fn connect() -> LocalReply {
    malformed(closing(answer(StatusCode::BAD_REQUEST, "this is not a forward proxy")))
}

/// `TRACE` would expose fields that the proxy has added, and cookies to scripts (RFC 9110, section 9.3.8); 405 as in
/// nginx.
pub(crate) fn trace() -> LocalReply {
    let mut answer = closing(answer(StatusCode::METHOD_NOT_ALLOWED, "TRACE is not allowed"));
    answer
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH"));
    answer
}

/// An invalid WebSocket handshake (RFC 6455, sections 4.2.2 and 4.4), or one for another protocol (RFC 9220, section
/// 3).
pub(crate) fn handshake(error: HandshakeError) -> LocalReply {
    if error == HandshakeError::Protocol {
        return answer(StatusCode::NOT_IMPLEMENTED, &error.to_string());
    }
    let mut answer = answer(StatusCode::BAD_REQUEST, &error.to_string());
    answer.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    answer
}

/// An endpoint answered a CONNECT with a success other than the handshake's; the client would take it for a tunnel.
pub(crate) fn not_switched() -> LocalReply {
    answer(StatusCode::BAD_GATEWAY, "the backend did not accept the websocket")
}

pub(crate) fn target_too_long() -> LocalReply {
    answer(StatusCode::URI_TOO_LONG, "request target is too long")
}

/// Matching the path would take too long.
pub(crate) fn costly_path() -> LocalReply {
    answer(StatusCode::URI_TOO_LONG, "request path takes too long to match")
}

/// An endpoint is this node itself: the request would loop for ever.
pub(crate) fn loop_detected() -> LocalReply {
    answer(StatusCode::LOOP_DETECTED, "the request came back to this proxy")
}

/// The routes are not known yet.
pub(crate) fn starting() -> LocalReply {
    let mut answer = answer(StatusCode::SERVICE_UNAVAILABLE, "the proxy has no configuration yet");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

pub(crate) fn no_route() -> LocalReply {
    answer(StatusCode::NOT_FOUND, "no route for this host and path")
}

/// The connection was made for a host with another policy for client certificates (RFC 9110, section 15.5.20).
pub(crate) fn misdirected() -> LocalReply {
    answer(StatusCode::MISDIRECTED_REQUEST, "this connection was made for another host, open a new one")
}

/// The client must present a certificate.
pub(crate) fn unproven(lack: Lack) -> LocalReply {
    match lack {
        Lack::Tls => answer(StatusCode::FORBIDDEN, "this host requires TLS"),
        Lack::Certificate => answer(StatusCode::BAD_REQUEST, "no required SSL certificate was sent"),
        Lack::ValidCertificate => answer(StatusCode::BAD_REQUEST, "the SSL certificate is not valid"),
        Lack::Name => answer(StatusCode::FORBIDDEN, "the SSL certificate has another name"),
    }
}

/// Two parsers could assign the path to different rules.
pub(crate) fn ambiguous_path() -> LocalReply {
    answer(StatusCode::BAD_REQUEST, "the path is ambiguous between two routes")
}

/// The client's address or one of its headers is blocked for all hosts.
pub(crate) fn blocked() -> LocalReply {
    offending(Violation::Blocked, answer(StatusCode::FORBIDDEN, "this client is blocked"))
}

/// A rule of the configuration refuses the request.
pub(crate) fn by_rule(status: u16) -> LocalReply {
    answer(StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN), "a rule of this host refuses the request")
}

/// A rule of the configuration answers the request.
pub(crate) fn response_by_rule(status: u16, body: &str) -> LocalReply {
    let mut response = Response::new(Bytes::copy_from_slice(body.as_bytes()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    if !body.is_empty() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    headers.insert(header::SERVER, SERVER);
    response
}

/// The host or rule does not allow the client's address.
pub(crate) fn denied() -> LocalReply {
    offending(Violation::Denied, answer(StatusCode::FORBIDDEN, "this address is not allowed"))
}

/// The client sent no credentials. It may not have known that it must, so this is not a violation.
pub(crate) fn unauthorized(challenge: &HeaderValue) -> LocalReply {
    let mut answer = answer(StatusCode::UNAUTHORIZED, "credentials are missing or wrong");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
    answer
}

/// The client sent a wrong name or password.
pub(crate) fn wrong_password(challenge: &HeaderValue) -> LocalReply {
    offending(Violation::Credentials, unauthorized(challenge))
}

/// An authentication service rejected the client.
pub(crate) fn rejected(status: StatusCode, challenges: &[HeaderValue]) -> LocalReply {
    let mut answer = answer(status, "the authentication service refused this request");
    for challenge in challenges {
        answer.headers_mut().append(header::WWW_AUTHENTICATE, challenge.clone());
    }
    answer
}

/// An authentication service is unreachable, or its response neither admits nor rejects the request; 500 as in nginx.
pub(crate) fn no_authz_response() -> LocalReply {
    answer(StatusCode::INTERNAL_SERVER_ERROR, "the authentication service gave no valid answer")
}

/// The client has no valid token (RFC 6750, section 3).
pub(crate) fn no_token(refused: TokenRejection) -> LocalReply {
    let (status, challenge, reason) = match refused {
        TokenRejection::Missing => (StatusCode::UNAUTHORIZED, "Bearer", "a token is required"),
        TokenRejection::Invalid => {
            (StatusCode::UNAUTHORIZED, r#"Bearer error="invalid_token""#, "the token is not valid for this request")
        }
        TokenRejection::Insufficient => {
            (StatusCode::FORBIDDEN, r#"Bearer error="insufficient_scope""#, "the token does not permit this request")
        }
        TokenRejection::NoKeys => return answer(StatusCode::SERVICE_UNAVAILABLE, "tokens cannot be verified"),
    };
    let mut answer = answer(status, reason);
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    if refused == TokenRejection::Invalid { offending(Violation::Credentials, answer) } else { answer }
}

/// Too many credentials wait to be verified.
pub(crate) fn busy() -> LocalReply {
    let mut answer = answer(StatusCode::SERVICE_UNAVAILABLE, "too many credentials wait to be verified");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A request above a limit. `Retry-After` is in whole seconds (RFC 9110, section 10.2.3).
pub(crate) fn limited(limit: &Limit, excess: Excess) -> LocalReply {
    let (status, wait, reason) = match excess {
        Excess::Rate { wait } => (limit.rate_status, wait, "too many requests"),
        Excess::InFlight => (limit.in_flight_status, Duration::ZERO, "too many requests at one time"),
    };
    let mut answer = answer(StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE), reason);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    answer.headers_mut().insert(header::RETRY_AFTER, seconds.max(1).into());
    offending(Violation::Limit, answer)
}

/// A CORS preflight; the filter adds the requested fields (Fetch standard, section 3.2.2: any successful status).
pub(crate) fn preflight() -> LocalReply {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(header::SERVER, SERVER);
    response
}

/// The rest of the body is discarded, see `unread_body`.
pub(crate) fn body_too_large() -> LocalReply {
    answer(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large")
}

/// A rule that cannot be applied. The reason is reported to the rule's owner in events, not to clients.
pub(crate) fn refused(why: Unavailable) -> LocalReply {
    match why {
        Unavailable::NoRule => no_route(),
        Unavailable::InvalidReference => {
            answer(StatusCode::INTERNAL_SERVER_ERROR, "the backend of this route is not a valid reference")
        }
        Unavailable::NoService | Unavailable::NoPort | Unavailable::Backend | Unavailable::Policy => {
            answer(StatusCode::SERVICE_UNAVAILABLE, "the backend of this route is not available")
        }
    }
}

pub(crate) fn forward(error: &SubrequestError) -> LocalReply {
    match error {
        SubrequestError::NoEndpoints => answer(StatusCode::SERVICE_UNAVAILABLE, "no backend is ready"),
        SubrequestError::Full(full) => {
            let reason = match full {
                Full::Connections => "the backend takes no more requests",
                Full::Pending => "too many requests wait for the backend",
                Full::Waited => "the request has waited too long for the backend",
                Full::Requests => "no backend has room",
            };
            answer(StatusCode::SERVICE_UNAVAILABLE, reason)
        }
        SubrequestError::Connect(error) => match **error {
            ConnectError::Timeout { .. } => {
                answer(StatusCode::GATEWAY_TIMEOUT, "no backend accepted a connection in time")
            }
            ConnectError::Exhausted { .. } => answer(StatusCode::SERVICE_UNAVAILABLE, "the proxy is out of resources"),
            ConnectError::Refused { .. } | ConnectError::Tls { .. } | ConnectError::Io { .. } => {
                answer(StatusCode::BAD_GATEWAY, "no backend could be reached")
            }
        },
        SubrequestError::Exchange(error) => exchange(error),
        // Responses to clients are read as they come, and have no deadline as a whole.
        SubrequestError::Deadline(_) => answer(StatusCode::GATEWAY_TIMEOUT, "the backend did not answer in time"),
        SubrequestError::TooLong(_) | SubrequestError::Body(_) => {
            answer(StatusCode::BAD_GATEWAY, "the backend sent no valid answer")
        }
    }
}

fn exchange(error: &ExchangeError) -> LocalReply {
    match error {
        ExchangeError::RequestBody(error) if error.is::<TooLarge>() => body_too_large(),
        ExchangeError::RequestBody(error) if error.is::<TooSlow>() => {
            closing(answer(StatusCode::REQUEST_TIMEOUT, "the request body arrived too slowly"))
        }
        ExchangeError::RequestBody(error) if error.is::<Misplaced>() => {
            closing(answer(StatusCode::INTERNAL_SERVER_ERROR, "the request body was lost"))
        }
        ExchangeError::RequestBody(_) => {
            closing(answer(StatusCode::BAD_REQUEST, "the request body is malformed or incomplete"))
        }
        ExchangeError::Starved => closing(answer(StatusCode::REQUEST_TIMEOUT, "the request body stopped arriving")),
        ExchangeError::Timeout { .. } => answer(StatusCode::GATEWAY_TIMEOUT, "the backend did not answer in time"),
        ExchangeError::Closed
        | ExchangeError::Reset
        | ExchangeError::Aborted
        | ExchangeError::Malformed(_)
        | ExchangeError::HeadTooLarge
        | ExchangeError::Io(_) => answer(StatusCode::BAD_GATEWAY, "the backend sent no valid answer"),
    }
}

/// An error response of a pod that is not passed on, when no error page replaces it.
pub(crate) fn without_page(status: StatusCode) -> LocalReply {
    answer(status, "the backend answered with an error")
}

/// A redirect by a filter. A `location` that is not a valid header value cannot result from a validated host and
/// target.
pub(crate) fn redirect(status: u16, location: &str) -> LocalReply {
    let (Ok(status), Ok(location)) = (StatusCode::from_u16(status), HeaderValue::from_str(location)) else {
        return answer(StatusCode::BAD_REQUEST, "the request target cannot be redirected");
    };
    let mut response = answer(status, "see location");
    response.headers_mut().insert(header::LOCATION, location);
    response
}

fn answer(status: StatusCode, reason: &str) -> LocalReply {
    let text = format!("{} {}: {reason}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::SERVER, SERVER);
    response
}

/// Closes the connection after this response: the following bytes cannot be trusted to be a request.
fn closing(mut response: LocalReply) -> LocalReply {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn malformed(answer: LocalReply) -> LocalReply {
    offending(Violation::Malformed, answer)
}

/// Marks a response as a violation that may count against its client: [`Violation::counts`].
fn offending(violation: Violation, mut answer: LocalReply) -> LocalReply {
    answer.extensions_mut().insert(violation);
    answer
}
