//! Reads the health policy that an Ingress asks for. It does not apply it.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use ingress_model::{Check, CircuitBreaker, Ejection, HealthPolicy, Question};

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::translate) struct ParsedHealthPolicy {
    pub(super) ejection: Ejection,
    pub(super) circuit_breaker: CircuitBreaker,
    pub(super) slow_start: Option<Duration>,
    pub(super) check: ParsedHealthCheck,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedHealthCheck {
    pub(super) kind: Kind,
    /// A path alone is enough to enable checks.
    pub(super) path: Option<Box<str>>,
    pub(super) host: Option<Box<str>>,
    pub(super) statuses: Box<[(u16, u16)]>,
    /// Name of the gRPC service.
    pub(super) service: Box<str>,
    pub(super) port: Option<u16>,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) healthy: NonZeroU32,
    pub(super) unhealthy: NonZeroU32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
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
    pub(super) fn made(self) -> Option<Arc<HealthPolicy>> {
        let Self { ejection, mut circuit_breaker, slow_start, check } = self;
        // Without a cap no request waits. Values without an effect are reset, so that they do not change the key.
        if circuit_breaker.connections.is_none() {
            circuit_breaker.pending = 0;
        }
        let health_policy = HealthPolicy { ejection, check: check.made().map(Arc::new), circuit_breaker, slow_start };
        (health_policy != HealthPolicy::default()).then(|| Arc::new(health_policy))
    }
}

impl ParsedHealthCheck {
    fn made(self) -> Option<Check> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_limit_needs_a_connection_limit() {
        let parsed = |connections, pending| {
            let circuit_breaker =
                CircuitBreaker { connections: NonZeroU32::new(connections), pending, ..CircuitBreaker::default() };
            ParsedHealthPolicy { circuit_breaker, ..ParsedHealthPolicy::default() }
                .made()
                .map(|health_policy| health_policy.to_string())
        };
        assert_eq!(parsed(0, 5), None);
        assert_eq!(parsed(3, 5).as_deref(), Some("connections=3+5"));
    }
}
