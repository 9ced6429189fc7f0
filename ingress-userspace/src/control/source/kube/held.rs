//! Changes of objects that name what has not been read yet. Each waits for what it names itself, and for no longer than
//! [`MAX_HOLD`]; nothing else waits for it. It asks nobody.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::tracker::{Tracker, owner};
use crate::control::change::{Batch, Change, ObjectId};

/// How long a change waits for the first lists of what its object has begun to name. An answer usually takes some ms; a
/// server that gives none must not keep the object from being told.
pub(super) const MAX_HOLD: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Held {
    changes: BTreeMap<ObjectId, Waiting>,
}

struct Waiting {
    until: Instant,
    changes: Vec<Change>,
}

// === impl Held ===

impl Held {
    /// When the first of them has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.changes.values().map(|waiting| waiting.until).min()
    }

    /// Keeps those of `changes` that have to wait, and adds to `batch` those that have not, and those that have no more.
    pub(super) fn pass(&mut self, changes: Vec<Change>, tracker: &mut Tracker, now: Instant, batch: &mut Batch) {
        let mut told = Vec::new();
        for change in changes {
            let owner = owner(&change);
            match owner.filter(|owner| self.changes.contains_key(owner) || tracker.awaits(owner)) {
                None => told.push(change),
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
        // What is told now of an object that has waited comes behind what has waited.
        batch.changes.extend(told);
        for owner in batch.changes.iter().filter_map(owner) {
            tracker.release(&owner);
        }
    }
}
