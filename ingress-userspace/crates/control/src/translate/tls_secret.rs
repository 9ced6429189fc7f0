//! The content of a Secret for TLS with clients, as it was found.

use std::sync::Arc;

use crate::outcome::ObjectRef;
use ingress_model::{Certificate, HostPattern};

/// Content of a Secret for TLS with clients.
#[derive(PartialEq, Eq)]
pub(crate) enum TlsSecretContent {
    /// There is no such Secret.
    Nothing,
    /// The Secret is unusable, with the reason.
    Broken { secret: ObjectRef, reason: String },
    /// A certificate, and the names of its leaf.
    Certificate { certificate: Arc<Certificate>, names: Box<[HostPattern]> },
}

// === impl TlsSecretContent ===

impl TlsSecretContent {
    /// Returns `true` if both have the same effect on hosts, apart from chain and key.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Certificate { certificate: _, names }, Self::Certificate { certificate: _, names: others }) => {
                names == others
            }
            _ => self == other,
        }
    }
}
