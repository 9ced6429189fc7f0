//! Services that clients reach by a port of the node of their own, without HTTP: TCP byte by byte, UDP datagram by
//! datagram.

use std::{fmt, num::NonZeroU32, time::Duration};

use super::{ProxyVersion, UpstreamKey};

/// A port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamPort {
    pub transport: Transport,
    /// Never 0.
    pub number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Where a port leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamService {
    /// Its protocol has no meaning here.
    pub upstream: UpstreamKey,
    /// Whether connections begin with a header of the PROXY protocol. Of UDP never.
    pub accepts_proxy_protocol: bool,
    /// The version of the introduction that connections to endpoints begin with, if they do. Of UDP never.
    pub introduction: Option<ProxyVersion>,
}

/// What holds for all stream services alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// How long a connection or a session stays open without a byte or a datagram either way. Default 600 s.
    pub timeout: Duration,
    /// Datagrams that an endpoint answers each of a client's with; a session that has had all its answers need not be
    /// kept. Default 1.
    pub responses: u32,
    /// Sessions of UDP that a worker has open at one time; datagrams of more clients are dropped. Default 4096.
    pub sessions_max: NonZeroU32,
    pub retry: StreamRetry,
}

/// When a connection that could not be opened to one endpoint is opened to another. Of TCP alone: that a datagram got
/// lost is seen when it is no longer there to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRetry {
    /// Endpoints tried in all, at least 1. Default 3.
    pub tries: u32,
    /// No other one after this time; `None` for any. Default 600 s.
    pub within: Option<Duration>,
    /// Default true; else the first endpoint is the only one.
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
    /// More endpoints are never tried.
    pub const TRIES_MAX: u32 = 10;
}

/// `udp/53`.
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

/// As Kubernetes writes it.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}
