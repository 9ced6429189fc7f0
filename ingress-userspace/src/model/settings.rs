//! What holds for every host: limits and time-outs that an operator sets, each with its default. It reads nothing.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{AccessLog, Blocked, ClientLimits, Escalation, Handshakes, StreamSettings, Traces, Trust};

/// Settings that apply to all hosts alike and may change while requests are under way; a connection takes those of the
/// snapshot it began with, a request those of the snapshot it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// From the first byte of a request head to its last. Default 10 s.
    pub head_timeout: Duration,
    /// How long a connection without a request in flight stays open. Default 75 s.
    pub idle_timeout: Duration,
    /// Longest pause within a request body, and longest time that a client takes no byte of a response. Default 60 s.
    pub stall_timeout: Duration,
    /// Streams open at one time on one HTTP/2 connection. Default 128.
    pub streams_max: u32,
    /// Whether HTTP/2 is offered in TLS handshakes (RFC 7301), and spoken with clients that begin with it in the clear
    /// (RFC 9113, 3.3). Default true.
    pub http2: bool,
    /// Of new connections.
    pub handshakes: Handshakes,
    /// Idle connections kept per endpoint and worker. As many as requests come at one time, or each burst opens and
    /// closes connections. Default 512.
    pub upstream_idle_per_endpoint: usize,
    /// How long an idle connection to an endpoint is kept. Below the 60 s after which common servers close theirs, so
    /// that reuse seldom meets a closing peer. Default 55 s.
    pub upstream_idle_timeout: Duration,
    /// What is written of each request; nothing by default.
    pub access_log: Option<Arc<AccessLog>>,
    /// Where traces go; nowhere by default.
    pub traces: Option<Arc<Traces>>,
    /// Client connections that a worker has open at one time; more are closed. Default 65 536.
    pub connections_max: Option<NonZeroU32>,
    /// The same for one client, on all workers; hops that are trusted are none. Default none.
    pub connections_per_client: Option<NonZeroU32>,
    /// Who is let in nowhere. Default nobody.
    pub blocked: Option<Arc<Blocked>>,
    /// How much each client may send to a node. Default anything.
    pub client_limits: ClientLimits,
    /// Who is denied because of what was refused. Default nobody.
    pub escalation: Option<Escalation>,
    /// Holds for requests from the moment it is published, and, as far as it is about the beginnings of connections,
    /// for new ones.
    pub trust: Trust,
    pub streams: StreamSettings,
    pub refused_paths: RefusedPaths,
    /// Whether pods get fields whose names have `_` in them. To many of them it is the same as `-`. Default false.
    pub underscores: bool,
}

/// Paths that are refused by their text alone, wherever they lead. Default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedPaths {
    /// With `;`, escaped or not, which some pods cut away with what follows it.
    pub parameters: bool,
    /// With an escaped escape, which is another path to whoever decodes twice.
    pub double_escapes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            streams_max: 128,
            http2: true,
            handshakes: Handshakes::default(),
            upstream_idle_per_endpoint: 512,
            upstream_idle_timeout: Duration::from_secs(55),
            access_log: None,
            traces: None,
            connections_max: NonZeroU32::new(65_536),
            connections_per_client: NonZeroU32::new(16_384),
            blocked: None,
            client_limits: ClientLimits::default(),
            escalation: None,
            trust: Trust::default(),
            streams: StreamSettings::default(),
            refused_paths: RefusedPaths::default(),
            underscores: false,
        }
    }
}
