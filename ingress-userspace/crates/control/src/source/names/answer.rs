//! The answer to a lookup of a name, or the reason why there is none.

use std::{net::IpAddr, sync::Arc, time::Duration};

/// Result of a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookupAnswer {
    /// Sorted, without duplicates; empty if the name does not exist or has no addresses.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ttl: Duration,
}

/// Reason why a lookup failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("cannot use `/etc/resolv.conf`; give a file that names a server")]
    Configuration { source: hickory_resolver::net::NetError },
    #[error("cannot resolve `{name}`")]
    Lookup { name: Arc<str>, source: hickory_resolver::net::NetError },
    #[error("`{name}` got no DNS answer within {after:?}")]
    Timeout { name: Arc<str>, after: Duration },
}
