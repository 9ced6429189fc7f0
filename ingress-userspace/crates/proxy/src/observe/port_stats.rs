//! Numbers of open and closed ports, by transport.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of ports of one transport, by state.
#[derive(Debug, Default)]
pub(crate) struct PortStats {
    open: AtomicUsize,
    closed: AtomicUsize,
}

/// Number of bound ports of one transport, by state, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatsView {
    /// Open ports.
    pub open: usize,
    /// Ports that cannot be opened now; the log has the reason.
    pub closed: usize,
}

impl PortStats {
    pub(crate) fn set(&self, open: usize, closed: usize) {
        self.open.store(open, Relaxed);
        self.closed.store(closed, Relaxed);
    }

    pub(crate) fn load(&self) -> PortStatsView {
        let Self { open, closed } = self;
        PortStatsView { open: open.load(Relaxed), closed: closed.load(Relaxed) }
    }
}
