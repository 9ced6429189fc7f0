//! TCP streams: connections of any protocol, relayed byte by byte.
//!
//! ```text
//! 443: hello (peek) ─▶ host that passes through ─┐
//!                                                ├─▶ serve ─▶ connect ─▶ relay (splice through a pipe) ─▶ pod
//! port of a TCP service ─▶ service ──────────────┘
//! ```

mod hello;
mod relay;
mod serve;

pub use crate::l4::pipe::Pipes;
pub use hello::{HELLO_MAX, HelloReader, ParsedHello};
pub(crate) use relay::reset;
pub use relay::{Relay, RelayError, RelayedBytes};
pub(crate) use serve::{pass_through, serve, serve_terminated, terminating_listener};

#[cfg(test)]
mod tests;
