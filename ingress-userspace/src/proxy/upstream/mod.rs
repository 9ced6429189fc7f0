//! The upstream side: one HTTP/1.1 exchange over one connection, plain or TLS, polled in the task of the request that
//! needs it; `h2` has the same for HTTP/2, on hyper.
//!
//! Pods are addressed by socket address; picking one, retrying and answering errors is the caller's. HTTP/1.1 has no
//! channel, no lock and no task of its own (ADR 0002); hyper's tasks for HTTP/2 run on the worker. Nothing here is
//! `Send`, because a worker is one thread.
//!
//! ```text
//! Pool ── idle / connect ──▶ Connection ── begin ──▶ Begun ──▶ Response<ResponseBody>
//!   ▲                                                             │ reads the socket, sends the rest of the request
//!   └──────────────────────── at the body's end ◀─────────────────┘
//! ```
//!
//! `head`, its lines in `section`, their `names` and `framing` are pure (bytes in, values out) and are what the fuzz
//! target `upstream_response` drives; `upload` sends, `exchange` and `body` read, `stream` and `tls` carry,
//! `connection` waits, `tunnel` copies after a WebSocket handshake, `pool` and `buffer` keep what can be used again.
//!
//! Time-outs cost no timer per read: see `timer`.

use std::time::Duration;

pub use body::ResponseBody;
pub use connection::{Connection, Target, Transport};
pub use error::{BodyError, BoxError, ConnectError, ExchangeError, Failure, Malformed, Waiting};
pub use exchange::{Begun, Rest, Upgraded, begin, exchange, upgrade};
pub use head::{Accept, write_header, write_request_line};
pub use pool::{Pool, PoolOptions};
pub use tls::Connector;
pub use tunnel::{Passed, Tunnel, TunnelError, watch};
pub use upload::{Outgoing, Part};

/// Bounds of one exchange, and how its response is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest wait for a new connection, TLS handshake and all; 5 s.
    pub connect_timeout: Duration,
    /// Longest wait between two reads once the request is sent; 60 s. While the client still owes a part of the
    /// request's body, it is the client that is waited for, and `client_timeout` runs instead.
    pub read_timeout: Duration,
    /// Longest wait for more of the request's body while the upstream says nothing either; 60 s.
    pub client_timeout: Duration,
    /// Longest wait between two writes while the upstream takes no bytes; 60 s.
    pub send_timeout: Duration,
    /// Largest response head in bytes; 64 KiB.
    pub head_max: usize,
    /// Most header fields of a response, and of its trailers; 100. Values over [`head::HEADERS_MAX`] count as that.
    pub headers_max: usize,
    /// Whether values of fields are slices of a copy of the whole head, rather than of the buffer that it was read into;
    /// not by default.
    /// For whoever keeps some for long, as an HTTP/2 connection does in its HPACK table (RFC 7541, 2.3.2): each would
    /// keep 16 KiB from being used again. To `h2`, whose buffers are hyper's, it means nothing.
    pub copies_fields: bool,
}

impl Default for Limits {
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

#[cfg(test)]
mod tests;
