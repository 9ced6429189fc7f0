//! Forwards log messages of the kernel programs to `tracing`, if debugging is enabled.

use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya_log::EbpfLogger;

/// Log of the kernel programs. The descriptor ([`AsFd`]) is readable when there are messages for [`DebugLog::drain`].
pub struct DebugLog(EbpfLogger<ToTracing>);

// === impl DebugLog ===

impl DebugLog {
    pub(super) fn new(object: &mut Ebpf) -> Result<Self, aya_log::Error> {
        EbpfLogger::init_with_logger(object, ToTracing).map(Self)
    }

    /// Emits all pending messages as `tracing` events with target `ebpf` and level debug.
    pub fn drain(&mut self) {
        self.0.flush();
    }
}

impl AsFd for DebugLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::fmt::Debug for DebugLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugLog")
    }
}

struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "ebpf", "{}", record.args());
    }

    fn flush(&self) {}
}
