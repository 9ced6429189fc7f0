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
         xdp-ingress, as are the other `escalate-…` settings; docs/clients.md lists the refusals that count",
        |value, globals| count(value, 1_000_000, &mut globals.escalation.after),
    )
    .default("0"),
    setting(
        "escalate-also",
        "further refusals that count: some of `blocked`, `credentials`, `denied` and `limit`. A web page can make the \
         browsers of its visitors cause each of them, and Ingresses control the last three: name one only if every \
         author of an Ingress may have a client dropped for all hosts",
        |value, globals| further_violations(value, &mut globals.escalation.also),
    )
    .default(""),
    setting(
        "escalate-dry-run",
        "whether clients above the limit are only logged and counted, and not dropped",
        |value, globals| boolean(value, &mut globals.escalation.dry_run),
    )
    .default("false"),
    setting("escalate-for", "how long packets of such a client are dropped, in seconds", |value, globals| {
        seconds(value, &mut globals.escalation.lasts)
    })
    .default("600"),
    setting(
        "escalate-within",
        "time, from the first refusal on, in which refusals add up, in seconds",
        |value, globals| seconds(value, &mut globals.escalation.within),
    )
    .default("60"),
];
