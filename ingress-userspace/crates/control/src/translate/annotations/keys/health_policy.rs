//! Health policy of pods: outlier detection, health checks, circuit breakers and slow start.

use std::num::NonZeroU32;

use super::super::{
    super::values::{Read, boolean, count, number, slow_span, span},
    health_policy::Kind,
};
use crate::translate::annotations::row::{Key, key};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key(
        "eject-after",
        "consecutive failures after which a pod gets no requests for a while; failures are refused connections, \
         time-outs, and connections closed before an answer; `0` for never. Specific to xdp-ingress",
        |value, parsed| count(value, 1000, &mut parsed.health_policy.ejection.after),
    )
    .default("1"),
    key("eject-on-5xx", "whether 5xx responses count as failures, too. Specific to xdp-ingress", |value, parsed| {
        boolean(value, &mut parsed.health_policy.ejection.errors)
    })
    .default("false"),
    key(
        "eject-share",
        "largest percentage of the pods to eject at a time: at least one pod, and never all. Specific to xdp-ingress",
        |value, parsed| {
            number(value, 1..=100, &mut parsed.health_policy.ejection.share)
                .ok_or_else(|| "a number from 1 to 100".into())
        },
    )
    .default("50"),
    key(
        "eject-time",
        "duration of the first ejection, as `500ms` or `2s`; each further failure doubles it. Specific to xdp-ingress",
        |value, parsed| span(value, &mut parsed.health_policy.ejection.first),
    )
    .default("500ms"),
    key("eject-time-max", "longest duration of an ejection. Specific to xdp-ingress", |value, parsed| {
        span(value, &mut parsed.health_policy.ejection.longest)
    })
    .default("16s"),
    key(
        "health-check",
        "how each node checks the health of pods: `http`, `grpc` (`grpc.health.v1`, with `backend-protocol` `GRPC` or \
         `GRPCS`), `tcp` (a connection), or `off`; the default is `http` with a `health-check-path`. Specific to \
         xdp-ingress",
        |value, parsed| {
            parsed.health_policy.check.kind = match value {
                "http" => Kind::Http,
                "grpc" => Kind::Grpc,
                "tcp" => Kind::Connect,
                "off" => Kind::None,
                _ => return Err("`http`, `grpc`, `tcp` or `off`".into()),
            };
            Ok(())
        },
    ),
    key(
        "health-check-expected-statuses",
        "statuses of healthy pods for `http`, as `200, 204, 300-399`. Specific to xdp-ingress",
        |value, parsed| {
            parsed.health_policy.check.statuses =
                statuses(value).ok_or("statuses and ranges of them, as `200, 204, 300-399`")?;
            Ok(())
        },
    )
    .default("200-399"),
    key(
        "health-check-healthy-threshold",
        "consecutive passed checks after which a pod gets requests again. Specific to xdp-ingress",
        |value, parsed| threshold(value, &mut parsed.health_policy.check.healthy),
    )
    .default("2"),
    key(
        "health-check-host",
        "`Host` of `http` checks; without it, the address of the pod. Specific to xdp-ingress",
        |value, parsed| {
            let is_host = value.parse::<http::uri::Authority>().is_ok_and(|host| !host.as_str().contains('@'));
            parsed.health_policy.check.host =
                Some(Some(value).filter(|_| is_host).ok_or("a host, as `a.test`")?.into());
            Ok(())
        },
    ),
    key(
        "health-check-interval",
        "time between two checks of one pod, from `1s`; longer if the checks of the node would be too many. Specific \
         to xdp-ingress",
        |value, parsed| slow_span(value, &mut parsed.health_policy.check.interval),
    )
    .default("10s"),
    key("health-check-path", "path of `http` checks. Specific to xdp-ingress", |value, parsed| {
        let is_target = value.starts_with('/') && value.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        parsed.health_policy.check.path =
            Some(Some(value).filter(|_| is_target).ok_or("a path, as `/healthz`")?.into());
        Ok(())
    }),
    key(
        "health-check-port",
        "port of the checks; without it, the port of requests. Specific to xdp-ingress",
        |value, parsed| {
            let mut port = 0;
            number(value, 1..=u16::MAX, &mut port).ok_or("the number of a port")?;
            parsed.health_policy.check.port = Some(port);
            Ok(())
        },
    ),
    key(
        "health-check-service",
        "service name in `grpc` checks; without it, the whole server. Specific to xdp-ingress",
        |value, parsed| {
            let is_name = !value.is_empty() && value.bytes().all(|b| b.is_ascii_graphic());
            parsed.health_policy.check.service = Some(value).filter(|_| is_name).ok_or("the name of a service")?.into();
            Ok(())
        },
    ),
    key(
        "health-check-timeout",
        "time limit for a check, connection and answer together. Specific to xdp-ingress",
        |value, parsed| span(value, &mut parsed.health_policy.check.timeout),
    )
    .default("5s"),
    key(
        "health-check-unhealthy-threshold",
        "consecutive failed checks (a wrong answer, or none) after which a pod gets no requests. Specific to \
         xdp-ingress",
        |value, parsed| threshold(value, &mut parsed.health_policy.check.unhealthy),
    )
    .default("3"),
    key(
        "max-connections",
        "largest number of requests that one node has in flight at all pods of a service, each on its own connection \
         with HTTP/1.1; more wait or get 503. Specific to xdp-ingress",
        |value, parsed| cap(value, &mut parsed.health_policy.circuit_breaker.connections),
    ),
    key(
        "max-pending-requests",
        "largest number of requests that wait, for `proxy-connect-timeout` at most, while `max-connections` are in \
         flight; more get 503 at once. Specific to xdp-ingress",
        |value, parsed| {
            number(value, 0..=CAP_MAX, &mut parsed.health_policy.circuit_breaker.pending)
                .ok_or_else(|| "a number up to 1000000".into())
        },
    )
    .default("0"),
    key(
        "max-requests",
        "largest number of requests that one node has in flight at one pod; requests for which no pod has room get \
         503 at once. Specific to xdp-ingress",
        |value, parsed| cap(value, &mut parsed.health_policy.circuit_breaker.requests),
    ),
    key(
        "slow-start",
        "time in which a new or recovered pod ramps up to its full share of requests, in seconds; no effect with \
         hashing or a cookie. Specific to xdp-ingress",
        |value, parsed| {
            let mut time = std::time::Duration::ZERO;
            span(value, &mut time)?;
            parsed.health_policy.slow_start = Some(time);
            Ok(())
        },
    ),
];

const CAP_MAX: u32 = 1_000_000;

fn cap(value: &str, field: &mut Option<NonZeroU32>) -> Read {
    let mut most = 0;
    number(value, 1..=CAP_MAX, &mut most).ok_or("a number from 1 to 1000000")?;
    *field = NonZeroU32::new(most);
    Ok(())
}

fn threshold(value: &str, field: &mut NonZeroU32) -> Read {
    let mut count = 0;
    number(value, 1..=100, &mut count).ok_or("a number from 1 to 100")?;
    *field = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    Ok(())
}

/// Reads statuses of final responses, and ranges of them.
fn statuses(value: &str) -> Option<Box<[(u16, u16)]>> {
    let status = |text: &str| {
        let mut status = 0;
        number(text.trim(), 200..=599, &mut status).map(|()| status)
    };
    let range = |part: &str| match part.split_once('-') {
        None => status(part).map(|status| (status, status)),
        Some((first, last)) => Some((status(first)?, status(last)?)).filter(|(first, last)| first <= last),
    };
    value.split(',').map(range).collect()
}
