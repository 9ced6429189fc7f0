//! How much one client may ask of one Ingress.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use crate::model::Networks;

/// Limits of each client, which is one IPv4 address or one /64 of IPv6; on each node by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Under whose name requests are counted, `namespace/name`: those of all rules with the same one count together,
    /// and go on to count when anything else of the limit changes.
    pub owner: Arc<str>,
    pub per_second: Option<Rate>,
    pub per_minute: Option<Rate>,
    /// Most requests in flight at one time.
    pub in_flight: Option<NonZeroU32>,
    /// Clients that have no limits.
    pub exempt: Networks,
    /// Answer to a request above a rate, and above `in_flight`: from 400 to 599.
    pub rate_status: u16,
    pub in_flight_status: u16,
}

/// So many requests per time, spaced evenly but for a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub requests: NonZeroU32,
    pub per: Duration,
    /// How many requests may come before their time.
    pub burst: u32,
}

impl Limit {
    /// Whether nobody is kept from anything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.per_second.is_none() && self.per_minute.is_none() && self.in_flight.is_none()
    }
}

impl Rate {
    /// From one request to the next, in the long run.
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
