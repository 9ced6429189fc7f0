//! Escalation settings: values as they are read, before they are combined.

use std::{num::NonZeroU32, time::Duration};

use super::super::values::Read;
use ingress_model::{Escalation, FurtherViolations};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedEscalation {
    /// `None` disables escalation.
    pub(super) after: Option<NonZeroU32>,
    pub(super) within: Duration,
    pub(super) lasts: Duration,
    pub(super) dry_run: bool,
    pub(super) also: FurtherViolations,
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

impl ParsedEscalation {
    pub(super) fn made(&self) -> Option<Escalation> {
        let Self { after, within, lasts, dry_run, also } = *self;
        after.map(|after| Escalation { after, within, lasts, dry_run, also })
    }
}

/// Reads reasons, separated by commas or spaces; none if the value has no word.
pub(super) fn further_violations(value: &str, also: &mut FurtherViolations) -> Read {
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
