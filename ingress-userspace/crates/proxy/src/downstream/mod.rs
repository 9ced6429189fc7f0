//! The connection of a client: accepting and opening it, the bytes that arrive and leave, and the strict framing of
//! HTTP/1 and HTTP/2 beside hyper. It knows no routes.

pub(crate) mod accept;
pub(crate) mod buffer_size;
pub(crate) mod conn;
pub(crate) mod h1_framing;
pub(crate) mod h2_backlog;
pub(crate) mod h2_frames;
pub(crate) mod h2_slow_start;
pub(crate) mod h2_stalled_frames;
pub(crate) mod h2_write_coalescer;
pub(crate) mod h3_server;
pub(crate) mod h3_tunnel;
pub(crate) mod http_server;
pub(crate) mod io;
pub(crate) mod open;
pub(crate) mod pace;
pub(crate) mod park;
pub(crate) mod progress;
pub mod proxy_protocol;
pub(crate) mod refusal;
pub(crate) mod reserve;
pub(crate) mod response_splice;
pub(crate) mod tunnel;
pub(crate) mod upload_splice;
pub(crate) mod vectored_write;
pub(crate) mod warm;
pub(crate) mod wire;
