//! The deadlines of all connections of a worker: a heap with lazy removal. Deadlines of QUIC mostly move to later with
//! each packet, so that an entry stays until it is due, and is then put back.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

/// Replaced entries that a worker with few connections may have.
const SPARE: usize = 64;

/// The deadlines of connections, by the connection's key.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The earliest entry in the heap for each key, or `None`.
    armed: Vec<Option<Instant>>,
}

impl Timers {
    /// Sets the deadline of `key`. An earlier entry stays in the heap, and may return `key` too early.
    pub(crate) fn set(&mut self, key: usize, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.armed.len() <= key {
            self.armed.resize(key + 1, None);
        }
        if self.armed[key].is_none_or(|armed| deadline < armed) {
            self.armed[key] = Some(deadline);
            self.heap.push(Reverse((deadline, key)));
        }
        // An entry that an earlier one replaced would stay until it is due.
        if self.heap.len() > 2 * self.armed.len() + SPARE {
            let armed = &self.armed;
            self.heap.retain(|Reverse((deadline, key))| armed[*key] == Some(*deadline));
        }
    }

    /// Forgets the deadline of `key`.
    pub(crate) fn forget(&mut self, key: usize) {
        if let Some(armed) = self.armed.get_mut(key) {
            *armed = None;
        }
    }

    /// Returns a key with an entry that is due, and forgets the entry.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        while let Some(&Reverse((deadline, key))) = self.heap.peek() {
            if deadline > now {
                return None;
            }
            self.heap.pop();
            if self.armed[key] == Some(deadline) {
                self.armed[key] = None;
                return Some(key);
            }
        }
        None
    }

    /// Returns the time of the next entry.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((deadline, key))) = self.heap.peek() {
            if self.armed[key] == Some(deadline) {
                return Some(deadline);
            }
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_become_due_in_order_and_once() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        timers.set(2, Some(at(3)));
        timers.set(0, Some(at(2)));
        timers.set(1, Some(at(1)));
        // Later ones do not move an entry; earlier ones do.
        timers.set(1, Some(at(9)));
        timers.set(2, Some(at(1)));
        timers.set(0, None);
        assert_eq!(timers.next(), Some(at(1)));
        assert_eq!([timers.pop(at(1)), timers.pop(at(1)), timers.pop(at(1))], [Some(1), Some(2), None]);
        assert_eq!(timers.next(), Some(at(2)));
        timers.forget(0);
        assert_eq!((timers.next(), timers.pop(at(10))), (None, None));
    }

    #[test]
    fn replaced_entries_do_not_pile_up() {
        let (begun, mut timers) = (Instant::now(), Timers::default());
        let far = begun + Duration::from_secs(75);
        for _ in 0..10_000 {
            timers.set(0, Some(far));
            timers.set(0, Some(begun));
            assert_eq!(timers.pop(begun), Some(0));
        }
        assert!(timers.heap.len() < 2 * SPARE, "{}", timers.heap.len());
    }
}
