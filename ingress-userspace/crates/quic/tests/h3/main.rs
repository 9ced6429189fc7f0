//! HTTP/3 over real sockets on loopback. The clients are quinn and h3, which share no HTTP/3 with this crate; for
//! malformed input they are quinn's streams alone.

#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

mod drains;
mod errors;
mod floods;
mod lifetime;
mod paths;
mod relay;
mod requests;
mod support;
mod transport;
mod workers;
