//! The parts of a driver, and the reasons why it cannot begin.

use std::{
    any::Any,
    io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
};

use crate::{
    admit::{FirstPacket, Pressure},
    config::{ConfigError, Limits},
    ids::Ids,
    keys::Keys,
    shared::Peer,
    socket::Datagram,
};

/// Returns the caller's value for a connection whose handshake is complete.
pub type Opened = Box<dyn Fn(&Rc<Peer>) -> Option<Rc<dyn Any>>>;

/// Returns the address that a client uses for us, if this has a TLS of its own.
pub type TlsAt = Box<dyn Fn(&FirstPacket) -> Option<SocketAddr>>;

/// Returns the TLS of an address.
pub type TlsOf = Box<dyn Fn(SocketAddr) -> rustls::ServerConfig>;

/// The parts of a driver.
pub struct Options {
    /// A bound socket; with `SO_REUSEPORT` if there are several workers.
    pub socket: UdpSocket,
    /// TLS with certificates. Application protocols and early data are replaced.
    pub tls: rustls::ServerConfig,
    /// The keys of the node.
    pub keys: Keys,
    /// The connection IDs of this worker.
    pub ids: Arc<dyn Ids>,
    /// Limits of the worker and its connections.
    pub limits: Limits,
    /// Returns the use of the worker's room, for a client's first packet. It is called once for each of them. The caller
    /// may compare its budget of memory with [`Counters::open`](crate::Counters::open) connections.
    pub pressure: Box<dyn Fn(&FirstPacket) -> Pressure>,
    /// Tells for a client's first packet whether `tls_of` has its TLS, instead of `tls`.
    pub tls_at: TlsAt,
    /// Its value is kept for up to 256 addresses, until [`Handle::configure`](crate::Handle::configure). Application
    /// protocols and early data are replaced, too.
    pub tls_of: TlsOf,
    /// Called at the end of each handshake. The value belongs to the connection ([`Peer::context`]) and is dropped at
    /// its end. Without one, the connection is closed at once.
    pub opened: Opened,
    /// Called when an open connection has packets of its client from another address, [`Peer::current`]. Nothing has
    /// proven that address.
    pub moved: Box<dyn Fn(&Peer)>,
    /// Takes datagrams for the connections of a sibling, by its number. The sibling's thread gives them to
    /// [`Handle::inject`](crate::Handle::inject).
    pub forward: Box<dyn FnMut(u8, Datagram)>,
}

/// A driver that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The configuration does not suit QUIC.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket does not suit QUIC.
    #[error("cannot use the UDP socket for QUIC")]
    Socket(#[source] io::Error),
}
