//! Health policy of pods: outlier detection, health checks, circuit breakers and slow start.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, count, number, slow_span, span};
use ingress_model::{Check, CircuitBreaker, HealthPolicy, OutlierDetection, Question};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedHealthPolicy>] = &[
    key(
        "eject-after",
        "consecutive failures after which a pod gets no requests for a while; failures are refused connections, \
         time-outs, and connections closed before an answer; `0` for never. Specific to xdp-ingress",
    )
    .default("1")
    .reads(|value, parsed| count(value, 1000, &mut parsed.outlier_detection.after)),
    key("eject-on-5xx", "whether 5xx responses count as failures, too. Specific to xdp-ingress")
        .default("false")
        .reads(|value, parsed| boolean(value, &mut parsed.outlier_detection.errors)),
    key(
        "eject-share",
        "largest percentage of the pods to eject at a time: at least one pod, and never all. Specific to xdp-ingress",
    )
    .default("50")
    .reads(|value, parsed| {
        number(value, 1..=100, &mut parsed.outlier_detection.share).ok_or_else(|| "a number from 1 to 100".into())
    }),
    key(
        "eject-time",
        "duration of the first ejection, as `500ms` or `2s`; each further failure doubles it. Specific to xdp-ingress",
    )
    .default("500ms")
    .reads(|value, parsed| span(value, &mut parsed.outlier_detection.first)),
    key("eject-time-max", "longest duration of an ejection. Specific to xdp-ingress")
        .default("16s")
        .reads(|value, parsed| span(value, &mut parsed.outlier_detection.longest)),
    key(
        "health-check",
        "how each node checks the health of pods: `http`, `grpc` (`grpc.health.v1`, with `backend-protocol` `GRPC` or \
         `GRPCS`), `tcp` (a connection), or `off`; the default is `http` with a `health-check-path`. Specific to \
         xdp-ingress",
    )
    .reads(|value, parsed| {
        parsed.check.kind = match value {
            "http" => Kind::Http,
            "grpc" => Kind::Grpc,
            "tcp" => Kind::Connect,
            "off" => Kind::None,
            _ => return Err("`http`, `grpc`, `tcp` or `off`".into()),
        };
        Ok(())
    }),
    key(
        "health-check-expected-statuses",
        "statuses of healthy pods for `http`, as `200, 204, 300-399`. Specific to xdp-ingress",
    )
    .default("200-399")
    .reads(|value, parsed| {
        parsed.check.statuses = statuses(value).ok_or("statuses and ranges of them, as `200, 204, 300-399`")?;
        Ok(())
    }),
    key(
        "health-check-healthy-threshold",
        "consecutive passed checks after which a pod gets requests again. Specific to xdp-ingress",
    )
    .default("2")
    .reads(|value, parsed| threshold(value, &mut parsed.check.healthy)),
    key("health-check-host", "`Host` of `http` checks; without it, the address of the pod. Specific to xdp-ingress")
        .reads(|value, parsed| {
            let is_host = value.parse::<http::uri::Authority>().is_ok_and(|host| !host.as_str().contains('@'));
            parsed.check.host = Some(Some(value).filter(|_| is_host).ok_or("a host, as `a.test`")?.into());
            Ok(())
        }),
    key(
        "health-check-interval",
        "time between two checks of one pod, from `1s`; longer if the checks of the node would be too many. Specific \
         to xdp-ingress",
    )
    .default("10s")
    .reads(|value, parsed| slow_span(value, &mut parsed.check.interval)),
    key("health-check-path", "path of `http` checks; without it, `/`. Specific to xdp-ingress").reads(
        |value, parsed| {
            let is_target = value.starts_with('/') && value.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
            parsed.check.path = Some(Some(value).filter(|_| is_target).ok_or("a path, as `/healthz`")?.into());
            Ok(())
        },
    ),
    key("health-check-port", "port of the checks; without it, the port of requests. Specific to xdp-ingress").reads(
        |value, parsed| {
            let mut port = 0;
            number(value, 1..=u16::MAX, &mut port).ok_or("the number of a port")?;
            parsed.check.port = Some(port);
            Ok(())
        },
    ),
    key("health-check-service", "service name in `grpc` checks; without it, the whole server. Specific to xdp-ingress")
        .reads(|value, parsed| {
            let is_name = !value.is_empty() && value.bytes().all(|b| b.is_ascii_graphic());
            parsed.check.service = Some(value).filter(|_| is_name).ok_or("the name of a service")?.into();
            Ok(())
        }),
    key("health-check-timeout", "time limit for a check, connection and answer together. Specific to xdp-ingress")
        .default("5s")
        .reads(|value, parsed| span(value, &mut parsed.check.timeout)),
    key(
        "health-check-unhealthy-threshold",
        "consecutive failed checks (a wrong answer, or none) after which a pod gets no requests. Specific to \
         xdp-ingress",
    )
    .default("3")
    .reads(|value, parsed| threshold(value, &mut parsed.check.unhealthy)),
    key(
        "max-connections",
        "largest number of requests that one node has in flight at all pods of a service, each on its own connection \
         with HTTP/1.1; more wait or get 503. Specific to xdp-ingress",
    )
    .reads(|value, parsed| cap(value, &mut parsed.circuit_breaker.connections)),
    key(
        "max-pending-requests",
        "largest number of requests that wait, for `proxy-connect-timeout` at most, while `max-connections` are in \
         flight; more get 503 at once. Specific to xdp-ingress",
    )
    .default("0")
    .reads(|value, parsed| {
        number(value, 0..=CAP_MAX, &mut parsed.circuit_breaker.pending).ok_or_else(|| "a number up to 1000000".into())
    }),
    key(
        "max-requests",
        "largest number of requests that one node has in flight at one pod; requests for which no pod has room get \
         503 at once. Specific to xdp-ingress",
    )
    .reads(|value, parsed| cap(value, &mut parsed.circuit_breaker.requests)),
    key(
        "slow-start",
        "time in which a new or recovered pod ramps up to its full share of requests, in seconds; no effect with \
         hashing or a cookie. Specific to xdp-ingress",
    )
    .reads(|value, parsed| {
        let mut time = Duration::ZERO;
        span(value, &mut time)?;
        parsed.slow_start = Some(time);
        Ok(())
    }),
];

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedHealthPolicy {
    outlier_detection: OutlierDetection,
    circuit_breaker: CircuitBreaker,
    slow_start: Option<Duration>,
    check: ParsedHealthCheck,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ParsedHealthCheck {
    kind: Kind,
    /// A path alone is enough to enable checks.
    path: Option<Box<str>>,
    host: Option<Box<str>>,
    statuses: Box<[(u16, u16)]>,
    /// Name of the gRPC service.
    service: Box<str>,
    port: Option<u16>,
    interval: Duration,
    timeout: Duration,
    healthy: NonZeroU32,
    unhealthy: NonZeroU32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// HTTP if there is a path, else none.
    #[default]
    ByPath,
    None,
    Http,
    Grpc,
    Connect,
}

impl Default for ParsedHealthCheck {
    fn default() -> Self {
        Self {
            kind: Kind::ByPath,
            path: None,
            host: None,
            statuses: [Question::STATUSES].into(),
            service: Box::default(),
            port: None,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            healthy: NonZeroU32::MIN.saturating_add(1),
            unhealthy: NonZeroU32::MIN.saturating_add(2),
        }
    }
}

// === impl ParsedHealthPolicy ===

impl ParsedHealthPolicy {
    /// Returns the policy; `None` if it is the default.
    pub(super) fn build(self) -> Option<Arc<HealthPolicy>> {
        let Self { outlier_detection, mut circuit_breaker, slow_start, check } = self;
        // Without a cap no request waits. Values without an effect are reset, so that they do not change the key.
        if circuit_breaker.connections.is_none() {
            circuit_breaker.pending = 0;
        }
        let health_policy =
            HealthPolicy { outlier_detection, check: check.build().map(Arc::new), circuit_breaker, slow_start };
        (health_policy != HealthPolicy::default()).then(|| Arc::new(health_policy))
    }
}

impl ParsedHealthCheck {
    fn build(self) -> Option<Check> {
        let Self { kind, path, host, statuses, service, port, interval, timeout, healthy, unhealthy } = self;
        let question = match (kind, path) {
            (Kind::None, _) | (Kind::ByPath, None) => return None,
            (Kind::ByPath | Kind::Http, path) => {
                Question::Http { path: path.unwrap_or_else(|| "/".into()), host, statuses }
            }
            (Kind::Grpc, _) => Question::Grpc { service },
            (Kind::Connect, _) => Question::Connect,
        };
        Some(Check { question, port, interval, timeout, healthy, unhealthy })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_limit_needs_a_connection_limit() {
        let parsed = |connections, pending| {
            let circuit_breaker =
                CircuitBreaker { connections: NonZeroU32::new(connections), pending, ..CircuitBreaker::default() };
            ParsedHealthPolicy { circuit_breaker, ..ParsedHealthPolicy::default() }
                .build()
                .map(|health_policy| health_policy.to_string())
        };
        assert_eq!(parsed(0, 5), None);
        assert_eq!(parsed(3, 5).as_deref(), Some("connections=3+5"));
    }
}
