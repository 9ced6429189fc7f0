//! A sink for the outcomes of one part of a translation.

use crate::outcome::{ObjectRef, Outcome, Reason};

/// The outcomes of one part, as they are reported.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Vec<Outcome>);

// === impl Outcomes ===

impl Outcomes {
    /// Reports an outcome of `object`.
    pub(crate) fn report(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.0.push(Outcome::new(object.clone(), reason, message));
    }

    /// Reports an outcome of an Ingress because of which its rules must not be served.
    pub(crate) fn refuse(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.0.push(Outcome { refuses: true, ..Outcome::new(object.clone(), reason, message) });
    }

    pub(crate) fn into_inner(self) -> Vec<Outcome> {
        self.0
    }
}
