//! Request limits of a client at an Ingress.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use crate::Networks;

/// Limits per client, which is one IPv4 address or one /64 of IPv6. Each node counts by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the counters, `namespace/name`: rules with the same owner share them. The counts survive changes of
    /// other fields of the limit.
    pub owner: Arc<str>,
    pub per_second: Option<Rate>,
    pub per_minute: Option<Rate>,
    /// Maximum number of concurrent requests.
    pub in_flight: Option<NonZeroU32>,
    /// Clients without limits.
    pub exempt: Networks,
    /// Status for requests above a rate, and above `in_flight`: from 400 to 599.
    pub rate_status: u16,
    pub in_flight_status: u16,
}

/// A rate of requests, spaced evenly apart from a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub requests: NonZeroU32,
    pub per: Duration,
    /// Number of requests that may come early.
    pub burst: u32,
}

impl Limit {
    /// Returns whether no limit is set.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.per_second.is_none() && self.per_minute.is_none() && self.in_flight.is_none()
    }
}

impl Rate {
    /// Returns the average interval between two requests.
    #[must_use]
    pub fn interval(self) -> Duration {
        self.per / self.requests.get()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, per_second, per_minute, in_flight, exempt, rate_status, in_flight_status } = self;
        write!(f, "{owner}")?;
        for Rate { requests, per, burst } in [per_second, per_minute].into_iter().flatten() {
            write!(f, ", {requests} in {per:?} and {burst} early else {rate_status}")?;
        }
        if let Some(max) = in_flight {
            write!(f, ", {max} at one time else {in_flight_status}")?;
        }
        if !exempt.is_empty() {
            write!(f, ", not {exempt}")?;
        }
        Ok(())
    }
}
