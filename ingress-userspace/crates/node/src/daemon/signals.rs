//! Signals that ask the process to end.

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask the process to end.
pub(super) struct ExitSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ExitSignals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Self::set().thread_unblock().context("cannot unblock signals")?;
        Ok(Self { terminate, interrupt })
    }

    pub(super) fn set() -> SigSet {
        [NixSignal::SIGTERM, NixSignal::SIGINT].into_iter().collect()
    }

    /// Resolves at the next signal of either kind.
    pub(super) async fn next(&mut self) {
        let Self { terminate, interrupt } = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
