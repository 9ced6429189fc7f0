//! Which of the HTTP/1 connections that rest stay *warm*, with all that the next request needs, and which are to be
//! parked. It parks none itself: whoever is called ends what serves it (`speak`).
//!
//! They stand in a queue. Whoever comes to rest and is not among them joins its end; then, if there are too many, those
//! at its front are looked at: one that was used since it was last looked at goes to the end once more, any other is
//! called. So what is warm is bounded however fast connections come, and a client whose requests come close together
//! never pays for that: it stays in the queue, at the price of one store for a request.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::{Rc, Weak},
    time::{Duration, Instant},
};

use super::conn::Conn;

/// How many are looked at for each that joins: where three of four are in use, all of those may stay.
const LOOKS: usize = 4;

/// The warm connections of a worker, in the order in which they were last looked at.
#[derive(Default)]
pub(super) struct Warm(RefCell<VecDeque<Weak<Conn>>>);

/// Whether a connection is warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warmth {
    /// It is parked, or has not come to rest yet.
    Cold,
    /// It is in the queue, and no request has begun since it was looked at.
    Warm,
    /// It is in the queue, and one has.
    Used,
    /// It has left the queue, to be parked.
    Called,
}

impl Warm {
    /// `conn` comes to rest. If there are more than `max`, some of the others are called.
    pub(super) fn rests(&self, conn: &Rc<Conn>, max: usize) {
        if conn.warmth.get() != Warmth::Cold {
            return;
        }
        conn.warmth.set(Warmth::Warm);
        let mut queue = self.0.borrow_mut();
        queue.push_back(Rc::downgrade(conn));
        for _ in 0..LOOKS {
            if queue.len() <= max {
                return;
            }
            let Some(first) = queue.pop_front() else { return };
            // One that is closed makes room.
            let Some(conn) = first.upgrade() else { continue };
            if conn.warmth.get() == Warmth::Warm && conn.is_resting() {
                conn.call();
            } else {
                conn.warmth.set(Warmth::Warm);
                queue.push_back(first);
            }
        }
    }

    /// Calls those that have rested for `time`.
    pub(super) fn expire(&self, now: Instant, time: Duration) {
        self.0.borrow_mut().retain(|known| {
            let Some(conn) = known.upgrade() else { return false };
            let is_due = conn.is_resting() && conn.progress.rested(now) >= time;
            if is_due {
                conn.call();
            }
            !is_due
        });
    }
}
