//! An opened connection of a client: its byte stream, in the clear or over TLS.

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::limits::CountGuard;

/// Transport of a client's connection.
pub(crate) enum Io {
    Plain(TcpStream),
    /// Boxed to keep its size out of plain connections.
    Tls(Box<TlsStream<TcpStream>>),
}

/// An open connection.
pub(crate) struct Opened {
    pub(crate) io: Io,
    /// The connection's share of its client's limit, if there is one.
    pub(crate) counted: Option<CountGuard>,
}
