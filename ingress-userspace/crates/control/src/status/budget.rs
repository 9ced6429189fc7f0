//! Budget of the writes of statuses, and of the Services of Gateways: how many at once, and how many a second while the
//! configuration churns. Each write costs an API server some ten milliseconds of CPU time, in which its watches wait. The
//! changes themselves come first. Events and the Lease have their own limits.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep_until},
};

/// Maximum number of concurrent writes of all parts: one client must not keep an API server busy.
pub(super) const CONCURRENT: usize = 8;
/// Writes of one kind of object before the plan is made again.
const CALM_ROUND: usize = 64;
/// Same while the configuration churns: no kind waits for all objects of another, and no plan is old when its last write is
/// sent.
const CHURN_ROUND: usize = 1;
/// The configuration churns once this number of changes took effect within [`PERIOD`].
const CHANGES: usize = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Interval of writes while the configuration churns: ten a second take some 100 ms of CPU time.
const INTERVAL: Duration = Duration::from_millis(100);

/// The times of the latest changes of the configuration, at most [`CHANGES`].
#[derive(Debug, Default)]
pub(super) struct Churn(Mutex<VecDeque<Instant>>);

/// Returns the first `round` of the writes of one kind, from the one behind `latest` on, so that all have their turn. The
/// writes are in the order of `name`.
pub(super) fn in_turn<W, N: Ord>(
    mut writes: Vec<W>,
    name: impl Fn(&W) -> &N,
    latest: Option<&N>,
    round: usize,
) -> Vec<W> {
    let next = latest.map_or(0, |latest| writes.partition_point(|write| name(write) <= latest));
    writes.rotate_left(next);
    writes.truncate(round);
    writes
}

/// Permits for writes.
#[derive(Debug)]
pub(super) struct WriteBudget {
    places: Semaphore,
    churn: Arc<Churn>,
    /// Earliest time of the next write while the configuration churns.
    next: Mutex<Instant>,
}

// === impl Churn ===

impl Churn {
    /// Notes a change that took effect at this time. Writes of statuses are none.
    pub(super) fn note(&self, at: Instant) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == CHANGES {
            changes.pop_front();
        }
        changes.push_back(at);
    }

    fn is_on(&self, now: Instant) -> bool {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.len() == CHANGES && changes.front().is_some_and(|&first| now < first + PERIOD)
    }
}

// === impl WriteBudget ===

impl WriteBudget {
    pub(super) fn new(churn: &Arc<Churn>) -> Self {
        Self { places: Semaphore::new(CONCURRENT), churn: Arc::clone(churn), next: Mutex::new(Instant::now()) }
    }

    /// Returns the maximum number of writes of one kind before the plan is made again.
    pub(super) fn round(&self) -> usize {
        if self.churn.is_on(Instant::now()) { CHURN_ROUND } else { CALM_ROUND }
    }

    /// Waits until a write may be sent. The place is held until its answer.
    pub(super) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        if let Some(turn) = self.turn(Instant::now()) {
            sleep_until(turn).await;
        }
        // The semaphore is never closed.
        self.places.acquire().await.ok()
    }

    /// Takes a turn while the configuration churns; `None` otherwise.
    fn turn(&self, now: Instant) -> Option<Instant> {
        self.churn.is_on(now).then(|| {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = now.max(*next);
            *next = turn + INTERVAL;
            turn
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn ten_changes_within_a_second_are_churn_until_they_cease() {
        let (churn, start) = (Churn::default(), Instant::now());
        for number in 0..9 {
            churn.note(after(start, 50 * number));
        }
        assert!(!churn.is_on(after(start, 450)), "nine changes");
        churn.note(after(start, 450));
        assert!(churn.is_on(after(start, 999)));
        assert!(!churn.is_on(after(start, 1000)), "the first one is too old");
        churn.note(after(start, 2000));
        assert!(!churn.is_on(after(start, 2000)), "slow changes are none");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_had_at_its_turn() {
        let churn = Arc::new(Churn::default());
        let budget = WriteBudget::new(&churn);
        let start = Instant::now();
        (0..CHANGES).for_each(|_| churn.note(start));
        for writes in 0..4 {
            drop(budget.place().await);
            assert_eq!(start.elapsed(), INTERVAL * writes);
        }
    }

    #[test]
    fn writes_that_are_always_due_leave_others_their_turn() {
        let mut latest = None;
        let mut turns = Vec::new();
        for _ in 0..4 {
            let turn = in_turn(vec!["a", "b", "c"], |name| name, latest.as_ref(), CHURN_ROUND);
            latest = turn.last().copied();
            turns.extend(turn);
        }
        assert_eq!(turns, ["a", "b", "c", "a"]);
        assert_eq!(in_turn(vec!["a", "b", "c"], |name| name, Some(&"a"), CALM_ROUND), ["b", "c", "a"]);
    }

    #[test]
    fn writes_wait_for_their_turn_only_while_the_configuration_churns() {
        let (churn, start) = (Arc::new(Churn::default()), Instant::now());
        let budget = WriteBudget::new(&churn);
        assert_eq!((budget.turn(start), budget.round()), (None, CALM_ROUND));
        (0..CHANGES).for_each(|_| churn.note(after(start, 1)));
        let turns: Vec<_> = (0..3).map(|_| budget.turn(after(start, 1)).expect("it churns")).collect();
        assert_eq!(turns, [1, 101, 201].map(|millis| after(start, millis)));
        assert_eq!(budget.round(), CHURN_ROUND);
        assert_eq!(budget.turn(after(start, 500)), Some(after(start, 500)), "turns are not saved up");
        assert_eq!(budget.turn(after(start, 1500)), None);
    }
}
