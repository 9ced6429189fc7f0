//! The parts of a driver, and the reasons why it cannot begin.

use std::{io, net::UdpSocket, sync::Arc};

use crate::{
    admit::Pressure,
    config::{ConfigError, Limits},
    ids::Ids,
    keys::Keys,
    socket::Datagram,
};

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
    /// Returns the use of the worker's room. The caller may compare its budget of memory with
    /// [`Counters::open`](crate::Counters::open) connections.
    pub pressure: Box<dyn Fn() -> Pressure>,
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
