//! Publishes the number of connections of this worker: for metrics, and to the kernel programs, which give new ones to
//! another worker if there are too many. It neither refuses nor moves connections.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ingress_common::{WorkerCell, steer::WORKER_ABSENT};

/// The load that one worker publishes from its start to its end.
#[derive(Debug)]
pub(crate) struct PublishedLoad {
    /// `None` if no programs steer connections.
    cell: Option<&'static WorkerCell>,
    /// Number of open connections, for metrics.
    connections: Arc<AtomicUsize>,
    /// The value of `chosen` at the last tick.
    chosen: Cell<u64>,
}

impl PublishedLoad {
    /// Marks the worker as present, without connections. The worker must be the only one to write to the two.
    pub(crate) fn begin(cell: Option<&'static WorkerCell>, connections: Arc<AtomicUsize>) -> Self {
        if let Some(cell) = cell {
            cell.open.store(0, Relaxed);
        }
        Self { cell, connections, chosen: Cell::new(cell.map_or(0, |cell| cell.chosen.load(Relaxed))) }
    }

    /// Publishes the current number of connections. A plain store suffices, because the worker is the only writer, and
    /// a wrong value cannot persist.
    pub(crate) fn hold(&self, connections: usize) {
        self.connections.store(connections, Relaxed);
        if let Some(cell) = self.cell {
            cell.open.store(connections as u64, Relaxed);
        }
    }

    /// Counts an accepted connection as settled, so that one less is expected. If the programs did not choose the
    /// worker for it, this cancels one that they did choose it for.
    pub(crate) fn accepted(&self) {
        let Some(WorkerCell { open: _, settled, chosen }) = self.cell else { return };
        let before = settled.load(Relaxed);
        if chosen.load(Relaxed) > before {
            settled.store(before + 1, Relaxed);
        }
    }

    /// Stops expecting connections that were chosen before the last tick and did not arrive: SYNs without a handshake.
    pub(crate) fn tick(&self) {
        let Some(WorkerCell { open: _, settled, chosen }) = self.cell else { return };
        let before = self.chosen.replace(chosen.load(Relaxed));
        settled.fetch_max(before, Relaxed);
    }
}

/// Marks the worker as absent, however it ended: it holds no connections, but must not look idle.
impl Drop for PublishedLoad {
    fn drop(&mut self) {
        self.connections.store(0, Relaxed);
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

    /// Returns the number of connections as the programs see it.
    fn connections(cell: &WorkerCell) -> Option<u64> {
        let WorkerCell { open, settled, chosen } = cell;
        let [open, settled, chosen] = [open, settled, chosen].map(|field| field.load(Relaxed));
        WorkerLoad { open, settled, chosen }.connections()
    }

    fn choose(cell: &WorkerCell, times: u64) {
        cell.chosen.fetch_add(times, Relaxed);
    }

    #[test]
    fn a_worker_is_present_from_its_start_to_its_end() {
        let cell = cell();
        assert_eq!(connections(cell), None);
        let load = PublishedLoad::begin(Some(cell), Arc::default());
        assert_eq!(connections(cell), Some(0));
        load.hold(3);
        assert_eq!(connections(cell), Some(3));
        drop(load);
        assert_eq!(connections(cell), None);
    }

    #[test]
    fn chosen_connections_count_until_they_are_accepted() {
        let cell = cell();
        let load = PublishedLoad::begin(Some(cell), Arc::default());
        choose(cell, 3);
        assert_eq!(connections(cell), Some(3));
        for held in 1..=3 {
            load.accepted();
            load.hold(held);
            assert_eq!(connections(cell), Some(3), "{held} held");
        }
        // The programs did not choose this worker: the default rule of a full map, or a lost count.
        load.accepted();
        load.hold(4);
        assert_eq!(connections(cell), Some(4));
        choose(cell, 1);
        assert_eq!(connections(cell), Some(5), "what was not counted once is not owed for ever");
    }

    #[test]
    fn missing_connections_are_settled_within_two_ticks() {
        let cell = cell();
        choose(cell, 9);
        cell.settled.store(9, Relaxed);
        let load = PublishedLoad::begin(Some(cell), Arc::default());
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
    fn load_is_not_published_without_programs() {
        let connections = Arc::default();
        let load = PublishedLoad::begin(None, Arc::clone(&connections));
        load.accepted();
        load.hold(1);
        load.tick();
        assert_eq!(connections.load(Relaxed), 1, "metrics have it nevertheless");
        drop(load);
        assert_eq!(connections.load(Relaxed), 0);
    }
}
