//! Paths and fields of requests that pods may read differently. Values for paths are those of Envoy's
//! `path_with_escaped_slashes_action`.

use super::row::{Row, key};
use crate::translate::values::{Read, boolean};
use ingress_model::Settings;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Settings>] = &[
    key(
        "enable-underscores-in-headers",
        "whether pods get fields of clients with `_` in their names, which many pods read as `-`; a field that a pod \
         could take for one of the proxy's own is dropped in any case",
    )
    .default("false")
    .reads(|value, settings| boolean(value, &mut settings.underscores)),
    key(
        "path-with-double-escapes-action",
        "what happens to requests with an escaped escape in their path (`%252f`), which pods that decode twice take \
         for another path: `keep-unchanged`, or `reject-request` for 400. Specific to xdp-ingress",
    )
    .default(KEEP)
    .reads(|value, settings| is_rejected(value, &mut settings.refused_paths.double_escapes)),
    key(
        "path-with-parameters-action",
        "what happens to requests with `;` or `%3b` in their path, where some pods cut the path off: \
         `keep-unchanged`, but 400 for a dot segment with parameters (`..;x`) that two rules could match; or \
         `reject-request` for 400. Specific to xdp-ingress",
    )
    .default(KEEP)
    .reads(|value, settings| is_rejected(value, &mut settings.refused_paths.parameters)),
];

const KEEP: &str = "keep-unchanged";

fn is_rejected(value: &str, field: &mut bool) -> Read {
    *field = match value {
        KEEP => false,
        "reject-request" => true,
        _ => return Err("`keep-unchanged` or `reject-request`".into()),
    };
    Ok(())
}
