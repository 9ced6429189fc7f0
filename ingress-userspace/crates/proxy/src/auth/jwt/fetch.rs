//! Fetches the key set of a JWKS endpoint once. Other code caches the keys.

use std::{sync::LazyLock, time::Duration};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::jwks_cache::KEPT_MAX;
use crate::auth::jwt::keys::Keys;
use crate::{
    request::body_copy::CopiedBody,
    server::worker::Worker,
    upstream::{
        ExchangeLimits,
        balance::{Choice, UpstreamState},
        subrequest::{OwnMessage, Plan, SubrequestError, read, send, within},
        write_request_line,
    },
};
use ingress_model::{JwksEndpoint, Retry};

/// Timeout of a fetch, from the first connection to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a connection to one of the server's addresses, so that others can be tried within [`TIMEOUT`].
const CONNECT: Duration = Duration::from_secs(2);
/// Longest response body that is read, in bytes.
const BODY_MAX: usize = 256 * 1024;

/// Bounds for the time for which keys are fresh, and the value if the server sends none.
const FRESH_MIN: Duration = Duration::from_secs(60);
const FRESH_MAX: Duration = KEPT_MAX;
const FRESH: Duration = Duration::from_secs(600);

/// The reason why there are no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("it is in no rule any more")]
    Gone,
    #[error(transparent)]
    Subrequest(#[from] SubrequestError),
    #[error("it answered {}", .0.as_u16())]
    Status(StatusCode),
    #[error("its answer is no JSON Web Key Set")]
    NoKeySet,
}

/// Addresses that are tried at most, one after the other, after any failure.
const TRIES: usize = 3;
static ONE_TRY: LazyLock<Retry> = LazyLock::new(|| Retry { tries: 1, ..Retry::DEFAULT });

/// Returns the keys of `server` and the time for which they are fresh.
pub(super) async fn fetch(server: &JwksEndpoint, worker: &Worker) -> Result<(Keys, Duration), FetchError> {
    within(TIMEOUT, ask(server, worker)).await
}

/// Tries the addresses in turn.
async fn ask(server: &JwksEndpoint, worker: &Worker) -> Result<(Keys, Duration), FetchError> {
    let JwksEndpoint { upstream, .. } = server;
    let snapshot = worker.snapshot();
    let upstream = snapshot.upstream_id(upstream).and_then(|id| snapshot.upstream(id)).ok_or(FetchError::Gone)?;
    for _ in 1..upstream.len().min(TRIES) {
        match try_next(server, upstream, worker).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "another address of a key set is tried");
            }
        }
    }
    try_next(server, upstream, worker).await
}

/// Tries the address that is next by round robin.
async fn try_next(
    server: &JwksEndpoint,
    upstream: &UpstreamState,
    worker: &Worker,
) -> Result<(Keys, Duration), FetchError> {
    let JwksEndpoint { origin: _, upstream: _, host, target } = server;
    let mut text = Vec::new();
    write_request_line(&mut text, &Method::GET, target);
    text.extend_from_slice(format!("host: {host}\r\n").as_bytes());
    text.extend_from_slice(b"accept: application/jwk-set+json, application/json\r\nuser-agent: xdp-ingress\r\n");
    // The next fetch is too far off to keep the connection.
    let message = OwnMessage { method: &Method::GET, text: &text, is_last: true };
    let limits = ExchangeLimits { connect_timeout: CONNECT, read_timeout: TIMEOUT, ..ExchangeLimits::default() };
    let plan = Plan {
        choice: Choice::Next,
        retry: &ONE_TRY,
        limits,
        proxy_header: None,
        is_judged: true,
        is_timed: false,
        try_timeout: None,
    };
    let body = &mut Some(CopiedBody::default());
    let (outcome, _served) = send(worker.own_connections(), upstream, &plan, &message, body).await?;
    let (head, body) = outcome.into_response()?.into_parts();
    // A redirect is not followed, because its target has not been validated.
    if head.status != StatusCode::OK {
        return Err(FetchError::Status(head.status));
    }
    let keys = Keys::published(&read(body, BODY_MAX).await?.to_bytes()).ok_or(FetchError::NoKeySet)?;
    let fresh = fresh(&keys, &head.headers);
    Ok((keys, fresh))
}

/// Returns the time for which `keys` are fresh by the response's fields (RFC 9111, section 4.2), within the bounds. An
/// empty set rejects all tokens, so it is kept only for the minimum.
fn fresh(keys: &Keys, headers: &HeaderMap) -> Duration {
    if keys.is_empty() {
        return FRESH_MIN;
    }
    let fields = headers.get_all(header::CACHE_CONTROL).iter().filter_map(|field| field.to_str().ok());
    let mut directives = fields.flat_map(|field| field.split(',')).map(str::trim);
    let max_age = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| seconds(value.trim_matches('"')))?
    });
    // The time that the response has spent in caches on the way (RFC 9111, section 5.1).
    let age = headers.get(header::AGE).map(HeaderValue::to_str).and_then(Result::ok);
    let age = age.and_then(|ages| seconds(ages.split(',').next()?.trim()));
    max_age.unwrap_or(FRESH).saturating_sub(age.unwrap_or_default()).clamp(FRESH_MIN, FRESH_MAX)
}

fn seconds(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(count: usize) -> Keys {
        let key = json!({"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"});
        let set = json!({"keys": vec![key; count]}).to_string();
        Keys::published(set.as_bytes()).expect("a key set")
    }

    fn check(keys: &Keys, control: &[&'static str], age: Option<&'static str>, expect: u64) {
        let mut headers = HeaderMap::new();
        for field in control {
            headers.append(header::CACHE_CONTROL, HeaderValue::from_static(field));
        }
        headers.extend(age.map(|age| (header::AGE, HeaderValue::from_static(age))));
        assert_eq!(fresh(keys, &headers), Duration::from_secs(expect), "{control:?} {age:?}");
    }

    #[test]
    fn freshness_follows_cache_control_within_limits() {
        let keys = keys(1);
        for (control, age, expect) in [
            (&["max-age=300"][..], None, 300),
            (&[], None, 600),
            (&["public, Max-Age=\"300\", must-revalidate"], None, 300),
            (&["public", "max-age=7200"], None, 7200),
            (&["max-age=0"], None, 60),
            (&["max-age=59"], None, 60),
            (&["max-age=31536000"], None, 86_400),
            (&["max-age=18446744073709551615"], None, 86_400),
            (&["max-age=-1"], None, 600),
            (&["s-maxage=300"], None, 600),
            (&["no-cache"], None, 600),
            (&["max-age=300"], Some("100"), 200),
            (&["max-age=300"], Some("100, 7"), 200),
            (&["max-age=300"], Some("299"), 60),
            (&["max-age=300"], Some("18446744073709551615"), 60),
            (&["max-age=300"], Some("soon"), 300),
            (&[], Some("100"), 500),
        ] {
            check(&keys, control, age, expect);
        }
    }

    #[test]
    fn an_empty_key_set_is_fresh_for_one_minute() {
        for control in [&["max-age=31536000"][..], &["max-age=7200, immutable"], &[]] {
            check(&keys(0), control, None, 60);
        }
    }
}
