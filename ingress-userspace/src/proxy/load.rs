//! Tells the kernel programs how many connections this worker holds, so that they give new ones to another if those are
//! too many. It neither refuses nor moves any.

use std::{cell::Cell, sync::atomic::Ordering::Relaxed};

use ingress_common::{WorkerCell, steer::WORKER_ABSENT};

/// What one worker tells of itself, from its beginning to its end; nothing where no programs steer.
#[derive(Debug)]
pub(super) struct Load {
    cell: Option<&'static WorkerCell>,
    /// What had been chosen at the last tick.
    chosen: Cell<u64>,
}

impl Load {
    /// The worker is there, and holds nothing yet. The cell is its alone.
    pub(super) fn begin(cell: Option<&'static WorkerCell>) -> Self {
        if let Some(cell) = cell {
            cell.open.store(0, Relaxed);
        }
        Self { cell, chosen: Cell::new(cell.map_or(0, |cell| cell.chosen.load(Relaxed))) }
    }

    /// It holds so many connections now. One store: nobody else writes the number, so there is nothing to add to, and
    /// none that went wrong once stays wrong.
    pub(super) fn hold(&self, connections: usize) {
        if let Some(cell) = self.cell {
            cell.open.store(connections as u64, Relaxed);
        }
    }

    /// It has accepted a connection: one less is on its way. Where it was not the programs that chose the worker, one
    /// that they did choose it for is no longer counted on.
    pub(super) fn accepted(&self) {
        let Some(WorkerCell { open: _, settled, chosen }) = self.cell else { return };
        let before = settled.load(Relaxed);
        if chosen.load(Relaxed) > before {
            settled.store(before + 1, Relaxed);
        }
    }

    /// Gives up what was chosen before the last tick and has not come: SYNs without a handshake.
    pub(super) fn tick(&self) {
        let Some(WorkerCell { open: _, settled, chosen }) = self.cell else { return };
        let before = self.chosen.replace(chosen.load(Relaxed));
        settled.fetch_max(before, Relaxed);
    }
}

/// A worker that has ended, in whatever way, holds nothing, and must not look idle for that.
impl Drop for Load {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            cell.open.store(WORKER_ABSENT, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use ingress_common::WorkerLoad;

    use super::*;

    fn cell() -> &'static WorkerCell {
        let cell = WorkerCell::default();
        cell.open.store(WORKER_ABSENT, Relaxed);
        Box::leak(Box::new(cell))
    }

    /// As the programs see it.
    fn connections(cell: &WorkerCell) -> Option<u64> {
        let WorkerCell { open, settled, chosen } = cell;
        let [open, settled, chosen] = [open, settled, chosen].map(|field| field.load(Relaxed));
        WorkerLoad { open, settled, chosen }.connections()
    }

    fn choose(cell: &WorkerCell, times: u64) {
        cell.chosen.fetch_add(times, Relaxed);
    }

    #[test]
    fn a_worker_is_there_from_its_beginning_to_its_end() {
        let cell = cell();
        assert_eq!(connections(cell), None);
        let load = Load::begin(Some(cell));
        assert_eq!(connections(cell), Some(0));
        load.hold(3);
        assert_eq!(connections(cell), Some(3));
        drop(load);
        assert_eq!(connections(cell), None);
    }

    #[test]
    fn what_is_chosen_counts_until_it_is_held() {
        let cell = cell();
        let load = Load::begin(Some(cell));
        choose(cell, 3);
        assert_eq!(connections(cell), Some(3));
        for held in 1..=3 {
            load.accepted();
            load.hold(held);
            assert_eq!(connections(cell), Some(3), "{held} held");
        }
        // Nobody has chosen: the default rule of a map that was full, or a count that was lost.
        load.accepted();
        load.hold(4);
        assert_eq!(connections(cell), Some(4));
        choose(cell, 1);
        assert_eq!(connections(cell), Some(5), "what was not counted once is not owed for ever");
    }

    #[test]
    fn what_does_not_come_is_given_up_after_a_tick_and_before_two() {
        let cell = cell();
        choose(cell, 9);
        cell.settled.store(9, Relaxed);
        let load = Load::begin(Some(cell));
        load.tick();
        choose(cell, 5);
        load.tick();
        assert_eq!(connections(cell), Some(5), "it may still come");
        choose(cell, 2);
        load.accepted();
        load.hold(1);
        load.tick();
        assert_eq!(connections(cell), Some(3), "one is here, two may come");
        load.tick();
        assert_eq!(connections(cell), Some(1));
    }

    #[test]
    fn without_programs_nothing_is_told() {
        let load = Load::begin(None);
        load.accepted();
        load.hold(1);
        load.tick();
    }
}
