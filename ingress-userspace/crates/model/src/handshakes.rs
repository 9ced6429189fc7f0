//! Settings of TLS handshakes with clients, with defaults. No handshake is made here.

use std::time::Duration;

/// Handshake settings of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshakes {
    /// Accepted versions. Default both.
    pub versions: Versions,
    /// Whether to abort the handshake if the server name is missing, or matches no rule and no certificate. Otherwise,
    /// the fallback certificate is used. Rules and certificates for every host match no name here. Default false.
    pub rejects_unknown_names: bool,
    /// Whether clients get session tickets. No session state is kept on the server. Default true.
    pub tickets: bool,
    /// Lifetime of a ticket. Local keys are rotated every six hours and the previous one is kept, so that tickets
    /// sealed with them last at most twelve hours. Default 12 h.
    pub session_timeout: Duration,
}

/// TLS versions. Versions below 1.2 are not supported (RFC 8996).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
