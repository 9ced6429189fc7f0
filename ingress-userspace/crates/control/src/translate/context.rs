//! The two things that a part is made with: lookups, and a sink for its outcomes.

use std::{collections::BTreeSet, ops::Deref};

use super::{lookup::Lookup, outcomes::Outcomes, part::PartTrace};
use crate::outcome::{ObjectRef, Reason};

/// Lookups and outcomes of one part. Code that needs only one of the two takes only that one.
pub(crate) struct Context<'l, 'c> {
    pub(crate) lookup: &'l Lookup<'c>,
    pub(crate) outcomes: &'l mut Outcomes,
}

// === impl Context ===

impl<'c> Context<'_, 'c> {
    /// Returns the same for a shorter time.
    pub(crate) const fn reborrow(&mut self) -> Context<'_, 'c> {
        Context { lookup: self.lookup, outcomes: self.outcomes }
    }

    /// Reports an outcome of `object`.
    pub(crate) fn report(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.outcomes.report(object, reason, message);
    }
}

impl<'c> Deref for Context<'_, 'c> {
    type Target = Lookup<'c>;

    fn deref(&self) -> &Self::Target {
        self.lookup
    }
}

// === impl Lookup ===

impl<'c> Lookup<'c> {
    /// Runs `make` with a trace of its own, and returns its result and trace.
    pub(crate) fn traced<T>(&self, make: impl FnOnce(&mut Context<'_, 'c>) -> T) -> (T, PartTrace) {
        let outer = self.replace_reads(BTreeSet::new());
        let mut outcomes = Outcomes::default();
        let made = make(&mut Context { lookup: self, outcomes: &mut outcomes });
        let reads = self.replace_reads(outer);
        (made, PartTrace { reads, outcomes: outcomes.into_inner() })
    }
}
