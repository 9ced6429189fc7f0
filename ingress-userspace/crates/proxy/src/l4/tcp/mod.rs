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
pub use hello::{HELLO_MAX, HelloReader, Seen};
pub use relay::{Passed, Relay, RelayError};
pub(crate) use serve::{pass_through, serve};

#[cfg(test)]
mod tests;
