//! Metrics of single rules.

use super::row::{Row, key};
use crate::translate::values::boolean;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedMetrics>] = &[key(
    "metrics-per-path",
    "whether each rule has metrics of its own, by its host and path. Specific to xdp-ingress",
)
.default("false")
.not_on_routes("use the metrics of the listener's hosts")
.reads(|value, parsed| boolean(value, &mut parsed.per_path))];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedMetrics {
    /// Whether each rule has metrics of its own. Default false.
    pub(super) per_path: bool,
}
