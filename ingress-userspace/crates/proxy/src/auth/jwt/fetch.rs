//! Fetches the key set of a JWKS endpoint once. Other code caches the keys.

use std::{error::Error, iter::successors, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use tokio::time::timeout;

use super::jwks_cache::KEPT_MAX;
use crate::auth::jwt::keys::Keys;
use crate::{
    server::worker::Worker,
    upstream::{
        self, Connection, Limits, Target,
        balance::{Choice, Tried},
        write_request_line,
    },
};
use ingress_model::KeyServer;

/// Timeout of a fetch, from the first connection to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a connection to one of the server's addresses, so that others can be tried within [`TIMEOUT`].
const CONNECT: Duration = Duration::from_secs(2);
/// Number of addresses that are tried.
const TRIES: usize = 3;
/// Longest response body that is read, in bytes.
const BODY_MAX: usize = 256 * 1024;

/// Bounds for the time for which keys are fresh, and the value if the server sends none.
const FRESH_MIN: Duration = Duration::from_secs(60);
const FRESH_MAX: Duration = KEPT_MAX;
const FRESH: Duration = Duration::from_secs(600);

/// Returns the keys of `server` and the time for which they are fresh, or the reason of the failure.
pub(super) async fn fetch(server: &KeyServer, worker: &Worker) -> Result<(Keys, Duration), String> {
    let fetched = timeout(TIMEOUT, reach(server, worker)).await;
    fetched.unwrap_or_else(|_elapsed| Err("it took too long".to_owned()))
}

/// Tries one address after the other.
async fn reach(server: &KeyServer, worker: &Worker) -> Result<(Keys, Duration), String> {
    let snapshot = worker.snapshot();
    let known = snapshot.upstream_id(&server.upstream).and_then(|id| snapshot.upstream(id));
    let Some(upstream) = known else { return Err("it is in no rule any more".to_owned()) };
    let mut why = "it has no address".to_owned();
    let mut tried = Tried::up_to(TRIES);
    while let Some(endpoint) = upstream.pick(Choice::Next, || worker.now_ms(), &mut tried) {
        let target = Target { address: endpoint.address(), transport: upstream.transport(), proxy_header: None };
        match worker.pool.connect(target, CONNECT).await {
            Err(error) => why = chain(&error),
            Ok(connection) => match ask(connection, server).await {
                Err(error) => why = error,
                Ok(fetched) => return Ok(fetched),
            },
        }
    }
    Err(why)
}

async fn ask(connection: Connection, server: &KeyServer) -> Result<(Keys, Duration), String> {
    let limits = Limits { connect_timeout: CONNECT, read_timeout: TIMEOUT, ..Limits::default() };
    let KeyServer { origin: _, upstream: _, host, target } = server;
    let write = |out: &mut Vec<u8>| {
        write_request_line(out, &Method::GET, target);
        out.extend_from_slice(format!("host: {host}\r\n").as_bytes());
        out.extend_from_slice(b"accept: application/jwk-set+json, application/json\r\nuser-agent: xdp-ingress\r\n");
        // The next fetch is too far off to keep the connection.
        out.extend_from_slice(b"connection: close\r\n");
    };
    let sent = upstream::exchange(connection, limits, &Method::GET, write, Empty::<Bytes>::new()).await;
    let (head, body) = sent.map_err(|failure| chain(&failure.error))?.into_parts();
    // A redirect is not followed, because its target has not been validated.
    if head.status != StatusCode::OK {
        return Err(format!("it answered {}", head.status.as_u16()));
    }
    let body = Limited::new(body, BODY_MAX).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
        true => format!("its answer is longer than {BODY_MAX} bytes"),
        false => chain(&*error),
    })?;
    let keys = Keys::published(&body.to_bytes()).ok_or("its answer is no JSON Web Key Set")?;
    let fresh = fresh(&keys, &head.headers);
    Ok((keys, fresh))
}

/// Joins the messages of an error and all its sources.
fn chain(error: &dyn Error) -> String {
    let texts = successors(Some(error), |&error| error.source()).map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
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
    fn keys_are_fresh_for_as_long_as_is_said_within_limits() {
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
    fn a_set_without_keys_holds_for_a_minute_whatever_is_said() {
        for control in [&["max-age=31536000"][..], &["max-age=7200, immutable"], &[]] {
            check(&keys(0), control, None, 60);
        }
    }
}
