//! HTTP/3 (RFC 9114) of a server, without IO: bytes go in, events and bytes come out. The crate knows no QUIC library,
//! no clock and no pods. Its caller reads and writes the streams, and resets a stream or closes the connection for each
//! [`Error`].
//!
//! ```text
//!  request stream ─▶ FrameDecoder ─▶ Headers ─▶ section::request ─▶ http::request::Parts
//!                               └──▶ Data ────▶ BodyLength
//!                               └──▶ Trailers ▶ section::trailers
//!  unidirectional ─▶ UniStream (with PeerStreams) ─▶ Settings, GoAway, PriorityUpdate
//!  status and HeaderMap  ─▶ response::head ─▶ HEADERS     settings::Local ─▶ our control stream
//! ```
//!
//! QPACK (RFC 9204) uses the static table alone. Our settings announce a dynamic table of capacity 0, so no stream waits
//! for another one. Rules are strict: a request that two readers could understand differently is refused. The crate
//! checks no host names: the proxy does so for each protocol in the same place.
#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod frame;
pub mod priority;
pub mod qpack;
pub mod response;
pub mod section;
pub mod settings;
pub mod varint;

pub use control::{PeerStreams, UniEvent, UniStream};
pub use error::{Code, Error, Refusal, Scope};
pub use frame::{Event, FrameDecoder};
pub use priority::Priority;
pub use section::{BodyLength, Request};
pub use settings::{Local, Settings};

#[cfg(test)]
mod tests;
