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

    /// Returns the number of outcomes so far.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts `title` in front of the messages about `object` from number `first` on, which concern some rules alone.
    /// Messages that were reported before concern others, too, and those about a key name its ConfigMap.
    pub(crate) fn entitle(&mut self, first: usize, object: &ObjectRef, title: &str) {
        let Some((before, new)) = self.0.split_at_mut_checked(first) else { return };
        for outcome in new.iter_mut().filter(|outcome| outcome.object == *object) {
            if !outcome.message.starts_with("key `") && !before.contains(outcome) {
                outcome.message = format!("{title}: {}", outcome.message);
            }
        }
    }

    pub(crate) fn into_inner(self) -> Vec<Outcome> {
        self.0
    }
}
