//! The time-out of whoever waits for an upstream. It reads no socket.
//!
//! A wait that ends in time, which is nearly every one, arms no timer: there is one timer that outlives the exchanges
//! of a connection, is armed when there is none to run out soon enough, and when it runs out looks whether the wait of
//! that moment is really that old, and else is armed anew. A busy connection so touches the timer wheel once per
//! time-out, not once per read.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Default)]
pub(super) struct Timer {
    /// When the present wait began; none while there is progress.
    since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    pub(super) fn progress(&mut self) {
        self.since = None;
    }

    /// A wait that began before `at` counts from then.
    pub(super) fn not_before(&mut self, at: Instant) {
        self.since = self.since.map(|since| since.max(at));
    }

    /// Ready when the present wait, which begins now if none has begun, is `limit` old.
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
