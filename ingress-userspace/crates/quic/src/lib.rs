//! QUIC and HTTP/3 of one worker thread, without locks or channels: [`Driver`] owns a UDP socket and `quinn_proto`'s
//! connections, and asks a service for the response to each request. Requests are tasks of the same thread, which read
//! and write their streams directly.
//!
//! The crate knows no pods, routes or certificates. The caller gives it a bound socket, a TLS configuration, the keys of
//! the node, and the layout of connection IDs, which decides about the worker that gets a packet.

#![forbid(unsafe_code)]

mod admit;
mod allowance;
mod amplification;
mod body;
mod config;
mod conn;
mod connection;
mod driver;
mod exchange;
mod firsts;
mod held;
mod ids;
mod keys;
mod lifetime;
mod moves;
mod options;
mod padding;
#[cfg(test)]
mod pair;
mod respond;
mod shared;
mod socket;
mod timers;

pub use admit::{FirstPacket, Pressure};
pub use body::{BodyError, RequestBody};
pub use config::{ConfigError, Limits};
pub use driver::Driver;
pub use ids::{Ids, LENGTH as ID_LENGTH, NONCE as ID_NONCE, NodeIds, Owner};
pub use keys::Keys;
pub use options::{DriverError, Opened, Options, TlsAt, TlsOf};
pub use quinn_proto::EcnCodepoint;
pub use shared::{Counters, Handle, Held, Peer};
pub use socket::Datagram;

/// The `:protocol` of an extended CONNECT (RFC 9220), among the extensions of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(pub http::HeaderValue);
