//! Idle connections to endpoints.

use super::row::{Row, key};
use crate::translate::values::{number, seconds};
use ingress_model::Settings;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Settings>] = &[
    key("upstream-keepalive-connections", "idle connections to keep per endpoint and worker, from 0 to 65535")
        .differs("counted for each pod and worker")
        .default("512")
        .nginx("320")
        .reads(|value, settings| {
            number(value, 0..=65_535, &mut settings.upstream_idle_per_endpoint)
                .ok_or_else(|| "a number from 0 to 65535".into())
        }),
    key("upstream-keepalive-timeout", "how long an idle connection to an endpoint is kept, in seconds")
        .default("55")
        .nginx("60")
        .reads(|value, settings| seconds(value, &mut settings.upstream_idle_timeout)),
];
