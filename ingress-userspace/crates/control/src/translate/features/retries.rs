//! Retries at another pod.

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, number, time};
use ingress_model::Retry;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<Retry>] = &[
    key(
        "proxy-next-upstream",
        "conditions for a retry at another pod: `error`, `timeout`, `invalid_header`, `http_500`, `http_502`, \
         `http_503`, `http_504`, `http_403`, `http_404`, `http_429`; `non_idempotent` includes requests that may have \
         had an effect; `off` for never. Only possible before any byte of the body was sent",
    )
    .differs("no request is sent again once a byte of its body was sent")
    .default("error")
    .reads(retry_when),
    key("proxy-next-upstream-timeout", "time after which there is no further retry, in seconds; `0` for no limit")
        .default("0")
        .reads(retry_within),
    key("proxy-next-upstream-tries", "largest number of pods to try in all, up to 10; `0` for 10")
        .differs("at most 10; `0` means 10")
        .default("3")
        .reads(retry_tries),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<Retry>] = &[
    key(
        "proxy-next-upstream",
        "conditions for a retry at another pod, unless an Ingress overrides it: see the annotation",
    )
    .differs("no request is sent again once a byte of its body was sent")
    .default("error")
    .nginx("error timeout")
    .reads(retry_when),
    key(
        "proxy-next-upstream-timeout",
        "time after which there is no further retry, in seconds, unless an Ingress overrides it; `0` for no limit",
    )
    .default("0")
    .reads(retry_within),
    key(
        "proxy-next-upstream-tries",
        "largest number of pods to try in all, up to 10, unless an Ingress overrides it; `0` for 10",
    )
    .differs("at most 10; `0` means 10")
    .default("3")
    .reads(retry_tries),
    key(
        "retry-non-idempotent",
        "whether requests that may have had an effect are retried at another pod, too, unless \
         an Ingress overrides it",
    )
    .differs("no request is sent again once a byte of its body was sent")
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.non_idempotent)),
];

/// Reads the words of `proxy-next-upstream`.
fn retry_when(value: &str, retry: &mut Retry) -> Read {
    let mut wanted = Retry { error: false, statuses: Vec::new(), ..retry.clone() };
    (wanted.timeout, wanted.invalid_header) = (false, false);
    for word in value.split_whitespace() {
        match word {
            "error" => wanted.error = true,
            "timeout" => wanted.timeout = true,
            "invalid_header" => wanted.invalid_header = true,
            "non_idempotent" => wanted.non_idempotent = true,
            "off" => {}
            _ => {
                let status = word.strip_prefix("http_").and_then(|status| status.parse().ok());
                let known = status.filter(|status| [403, 404, 429, 500, 502, 503, 504].contains(status));
                wanted.statuses.push(known.ok_or("words as `error timeout http_502`, or `off`")?);
            }
        }
    }
    if value.is_empty() {
        return Err("words as `error timeout http_502`, or `off`".into());
    }
    *retry = wanted;
    Ok(())
}

/// Reads the seconds after which no other pod is tried.
fn retry_within(value: &str, retry: &mut Retry) -> Read {
    retry.within = Some(time(value)?).filter(|within| !within.is_zero());
    Ok(())
}

/// Reads the number of pods to try.
fn retry_tries(value: &str, retry: &mut Retry) -> Read {
    let mut tries = 0;
    number(value, 0..=1000, &mut tries).ok_or("a number up to 10")?;
    retry.tries = if tries == 0 { Retry::TRIES_MAX } else { tries.min(Retry::TRIES_MAX) };
    Ok(())
}
