//! Which of the HTTP/1 connections that rest stay *warm*, with all that the next request needs, and which are to be
//! parked. It parks none itself: whoever is called ends what serves it (`speak`).
//!
//! They stand in a queue. Whoever comes to rest and is not among them joins its end; then, if there are too many, those
//! at its front are looked at: one that was used since it was last looked at goes to the end once more, one that still
//! rests is called, and any other leaves until it comes to rest again. So what is warm is bounded however fast
//! connections come, and a client whose requests come close together never pays for that: it stays in the queue, at the
//! price of one store for a request.

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
    /// It is parked, has not come to rest yet, or has been busy for long.
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
            match conn.warmth.get() {
                Warmth::Used => {
                    conn.warmth.set(Warmth::Warm);
                    queue.push_back(first);
                }
                Warmth::Warm if conn.is_resting() => conn.call(),
                // What takes long, or has become a tunnel, joins again if it comes to rest.
                Warmth::Warm | Warmth::Cold | Warmth::Called => conn.warmth.set(Warmth::Cold),
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::proxy::{scan::Place, worker::Worker};

    const MAX: usize = 3;

    /// A queue that is full, the connections in it, and one that has come to rest but is not in it yet.
    fn full() -> (Warm, [Rc<Conn>; MAX + 1]) {
        let worker = Worker::alone();
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let conns = [(); MAX + 1].map(|()| {
            let conn = Conn::new(Rc::clone(&worker), address, address, false);
            conn.progress.read(Place::Between, worker.now());
            conn.progress.read_pending(worker.now());
            conn
        });
        let warm = Warm::default();
        conns[..MAX].iter().for_each(|conn| warm.rests(conn, MAX));
        (warm, conns)
    }

    fn check(warm: &Warm, conns: &[Rc<Conn>; MAX + 1], expect: [Warmth; MAX + 1], case: &str) {
        assert_eq!(conns.each_ref().map(|conn| conn.warmth.get()), expect, "{case}");
        assert_eq!(warm.0.borrow().len(), MAX, "{case}");
    }

    #[test]
    fn one_too_many_has_another_called_or_leave() {
        let cases: [(&[usize], &[usize], _); 6] = [
            (&[], &[], [Warmth::Called, Warmth::Warm, Warmth::Warm, Warmth::Warm]),
            (&[0], &[], [Warmth::Warm, Warmth::Called, Warmth::Warm, Warmth::Warm]),
            (&[0, 1, 2], &[], [Warmth::Warm, Warmth::Warm, Warmth::Warm, Warmth::Called]),
            (&[], &[0], [Warmth::Cold, Warmth::Warm, Warmth::Warm, Warmth::Warm]),
            (&[0], &[0], [Warmth::Warm, Warmth::Called, Warmth::Warm, Warmth::Warm]),
            (&[0], &[1], [Warmth::Warm, Warmth::Cold, Warmth::Warm, Warmth::Warm]),
        ];
        for (used, busy, expect) in cases {
            let (warm, conns) = full();
            used.iter().for_each(|number| conns[*number].warmth.set(Warmth::Used));
            busy.iter().for_each(|number| conns[*number].progress.begin_request());
            warm.rests(&conns[MAX], MAX);
            check(&warm, &conns, expect, &format!("{used:?} were used, {busy:?} are busy"));
        }
    }

    #[test]
    fn what_was_busy_for_long_joins_again() {
        let (warm, conns) = full();
        conns[0].progress.begin_request();
        warm.rests(&conns[MAX], MAX);
        conns[0].progress.end_request(conns[0].worker.now());
        warm.rests(&conns[0], MAX);
        check(&warm, &conns, [Warmth::Warm, Warmth::Called, Warmth::Warm, Warmth::Warm], "it rests");
    }
}
