//! Decides which statuses of the Gateway API to write. The module is pure: it takes the time as an argument, and writes
//! nothing.
//!
//! Only statuses that differ are written. A shared list is written from the version that the watch showed last. If the
//! object has another version by then, the server changes nothing (409). The write is planned again when the watch has
//! caught up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use super::{
    addresses::addressed,
    attempts::{Attempts, Verdict},
    bearer::Bearer,
    nodes::{Knowledge, Need, is_served, need, with_served, with_shown},
    patch::{Present, StatusPatch, patch},
};
use crate::{
    change::{Kind, ObjectId},
    object_status::{GatewayAddress, ObjectStatus},
    status::plan::LEFT_FOR,
};

/// A status to write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) id: ObjectId,
    pub(super) uid: Arc<str>,
    /// The version from which the patch was made.
    pub(super) version: Arc<str>,
    /// The status that the object shows afterwards; `None`: nothing of this controller.
    pub(super) target: Option<Arc<ObjectStatus>>,
    pub(super) patch: StatusPatch,
}

/// The statuses to write now, and when there may be more without any change.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) writes: Vec<Write>,
    pub(super) next: Option<Instant>,
    /// The objects to look at again even without a change: those of `writes`, those with a timer, and those beyond the
    /// round.
    pub(super) again: BTreeSet<ObjectId>,
}

/// Conditions that hold for all objects of one plan.
#[derive(Debug)]
pub(super) struct Circumstances<'a> {
    /// Addresses of Gateways that have none of their own; `None`: not known.
    pub(super) addresses: Option<&'a [GatewayAddress]>,
    /// Kinds that are not written before this time.
    pub(super) paused: &'a BTreeMap<Kind, Instant>,
    /// How long a status stays that another writer keeps changing, or that could not be written.
    pub(super) interval: Duration,
    /// Largest number of writes of one kind.
    pub(super) round: usize,
    /// Time at which this process received the changes; `None`: not known.
    pub(super) received: Option<Instant>,
    pub(super) now: Instant,
    /// The same time by the clock on the wall.
    pub(super) time: Time,
}

/// State between plans: recent writes, and objects that are to lose this controller's part of their status.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) attempts: Attempts,
    /// Time at which each of these objects ceased to be this controller's.
    left: BTreeMap<ObjectId, Instant>,
    /// The latest object of each kind whose status was planned to be written. The next one has the next turn.
    latest: BTreeMap<Kind, ObjectId>,
}

/// Plans the writes for the objects of `due`, which `find` returns unless they are not this controller's.
///
/// Objects that are not in `due` neither changed, nor had a timer or a new verdict since the last plan. A status that
/// waits for the answers of other nodes is not written, also not in part. As a rule they answer within milliseconds, so one
/// write is enough.
pub(super) fn plan<'i>(
    due: BTreeSet<ObjectId>,
    find: impl Fn(&ObjectId) -> Option<Bearer<'i>>,
    ledger: &mut Ledger,
    knowledge: &mut Knowledge<'_>,
    circumstances: &Circumstances<'_>,
) -> Plan {
    let Circumstances { addresses: _, paused, interval, round, received: _, now, time: _ } = circumstances;
    let mut plan = Plan::default();
    let mut of_kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    for id in ledger.in_turn(due) {
        let bearer = find(&id);
        let wanted = bearer.as_ref().and_then(|bearer| bearer.wanted);
        // Also beyond the round, so that other nodes are asked about all objects at once.
        let target = match (&bearer, wanted) {
            (Some(bearer), Some(wanted)) => match effective(&id, wanted, bearer, knowledge, circumstances) {
                Some(target) => Some(target),
                // The verdict wakes it.
                None => continue,
            },
            _ => {
                knowledge.dismiss(&id);
                None
            }
        };
        if of_kinds.get(&id.kind).is_some_and(|count| count >= round) {
            plan.again.insert(id);
            continue;
        }
        let Some(bearer) = bearer else {
            ledger.left.remove(&id);
            continue;
        };
        if bearer.wanted.is_some() {
            ledger.left.remove(&id);
        } else {
            let since = *ledger.left.entry(id.clone()).or_insert(*now);
            if *now < since + LEFT_FOR {
                plan.wake(id, since + LEFT_FOR);
                continue;
            }
        }
        // Before the patch is made, which takes time for each object of the kind.
        if let Some(until) = paused.get(&id.kind).filter(|until| now < *until) {
            plan.wake(id, *until);
            continue;
        }
        let patch = match &target {
            Some(target) => patch(target, bearer.present, &circumstances.time),
            None => StatusPatch::withdrawal(bearer.present, &circumstances.time),
        };
        let Some(patch) = patch else { continue };
        match ledger.attempts.judge(&id, &bearer, target.as_ref(), &patch, *interval) {
            Verdict::Settled => {}
            Verdict::Wait(until) if *now < until => plan.wake(id, until),
            Verdict::Wait(_) | Verdict::Write => {
                let (uid, version) = (bearer.uid.into(), bearer.version.into());
                plan.again.insert(id.clone());
                *of_kinds.entry(id.kind).or_default() += 1;
                ledger.latest.insert(id.kind, id.clone());
                plan.writes.push(Write { id, uid, version, target, patch });
            }
        }
    }
    plan
}

/// Returns the status to show: that of the translation, with the verdict about other nodes. Without a verdict there is no
/// status to show yet. A Gateway may have no addresses yet.
fn effective(
    id: &ObjectId,
    wanted: &Arc<ObjectStatus>,
    bearer: &Bearer<'_>,
    knowledge: &mut Knowledge<'_>,
    circumstances: &Circumstances<'_>,
) -> Option<Arc<ObjectStatus>> {
    let Circumstances { received, now, .. } = circumstances;
    let status = match bearer.present {
        Present::Gateway(present) => addressed(wanted, present, circumstances.addresses),
        _ => Arc::clone(wanted),
    };
    let need = match knowledge {
        Knowledge::Nothing => return Some(status),
        // Without an address, no client reaches a Gateway.
        _ if !is_served(&status) => Need::Nothing,
        _ => need(wanted, bearer),
    };
    Some(match (need, knowledge) {
        (Need::Shown(message), Knowledge::Asked(inquiry)) => {
            inquiry.dismiss(id);
            with_shown(status, message)
        }
        (Need::Shown(message), Knowledge::AsShown) => with_shown(status, message),
        (Need::Verdict { fingerprint }, Knowledge::Asked(inquiry)) => {
            with_served(status, inquiry.judge(id, fingerprint, *received, *now)?)
        }
        (_, knowledge) => {
            knowledge.dismiss(id);
            status
        }
    })
}

// === impl Ledger ===

impl Ledger {
    /// Returns the objects by kind, and those of a kind from the one behind the latest on: the first ones by name may be due
    /// at all times.
    fn in_turn(&self, due: BTreeSet<ObjectId>) -> Vec<ObjectId> {
        let mut due: Vec<_> = due.into_iter().collect();
        due.sort_by_key(|id| (id.kind, self.latest.get(&id.kind).is_some_and(|latest| id <= latest)));
        due
    }
}

// === impl Plan ===

impl Plan {
    fn wake(&mut self, id: ObjectId, at: Instant) {
        self.again.insert(id);
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}
