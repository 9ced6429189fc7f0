//! Rights of Ingresses at hosts of other namespaces. `ownership` applies them.

use std::{collections::BTreeSet, sync::Arc};

use super::row::{Row, key};
use crate::translate::{options::HostSharing, values::namespaces};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedSharing>] = &[key(
    "share-hosts-with",
    "namespaces, separated by commas, that may add paths to the hosts of this Ingress, if `host-sharing` is \
         `granted` and the hosts belong to this namespace. Specific to xdp-ingress",
)
.not_on_routes("set `allowedRoutes` of the listener")
.reads(|value, parsed| {
    parsed.shares_with = namespaces(value)?.into_iter().collect();
    Ok(())
})];

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Sharing>] = &[
    key(
        "host-sharing",
        "rights of an Ingress at a host that another namespace owns by its oldest Ingress: `paths`, only further \
         paths; `owner`, none; `granted`, paths if `share-hosts-with` or `host-sharing-grants` names its namespace; \
         `open`, everything that no older Ingress claims. Replaces `--host-sharing`. Each IngressClass has its own; \
         the one of the host's owner decides. Specific to xdp-ingress",
    )
    .default("paths")
    .per_class()
    .reads(|value, sharing| {
        sharing.mode = value.parse().map_err(|expected: &str| expected)?;
        Ok(())
    }),
    key(
        "host-sharing-grants",
        "namespaces, separated by commas, that may add paths to hosts of all others, with `host-sharing: granted`. \
         Each IngressClass has its own; the one of the host's owner decides. Specific to xdp-ingress",
    )
    .per_class()
    .reads(|value, sharing| {
        sharing.grants = namespaces(value)?;
        Ok(())
    }),
];

/// Namespaces that the owner of hosts names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedSharing {
    /// Namespaces that may add paths to its hosts. Default none.
    pub(super) shares_with: Arc<[Arc<str>]>,
}

/// Claims that Ingresses may make on hosts of other namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) mode: HostSharing,
    /// Namespaces that may add paths to hosts of any other, in mode `granted`.
    pub(crate) grants: BTreeSet<Arc<str>>,
}
