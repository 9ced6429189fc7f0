//! Health policy of an upstream's endpoints: ejection, health checks, circuit breaking and slow start. Only data is
//! defined here.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

/// Health policy of one upstream. Upstreams of one service with different policies share no state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthPolicy {
    pub outlier_detection: OutlierDetection,
    /// Active health check. Default none.
    pub check: Option<Arc<Check>>,
    pub circuit_breaker: CircuitBreaker,
    /// Time in which the share of a new or recovered endpoint grows to that of the others. Default none.
    pub slow_start: Option<Duration>,
}

/// Outlier detection: ejection of endpoints after failed requests (passive health).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutlierDetection {
    /// Consecutive failures before ejection: no connection, a time-out, or a connection closed before a response.
    /// `None` never ejects. Default 1.
    pub after: Option<NonZeroU32>,
    /// Duration of the first ejection; each further consecutive failure doubles it. Default 500 ms.
    pub first: Duration,
    /// Maximum duration of an ejection. Default 16 s.
    pub longest: Duration,
    /// Maximum percentage of endpoints ejected at one time: rounded down, but at least one endpoint, and never all.
    /// Default 50.
    pub share: u8,
    /// Whether 5xx responses count as failures. Default false.
    pub errors: bool,
}

/// Health check: the probe of endpoints, and the criteria for its results.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Check {
    pub question: Question,
    /// Port to probe, if different from that of requests.
    pub port: Option<u16>,
    /// Interval between probes. Default 10 s.
    pub interval: Duration,
    /// Time-out for connection and response together. Default 5 s.
    pub timeout: Duration,
    /// Consecutive successes before an endpoint gets requests again. Default 2.
    pub healthy: NonZeroU32,
    /// Consecutive failures before an endpoint gets no more requests. Default 3.
    pub unhealthy: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// `GET` in the protocol of the upstream.
    Http {
        /// Path and query.
        path: Box<str>,
        /// Value of `Host`; the address of the endpoint if absent.
        host: Option<Box<str>>,
        /// Inclusive ranges of healthy statuses. Default 200 to 399.
        statuses: Box<[(u16, u16)]>,
    },
    /// `grpc.health.v1.Health/Check` for this service; empty for the server as a whole.
    Grpc { service: Box<str> },
    /// A connection, with TLS if the upstream uses it.
    Connect,
}

/// Circuit breaker: limits of concurrent requests per node. Requests beyond them are refused at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircuitBreaker {
    /// Maximum requests in flight at one endpoint. Default unlimited.
    pub requests: Option<NonZeroU32>,
    /// Maximum requests in flight at all endpoints; with HTTP/1.1, each has its own connection. Default unlimited.
    pub connections: Option<NonZeroU32>,
    /// Maximum requests that wait for one of `connections`, at most as long as opening one may take. Default 0.
    pub pending: u32,
}

// === impl Check ===

impl Check {
    /// Limit of checks per second that one node makes, over all upstreams; each check opens a connection. Above it, all
    /// intervals become longer by the same factor.
    pub const MAX_PER_SECOND: u32 = 500;

    /// Returns the checks of one endpoint in a million seconds. An integer, so that a sum does not depend on its order.
    #[must_use]
    pub fn rate(&self) -> u64 {
        let rate = 1_000_000_000_000 / self.interval.as_micros().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

// === impl OutlierDetection ===

impl OutlierDetection {
    pub const DEFAULT: Self = Self {
        after: NonZeroU32::new(1),
        first: Duration::from_millis(500),
        longest: Duration::from_secs(16),
        share: 50,
        errors: false,
    };

    /// Returns how many of `count` endpoints may be ejected at one time.
    #[must_use]
    pub fn most(&self, count: usize) -> usize {
        (count * usize::from(self.share) / 100).max(1).min(count.saturating_sub(1))
    }

    /// Returns the ejection time after this number of consecutive failures, or `None` for no ejection.
    #[must_use]
    pub fn time(&self, failures: u32) -> Option<Duration> {
        let beyond = failures.checked_sub(self.after?.get())?;
        Some(self.first.saturating_mul(1 << beyond.min(20)).min(self.longest))
    }
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self::DEFAULT
    }
}

// === impl Question ===

impl Question {
    /// Range of statuses that are healthy by default.
    pub const STATUSES: (u16, u16) = (200, 399);
}

/// Shows the values that differ from the defaults, using only characters valid in a key.
impl fmt::Display for HealthPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            outlier_detection,
            check,
            circuit_breaker: CircuitBreaker { requests, connections, pending },
            slow_start,
        } = self;
        let mut parts = Vec::new();
        if *outlier_detection != OutlierDetection::DEFAULT {
            let OutlierDetection { after, first, longest, share, errors } = outlier_detection;
            let after = after.map_or(0, NonZeroU32::get);
            let errors = if *errors { "+5xx" } else { "" };
            parts.push(format!("eject={after}{errors}:{first:?}-{longest:?}:{share}%"));
        }
        if let Some(check) = check {
            parts.push(format!("check={check}"));
        }
        parts.extend(requests.map(|max| format!("requests={max}")));
        parts.extend(connections.map(|max| format!("connections={max}+{pending}")));
        parts.extend(slow_start.map(|time| format!("slow-start={time:?}")));
        f.write_str(&parts.join(","))
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { question, port, interval, timeout, healthy, unhealthy } = self;
        write!(f, "{question}")?;
        if let Some(port) = port {
            write!(f, "@{port}")?;
        }
        write!(f, ":{interval:?}/{timeout:?}:{healthy}/{unhealthy}")
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { path, host, statuses } => {
                write!(f, "http({path:?}")?;
                if let Some(host) = host {
                    write!(f, " {host:?}")?;
                }
                statuses.iter().try_for_each(|(first, last)| write!(f, " {first}-{last}"))?;
                f.write_str(")")
            }
            Self::Grpc { service } => write!(f, "grpc({service:?})"),
            Self::Connect => f.write_str("tcp"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ejection_limit_is_at_least_one_and_never_all() {
        for (share, count, expect) in
            [(50, 0, 0), (50, 1, 0), (50, 2, 1), (50, 3, 1), (50, 4, 2), (100, 4, 3), (10, 5, 1), (1, 1000, 10)]
        {
            assert_eq!(
                OutlierDetection { share, ..OutlierDetection::DEFAULT }.most(count),
                expect,
                "{share} % of {count}"
            );
        }
    }

    #[test]
    fn ejection_times_double_up_to_the_maximum() {
        let third = OutlierDetection { after: NonZeroU32::new(3), ..OutlierDetection::DEFAULT };
        for (failures, expect) in
            [(0, None), (2, None), (3, Some(500)), (4, Some(1000)), (8, Some(16_000)), (u32::MAX, Some(16_000))]
        {
            assert_eq!(third.time(failures).map(|time| time.as_millis()), expect, "{failures}");
        }
        assert_eq!(OutlierDetection { after: None, ..OutlierDetection::DEFAULT }.time(u32::MAX), None);
    }
}
