//! Decides which idle HTTP/1 connections stay *warm*, with all that the next request needs, and which are parked.
//! Parking itself is in `http_server`: an evicted connection ends the future that serves it.
//!
//! Warm connections stand in a queue (second-chance eviction). A connection that becomes idle and is not queued joins
//! at the end. While the queue is too long, the connections at its front are examined: one used since it was last
//! examined goes to the end again, one that is still idle is evicted, and any other leaves until it is idle again. The
//! number of warm connections is therefore bounded however fast connections come. A client with requests in quick
//! succession keeps its place, at the price of one store per request.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::{Rc, Weak},
    time::{Duration, Instant},
};

use crate::downstream::conn::Conn;

/// Connections examined for each one that joins: with three of four in use, all of those may stay.
const LOOKS: usize = 4;

/// The warm connections of a worker, in the order in which they were last examined.
#[derive(Default)]
pub(crate) struct Warm(RefCell<VecDeque<Weak<Conn>>>);

/// A connection's state in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleState {
    /// Not in the queue: parked, not idle yet, or busy for a long time.
    Cold,
    /// In the queue, without a request since it was last examined.
    Warm,
    /// In the queue, with a request since then.
    Used,
    /// Evicted from the queue, to be parked.
    Evicted,
}

impl Warm {
    /// Adds `conn`, which has become idle. If there are more than `max`, some of the others are evicted.
    pub(crate) fn became_idle(&self, conn: &Rc<Conn>, max: usize) {
        if conn.idle_state.get() != IdleState::Cold {
            return;
        }
        conn.idle_state.set(IdleState::Warm);
        let mut queue = self.0.borrow_mut();
        queue.push_back(Rc::downgrade(conn));
        for _ in 0..LOOKS {
            if queue.len() <= max {
                return;
            }
            let Some(first) = queue.pop_front() else { return };
            // A closed connection makes room.
            let Some(conn) = first.upgrade() else { continue };
            match conn.idle_state.get() {
                IdleState::Used => {
                    conn.idle_state.set(IdleState::Warm);
                    queue.push_back(first);
                }
                IdleState::Warm if conn.is_parkable() => conn.evict(),
                // A long request, or a tunnel: the connection joins again if it becomes idle.
                IdleState::Warm | IdleState::Cold | IdleState::Evicted => conn.idle_state.set(IdleState::Cold),
            }
        }
    }

    /// Evicts the connections that have been idle for `time`.
    pub(crate) fn expire(&self, now: Instant, time: Duration) {
        self.0.borrow_mut().retain(|known| {
            let Some(conn) = known.upgrade() else { return false };
            let is_due = conn.is_parkable() && conn.progress.idle_time(now) >= time;
            if is_due {
                conn.evict();
            }
            !is_due
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{downstream::h1_framing::ScanPosition, server::worker::Worker};

    const MAX: usize = 3;

    /// Returns a full queue, its connections, and one more that is idle but not queued.
    fn full() -> (Warm, [Rc<Conn>; MAX + 1]) {
        let worker = Worker::alone();
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let conns = [(); MAX + 1].map(|()| {
            let conn = Conn::new(Rc::clone(&worker), address, address, false);
            conn.progress.read(ScanPosition::Between, worker.now());
            conn.progress.read_pending(worker.now());
            conn
        });
        let warm = Warm::default();
        conns[..MAX].iter().for_each(|conn| warm.became_idle(conn, MAX));
        (warm, conns)
    }

    fn check(warm: &Warm, conns: &[Rc<Conn>; MAX + 1], expect: [IdleState; MAX + 1], case: &str) {
        assert_eq!(conns.each_ref().map(|conn| conn.idle_state.get()), expect, "{case}");
        assert_eq!(warm.0.borrow().len(), MAX, "{case}");
    }

    #[test]
    fn an_excess_connection_evicts_another_or_leaves() {
        let cases: [(&[usize], &[usize], _); 6] = [
            (&[], &[], [IdleState::Evicted, IdleState::Warm, IdleState::Warm, IdleState::Warm]),
            (&[0], &[], [IdleState::Warm, IdleState::Evicted, IdleState::Warm, IdleState::Warm]),
            (&[0, 1, 2], &[], [IdleState::Warm, IdleState::Warm, IdleState::Warm, IdleState::Evicted]),
            (&[], &[0], [IdleState::Cold, IdleState::Warm, IdleState::Warm, IdleState::Warm]),
            (&[0], &[0], [IdleState::Warm, IdleState::Evicted, IdleState::Warm, IdleState::Warm]),
            (&[0], &[1], [IdleState::Warm, IdleState::Cold, IdleState::Warm, IdleState::Warm]),
        ];
        for (used, busy, expect) in cases {
            let (warm, conns) = full();
            used.iter().for_each(|number| conns[*number].idle_state.set(IdleState::Used));
            busy.iter().for_each(|number| conns[*number].progress.begin_request());
            warm.became_idle(&conns[MAX], MAX);
            check(&warm, &conns, expect, &format!("{used:?} were used, {busy:?} are busy"));
        }
    }

    #[test]
    fn a_long_busy_connection_joins_again() {
        let (warm, conns) = full();
        conns[0].progress.begin_request();
        warm.became_idle(&conns[MAX], MAX);
        conns[0].progress.end_request(conns[0].worker.now());
        warm.became_idle(&conns[0], MAX);
        check(
            &warm,
            &conns,
            [IdleState::Warm, IdleState::Evicted, IdleState::Warm, IdleState::Warm],
            "it is idle again",
        );
    }
}
