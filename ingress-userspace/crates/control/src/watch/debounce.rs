//! Decides when changes are published: at once if nothing else is going on, or together with the changes right behind
//! them. The module is pure: it takes the time as an argument.
//!
//! ```text
//! change ──┬── nothing was published for 1 ms, nothing in doubt ──> at once
//!          └── else ──> after 1 ms without a change, at the latest 20 ms after the first
//! ```
//!
//! So a change does not wait for others that may never come. A stream of changes leads to at most one snapshot more
//! than if the first had waited, too.
//!
//! Related changes arrive one after the other. An API server reports each kind over a watch of its own, without an
//! order among them, and files are written singly. A translation is *in doubt* if it has a warning that the last one
//! did not have, such as a missing object, or if it has lost a host. A missing object is often on its way, and a host
//! that is gone may have moved to another object. Requests must not see such an unintended state in between.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Severity, translate::Translation};
use ingress_model::tree::Difference;

/// Changes this close together are published together …
pub(super) const QUIET: Duration = Duration::from_millis(1);

/// … but a stream of changes without a pause is published after this time.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Debounce {
    /// Time of the last publication.
    published: Option<Instant>,
    waiting: Option<PendingTimes>,
}

/// Times of the first and the last change that is not published yet.
#[derive(Clone, Copy, Debug)]
struct PendingTimes {
    first: Instant,
    last: Instant,
}

/// Returns `true` if `new` lacks a host that `published` has, or has a warning that `published` does not have.
pub(super) fn is_in_doubt(published: &Translation, new: &Translation) -> bool {
    let hosts = published.table.hosts.differences(&new.table.hosts);
    let outcomes = published.outcomes.differences(&new.outcomes);
    hosts.iter().any(|host| host.new.is_none())
        || outcomes
            .iter()
            .any(|Difference { key: outcome, old: _, new }| new.is_some() && outcome.severity() == Severity::Warning)
}

// === impl Debounce ===

impl Debounce {
    /// Records a change.
    pub(super) fn change(&mut self, now: Instant) {
        self.waiting.get_or_insert(PendingTimes { first: now, last: now }).last = now;
    }

    /// Returns when the pending changes are published if no more arrive; `None` if there are none.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.map(|PendingTimes { first, last }| (last + QUIET).min(first + MAX_DELAY))
    }

    /// Returns `true` if the pending changes are published now even if the translation is in doubt.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Returns `true` if there are pending changes that are published now unless the translation is in doubt.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        // This compares the first change. Otherwise a stream of changes would be let through as soon as the last
        // snapshot is old enough.
        let is_apart = |first: Instant| self.published.is_none_or(|published| published + QUIET <= first);
        self.waiting.is_some_and(|PendingTimes { first, last: _ }| is_apart(first)) || self.is_due(now)
    }

    /// Records that the pending changes are published.
    pub(super) fn publish(&mut self, now: Instant) {
        *self = Self { published: Some(now), waiting: None };
    }

    /// Records that the pending changes make no difference.
    pub(super) fn dismiss(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Publishes at the earliest time each, and returns the times, in tenths of a millisecond after the first change.
    fn times(changes: &[u64], is_in_doubt: bool) -> Vec<u64> {
        let began = Instant::now();
        let at = |tenths: u64| began + Duration::from_micros(tenths * 100);
        let (mut debounce, mut times) = (Debounce::default(), Vec::new());
        for tenths in 0..=changes.last().copied().unwrap_or_default() + 300 {
            let now = at(tenths);
            if changes.contains(&tenths) {
                debounce.change(now);
            }
            if debounce.is_due(now) || (debounce.is_open(now) && !is_in_doubt) {
                assert!(debounce.is_open(now), "what is due is let through");
                debounce.publish(now);
                times.push(tenths);
            }
            let is_unpublished = |change: &u64| *change <= tenths && times.last().is_none_or(|last| last < change);
            assert_eq!(debounce.due().is_some(), changes.iter().any(is_unpublished), "{tenths} of {changes:?}");
        }
        times
    }

    #[test]
    fn the_first_change_is_published_at_once_and_later_ones_in_batches() {
        let stream: Vec<u64> = (0..500).collect();
        for (changes, expect) in [
            (&[0][..], &[0][..]),
            // After a pause, however short, the next change is a first one again.
            (&[0, 10, 20], &[0, 10, 20]),
            (&[0, 3], &[0, 13]),
            (&[0, 3, 9, 15], &[0, 25]),
            (&stream, &[0, 201, 402, 509]),
        ] {
            assert_eq!(times(changes, false), expect, "{changes:?}");
        }
    }

    #[test]
    fn doubtful_changes_wait_for_a_bounded_pause() {
        let stream: Vec<u64> = (0..500).collect();
        for (changes, expect) in
            [(&[0][..], &[10][..]), (&[0, 3, 9, 15], &[25]), (&[0, 50], &[10, 60]), (&stream, &[200, 401, 509])]
        {
            assert_eq!(times(changes, true), expect, "{changes:?}");
        }
    }

    #[test]
    fn dismissed_changes_publish_nothing() {
        let now = Instant::now();
        let mut debounce = Debounce::default();
        debounce.change(now);
        debounce.dismiss();
        assert_eq!(debounce.due(), None);
        debounce.change(now);
        assert!(debounce.is_open(now) && !debounce.is_due(now));
    }
}
