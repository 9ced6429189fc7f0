//! How TLS handshakes with clients are made: what an operator sets of them, with defaults. It makes none.

use std::time::Duration;

/// What holds for handshakes of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshakes {
    /// Default both.
    pub versions: Versions,
    /// Whether a server name that neither a rule nor a certificate names, or none at all, ends the handshake; else the
    /// fallback certificate is shown. Rules and certificates for every host name no host. Default false.
    pub rejects_unknown_names: bool,
    /// Whether clients get tickets to resume their sessions with; nothing is kept of a session here. Default true.
    pub tickets: bool,
    /// How long a ticket is good for. Keys of this process alone change every six hours, and the last is kept, so that
    /// no ticket sealed with them outlives twelve. Default 12 h.
    pub session_timeout: Duration,
}

/// Versions of TLS. There is none below 1.2 (RFC 8996).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    #[default]
    Tls12And13,
    Tls12,
    Tls13,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self {
            versions: Versions::default(),
            rejects_unknown_names: false,
            tickets: true,
            session_timeout: Duration::from_secs(12 * 60 * 60),
        }
    }
}
