//! The table by which the kernel programs count the packets of a connection for its host.

use std::net::SocketAddr;

use ingress_model::{HostId, Transport};

/// Table that maps connections to hosts, for the kernel's per-packet counters.
///
/// `insert` is called once per connection in the common case, and again whenever the host changes. Where packets of
/// clients are limited, it is also called at accept. A connection of HTTP/3 whose client changes its address gets another
/// entry, and loses the one before. Addresses are as the sockets have them, with v4-mapped ones
/// already turned into IPv4.
pub trait FlowTable: Send + Sync {
    fn insert(&self, transport: Transport, remote: SocketAddr, local: SocketAddr, host: HostId);
    /// Removes a connection that has closed or moved. Only called after an `insert`.
    fn remove(&self, transport: Transport, remote: SocketAddr, local: SocketAddr);
}
