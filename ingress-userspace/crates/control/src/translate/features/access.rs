//! Networks whose clients may use the rules.

use super::row::{Row, key};
use crate::translate::values::networks;
use ingress_model::Access;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<Access>] = &[
    key("allowlist-source-range", "allowed networks, separated by commas; requests from all others get 403")
        .or_refuse()
        .reads(|value, parsed| networks(value, &mut parsed.allow)),
    key("denylist-source-range", "networks to answer with 403, separated by commas, even if another list allows them")
        .or_refuse()
        .reads(|value, parsed| networks(value, &mut parsed.deny)),
    key("whitelist-source-range", "the same as `allowlist-source-range`, which takes precedence")
        .same_as("allowlist-source-range")
        .or_refuse()
        .reads(|value, parsed| networks(value, &mut parsed.allow)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<Access>] = &[
    key("denylist-source-range", "networks to answer with 403, separated by commas, unless an Ingress overrides it")
        .reads(|value, parsed| networks(value, &mut parsed.deny)),
    key(
        "whitelist-source-range",
        "allowed networks, separated by commas, unless an Ingress overrides it; requests from all others get 403",
    )
    .reads(|value, parsed| networks(value, &mut parsed.allow)),
];
