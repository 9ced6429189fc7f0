//! A fair queue for expensive work of bounded concurrency: round robin by namespace, within a namespace by Secret, and
//! within a Secret in order of arrival. The work itself is elsewhere.
//!
//! The queue is short, and no requester can fill it: a Secret may hold a fixed share, and a namespace less than it leaves
//! free. However many requesters have taken their share, others find a place (dynamic thresholds, Choudhury and Hahne
//! 1998).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

/// Most entries that wait or run, on machines that run few at one time.
const PLACES: usize = 64;
/// Most entries per running one, on larger machines.
const PLACES_PER_RUNNING: usize = 4;
/// Divisor of the queue's size for the share of one Secret.
const SHARE_OF_SECRET: usize = 4;
/// Longest wait. By then a person has given up on the page, or reloads it.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Requester of a turn: a namespace and a Secret of it, as hashes that are unlikely to collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnRequester {
    pub(crate) namespace: u64,
    pub(crate) secret: u64,
}

/// Queue shared by all workers.
pub(crate) struct FairQueue(Mutex<Queue>);

/// A place in the queue, and later the turn, until it is dropped.
pub(crate) struct Turn {
    turns: Arc<FairQueue>,
    id: u64,
}

// === impl FairQueue ===

impl FairQueue {
    /// Creates a queue that runs `running` entries at one time.
    pub(crate) fn new(running: usize) -> Self {
        Self(Mutex::new(Queue::new(running)))
    }

    /// Waits for a turn. Returns `None` if the queue is full for this requester, or if no turn comes in time.
    pub(crate) async fn wait(self: &Arc<Self>, requester: TurnRequester) -> Option<Turn> {
        let (notify, notified) = oneshot::channel();
        let id = self.queue().enter(requester, notify)?;
        let turn = Turn { turns: Arc::clone(self), id };
        timeout(WAIT_MAX, notified).await.ok()?.ok()?;
        Some(turn)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.queue().leave(self.id);
    }
}

/// Entries of the queue.
struct Queue {
    /// Most that run at one time.
    running: usize,
    /// Most that wait or run.
    size: usize,
    /// Places in order of arrival.
    places: Vec<QueuePlace>,
    /// The latest number assigned to a place or a turn.
    last: u64,
}

struct QueuePlace {
    id: u64,
    requester: TurnRequester,
    state: PlaceState,
}

enum PlaceState {
    Waiting(oneshot::Sender<()>),
    /// Running since the turn of this number.
    Running(u64),
    /// The place is free again, but the number of its turn is kept while others of its namespace have a place.
    Served(u64),
}

// === impl Queue ===

impl Queue {
    fn new(running: usize) -> Self {
        Self { running, size: PLACES.max(PLACES_PER_RUNNING * running), places: Vec::new(), last: 0 }
    }

    /// Takes a place if one is free for this requester.
    fn enter(&mut self, requester: TurnRequester, notify: oneshot::Sender<()>) -> Option<u64> {
        let taken = |is_meant: &dyn Fn(TurnRequester) -> bool| {
            self.places.iter().filter(|place| place.is_taken() && is_meant(place.requester)).count()
        };
        let free = self.size.saturating_sub(taken(&|_| true));
        let of_namespace = taken(&|other| other.namespace == requester.namespace);
        if of_namespace >= free || taken(&|other| other == requester) >= self.size / SHARE_OF_SECRET {
            return None;
        }
        let id = self.number();
        self.places.push(QueuePlace { id, requester, state: PlaceState::Waiting(notify) });
        self.grant();
        Some(id)
    }

    /// Gives a place back.
    fn leave(&mut self, id: u64) {
        let Some(at) = self.places.iter().position(|place| place.id == id) else { return };
        let QueuePlace { requester, state, .. } = self.places.remove(at);
        if let PlaceState::Running(turn) | PlaceState::Served(turn) = state {
            // One note for each Secret.
            self.places.retain(|place| place.requester != requester || !matches!(place.state, PlaceState::Served(_)));
            self.places.push(QueuePlace { id, requester, state: PlaceState::Served(turn) });
        }
        // Past turns matter only to namespaces that still have a place.
        let waiting: Vec<u64> = self.places.iter().filter(|p| p.is_taken()).map(|p| p.requester.namespace).collect();
        self.places.retain(|place| place.is_taken() || waiting.contains(&place.requester.namespace));
        self.grant();
    }

    /// Grants turns to the entries with the longest time since the last turn of their namespace, then of their Secret.
    fn grant(&mut self) {
        while self.places.iter().filter(|place| matches!(place.state, PlaceState::Running(_))).count() < self.running {
            let waiting = (0..self.places.len()).filter(|at| matches!(self.places[*at].state, PlaceState::Waiting(_)));
            let Some(next) = waiting.min_by_key(|at| self.rank(self.places[*at].requester)) else { return };
            let turn = self.number();
            if let PlaceState::Waiting(notify) =
                std::mem::replace(&mut self.places[next].state, PlaceState::Running(turn))
            {
                // A receiver that is gone returns its place at once.
                notify.send(()).unwrap_or_default();
            }
        }
    }

    /// Returns the last turns of the requester's namespace and Secret, as far as they are known. Of equal ranks, the first
    /// in the queue wins.
    fn rank(&self, requester: TurnRequester) -> (Option<u64>, Option<u64>) {
        let last = |is_meant: &dyn Fn(TurnRequester) -> bool| {
            self.places.iter().filter(|place| is_meant(place.requester)).filter_map(QueuePlace::turn).max()
        };
        (last(&|other| other.namespace == requester.namespace), last(&|other| other == requester))
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl QueuePlace {
    fn is_taken(&self) -> bool {
        !matches!(self.state, PlaceState::Served(_))
    }

    fn turn(&self) -> Option<u64> {
        match self.state {
            PlaceState::Waiting(_) => None,
            PlaceState::Running(turn) | PlaceState::Served(turn) => Some(turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requester(namespace: u64, secret: u64) -> TurnRequester {
        TurnRequester { namespace, secret }
    }

    /// Takes a place, with a receiver that shows its turn.
    fn enter(queue: &mut Queue, requester: TurnRequester) -> Option<(u64, oneshot::Receiver<()>)> {
        let (notify, notified) = oneshot::channel();
        Some((queue.enter(requester, notify)?, notified))
    }

    /// Returns the requesters in the order of their turns, ending each turn before the next begins.
    fn order(queue: &mut Queue) -> Vec<(u64, u64)> {
        let mut order = Vec::new();
        while let Some(place) = queue.places.iter().find(|place| matches!(place.state, PlaceState::Running(_))) {
            let QueuePlace { id, requester, .. } = *place;
            order.push((requester.namespace, requester.secret));
            queue.leave(id);
        }
        order
    }

    #[test]
    fn guesses_for_one_secret_delay_others_by_one_hash() {
        let mut queue = Queue::new(1);
        let guessers: Vec<_> = (0..40).filter_map(|_| enter(&mut queue, requester(1, 1))).collect();
        assert_eq!(guessers.len(), PLACES / SHARE_OF_SECRET);
        let (id, mut login) = enter(&mut queue, requester(2, 2)).expect("a place");
        let neighbour = enter(&mut queue, requester(1, 3)).expect("a place, in the same namespace");
        assert!(login.try_recv().is_err(), "one hash is computed already");
        queue.leave(guessers[0].0);
        assert!(login.try_recv().is_ok());
        queue.leave(id);
        assert_eq!(order(&mut queue)[..3], [(1, 3), (1, 1), (1, 1)]);
        drop(neighbour);
    }

    #[test]
    fn turns_rotate_by_namespace_and_then_by_secret() {
        let mut queue = Queue::new(1);
        let requesters = [(1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4)];
        let _places: Vec<_> = requesters.iter().filter_map(|(n, s)| enter(&mut queue, requester(*n, *s))).collect();
        assert_eq!(order(&mut queue), [(1, 1), (2, 3), (3, 4), (1, 2), (2, 3), (1, 1), (1, 2), (1, 1)]);
        assert!(queue.places.is_empty(), "nothing is remembered of who has gone");
    }

    #[test]
    fn one_namespace_cannot_fill_the_queue() {
        let mut queue = Queue::new(1);
        let mut places = Vec::new();
        let mut taken = |queue: &mut Queue, namespace: u64| {
            let before = places.len();
            // The namespace uses as many Secrets as it likes.
            places.extend((0..1000).filter_map(|secret| enter(queue, requester(namespace, secret))));
            places.len() - before
        };
        let shares: Vec<_> = (1..=6).map(|namespace| taken(&mut queue, namespace)).collect();
        assert_eq!(shares, [32, 16, 8, 4, 2, 1]);
        assert!(enter(&mut queue, requester(7, 1)).is_some());
        assert!(enter(&mut queue, requester(8, 1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_at_the_limit() {
        let turns = Arc::new(FairQueue::new(1));
        let first = turns.wait(requester(1, 1)).await.expect("a turn");
        let begun = tokio::time::Instant::now();
        assert!(turns.wait(requester(2, 2)).await.is_none());
        assert_eq!(begun.elapsed(), WAIT_MAX);
        // Places were given back by both entries that gave up, and no turn is lost.
        assert_eq!(turns.queue().places.len(), 1);
        drop(first);
        assert!(turns.wait(requester(2, 2)).await.is_some());
        assert!(turns.queue().places.is_empty());
    }
}
