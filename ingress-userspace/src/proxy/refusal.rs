//! Why a connection is not served, as a closed list: what is counted of it. It refuses nothing itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a connection was closed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It did not begin with a header of the PROXY protocol, or its peer may not send one.
    ProxyProtocol,
    /// Its worker had as many as it takes.
    Connections,
    /// Its client had as many as it may have.
    ClientConnections,
    /// Memory was scarce.
    Memory,
}

/// Connections refused, by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusal {
    pub const ALL: [Self; 4] = [Self::ProxyProtocol, Self::Connections, Self::ClientConnections, Self::Memory];

    /// The value of the metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProxyProtocol => "proxy_protocol",
            Self::Connections => "connections",
            Self::ClientConnections => "client_connections",
            Self::Memory => "memory",
        }
    }
}

impl Refusals {
    pub(super) fn count(&self, why: Refusal) {
        self.0[why as usize].fetch_add(1, Relaxed);
    }

    /// In the order of [`Refusal::ALL`].
    pub(super) fn load(&self) -> [u64; Refusal::ALL.len()] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
}
