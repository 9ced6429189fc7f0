//! Limits for the requests of one client.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    row::{Row, key},
    scope::Scope,
};
use crate::translate::values::{Read, networks, number};
use ingress_model::{
    Filter, Networks,
    filter::{Limit, Rate},
};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedLimits>] = &[
    key("limit-allowlist", "networks without limits for their clients, separated by commas")
        .or_refuse()
        .reads(|value, parsed| networks(value, &mut parsed.exempt)),
    key(
        "limit-burst-multiplier",
        "burst that a client may send after a pause, as a multiple of `limit-rps` or `limit-rpm`; from 1 to 1000",
    )
    .default("5")
    .or_refuse()
    .reads(|value, parsed| {
        number(value, 1..=1000, &mut parsed.burst_multiplier).ok_or("a number from 1 to 1000")?;
        Ok(())
    }),
    key(
        "limit-connections",
        "largest number of requests in flight for one client, on each node; `0` for any. See [clients.md](clients.md)",
    )
    .default("0")
    .or_refuse()
    .reads(|value, parsed| count(value, &mut parsed.in_flight)),
    key("limit-rpm", "requests per minute that one client may send, on each node; `0` for any")
        .default("0")
        .or_refuse()
        .reads(|value, parsed| count(value, &mut parsed.per_minute)),
    key("limit-rps", "requests per second that one client may send, on each node; `0` for any")
        .default("0")
        .or_refuse()
        .reads(|value, parsed| count(value, &mut parsed.per_second)),
    key(
        "limit-scope",
        "`node`: each node applies the limits by itself; `cluster`: each node grants its share, the limits divided by \
         the number of ready nodes. Specific to xdp-ingress",
    )
    .default("node")
    .or_refuse()
    .reads(|value, parsed| limit_scope(value, &mut parsed.of_cluster)),
    key("limit-whitelist", "the same as `limit-allowlist`, which takes precedence")
        .same_as("limit-allowlist")
        .or_refuse()
        .reads(|value, parsed| networks(value, &mut parsed.exempt)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedLimits>] = &[
    key("limit-conn-status-code", "status for requests above the limit of requests in flight, from 400 to 599")
        .default("503")
        .reads(|value, parsed| error_status(value, &mut parsed.in_flight_status)),
    key(
        "limit-req-status-code",
        "status for requests above the limit of requests per second or minute, from 400 to 599",
    )
    .default("503")
    .reads(|value, parsed| error_status(value, &mut parsed.rate_status)),
    key("limit-scope", "see the annotation; applies unless an Ingress overrides it. Specific to xdp-ingress")
        .default("node")
        .reads(|value, parsed| limit_scope(value, &mut parsed.of_cluster)),
];

/// Limits for one client of an Ingress; 0 means unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedLimits {
    per_second: u32,
    per_minute: u32,
    /// Burst size as a multiple of the rate. Default 5.
    burst_multiplier: u32,
    in_flight: u32,
    /// Whether all Ready nodes share the limits. Default false.
    of_cluster: bool,
    exempt: Networks,
    /// Default 503.
    rate_status: u16,
    /// Default 503.
    in_flight_status: u16,
}

impl Default for ParsedLimits {
    fn default() -> Self {
        Self {
            per_second: 0,
            per_minute: 0,
            burst_multiplier: 5,
            in_flight: 0,
            of_cluster: false,
            exempt: Networks::default(),
            rate_status: 503,
            in_flight_status: 503,
        }
    }
}

// === impl ParsedLimits ===

impl ParsedLimits {
    /// Returns the filter for rules of the Ingress, if there are limits.
    pub(super) fn filter(self, scope: &mut Scope<'_, '_>) -> Option<Filter> {
        let Self {
            per_second,
            per_minute,
            burst_multiplier,
            in_flight,
            of_cluster,
            exempt,
            rate_status,
            in_flight_status,
        } = self;
        let nodes = if of_cluster { scope.lookup.ready_nodes() } else { 1 };
        let [per_second, per_minute, in_flight] =
            [per_second, per_minute, in_flight].map(|count| count.div_ceil(nodes));
        let rate = |requests, seconds| {
            let burst = u32::saturating_mul(requests, burst_multiplier);
            NonZeroU32::new(requests).map(|requests| Rate { requests, per: Duration::from_secs(seconds), burst })
        };
        let limit = Limit {
            owner: Arc::clone(&scope.counters),
            per_second: rate(per_second, 1),
            per_minute: rate(per_minute, 60),
            in_flight: NonZeroU32::new(in_flight),
            exempt,
            rate_status,
            in_flight_status,
        };
        (!limit.is_none()).then(|| Filter::Limit(Arc::new(limit)))
    }
}

/// Reads a limit of requests; 0 means unlimited.
fn count(value: &str, field: &mut u32) -> Read {
    number(value, 0..=1_000_000, field).ok_or_else(|| "a number up to 1000000".into())
}

fn error_status(value: &str, field: &mut u16) -> Read {
    number(value, 400..=599, field).ok_or_else(|| "a number from 400 to 599".into())
}

/// Reads whether a limit holds for the whole cluster.
fn limit_scope(value: &str, field: &mut bool) -> Read {
    *field = match value {
        "node" => false,
        "cluster" => true,
        _ => return Err("`node` or `cluster`".into()),
    };
    Ok(())
}
