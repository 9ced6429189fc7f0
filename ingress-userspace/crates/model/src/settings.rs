//! Settings of all hosts: limits and time-outs of an operator, each with its default. Nothing is read here.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::{AccessLog, Blocked, ClientLimitSettings, Escalation, Handshakes, StreamSettings, Traces, Trust};

/// Settings that apply to all hosts and may change while requests are in flight. A connection uses the snapshot at its
/// start, a request the snapshot that it was routed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time from the first to the last byte of a request head. Default 10 s.
    pub head_timeout: Duration,
    /// Maximum size of a request head in bytes, over every version of HTTP; larger ones get 431. Default: that of the process.
    pub request_head_max: Option<usize>,
    /// Time that a connection without a request in flight stays open. Default 75 s.
    pub idle_timeout: Duration,
    /// Maximum pause within a request body, and maximum time that a client accepts no byte of a response. Default 60 s.
    pub stall_timeout: Duration,
    /// Minimum bytes per second of a request body, and of a client's reads of responses. Only time spent waiting for
    /// the client counts. Default 240, like Kestrel.
    pub body_min_rate: Option<NonZeroU32>,
    pub read_min_rate: Option<NonZeroU32>,
    /// Maximum concurrent streams per connection of HTTP/2 or HTTP/3. Default 128.
    pub streams_max: u32,
    /// Whether HTTP/2 is offered in TLS handshakes (RFC 7301), and accepted in the clear by prior knowledge (RFC 9113,
    /// 3.3). Default true.
    pub http2: bool,
    /// Whether HTTP/3 is served and offered, by nodes that have sockets for it. Default true.
    pub http3: bool,
    /// Handshakes of new connections.
    pub handshakes: Handshakes,
    /// Idle connections kept per endpoint and worker. The value should cover a burst of requests, or each burst opens
    /// and closes connections. Default 512.
    pub upstream_idle_per_endpoint: usize,
    /// Time that an idle connection to an endpoint is kept. The default is below the 60 s after which common servers
    /// close theirs, so that a reused connection seldom meets a closing peer. Default 55 s.
    pub upstream_idle_timeout: Duration,
    /// Access log; disabled by default.
    pub access_log: Option<Arc<AccessLog>>,
    /// Export of traces; disabled by default.
    pub traces: Option<Arc<Traces>>,
    /// Maximum open client connections per worker; further ones are closed. Default 65 536.
    pub connections_max: Option<NonZeroU32>,
    /// The same limit for one client, over all workers; trusted proxies are exempt. Default unlimited.
    pub connections_per_client: Option<NonZeroU32>,
    /// Clients blocked for all hosts. Default none.
    pub blocked: Option<Arc<Blocked>>,
    /// Packet limits per client and node. Default unlimited.
    pub client_limits: ClientLimitSettings,
    /// Denial of clients after repeated refusals. Default disabled.
    pub escalation: Option<Escalation>,
    /// Trusted proxies. Changes apply to new requests at once; the parts about the beginning of a connection apply to
    /// new connections.
    pub trust: Trust,
    pub streams: StreamSettings,
    pub refused_paths: RefusedPaths,
    /// Whether fields with `_` in their name are forwarded. Many pods treat it like `-`. Default false.
    pub underscores: bool,
}

/// Paths refused by their text alone, regardless of the rule. Default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedPaths {
    /// With `;`, escaped or not. Some pods cut it off with the text behind it.
    pub parameters: bool,
    /// With an escaped escape, which becomes another path if decoded twice.
    pub double_escapes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            request_head_max: None,
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            body_min_rate: NonZeroU32::new(240),
            read_min_rate: NonZeroU32::new(240),
            streams_max: 128,
            http2: true,
            http3: true,
            handshakes: Handshakes::default(),
            upstream_idle_per_endpoint: 512,
            upstream_idle_timeout: Duration::from_secs(55),
            access_log: None,
            traces: None,
            connections_max: NonZeroU32::new(65_536),
            connections_per_client: NonZeroU32::new(16_384),
            blocked: None,
            client_limits: ClientLimitSettings::default(),
            escalation: None,
            trust: Trust::default(),
            streams: StreamSettings::default(),
            refused_paths: RefusedPaths::default(),
            underscores: false,
        }
    }
}
