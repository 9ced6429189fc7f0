//! Paths of requests that are refused by their text. Values are those of Envoy's `path_with_escaped_slashes_action`.

use super::super::super::values::Read;
use crate::translate::settings::row::{Setting, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "path-with-double-escapes-action",
        "what happens to requests with an escaped escape in their path (`%252f`), which pods that decode twice take \
         for another path: `keep-unchanged`, or `reject-request` for 400. Specific to xdp-ingress",
        |value, globals| is_rejected(value, &mut globals.settings.refused_paths.double_escapes),
    )
    .default(KEEP),
    setting(
        "path-with-parameters-action",
        "what happens to requests with `;` or `%3b` in their path, where some pods cut the path off: \
         `keep-unchanged`, but 400 for a dot segment with parameters (`..;x`) that two rules could match; or \
         `reject-request` for 400. Specific to xdp-ingress",
        |value, globals| is_rejected(value, &mut globals.settings.refused_paths.parameters),
    )
    .default(KEEP),
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
