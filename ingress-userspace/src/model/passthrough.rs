//! TLS that is the pods' own: connections for a host that are passed on by the server name alone.

use std::{fmt, sync::Arc, time::Duration};

use super::{Access, UpstreamKey};

/// Where connections over TLS for a host are passed on to, as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// `None` ends them: there is no such service, or who comes in could only be known by reading what they send.
    pub upstream: Option<UpstreamKey>,
    /// Who may come in, by address.
    pub access: Option<Arc<Access>>,
    /// Opening a connection to an endpoint.
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
