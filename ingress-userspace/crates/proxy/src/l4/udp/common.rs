//! The parts that all UDP ports of a worker share.

use std::cell::{Cell, RefCell};

/// State that all ports of one worker share.
pub(crate) struct UdpCommon {
    pub(crate) sessions: Cell<usize>,
    /// The receive buffer. Each borrow ends before the next `await`, so that all ports can share it.
    pub(crate) buffer: RefCell<Box<[u8]>>,
}
