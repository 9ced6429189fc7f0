//! What an operator may set on the request path: limits and time-outs, each with its default. It reads no arguments.

use std::time::Duration;

/// Limits and time-outs of every worker. A limit of the client's side answers the status its field names.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port that redirects to HTTPS name. Default 443.
    pub https_port: u16,
    /// Longest request target in bytes, else 414. RFC 9112, 3, asks for at least 8000. Default 8 KiB.
    pub target_max: usize,
    /// Longest request head in bytes (HTTP/2: header list), else 431. Default 32 KiB; at least 8 KiB.
    pub head_max: usize,
    /// Most header fields of a request, else 431. Default 100.
    pub headers_max: usize,
    /// From the first byte of a request head to its last. Default 10 s.
    pub head_timeout: Duration,
    /// How long a connection without a request in flight stays open. Default 75 s.
    pub idle_timeout: Duration,
    /// Longest pause within a request body, and longest time that a client takes no byte of a response. Ends the connection, or
    /// the stream of HTTP/2; a body that stops before there is a response gets 408 where it still can. Default 60 s.
    pub stall_timeout: Duration,
    /// From accept to the end of the TLS handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// Streams open at one time on one HTTP/2 connection. Default 128.
    pub streams_max: u32,
    /// Opening a connection to an endpoint. Default 5 s.
    pub connect_timeout: Duration,
    /// Longest silence of an endpoint before and within a response, else 504 where no byte went out. Default 60 s.
    pub upstream_read_timeout: Duration,
    /// Longest time that an endpoint takes no byte of a request. Default 60 s.
    pub upstream_send_timeout: Duration,
    /// Idle connections kept per endpoint and worker. As many as requests come at one time, or each burst opens and closes
    /// connections. Default 512.
    pub upstream_idle_per_endpoint: usize,
    /// Idle connections kept per worker. Default 4096.
    pub upstream_idle_total: usize,
    /// How long an idle connection to an endpoint is kept. Below the 60 s after which common servers close theirs, so
    /// that reuse seldom meets a closing peer. Default 55 s.
    pub upstream_idle_timeout: Duration,
    /// While draining: how long idle connections stay open, so that clients may send one more request and learn from its
    /// answer (`Connection: close`) that the connection ends, rather than lose a request to a close. Default 5 s.
    pub drain_idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            https_port: 443,
            target_max: 8 * 1024,
            head_max: 32 * 1024,
            headers_max: 100,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(5),
            streams_max: 128,
            connect_timeout: Duration::from_secs(5),
            upstream_read_timeout: Duration::from_secs(60),
            upstream_send_timeout: Duration::from_secs(60),
            upstream_idle_per_endpoint: 512,
            upstream_idle_total: 4096,
            upstream_idle_timeout: Duration::from_secs(55),
            drain_idle: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// How often a worker looks for connections that are over their time: a quarter of the shortest time-out, so that none
    /// is overrun by more than that, but never more often than every 10 ms nor less often than every second.
    pub(super) fn tick(&self) -> Duration {
        let shortest = self.head_timeout.min(self.idle_timeout).min(self.stall_timeout).min(self.drain_idle);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}
