//! Holds back changes of objects that name other objects which have not been read yet. Each change waits only for the
//! objects that it names itself, and for at most [`MAX_HOLD`]; other changes do not wait for it. This module sends no
//! requests.
//!
//! The changes of the first lists are held together: see [`FirstHold`].

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::tracker::{Need, Tracker, owner};
use crate::change::{Batch, Change, ObjectId};

/// How long a change waits for the first lists of the objects that it newly names. A response usually takes some ms; a
/// server that sends none must not delay the change for long.
pub(super) const MAX_HOLD: Duration = Duration::from_secs(2);

/// How long the first lists wait for the lists of [`Need::Answered`]. Servers answer within seconds, unless they are
/// overloaded, as after their start.
pub(super) const MAX_ANSWER: Duration = Duration::from_secs(30);

/// Until when the first lists are held, once all that is required is there: first for answers, then for single objects.
#[derive(Default)]
pub(super) struct FirstHold {
    answers: Option<Instant>,
    rest: Option<Instant>,
}

#[derive(Default)]
pub(super) struct HeldChanges {
    changes: BTreeMap<ObjectId, Waiting>,
}

struct Waiting {
    until: Instant,
    changes: Vec<Change>,
}

// === impl FirstHold ===

impl FirstHold {
    /// Returns when to give up on watches of [`FirstHold::awaited`]. `None`: not before something that is required comes.
    pub(super) fn deadline(&mut self, tracker: &Tracker, now: Instant) -> Option<Instant> {
        let (until, limit) = match Self::awaited(tracker) {
            Need::Required => return None,
            Need::Answered => (&mut self.answers, MAX_ANSWER),
            Need::Optional => (&mut self.rest, MAX_HOLD),
        };
        Some(*until.get_or_insert(now + limit))
    }

    /// Returns which watches are waited for now.
    pub(super) fn awaited(tracker: &Tracker) -> Need {
        match (tracker.has_what_is_required(), tracker.has_answers()) {
            (false, _) => Need::Required,
            (true, false) => Need::Answered,
            (true, true) => Need::Optional,
        }
    }
}

// === impl HeldChanges ===

impl HeldChanges {
    /// Returns when the first of the held changes has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.changes.values().map(|waiting| waiting.until).min()
    }

    /// Holds those of `changes` that have to wait. Adds the others to `batch`, together with held changes that need not
    /// wait any longer.
    pub(super) fn pass(&mut self, changes: Vec<Change>, tracker: &mut Tracker, now: Instant, batch: &mut Batch) {
        let mut passed = Vec::new();
        for change in changes {
            let owner = owner(&change);
            match owner.filter(|owner| self.changes.contains_key(owner) || tracker.awaits(owner)) {
                None => passed.push(change),
                Some(owner) => {
                    let new = || Waiting { until: now + MAX_HOLD, changes: Vec::new() };
                    self.changes.entry(owner).or_insert_with(new).changes.push(change);
                }
            }
        }
        let has_ended = |owner: &ObjectId, waiting: &mut Waiting| waiting.until <= now || !tracker.awaits(owner);
        let ended: Vec<_> = self.changes.extract_if(.., has_ended).collect();
        for (owner, Waiting { changes, .. }) in ended {
            batch.unread.extend(tracker.give_up_on(&owner));
            batch.changes.extend(changes);
        }
        // A new change of an object comes after the changes of that object that were held.
        batch.changes.extend(passed);
        for owner in batch.changes.iter().filter_map(owner) {
            tracker.release(&owner);
        }
    }
}
