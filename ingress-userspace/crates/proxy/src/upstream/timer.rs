//! The timeout of a wait for an upstream or a client. It reads no socket.
//!
//! A wait that ends in time, as nearly every wait does, arms no timer. One timer outlives the exchanges of a
//! connection. It is armed only if it would not expire soon enough already. When it expires, it checks whether the
//! current wait really is that long, and is otherwise armed again. A busy connection thus touches the timer wheel once
//! per timeout, not once per read.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Default)]
pub(super) struct Timer {
    /// Start of the current wait; `None` while there is progress.
    since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) fn progress(&mut self) {
        self.since = None;
    }

    /// Moves the start of the current wait to `at` if it began earlier.
    pub(super) fn not_before(&mut self, at: Instant) {
        self.since = self.since.map(|since| since.max(at));
    }

    /// Ready once the current wait has lasted for `limit`. Starts the wait if none is in progress.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(due) = since.checked_add(limit) else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
