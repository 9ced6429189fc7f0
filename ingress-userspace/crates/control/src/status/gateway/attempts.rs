//! Recent writes, and their consequences for the next. A status is not written again while its watch event is on the
//! way. It is not fought over with another writer, nor written for every route that comes or goes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{bearer::Bearer, patch::StatusPatch, plan::Write};
use crate::{
    change::ObjectId,
    object_status::{ListenerStatus, ObjectStatus, StatusBody},
};

/// Recent writes by object.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<ObjectId, Attempt>);

#[derive(Debug)]
struct Attempt {
    uid: Arc<str>,
    /// The version from which the write was made.
    from: Arc<str>,
    target: Option<Arc<ObjectStatus>>,
    at: Instant,
    effect: Effect,
    /// Number of writes of the same status before this one.
    repeats: u32,
}

/// Effect of a write on the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The object has this version now.
    Written(Arc<str>),
    /// The object had changed.
    Conflict,
    /// The server refused the object as it would be, or the object is gone.
    Refused,
    /// The write was forbidden, which may have nothing to do with the object.
    Forbidden,
}

/// Decision about a status that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Write,
    /// Write it then, unless something changes before.
    Wait(Instant),
    /// The server shows the status that was written, as far as it can: its definitions may lack a field.
    Settled,
}

/// Shortest time between two writes that differ only in counts: many routes often come at once. Half of the
/// second that is the goal for the last one, which also waits for its turn.
pub(super) const COUNTS: Duration = Duration::from_millis(500);

/// Time in which the watch event of a write arrives as a rule.
const EVENT: Duration = Duration::from_secs(1);

/// First pause before a status is written again that another writer changed. It doubles each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of times that the pause doubles before a status is written again that the server refused.
const REFUSALS: u32 = 5;

// === impl Attempts ===

impl Attempts {
    /// Decides about `patch`, which would make the object show `target`. `interval` is the longest pause.
    pub(super) fn judge(
        &self,
        id: &ObjectId,
        bearer: &Bearer<'_>,
        target: Option<&Arc<ObjectStatus>>,
        patch: &StatusPatch,
        interval: Duration,
    ) -> Verdict {
        let Some(attempt) = self.0.get(id).filter(|attempt| *attempt.uid == *bearer.uid) else {
            return Verdict::Write;
        };
        let Attempt { uid: _, from, target: last, at, effect, repeats: _ } = attempt;
        let is_unseen = **from == *bearer.version;
        let is_same = last.as_ref() == target;
        match effect {
            Effect::Written(version) if is_same && **version == *bearer.version => Verdict::Settled,
            _ if is_same && is_unseen => Verdict::Wait(*at + attempt.patience(interval)),
            // The server has another version by now, so this one would not be taken.
            Effect::Written(_) | Effect::Conflict if is_unseen && matches!(patch, StatusPatch::Replace(_)) => {
                Verdict::Wait(*at + EVENT)
            }
            Effect::Conflict => Verdict::Write,
            _ if is_same => Verdict::Wait(*at + attempt.pause(interval)),
            _ if differ_in_counts(last.as_deref(), target.map(|target| &**target)) => Verdict::Wait(*at + COUNTS),
            _ => Verdict::Write,
        }
    }

    /// Records that `write` was sent.
    pub(super) fn note(&mut self, write: Write, effect: Effect, at: Instant) {
        let Write { id, uid, version: from, target, patch: _ } = write;
        let last = self.0.get(&id).filter(|last| last.uid == uid && last.target == target);
        let repeats = match (last, &effect) {
            (Some(last), Effect::Written(_) | Effect::Refused) => last.repeats.saturating_add(1),
            (Some(last), Effect::Conflict | Effect::Forbidden) => last.repeats,
            (None, _) => 0,
        };
        self.0.insert(id, Attempt { uid, from, target, at, effect, repeats });
    }

    /// Drops attempts that are too old to matter.
    pub(super) fn prune(&mut self, interval: Duration, now: Instant) {
        self.0.retain(|_, attempt| now < attempt.at + 2 * attempt.patience(interval));
    }
}

// === impl Attempt ===

impl Attempt {
    /// Returns how long the same write waits if the object has changed since.
    fn pause(&self, interval: Duration) -> Duration {
        interval.min(PAUSE * 2_u32.pow(self.repeats.min(16)))
    }

    /// Returns how long the same write waits if the object has not changed since.
    fn patience(&self, interval: Duration) -> Duration {
        match self.effect {
            Effect::Refused => interval * 2_u32.pow(self.repeats.min(REFUSALS)),
            Effect::Written(_) | Effect::Conflict | Effect::Forbidden => interval,
        }
    }
}

/// Returns `true` if two statuses of a Gateway or ListenerSet differ at most in the numbers of attached routes.
fn differ_in_counts(a: Option<&ObjectStatus>, b: Option<&ObjectStatus>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return false };
    if a.generation != b.generation {
        return false;
    }
    match (&a.body, &b.body) {
        (
            StatusBody::Gateway { conditions, listeners, addresses, attached_listener_sets: _ },
            StatusBody::Gateway { conditions: c, listeners: l, addresses: d, attached_listener_sets: _ },
        ) => conditions == c && addresses == d && same_but_counts(listeners, l),
        (
            StatusBody::ListenerSet { conditions, listeners },
            StatusBody::ListenerSet { conditions: c, listeners: l },
        ) => conditions == c && same_but_counts(listeners, l),
        _ => false,
    }
}

fn same_but_counts(a: &[ListenerStatus], b: &[ListenerStatus]) -> bool {
    let is_same = |(a, b): (&ListenerStatus, &ListenerStatus)| {
        let ListenerStatus { name, supported_kinds, attached_routes: _, conditions } = a;
        *name == b.name && *supported_kinds == b.supported_kinds && *conditions == b.conditions
    };
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}
