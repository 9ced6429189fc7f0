//! Conditions under which refusals by the proxy become a denial in the kernel.

use std::{num::NonZeroU32, time::Duration};

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, count, seconds};
use ingress_model::{Escalation, FurtherViolations};

/// Sorted by name.
pub(super) const SETTINGS: &[Row<ParsedEscalation>] = &[
    key(
        "escalate-after",
        "refusals of one client after which the node drops its packets, from 1 to 1000000; `0` for never. Specific to \
         xdp-ingress, as are the other `escalate-…` settings; docs/clients.md lists the refusals that count",
    )
    .default("0")
    .reads(|value, parsed| count(value, 1_000_000, &mut parsed.after)),
    key(
        "escalate-also",
        "further refusals that count: some of `blocked`, `credentials`, `denied` and `limit`. A web page can make the \
         browsers of its visitors cause each of them, and Ingresses control the last three: name one only if every \
         author of an Ingress may have a client dropped for all hosts",
    )
    .default("")
    .reads(|value, parsed| further_violations(value, &mut parsed.also)),
    key("escalate-dry-run", "whether clients above the limit are only logged and counted, and not dropped")
        .default("false")
        .reads(|value, parsed| boolean(value, &mut parsed.dry_run)),
    key("escalate-for", "how long packets of such a client are dropped, in seconds")
        .default("600")
        .reads(|value, parsed| seconds(value, &mut parsed.lasts)),
    key("escalate-within", "time, from the first refusal on, in which refusals add up, in seconds")
        .default("60")
        .reads(|value, parsed| seconds(value, &mut parsed.within)),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedEscalation {
    /// `None` disables escalation.
    after: Option<NonZeroU32>,
    within: Duration,
    lasts: Duration,
    dry_run: bool,
    also: FurtherViolations,
}

impl Default for ParsedEscalation {
    fn default() -> Self {
        Self {
            after: None,
            within: Duration::from_secs(60),
            lasts: Duration::from_secs(600),
            dry_run: false,
            also: FurtherViolations::default(),
        }
    }
}

// === impl ParsedEscalation ===

impl ParsedEscalation {
    pub(crate) fn build(&self) -> Option<Escalation> {
        let Self { after, within, lasts, dry_run, also } = *self;
        after.map(|after| Escalation { after, within, lasts, dry_run, also })
    }
}

/// Reads reasons, separated by commas or spaces; none if the value has no word.
fn further_violations(value: &str, also: &mut FurtherViolations) -> Read {
    let mut wanted = FurtherViolations::default();
    for word in value.split([',', ' ']).filter(|word| !word.is_empty()) {
        *match word {
            "blocked" => &mut wanted.blocked,
            "credentials" => &mut wanted.credentials,
            "denied" => &mut wanted.denied,
            "limit" => &mut wanted.limit,
            _ => return Err("some of `blocked`, `credentials`, `denied` and `limit`, separated by commas".into()),
        } = true;
    }
    *also = wanted;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_violations_are_parsed_by_name() {
        let read = |value| {
            let mut also = FurtherViolations { limit: true, ..FurtherViolations::default() };
            further_violations(value, &mut also).map(|()| also)
        };
        assert_eq!(read(""), Ok(FurtherViolations::default()));
        let expect = FurtherViolations { credentials: true, denied: true, ..FurtherViolations::default() };
        assert_eq!(read("credentials, denied"), Ok(expect));
        for value in ["all", "credentials;denied", "Limit", "malformed"] {
            assert!(read(value).is_err(), "{value}");
        }
    }
}
