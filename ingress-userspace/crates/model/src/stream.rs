//! Services without HTTP that clients reach by a separate port of the node: TCP as bytes, UDP as datagrams.

use std::{fmt, num::NonZeroU32, time::Duration};

use super::{ProxyVersion, UpstreamKey};

/// A port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamPort {
    pub transport: Transport,
    /// Port number, never 0.
    pub number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Destination of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamService {
    /// Upstream; its protocol is ignored.
    pub upstream: UpstreamKey,
    /// Whether connections begin with a PROXY protocol header. Always false for UDP.
    pub accepts_proxy_protocol: bool,
    /// PROXY protocol version for connections to endpoints, if used. Always `None` for UDP.
    pub proxy_header: Option<ProxyVersion>,
}

/// Settings of all stream services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Time that a connection or a session stays open without traffic in either direction. Default 600 s.
    pub timeout: Duration,
    /// Number of datagrams with which an endpoint answers each datagram of a client. A session that has received all
    /// its answers may be evicted. Default 1.
    pub responses: u32,
    /// Maximum open UDP sessions per worker; datagrams of further clients are dropped. Default 4096.
    pub sessions_max: NonZeroU32,
    pub retry: StreamRetry,
}

/// Retries at another endpoint after a connection could not be opened. They apply to TCP only: when a lost datagram is
/// detected, its content is no longer available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRetry {
    /// Maximum number of endpoints tried, at least 1. Default 3.
    pub tries: u32,
    /// Time after which no further endpoint is tried; `None` for unlimited. Default 600 s.
    pub within: Option<Duration>,
    /// Whether other endpoints are tried after the first. Default true.
    pub enabled: bool,
}

impl Default for StreamSettings {
    fn default() -> Self {
        const SESSIONS: NonZeroU32 = NonZeroU32::new(4096).unwrap();
        let retry = StreamRetry { tries: 3, within: Some(Duration::from_secs(600)), enabled: true };
        Self { timeout: Duration::from_secs(600), responses: 1, sessions_max: SESSIONS, retry }
    }
}

impl StreamRetry {
    /// Upper limit for `tries`.
    pub const TRIES_MAX: u32 = 10;
}

/// Formats the port, such as `udp/53`.
impl fmt::Display for StreamPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, number } = self;
        let transport = match transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        write!(f, "{transport}/{number}")
    }
}

/// Formats the transport in Kubernetes notation.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}
