//! Further names of the hosts of an Ingress. `alias` makes the claims on them.

use std::{collections::BTreeSet, sync::Arc};

use super::row::{Row, key};
use crate::translate::values::{Expected, boolean};
use ingress_model::HostPattern;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedAliases>] = &[
    key(
        "from-to-www-redirect",
        "whether requests for the name with `www.` (or, if the host begins with it, without) are redirected to the \
         host; the status is `http-redirect-code`. If a rule of any Ingress names that other host, the rule applies",
    )
    .default("false")
    .not_on_routes("write a route for the other hostname with a filter `RequestRedirect`")
    .reads(|value, parsed| boolean(value, &mut parsed.redirects_www)),
    key(
        "server-alias",
        "further names for the first host of the rules, separated by commas; `*.example.com` is one label before the name. A \
         canary needs its own. If a rule of any Ingress names such a host, the rule applies",
    )
    .differs("`*.` stands for one label instead of several, and regular expressions are refused")
    .notes_differences(wildcards)
    .not_on_routes("add the names to `hostnames`")
    .reads(|value, parsed| {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(HostPattern::parse);
        let names = names.collect::<Result<BTreeSet<_>, _>>();
        let names = names.map_err(|error| format!("host names, separated by commas ({error})"))?;
        parsed.names = names.into_iter().collect();
        Ok(())
    }),
];

/// Names that are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedAliases {
    /// Whether its hosts are reached with and without `www.`. Default false.
    pub(crate) redirects_www: bool,
    /// Further names of its first host.
    pub(crate) names: Arc<[HostPattern]>,
}

/// Explains names that ingress-nginx gives more hosts.
fn wildcards(value: &str) -> Option<Expected> {
    let mut names = value.split(',').map(str::trim);
    names.any(|name| name.starts_with("*.")).then(|| "`*.` stands for exactly one label".into())
}
