//! Limits of clients, counted for all workers together: request rates, requests in flight, and connections. Callers
//! decide which limits apply, and to which clients.
//!
//! A client is an IPv4 address or an IPv6 /64, which is the size that one subscriber has. Memory is bounded for any
//! number of clients: rates have a table of a fixed size ([`rate`]), and counts in flight are bounded by the requests
//! and connections themselves ([`count`]).

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ingress_model::filter::Limit;

use count::InFlightCounts;
use rate::Rates;

pub(crate) mod buffer_space;
pub(crate) mod client_table;
mod count;
mod rate;
pub(crate) mod violations;

pub(crate) use count::CountGuard;

/// The limits of a node.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Randomly keyed, so that clients cannot choose an address that shares an entry with another client.
    hasher: RandomState,
    rates: Rates,
    requests: Arc<InFlightCounts>,
    connections: Arc<InFlightCounts>,
    over_rate: AtomicU64,
    over_in_flight: AtomicU64,
}

/// The limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// The request rate. The next request is allowed after `wait`.
    Rate {
        wait: Duration,
    },
    InFlight,
}

/// Statistics of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// Requests refused because they exceeded a rate.
    pub over_rate: u64,
    /// Requests refused because too many were in flight.
    pub over_in_flight: u64,
    /// Clients evicted from the full table before their entries expired.
    pub forgotten: u64,
}

impl Limiter {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            rates: Rates::new(),
            requests: Arc::default(),
            connections: Arc::default(),
            over_rate: AtomicU64::new(0),
            over_in_flight: AtomicU64::new(0),
        }
    }

    /// Counts a request of `client` at `now`, a time since any fixed moment. The returned guard must be kept for as
    /// long as the request is in flight.
    ///
    /// # Errors
    /// If the request exceeds a limit; it is not counted then.
    pub(crate) fn admit(&self, limit: &Limit, client: IpAddr, now: Duration) -> Result<Option<CountGuard>, Excess> {
        let Limit { owner, per_second, per_minute, in_flight, exempt, rate_status: _, in_flight_status: _ } = limit;
        if exempt.contains(client) {
            return Ok(None);
        }
        let key = self.hasher.hash_one((&**owner, subscriber(client)));
        let counted = in_flight.map(|max| self.requests.enter(key, max).ok_or(Excess::InFlight)).transpose();
        let counted = counted.inspect_err(|_excess| {
            self.over_in_flight.fetch_add(1, Relaxed);
        })?;
        if per_second.is_some() || per_minute.is_some() {
            self.rates.admit(key, [*per_second, *per_minute], now).map_err(|wait| {
                self.over_rate.fetch_add(1, Relaxed);
                Excess::Rate { wait }
            })?;
        }
        Ok(counted)
    }

    /// Counts a connection of `client` until the returned guard is dropped. Returns `None` if that would exceed `max`.
    pub(crate) fn connect(&self, client: IpAddr, max: NonZeroU32) -> Option<CountGuard> {
        self.connections.enter(self.hasher.hash_one(subscriber(client)), max)
    }

    pub(crate) fn stats(&self) -> LimitStats {
        LimitStats {
            over_rate: self.over_rate.load(Relaxed),
            over_in_flight: self.over_in_flight.load(Relaxed),
            forgotten: self.rates.forgotten(),
        }
    }
}

/// Returns the key that clients are distinguished by: the network of an address, in fewer bytes to hash than an
/// [`ipnet::IpNet`].
fn subscriber(client: IpAddr) -> (bool, u64) {
    match client.to_canonical() {
        IpAddr::V4(address) => (false, address.to_bits().into()),
        IpAddr::V6(address) => (true, (address.to_bits() >> 64) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_model::{Networks, filter::Rate};

    fn limit(owner: &str) -> Limit {
        let requests = NonZeroU32::MIN;
        Limit {
            owner: owner.into(),
            per_second: Some(Rate { requests, per: Duration::from_secs(1), burst: 0 }),
            per_minute: None,
            in_flight: Some(requests),
            exempt: Networks::parse("10.0.0.0/8").expect("valid"),
            rate_status: 503,
            in_flight_status: 503,
        }
    }

    #[test]
    fn clients_are_limited_per_owner_by_ipv4_address_or_ipv6_64() {
        let limiter = Limiter::new();
        let mut held = Vec::new();
        for (owner, client, expect) in [
            ("a/a", "192.0.2.1", true),
            ("a/a", "192.0.2.1", false),
            ("a/a", "::ffff:192.0.2.1", false),
            ("a/a", "192.0.2.2", true),
            ("a/b", "192.0.2.1", true),
            ("a/a", "2001:db8::1", true),
            ("a/a", "2001:db8::2", false),
            ("a/a", "2001:db8:0:1::1", true),
            ("a/a", "10.0.0.1", true),
            ("a/a", "10.0.0.1", true),
        ] {
            let admitted = limiter.admit(&limit(owner), client.parse().expect("an address"), Duration::ZERO);
            assert_eq!(admitted.is_ok(), expect, "{owner} {client}");
            held.extend(admitted);
        }
        assert_eq!(limiter.stats(), LimitStats { over_rate: 0, over_in_flight: 3, forgotten: 0 });
    }

    #[test]
    fn refused_requests_do_not_count() {
        let (limiter, limit) = (Limiter::new(), limit("a/a"));
        let client = [192, 0, 2, 1].into();
        let held = limiter.admit(&limit, client, Duration::ZERO).expect("the first");
        assert!(matches!(limiter.admit(&limit, client, Duration::ZERO), Err(Excess::InFlight)));
        drop(held);
        // No request is in flight, but the rate is exceeded. The refused request must not stay counted as in flight.
        for _ in 0..3 {
            let wait = Duration::from_millis(600);
            let refused = limiter.admit(&limit, client, Duration::from_millis(400));
            assert_eq!(refused.expect_err("too soon"), Excess::Rate { wait });
        }
        assert!(limiter.admit(&limit, client, Duration::from_secs(1)).is_ok());
    }
}
