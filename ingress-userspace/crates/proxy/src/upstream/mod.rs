//! The upstream side: one HTTP/1.1 exchange over one connection, plain or TLS, polled in the task of the request that
//! needs it. `h2` is the counterpart for HTTP/2, based on hyper.
//!
//! Pods are addressed by socket address. The caller picks an endpoint, retries, and responds to errors. HTTP/1.1 uses
//! no channel, no lock and no task of its own (ADR 0002); hyper's tasks for HTTP/2 run on the worker. Nothing here is
//! `Send`, because a worker is one thread.
//!
//! ```text
//! Pool ── idle / connect ──▶ Connection ── begin ──▶ Begun ──▶ Response<ResponseBody>
//!   ▲                                                             │ reads the socket, sends the rest of the request
//!   └──────────────────────── at the body's end ◀─────────────────┘
//! ```
//!
//! `head`, its lines in `section`, their `names` and `framing` are pure (bytes in, values out); the fuzz target
//! `upstream_response` tests them. `upload` sends, `exchange` and `body` read, `stream` and `tls` are the transport,
//! `connection` has the timeouts, `tunnel` copies after a WebSocket handshake, and `pool` and `buffer` keep connections
//! and memory for reuse.
//!
//! Timeouts cost no timer per read: see `timer`.

use std::time::Duration;

pub use body::ResponseBody;
pub use connection::{ConnectTarget, Connection, UpstreamTransport};
pub use error::{BodyError, BoxError, ConnectError, ExchangeError, ExchangeFailure, Malformed, TimeoutPhase};
pub use exchange::{BegunExchange, RequestRemainder, Upgraded, begin, exchange, upgrade};
pub use head::{Accept, write_header, write_request_line};
pub use pool::{Pool, PoolOptions};
pub use tls::Connector;
pub use tunnel::{TunnelBytes, TunnelError, UpstreamTunnel, watch};
pub use upload::{BodyPart, Outgoing};

/// Limits of one exchange, and how its response is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeLimits {
    /// Longest wait for a new connection, including the TLS handshake; 5 s.
    pub connect_timeout: Duration,
    /// Longest wait between two reads once the request is sent; 60 s. While a part of the request's body is still
    /// missing, the client is late and `client_timeout` applies instead.
    pub read_timeout: Duration,
    /// Longest wait for more of the request's body while the upstream sends nothing either; 60 s.
    pub client_timeout: Duration,
    /// Longest wait between two writes while the upstream accepts no bytes; 60 s.
    pub send_timeout: Duration,
    /// Largest response head in bytes; 64 KiB.
    pub head_max: usize,
    /// Most header fields of a response, and of its trailers; 100. Larger values than [`head::HEADERS_MAX`] count as
    /// that.
    pub headers_max: usize,
    /// Whether field values are slices of a copy of the head instead of the read buffer; off by default. Useful for
    /// consumers that keep some values for long, such as the HPACK table of an HTTP/2 connection (RFC 7541, section
    /// 2.3.2): each such value would prevent the reuse of 16 KiB. It has no effect in `h2`, where the buffers are
    /// hyper's.
    pub copies_fields: bool,
}

impl Default for ExchangeLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(60),
            client_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            head_max: 64 * 1024,
            headers_max: 100,
            copies_fields: false,
        }
    }
}

mod body;
mod buffer;
mod connection;
mod error;
mod exchange;
pub mod framing;
pub mod h2;
pub mod head;
mod names;
mod pool;
mod section;
mod stream;
mod timer;
mod tls;
mod tunnel;
mod upload;
mod verifier;

pub(crate) mod balance;
pub(crate) mod health_check;
pub(crate) mod permit;
pub(crate) mod subrequest;
#[cfg(test)]
mod tests;
