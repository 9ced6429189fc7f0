//! What holds for a process from its start: limits, each with its default. It reads no arguments. What may change
//! meanwhile is in [`crate::model::Settings`], which comes with the snapshots.

use std::{num::NonZeroU16, time::Duration};

/// Limits of every worker. A limit of the client's side answers the status its field names.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port for HTTP. Default 80.
    pub http_port: u16,
    /// Port that redirects to HTTPS name. Default 443.
    pub https_port: u16,
    /// How much more the port of an accepted connection may be than the one that its client knows, because the kernel
    /// programs have given its packets another. Default: they have not.
    pub rewrite_offset: Option<NonZeroU16>,
    /// Longest request target in bytes, else 414. RFC 9112, 3, asks for at least 8000. Default 8 KiB.
    pub target_max: usize,
    /// Longest request head in bytes (HTTP/2: header list), else 431. Default 32 KiB; at least 8 KiB.
    pub head_max: usize,
    /// Most header fields of a request, else 431. Default 100.
    pub headers_max: usize,
    /// From accept to the end of the TLS handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// How long a request waits for keys of tokens from a key server that has none yet, before 503. Default 2 s.
    pub key_patience: Duration,
    /// Idle connections kept per worker. Default 4096.
    pub upstream_idle_total: usize,
    /// HTTP/1 connections of clients per worker that are kept warm between two requests: with buffers and all, some 20
    /// KiB each, for the next one. Others are parked. Those whose requests come close together do not count. Default
    /// 64.
    pub warm_max: usize,
    /// How long they are kept warm, to a tick of the worker. Default 1 s.
    pub park_after: Duration,
    /// While draining: how long idle connections stay open, so that clients may send one more request and learn from
    /// its answer (`Connection: close`) that the connection ends, rather than lose a request to a close. Default 5 s.
    pub drain_idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http_port: 80,
            https_port: 443,
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
        }
    }
}
