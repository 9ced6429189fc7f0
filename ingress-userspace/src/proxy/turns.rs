//! Whose turn it is to have something done of which little can be done at one time: namespace by namespace, within one
//! Secret by Secret, within that as they came. It does not know what is done.
//!
//! Few places are waited in, and nobody has them all: a Secret has some, and a namespace fewer than it leaves free, so
//! that however many have taken what they may, others find a place (dynamic thresholds, Choudhury and Hahne 1998).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

/// Most that wait or run, on machines that run few at one time.
const PLACES: usize = 64;
/// As many on others, for each that may run.
const PLACES_PER_RUNNING: usize = 4;
/// The share of them that one Secret may have.
const SHARE_OF_SECRET: usize = 4;
/// Longest wait. A person has given up on a page by then, or asks again.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// For whom something is done: a namespace and a Secret of it, as numbers that others hardly have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) namespace: u64,
    pub(super) secret: u64,
}

/// Shared by all workers.
pub(super) struct Turns(Mutex<Queue>);

/// A place, and the turn once it has come, until it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    id: u64,
}

// === impl Turns ===

impl Turns {
    /// `running` may run at one time.
    pub(super) fn new(running: usize) -> Self {
        Self(Mutex::new(Queue::new(running)))
    }

    /// Waits for a turn; `None` if there is no place, or none comes in time.
    pub(super) async fn wait(self: &Arc<Self>, asker: Asker) -> Option<Turn> {
        let (tell, told) = oneshot::channel();
        let id = self.queue().enter(asker, tell)?;
        let turn = Turn { turns: Arc::clone(self), id };
        timeout(WAIT_MAX, told).await.ok()?.ok()?;
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

/// Who has a place.
struct Queue {
    /// Most that run at one time.
    running: usize,
    /// Most that wait or run.
    size: usize,
    /// As they came.
    places: Vec<Place>,
    /// The number that was given last, to a place or a turn.
    last: u64,
}

struct Place {
    id: u64,
    asker: Asker,
    state: State,
}

enum State {
    Waiting(oneshot::Sender<()>),
    /// Since the turn of this number.
    Running(u64),
    /// It has given its place up, which is remembered while others of its namespace have one: when it had its turn.
    Served(u64),
}

// === impl Queue ===

impl Queue {
    fn new(running: usize) -> Self {
        Self { running, size: PLACES.max(PLACES_PER_RUNNING * running), places: Vec::new(), last: 0 }
    }

    /// Takes a place, if there is one for this asker.
    fn enter(&mut self, asker: Asker, tell: oneshot::Sender<()>) -> Option<u64> {
        let taken = |is_meant: &dyn Fn(Asker) -> bool| {
            self.places.iter().filter(|place| place.is_taken() && is_meant(place.asker)).count()
        };
        let free = self.size.saturating_sub(taken(&|_| true));
        let of_namespace = taken(&|other| other.namespace == asker.namespace);
        if of_namespace >= free || taken(&|other| other == asker) >= self.size / SHARE_OF_SECRET {
            return None;
        }
        let id = self.number();
        self.places.push(Place { id, asker, state: State::Waiting(tell) });
        self.grant();
        Some(id)
    }

    /// Gives a place back.
    fn leave(&mut self, id: u64) {
        let Some(at) = self.places.iter().position(|place| place.id == id) else { return };
        let Place { asker, state, .. } = self.places.remove(at);
        if let State::Running(turn) | State::Served(turn) = state {
            // One note for each Secret.
            self.places.retain(|place| place.asker != asker || !matches!(place.state, State::Served(_)));
            self.places.push(Place { id, asker, state: State::Served(turn) });
        }
        // When somebody had a turn matters to those alone who still have a place.
        let waiting: Vec<u64> = self.places.iter().filter(|p| p.is_taken()).map(|p| p.asker.namespace).collect();
        self.places.retain(|place| place.is_taken() || waiting.contains(&place.asker.namespace));
        self.grant();
    }

    /// Gives turns to those who have waited longest since their last one.
    fn grant(&mut self) {
        while self.places.iter().filter(|place| matches!(place.state, State::Running(_))).count() < self.running {
            let waiting = (0..self.places.len()).filter(|at| matches!(self.places[*at].state, State::Waiting(_)));
            let Some(next) = waiting.min_by_key(|at| self.rank(self.places[*at].asker)) else { return };
            let turn = self.number();
            if let State::Waiting(tell) = std::mem::replace(&mut self.places[next].state, State::Running(turn)) {
                // Who has gone gives its place back in a moment.
                tell.send(()).unwrap_or_default();
            }
        }
    }

    /// The last turns of its namespace and of its Secret, as far as they are known; of equal ones the first is first.
    fn rank(&self, asker: Asker) -> (Option<u64>, Option<u64>) {
        let last = |is_meant: &dyn Fn(Asker) -> bool| {
            self.places.iter().filter(|place| is_meant(place.asker)).filter_map(Place::turn).max()
        };
        (last(&|other| other.namespace == asker.namespace), last(&|other| other == asker))
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Place {
    fn is_taken(&self) -> bool {
        !matches!(self.state, State::Served(_))
    }

    fn turn(&self) -> Option<u64> {
        match self.state {
            State::Waiting(_) => None,
            State::Running(turn) | State::Served(turn) => Some(turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(namespace: u64, secret: u64) -> Asker {
        Asker { namespace, secret }
    }

    /// Takes a place whose turn can be asked about.
    fn enter(queue: &mut Queue, asker: Asker) -> Option<(u64, oneshot::Receiver<()>)> {
        let (tell, told) = oneshot::channel();
        Some((queue.enter(asker, tell)?, told))
    }

    /// The askers in the order of their turns, each of which is over when the next begins.
    fn order(queue: &mut Queue) -> Vec<(u64, u64)> {
        let mut order = Vec::new();
        while let Some(place) = queue.places.iter().find(|place| matches!(place.state, State::Running(_))) {
            let Place { id, asker, .. } = *place;
            order.push((asker.namespace, asker.secret));
            queue.leave(id);
        }
        order
    }

    #[test]
    fn forty_guessers_at_one_secret_make_others_wait_for_one_hash() {
        let mut queue = Queue::new(1);
        let guessers: Vec<_> = (0..40).filter_map(|_| enter(&mut queue, asker(1, 1))).collect();
        assert_eq!(guessers.len(), PLACES / SHARE_OF_SECRET);
        let (id, mut login) = enter(&mut queue, asker(2, 2)).expect("a place");
        let neighbour = enter(&mut queue, asker(1, 3)).expect("a place, in the same namespace");
        assert!(login.try_recv().is_err(), "one hash is computed already");
        queue.leave(guessers[0].0);
        assert!(login.try_recv().is_ok());
        queue.leave(id);
        assert_eq!(order(&mut queue)[..3], [(1, 3), (1, 1), (1, 1)]);
        drop(neighbour);
    }

    #[test]
    fn turns_go_round_by_namespace_and_then_by_secret() {
        let mut queue = Queue::new(1);
        let askers = [(1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4)];
        let _places: Vec<_> = askers.iter().filter_map(|(n, s)| enter(&mut queue, asker(*n, *s))).collect();
        assert_eq!(order(&mut queue), [(1, 1), (2, 3), (3, 4), (1, 2), (2, 3), (1, 1), (1, 2), (1, 1)]);
        assert!(queue.places.is_empty(), "nothing is remembered of who has gone");
    }

    #[test]
    fn whoever_takes_all_places_it_may_leaves_some_for_others() {
        let mut queue = Queue::new(1);
        let mut places = Vec::new();
        let mut taken = |queue: &mut Queue, namespace: u64| {
            let before = places.len();
            // As many Secrets as it likes.
            places.extend((0..1000).filter_map(|secret| enter(queue, asker(namespace, secret))));
            places.len() - before
        };
        let shares: Vec<_> = (1..=6).map(|namespace| taken(&mut queue, namespace)).collect();
        assert_eq!(shares, [32, 16, 8, 4, 2, 1]);
        assert!(enter(&mut queue, asker(7, 1)).is_some());
        assert!(enter(&mut queue, asker(8, 1)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_the_bound() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.wait(asker(1, 1)).await.expect("a turn");
        let begun = tokio::time::Instant::now();
        assert!(turns.wait(asker(2, 2)).await.is_none());
        assert_eq!(begun.elapsed(), WAIT_MAX);
        // Neither has who gave up a place, nor is a turn lost.
        assert_eq!(turns.queue().places.len(), 1);
        drop(first);
        assert!(turns.wait(asker(2, 2)).await.is_some());
        assert!(turns.queue().places.is_empty());
    }
}
