//! Turns of the TLS handshakes of a worker.
//!
//! A step of a handshake takes up to a millisecond of CPU time, because it signs. Without turns, a client that opens
//! many connections at once delays every request of the worker by all their steps. With turns, the tasks of requests run
//! after a few steps, and further handshakes wait, first come, first served. A handshake that waits for its client has
//! no turn.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::sync::Semaphore;

/// Steps of handshakes in one round through the tasks of a worker that are ready.
const STEPS: usize = 4;

/// Turns of the handshakes of one worker.
#[derive(Debug)]
pub(crate) struct HandshakeTurns(Arc<Semaphore>);

impl Default for HandshakeTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STEPS)))
    }
}

impl HandshakeTurns {
    /// Drives a handshake to its end. Each step waits for a turn.
    pub(crate) async fn run<F: Future>(&self, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        loop {
            let turn = Arc::clone(&self.0).acquire_owned().await;
            let step = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
            // Runs after all tasks that are ready now.
            tokio::task::spawn_local(async move { drop(turn) });
            match step {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => woken().await,
            }
        }
    }
}

/// Waits until the task is woken, here by the stream of the handshake.
async fn woken() {
    let mut is_polled = false;
    poll_fn(|_cx| match std::mem::replace(&mut is_polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        rc::Rc,
    };

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    /// Goes to the end of the queue of ready tasks.
    async fn requeued() {
        let mut is_polled = false;
        poll_fn(|cx| match std::mem::replace(&mut is_polled, true) {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }

    #[tokio::test]
    async fn requests_run_between_the_steps_of_handshakes() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let log = |what: &'static str| {
            let order = Rc::clone(&order);
            move || order.borrow_mut().push(what)
        };
        let turns = Rc::new(HandshakeTurns::default());
        LocalSet::new()
            .run_until(async {
                let mut tasks = Vec::new();
                for _ in 0..3 * STEPS {
                    let (turns, step) = (Rc::clone(&turns), log("step"));
                    tasks.push(spawn_local(async move { turns.run(async { step() }).await }));
                }
                let request = log("request");
                tasks.push(spawn_local(async move {
                    for _ in 0..10 {
                        request();
                        requeued().await;
                    }
                }));
                for task in tasks {
                    task.await.expect("no panic");
                }
            })
            .await;
        let order = order.borrow();
        let steps: Vec<_> = order.split(|what| *what == "request").map(<[_]>::len).collect();
        assert_eq!(steps.iter().sum::<usize>(), 3 * STEPS);
        assert!(steps.iter().all(|steps| *steps <= STEPS), "{steps:?}");
    }

    #[tokio::test]
    async fn handshakes_that_wait_for_their_clients_hold_up_no_other() {
        let turns = Rc::new(HandshakeTurns::default());
        let polls = Rc::new(Cell::new(0));
        LocalSet::new()
            .run_until(async {
                let silent = |turns: Rc<HandshakeTurns>, polls: Rc<Cell<u32>>| async move {
                    let wait = poll_fn(|_cx| {
                        polls.set(polls.get() + 1);
                        Poll::<()>::Pending
                    });
                    turns.run(wait).await;
                };
                let tasks: Vec<_> =
                    (0..100).map(|_| spawn_local(silent(Rc::clone(&turns), Rc::clone(&polls)))).collect();
                assert_eq!(turns.run(async { 1 }).await, 1);
                while polls.get() < 100 {
                    yield_now().await;
                }
                assert_eq!(turns.run(async { 2 }).await, 2);
                assert_eq!(polls.get(), 100, "each was polled once");
                for task in tasks {
                    task.abort();
                }
            })
            .await;
    }
}
