//! Opaque streams: connections whose bytes are passed on as they are, whatever is spoken on them.

mod pipe;
mod relay;

pub use pipe::Pipes;
pub use relay::{Passed, Relay, RelayError};

#[cfg(test)]
mod tests;
