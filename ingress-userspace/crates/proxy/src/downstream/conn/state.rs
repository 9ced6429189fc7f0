//! Parts of the state of a connection. They know nothing of the connection itself.

use std::net::{IpAddr, SocketAddr};

use tokio::task::{self, AbortHandle};

/// A [`SocketAddr`] without the fields for link-local addresses, in two thirds of its size.
#[derive(Clone, Copy)]
pub(super) struct CompactAddress {
    ip: IpAddr,
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnProtocol {
    Http1,
    /// HTTP/2 before the first request.
    NewHttp2,
    Http2,
    Http3,
}

/// A task that hyper spawned.
pub(super) struct Spawned {
    /// The task that polled hyper at that time.
    pub(super) by: Option<task::Id>,
    pub(super) task: AbortHandle,
}

/// The state of a WebSocket handshake on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeState {
    None,
    /// Its head was read; the following bytes wait for the response.
    Asked,
    /// The request turned out to be an ordinary one, or its response is not a 101.
    Declined,
}

impl CompactAddress {
    pub(super) const fn canonical(address: SocketAddr) -> Self {
        Self { ip: address.ip().to_canonical(), port: address.port() }
    }

    pub(super) const fn socket(self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}
