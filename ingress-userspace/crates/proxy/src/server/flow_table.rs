//! The table by which the kernel programs count the packets of a connection for its host.

use std::net::SocketAddr;

use ingress_model::HostId;

/// Table that maps connections to hosts, for the kernel's per-packet counters.
///
/// `insert` is called once per connection in the common case, and again whenever the host changes. Where packets of
/// clients are limited, it is also called at accept. Addresses are as the sockets have them, with v4-mapped ones
/// already turned into IPv4.
pub trait FlowTable: Send + Sync {
    fn insert(&self, remote: SocketAddr, local: SocketAddr, host: HostId);
    /// Removes a closed connection. Only called after an `insert`.
    fn remove(&self, remote: SocketAddr, local: SocketAddr);
}
