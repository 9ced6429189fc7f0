//! `Strict-Transport-Security` (RFC 6797).

use http::HeaderValue;

use super::row::{Row, key};
use crate::translate::values::{boolean, number};
use ingress_model::Filter;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Hsts>] = &[
    key(
        "hsts",
        "whether hosts with TLS send `Strict-Transport-Security` (RFC 6797), so that browsers use only TLS afterwards",
    )
    .default("false")
    .nginx("true")
    .reads(|value, hsts| boolean(value, &mut hsts.enabled)),
    key("hsts-include-subdomains", "whether `Strict-Transport-Security` includes subdomains")
        .default("true")
        .reads(|value, hsts| boolean(value, &mut hsts.include_subdomains)),
    key("hsts-max-age", "`max-age` of `Strict-Transport-Security`, in seconds").default("31536000").reads(
        |value, hsts| {
            number(value, 0..=u64::from(u32::MAX), &mut hsts.max_age)
                .ok_or_else(|| "a number of seconds up to 4294967295".into())
        },
    ),
    key("hsts-preload", "whether `Strict-Transport-Security` has `preload`")
        .default("false")
        .reads(|value, hsts| boolean(value, &mut hsts.preload)),
];

/// Whether browsers must use TLS only, and for how long (RFC 6797).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hsts {
    enabled: bool,
    /// In seconds.
    max_age: u64,
    include_subdomains: bool,
    preload: bool,
}

impl Default for Hsts {
    fn default() -> Self {
        Self { enabled: false, max_age: 31_536_000, include_subdomains: true, preload: false }
    }
}

// === impl Hsts ===

impl Hsts {
    /// Returns the filter for rules of hosts with TLS, if it is enabled.
    pub(crate) fn filter(self) -> Option<Filter> {
        let Self { enabled, max_age, include_subdomains, preload } = self;
        let subdomains = if include_subdomains { "; includeSubDomains" } else { "" };
        let preload = if preload { "; preload" } else { "" };
        let value = HeaderValue::try_from(format!("max-age={max_age}{subdomains}{preload}")).ok();
        value.filter(|_| enabled).map(Filter::StrictTransportSecurity)
    }
}
