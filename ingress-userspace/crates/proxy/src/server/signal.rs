//! The order to the workers: serve, drain, or stop.

use std::time::Instant;

/// Order to the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Serve,
    /// Close the listeners, finish the connections, and end at the deadline at the latest.
    Drain {
        deadline: Instant,
    },
    Stop,
}
