//! Conditions under which refusals by the proxy become a denial in the kernel.

use super::super::{
    super::values::{boolean, count, seconds},
    escalation::further_violations,
};
use crate::translate::settings::row::{Setting, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "escalate-after",
        "refusals of one client after which the node drops its packets, from 1 to 1000000; `0` for never. Specific to \
         xdp-ingress, as are the other `escalate-…` settings; docs/clients.md says which refusals count",
        |value, globals| count(value, 1_000_000, &mut globals.escalation.after),
    )
    .default("0"),
    setting(
        "escalate-also",
        "further refusals that count: some of `blocked`, `credentials`, `denied` and `limit`. A web page can make its \
         visitors' browsers ask for each of them, and the last three are what Ingresses say: name those whose owners \
         may have a client dropped for all hosts",
        |value, globals| further_violations(value, &mut globals.escalation.also),
    )
    .default(""),
    setting(
        "escalate-dry-run",
        "whether clients that would be dropped are only logged and counted",
        |value, globals| boolean(value, &mut globals.escalation.dry_run),
    )
    .default("false"),
    setting("escalate-for", "how long the packets of such a client are dropped, in seconds", |value, globals| {
        seconds(value, &mut globals.escalation.lasts)
    })
    .default("600"),
    setting(
        "escalate-within",
        "the time, from the first of them on, in which refusals count together, in seconds",
        |value, globals| seconds(value, &mut globals.escalation.within),
    )
    .default("60"),
];
