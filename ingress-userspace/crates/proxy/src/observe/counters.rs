//! Counts a request in its host's counters, from its start to its last byte, however it ends.

use std::sync::atomic::Ordering::Relaxed;

use ingress_common::{HostL7Cell, StatusClass};

use ingress_model::HostId;

/// Body bytes are added to the shared counter in steps of this size and at the end, so that long transfers are visible
/// while they run and short ones cost one atomic addition.
const STEP: u64 = 256 * 1024;

/// The counters of all hosts, by id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters(&'static [HostL7Cell]);

/// A request being served. Dropping it counts the request: under the class of its status if [`Tally::finish`] was
/// called, and as [`StatusClass::Aborted`] otherwise.
#[derive(Debug)]
pub(crate) struct Tally {
    cell: &'static HostL7Cell,
    class: Option<StatusClass>,
}

/// Body bytes to be added to a counter.
#[derive(Debug)]
pub(crate) struct Bytes {
    cell: &'static HostL7Cell,
    direction: Direction,
    pending: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    In,
    Out,
}

// === impl Counters ===

impl Counters {
    /// Returns `None` if there is no cell for host 0.
    pub(crate) fn new(cells: &'static [HostL7Cell]) -> Option<Self> {
        (!cells.is_empty()).then_some(Self(cells))
    }

    /// Returns the number of hosts with counters of their own.
    pub(crate) fn capacity(self) -> usize {
        self.0.len()
    }

    /// Returns the cell of `host`; ids beyond the capacity share that of host 0.
    pub(crate) fn cell(self, host: HostId) -> &'static HostL7Cell {
        self.0.get(host.0 as usize).unwrap_or(&self.0[0])
    }
}

// === impl Tally ===

impl Tally {
    pub(crate) fn begin(cell: &'static HostL7Cell) -> Self {
        cell.active.fetch_add(1, Relaxed);
        Self { cell, class: None }
    }

    pub(crate) fn cell(&self) -> &'static HostL7Cell {
        self.cell
    }

    /// Returns the class that the request would be counted under now.
    pub(crate) fn class(&self) -> StatusClass {
        self.class.unwrap_or(StatusClass::Aborted)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.class.is_some()
    }

    /// Records that the whole response has been handed over.
    pub(crate) fn finish(&mut self, class: StatusClass) {
        self.class = Some(class);
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.cell.requests[self.class() as usize].fetch_add(1, Relaxed);
        self.cell.active.fetch_sub(1, Relaxed);
    }
}

// === impl Bytes ===

impl Bytes {
    pub(crate) fn new(cell: &'static HostL7Cell, direction: Direction) -> Self {
        Self { cell, direction, pending: 0 }
    }

    pub(crate) fn add(&mut self, count: usize) {
        self.pending += count as u64;
        if self.pending >= STEP {
            self.flush();
        }
    }

    /// Adds the pending bytes to the shared counter.
    pub(crate) fn flush(&mut self) {
        if self.pending == 0 {
            return;
        }
        let counter = match self.direction {
            Direction::In => &self.cell.bytes_in,
            Direction::Out => &self.cell.bytes_out,
        };
        counter.fetch_add(std::mem::take(&mut self.pending), Relaxed);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(count: usize) -> &'static [HostL7Cell] {
        Box::leak((0..count).map(|_| HostL7Cell::default()).collect())
    }

    #[test]
    fn ids_beyond_the_capacity_count_for_host_zero() {
        let cells = cells(2);
        let counters = Counters::new(cells).expect("two cells");
        assert!(std::ptr::eq(counters.cell(HostId(1)), &raw const cells[1]));
        assert!(std::ptr::eq(counters.cell(HostId(2)), &raw const cells[0]));
        assert!(Counters::new(&[]).is_none());
    }

    #[test]
    fn an_unfinished_request_counts_as_aborted() {
        let cell = &cells(1)[0];
        let tally = Tally::begin(cell);
        assert_eq!(cell.load().active, 1);
        drop(tally);
        let mut tally = Tally::begin(cell);
        tally.finish(StatusClass::Redirect);
        drop(tally);
        assert_eq!(cell.load().requests.to_array(), [0, 1, 0, 0, 1]);
        assert_eq!(cell.load().active, 0);
    }

    #[test]
    fn bytes_are_exact_and_long_transfers_show_early() {
        let cell = &cells(1)[0];
        let mut bytes = Bytes::new(cell, Direction::Out);
        bytes.add(10);
        assert_eq!(cell.load().bytes_out, 0);
        bytes.add(300_000);
        assert_eq!(cell.load().bytes_out, 300_010);
        bytes.add(1);
        drop(bytes);
        assert_eq!((cell.load().bytes_in, cell.load().bytes_out), (0, 300_011));
    }
}
