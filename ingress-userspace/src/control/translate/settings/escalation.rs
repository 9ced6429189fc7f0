//! What is asked for of escalation: values as they are read, not yet brought together.

use std::{num::NonZeroU32, time::Duration};

use crate::model::Escalation;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedEscalation {
    /// Never if `None`.
    pub(super) after: Option<NonZeroU32>,
    pub(super) within: Duration,
    pub(super) lasts: Duration,
    pub(super) dry_run: bool,
}

impl Default for AskedEscalation {
    fn default() -> Self {
        Self { after: None, within: Duration::from_secs(60), lasts: Duration::from_secs(600), dry_run: false }
    }
}

impl AskedEscalation {
    pub(super) fn made(&self) -> Option<Escalation> {
        let Self { after, within, lasts, dry_run } = *self;
        after.map(|after| Escalation { after, within, lasts, dry_run })
    }
}
