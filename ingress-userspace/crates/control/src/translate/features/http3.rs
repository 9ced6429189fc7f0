//! Hosts without HTTP/3.

use super::row::{Row, key};
use crate::translate::values::boolean;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedHttp3>] = &[key(
    "http3",
    "whether HTTP/3 is served and offered for the hosts, where `--http3` serves it; the first Ingress of a host \
         decides. See [HTTP/3](http3.md). Specific to xdp-ingress",
)
.default("true")
.not_on_routes("none; the settings of the ConfigMap hold for the listeners of Gateways, too")
.reads(|value, parsed| {
    let mut is_on = true;
    boolean(value, &mut is_on)?;
    parsed.is_refused = !is_on;
    Ok(())
})];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedHttp3 {
    /// Default false.
    pub(super) is_refused: bool,
}
