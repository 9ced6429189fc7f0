//! TLS passthrough: connections that are forwarded by server name alone and terminated by the pods.

use std::{fmt, sync::Arc, time::Duration};

use super::{Access, UpstreamKey};

/// Destination of TLS connections for a host, forwarded without termination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// `None` closes connections: the service does not exist, or access depends on data inside the TLS stream.
    pub upstream: Option<UpstreamKey>,
    /// Access control by client address.
    pub access: Option<Arc<Access>>,
    /// Time to open a connection to an endpoint.
    pub connect_timeout: Duration,
}

impl fmt::Display for Passthrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, access, connect_timeout: _ } = self;
        match upstream {
            Some(upstream) => write!(f, "-> {upstream}")?,
            None => f.write_str("refused")?,
        }
        access.as_ref().map_or(Ok(()), |access| write!(f, " [{access}]"))
    }
}
