//! How the endpoints of an upstream are looked after: when one is left alone for a while, what one is asked to find out
//! how it is, how much they are given at one time, how a new one begins. It looks after none.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

/// What holds for the endpoints of one upstream. Upstreams of one service under different upkeep share nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upkeep {
    pub ejection: Ejection,
    /// Default none.
    pub check: Option<Arc<Check>>,
    pub caps: Caps,
    /// How long the share of an endpoint that has come, or has come back, grows to that of the others. Default none.
    pub slow_start: Option<Duration>,
}

/// When requests show that an endpoint is better left alone (passive health).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ejection {
    /// Failures in a row: no connection, a time-out, a connection that is closed before an answer. `None` never ejects.
    /// Default 1.
    pub after: Option<NonZeroU32>,
    /// For how long at first; each failure in a row after that doubles it. Default 500 ms.
    pub first: Duration,
    /// For how long at most. Default 16 s.
    pub longest: Duration,
    /// How many percent of the endpoints may be ejected at one time: rounded down, but at least one endpoint, and never
    /// all. Default 50.
    pub share: u8,
    /// Whether answers of 5xx are failures, too. Default false.
    pub errors: bool,
}

/// What endpoints are asked, and what their answers mean.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Check {
    pub question: Question,
    /// Where, if not where requests go.
    pub port: Option<u16>,
    /// From one question to the next. Default 10 s.
    pub interval: Duration,
    /// For connection and answer together. Default 5 s.
    pub timeout: Duration,
    /// Good answers in a row after which an endpoint gets requests again. Default 2.
    pub healthy: NonZeroU32,
    /// Others in a row after which it gets none. Default 3.
    pub unhealthy: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// `GET` in the protocol of the upstream.
    Http {
        /// Path and query.
        path: Box<str>,
        /// `Host`; without it, the address of the endpoint.
        host: Option<Box<str>>,
        /// Inclusive ranges of what is a good answer. Default 200 to 399.
        statuses: Box<[(u16, u16)]>,
    },
    /// `grpc.health.v1.Health/Check` for this service; empty for the server as a whole.
    Grpc { service: Box<str> },
    /// A connection, with TLS if the upstream speaks it.
    Connect,
}

/// How much is asked of endpoints at one time, by one node. What is beyond is answered at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caps {
    /// Requests that are under way at one endpoint. Default none.
    pub requests: Option<NonZeroU32>,
    /// Requests that are under way at all endpoints, each of which has a connection of HTTP/1.1. Default none.
    pub connections: Option<NonZeroU32>,
    /// Requests that wait for one of `connections`, for as long as opening one may take. Default 0.
    pub pending: u32,
}

// === impl Ejection ===

impl Ejection {
    pub const DEFAULT: Self = Self {
        after: NonZeroU32::new(1),
        first: Duration::from_millis(500),
        longest: Duration::from_secs(16),
        share: 50,
        errors: false,
    };

    /// How many of `count` endpoints may be ejected at one time.
    #[must_use]
    pub fn most(&self, count: usize) -> usize {
        (count * usize::from(self.share) / 100).max(1).min(count.saturating_sub(1))
    }

    /// For how long an endpoint is ejected after so many failures in a row; `None` for not at all.
    #[must_use]
    pub fn time(&self, failures: u32) -> Option<Duration> {
        let beyond = failures.checked_sub(self.after?.get())?;
        Some(self.first.saturating_mul(1 << beyond.min(20)).min(self.longest))
    }
}

impl Default for Ejection {
    fn default() -> Self {
        Self::DEFAULT
    }
}

// === impl Question ===

impl Question {
    /// Statuses that are good answers by default.
    pub const STATUSES: (u16, u16) = (200, 399);
}

/// What differs from the defaults, in the characters of a key.
impl fmt::Display for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ejection, check, caps: Caps { requests, connections, pending }, slow_start } = self;
        let mut parts = Vec::new();
        if *ejection != Ejection::DEFAULT {
            let Ejection { after, first, longest, share, errors } = ejection;
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
    fn at_least_one_may_be_ejected_and_never_all() {
        for (share, count, expect) in
            [(50, 0, 0), (50, 1, 0), (50, 2, 1), (50, 3, 1), (50, 4, 2), (100, 4, 3), (10, 5, 1), (1, 1000, 10)]
        {
            assert_eq!(Ejection { share, ..Ejection::DEFAULT }.most(count), expect, "{share} % of {count}");
        }
    }

    #[test]
    fn times_double_up_to_the_longest() {
        let third = Ejection { after: NonZeroU32::new(3), ..Ejection::DEFAULT };
        for (failures, expect) in
            [(0, None), (2, None), (3, Some(500)), (4, Some(1000)), (8, Some(16_000)), (u32::MAX, Some(16_000))]
        {
            assert_eq!(third.time(failures).map(|time| time.as_millis()), expect, "{failures}");
        }
        assert_eq!(Ejection { after: None, ..Ejection::DEFAULT }.time(u32::MAX), None);
    }
}
