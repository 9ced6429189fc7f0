//! Failures of the upkeep, which is tried again each second or more often. Each is logged when it begins, when its text
//! changes and when it ends, so that a lasting one fills no log.

use std::{collections::BTreeMap, error::Error, iter};

use tracing::{info, warn};

/// Failures that last, by the attempt that fails.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<&'static str, String>);

/// A change of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Begun,
    /// With another text than before.
    Other,
    Ended,
}

impl Failures {
    /// Takes note of an attempt, and logs a failure that is new, has another text or is over. `failure` is the beginning
    /// of a sentence, such as "cannot set the node's addresses", and tells one kind of attempt from another.
    pub(super) fn note(&mut self, failure: &'static str, error: Option<&(dyn Error + 'static)>) {
        match (self.change(failure, error.map(text)), error) {
            (Some(Change::Begun | Change::Other), Some(error)) => warn!(error, "{failure}; trying again"),
            (Some(Change::Ended), _) => info!("no longer fails: {failure}"),
            (Some(Change::Begun | Change::Other) | None, _) => {}
        }
    }

    /// Takes note of an attempt that failed with this text, or succeeded.
    fn change(&mut self, failure: &'static str, text: Option<String>) -> Option<Change> {
        let Some(text) = text else { return self.0.remove(failure).map(|_| Change::Ended) };
        match self.0.insert(failure, text.clone()) {
            None => Some(Change::Begun),
            Some(before) if before != text => Some(Change::Other),
            Some(_same) => None,
        }
    }
}

/// Returns the text of a result's error, for [`Failures::note`].
pub(super) fn error_of<T, E: Error + 'static>(result: &Result<T, E>) -> Option<&(dyn Error + 'static)> {
    result.as_ref().err().map(|error| error as &(dyn Error + 'static))
}

/// Returns an error with its causes.
fn text(error: &(dyn Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |&error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: &str = "cannot set the node's addresses";
    const PORTS: &str = "cannot set the node's ports";

    fn steps(steps: &[(&'static str, Option<&str>, Option<Change>)]) {
        let mut failures = Failures::default();
        for (number, (failure, text, expect)) in steps.iter().enumerate() {
            assert_eq!(
                failures.change(failure, text.map(str::to_owned)),
                *expect,
                "step {number}: {failure}, {text:?}"
            );
        }
    }

    #[test]
    fn a_failure_is_told_when_it_begins_changes_and_ends() {
        steps(&[
            (ADDRESSES, None, None),
            (ADDRESSES, Some("no memory"), Some(Change::Begun)),
            (ADDRESSES, Some("no memory"), None),
            (ADDRESSES, Some("no such map"), Some(Change::Other)),
            (ADDRESSES, Some("no such map"), None),
            (ADDRESSES, None, Some(Change::Ended)),
            (ADDRESSES, None, None),
            (ADDRESSES, Some("no such map"), Some(Change::Begun)),
        ]);
    }

    #[test]
    fn failures_of_different_attempts_are_told_apart() {
        steps(&[
            (ADDRESSES, Some("no memory"), Some(Change::Begun)),
            (PORTS, None, None),
            (PORTS, Some("no memory"), Some(Change::Begun)),
            (ADDRESSES, None, Some(Change::Ended)),
            (PORTS, Some("no memory"), None),
            (PORTS, None, Some(Change::Ended)),
        ]);
    }

    #[test]
    fn another_cause_is_another_text() {
        let failed =
            |cause: &'static str| Err::<(), _>(std::io::Error::other(anyhow::anyhow!(cause).context("cannot")));
        let texts = ["no memory", "no such map"].map(|cause| error_of(&failed(cause)).map(text));
        assert_eq!(texts, [Some("cannot: no memory".to_owned()), Some("cannot: no such map".to_owned())]);
        assert!(error_of(&Ok::<(), std::io::Error>(())).is_none());
    }
}
