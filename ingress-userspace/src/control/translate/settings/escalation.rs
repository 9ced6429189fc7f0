//! Escalation settings: values as they are read, before they are combined.

use std::{num::NonZeroU32, time::Duration};

use super::super::values::Read;
use crate::model::{Escalation, FurtherOffences};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedEscalation {
    /// `None` disables escalation.
    pub(super) after: Option<NonZeroU32>,
    pub(super) within: Duration,
    pub(super) lasts: Duration,
    pub(super) dry_run: bool,
    pub(super) also: FurtherOffences,
}

impl Default for AskedEscalation {
    fn default() -> Self {
        Self {
            after: None,
            within: Duration::from_secs(60),
            lasts: Duration::from_secs(600),
            dry_run: false,
            also: FurtherOffences::default(),
        }
    }
}

impl AskedEscalation {
    pub(super) fn made(&self) -> Option<Escalation> {
        let Self { after, within, lasts, dry_run, also } = *self;
        after.map(|after| Escalation { after, within, lasts, dry_run, also })
    }
}

/// Reads reasons, separated by commas or spaces; none if the value has no word.
pub(super) fn further_offences(value: &str, also: &mut FurtherOffences) -> Read {
    let mut wanted = FurtherOffences::default();
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
    fn further_offences_are_named_one_by_one() {
        let read = |value| {
            let mut also = FurtherOffences { limit: true, ..FurtherOffences::default() };
            further_offences(value, &mut also).map(|()| also)
        };
        assert_eq!(read(""), Ok(FurtherOffences::default()));
        let expect = FurtherOffences { credentials: true, denied: true, ..FurtherOffences::default() };
        assert_eq!(read("credentials, denied"), Ok(expect));
        for value in ["all", "credentials;denied", "Limit", "malformed"] {
            assert!(read(value).is_err(), "{value}");
        }
    }
}
