//! The closed list of reasons for refusing a connection, and their counters. The refusals themselves happen elsewhere.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reason for which a connection was closed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The PROXY header is missing or malformed, or the peer may not send one.
    ProxyProtocol,
    /// The worker is at its connection limit.
    Connections,
    /// The client is at its connection limit.
    ClientConnections,
    /// Memory is scarce.
    Memory,
    /// The address is that of a Gateway that has no listener for the port.
    NoListener,
}

/// Connections refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusal {
    pub const ALL: [Self; 5] =
        [Self::ProxyProtocol, Self::Connections, Self::ClientConnections, Self::Memory, Self::NoListener];

    /// Returns the value of the metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProxyProtocol => "proxy_protocol",
            Self::Connections => "connections",
            Self::ClientConnections => "client_connections",
            Self::Memory => "memory",
            Self::NoListener => "no_listener",
        }
    }
}

impl Refusals {
    pub(crate) fn count(&self, why: Refusal) {
        self.0[why as usize].fetch_add(1, Relaxed);
    }

    /// Returns the counts in the order of [`Refusal::ALL`].
    pub(crate) fn load(&self) -> [u64; Refusal::ALL.len()] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
}
