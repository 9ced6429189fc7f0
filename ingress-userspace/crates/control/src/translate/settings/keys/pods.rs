//! Choice of the pod for a request, the protocol with it, and timeouts.

use super::super::super::values::{balance, boolean, limit, number, retry_tries, retry_when, retry_within, seconds};
use crate::translate::settings::row::{Setting, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "load-balance",
        "how pods share requests, unless an Ingress overrides it: `round_robin`, `ewma` or `least_request`",
        |value, globals| {
            globals.parsed.forwarding.balance = balance(value)?;
            Ok(())
        },
    )
    .default("round_robin"),
    setting(
        "proxy-body-size",
        "largest body of a request, unless an Ingress overrides it; larger ones get 413; `0` for any",
        |value, globals| limit(value, &mut globals.parsed.forwarding.body_max),
    )
    .default("0")
    .nginx("1m"),
    setting("proxy-connect-timeout", "time limit for a connection to an endpoint, in seconds", |value, globals| {
        seconds(value, &mut globals.parsed.forwarding.connect_timeout)
    })
    .default("5"),
    setting(
        "proxy-next-upstream",
        "conditions for a retry at another pod, unless an Ingress overrides it: see the annotation",
        |value, globals| retry_when(value, &mut globals.parsed.forwarding.retry),
    )
    .default("error")
    .nginx("error timeout"),
    setting(
        "proxy-next-upstream-timeout",
        "time after which there is no further retry, in seconds, unless an Ingress overrides it; `0` for no limit",
        |value, globals| retry_within(value, &mut globals.parsed.forwarding.retry),
    )
    .default("0"),
    setting(
        "proxy-next-upstream-tries",
        "largest number of pods to try in all, up to 10, unless an Ingress overrides it; `0` for 10",
        |value, globals| retry_tries(value, &mut globals.parsed.forwarding.retry),
    )
    .default("3"),
    setting(
        "proxy-read-timeout",
        "longest silence of an endpoint before and within a response, or of both sides of a WebSocket, in seconds",
        |value, globals| seconds(value, &mut globals.parsed.forwarding.read_timeout),
    )
    .default("60"),
    setting(
        "proxy-send-timeout",
        "longest time during which an endpoint accepts no byte of a request, in seconds",
        |value, globals| seconds(value, &mut globals.parsed.forwarding.send_timeout),
    )
    .default("60"),
    setting(
        "retry-non-idempotent",
        "whether requests that may have had an effect are retried at another pod, too, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.forwarding.retry.non_idempotent),
    )
    .default("false"),
    setting(
        "service-upstream",
        "whether requests go to the Service's own address, so that the cluster chooses the pod, unless an Ingress \
         overrides it",
        |value, globals| boolean(value, &mut globals.parsed.through_service),
    )
    .default("false"),
    setting(
        "upstream-keepalive-connections",
        "idle connections to keep per endpoint and worker, from 0 to 65535",
        |value, globals| {
            number(value, 0..=65_535, &mut globals.settings.upstream_idle_per_endpoint)
                .ok_or_else(|| "a number from 0 to 65535".into())
        },
    )
    .default("512")
    .nginx("320"),
    setting(
        "upstream-keepalive-timeout",
        "how long an idle connection to an endpoint is kept, in seconds",
        |value, globals| seconds(value, &mut globals.settings.upstream_idle_timeout),
    )
    .default("55")
    .nginx("60"),
];
