//! Process-wide options, fixed at start: mostly limits, each with its default. It parses no arguments. Settings that
//! may change at run time are in [`ingress_model::Settings`], which is part of each snapshot.

use std::{num::NonZeroU16, time::Duration};

use crate::server::seccomp::Seccomp;

/// Limits of every worker. For limits on clients, the field's doc names the response status.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port for HTTP. Default 80.
    pub http_port: u16,
    /// Port that redirects to HTTPS name. Default 443.
    pub https_port: u16,
    /// Port of HTTP/3 that responses tell clients in `Alt-Svc`. Default: HTTP/3 is not served.
    pub http3_advertise_port: Option<u16>,
    /// Offset between the local port of an accepted connection and the port that its client connected to, where the
    /// kernel programs rewrite ports. Default: no rewriting.
    pub rewrite_offset: Option<NonZeroU16>,
    /// Longest request target in bytes; longer ones get 414. RFC 9112, 3, recommends at least 8000. Default 8 KiB.
    pub target_max: usize,
    /// Longest request head in bytes (HTTP/2: header list); longer ones get 431. Default 32 KiB; at least 8 KiB.
    pub head_max: usize,
    /// Most header fields of a request; more get 431. Default 100.
    pub headers_max: usize,
    /// Time from accept to the end of the TLS handshake over TCP. Default 5 s. Handshakes of HTTP/3 have 20 s.
    pub handshake_timeout: Duration,
    /// How long a request waits for the first keys of a JWKS endpoint before 503. Default 2 s.
    pub key_patience: Duration,
    /// Idle connections kept per worker. Default 4096.
    pub upstream_idle_total: usize,
    /// Idle HTTP/1 client connections per worker that are kept warm, with their buffers (about 20 KiB each), for the
    /// next request. Further ones are parked. Connections with requests in quick succession do not count. Default 64.
    pub warm_max: usize,
    /// How long an idle connection stays warm, to a tick of the worker. Default 1 s.
    pub park_after: Duration,
    /// While draining: how long idle connections stay open. Clients may send one more request and learn from its
    /// response (`Connection: close`) that the connection ends, rather than lose a request to a close. A client of
    /// HTTP/3 that is silent for so long is asked whether it lives, and is given up after the same time again. Default 5 s.
    pub drain_idle: Duration,
    /// Action on a system call outside the allowed set, for workers and the thread of health checks. Default: the
    /// process ends.
    pub seccomp: Seccomp,
    /// Whether the time to the head of a response is counted, by upstream. Default: no.
    pub times_upstreams: bool,
    /// Whether the start fails without support for system call filters. Default: it continues, with a warning.
    pub needs_seccomp: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http_port: 80,
            https_port: 443,
            http3_advertise_port: None,
            rewrite_offset: None,
            target_max: 8 * 1024,
            head_max: 32 * 1024,
            headers_max: 100,
            handshake_timeout: Duration::from_secs(5),
            key_patience: Duration::from_secs(2),
            upstream_idle_total: 4096,
            warm_max: 64,
            park_after: Duration::from_secs(1),
            drain_idle: Duration::from_secs(5),
            seccomp: Seccomp::Kill,
            times_upstreams: false,
            needs_seccomp: false,
        }
    }
}
