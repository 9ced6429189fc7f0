//! When what has changed is published: at once where nothing else is going on, or with what comes right behind it.
//! Pure: it is told the time.
//!
//! ```text
//! change ──┬── nothing was published for 1 ms, nothing in doubt ──> at once
//!          └── else ──> after 1 ms without a change, at the latest 20 ms after the first
//! ```
//!
//! So a change does not wait for others that may never come, and a stream of them leads to no more snapshots than if
//! the first had waited, too, but for one.
//!
//! What belongs together comes one after the other: an API server tells of each kind over a watch of its own, in no
//! order among them, and files are written singly. A translation that finds something missing which was not missing
//! before, or has lost a host, is *in doubt*, because what is missing is often under way, and what is gone may have
//! moved to another object; requests must not see a state that nobody has meant.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    control::{Severity, translate::Translation},
    model::tree::Difference,
};

/// Changes that come this close together are published together …
pub(super) const QUIET: Duration = Duration::from_millis(1);

/// … but those that come without a pause after this time.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Debounce {
    /// When something was published last.
    published: Option<Instant>,
    waiting: Option<Waiting>,
}

/// When the first and the last change came that is not published.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    first: Instant,
    last: Instant,
}

/// Whether `new` is without a host that `published` has, or says of anything that it is wrong and `published` does not.
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
    /// Notes that something has changed.
    pub(super) fn change(&mut self, now: Instant) {
        self.waiting.get_or_insert(Waiting { first: now, last: now }).last = now;
    }

    /// When what waits is published, if nothing else comes; `None` if nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.map(|Waiting { first, last }| (last + QUIET).min(first + MAX_DELAY))
    }

    /// Whether what waits is published now even if it is in doubt.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Whether something waits, and is published now unless it is in doubt.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        // Asked of the first: a stream of changes must not be let through as soon as the last snapshot is old enough.
        let is_apart = |first: Instant| self.published.is_none_or(|published| published + QUIET <= first);
        self.waiting.is_some_and(|Waiting { first, last: _ }| is_apart(first)) || self.is_due(now)
    }

    /// Notes that what waited is published.
    pub(super) fn publish(&mut self, now: Instant) {
        *self = Self { published: Some(now), waiting: None };
    }

    /// Notes that what waited makes no difference.
    pub(super) fn dismiss(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Publishes whatever may be published, as soon as it may be, and says when that was, in tenths of a millisecond
    /// after the first change.
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
    fn the_first_change_is_published_at_once_and_what_follows_together() {
        let stream: Vec<u64> = (0..500).collect();
        for (changes, expect) in [
            (&[0][..], &[0][..]),
            // A pause, however short, and it is the first again.
            (&[0, 10, 20], &[0, 10, 20]),
            (&[0, 3], &[0, 13]),
            (&[0, 3, 9, 15], &[0, 25]),
            (&stream, &[0, 201, 402, 509]),
        ] {
            assert_eq!(times(changes, false), expect, "{changes:?}");
        }
    }

    #[test]
    fn what_is_in_doubt_waits_for_a_pause_but_not_for_ever() {
        let stream: Vec<u64> = (0..500).collect();
        for (changes, expect) in
            [(&[0][..], &[10][..]), (&[0, 3, 9, 15], &[25]), (&[0, 50], &[10, 60]), (&stream, &[200, 401, 509])]
        {
            assert_eq!(times(changes, true), expect, "{changes:?}");
        }
    }

    #[test]
    fn what_makes_no_difference_is_no_publication() {
        let now = Instant::now();
        let mut debounce = Debounce::default();
        debounce.change(now);
        debounce.dismiss();
        assert_eq!(debounce.due(), None);
        debounce.change(now);
        assert!(debounce.is_open(now) && !debounce.is_due(now));
    }
}
