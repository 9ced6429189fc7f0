//! Headers of the PROXY protocol for pods.

use super::row::{Row, key};
use ingress_model::ProxyVersion;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<Option<ProxyVersion>>] = &[key(
    "proxy-protocol-upstream",
    "begins connections to pods, those of `ssl-passthrough` too, with a header of the PROXY protocol, version \
         `v1` or `v2`. It contains the client's address and the address of the node that the client connected to. \
         Each request then has its own connection. Specific to xdp-ingress",
)
.or_refuse()
.reads(|value, parsed| {
    *parsed = Some(match value {
        "v1" => ProxyVersion::V1,
        "v2" => ProxyVersion::V2,
        _ => return Err("`v1` or `v2`".into()),
    });
    Ok(())
})];
