//! The connection's entry in the flow table, by which the kernel programs count its packets for its host.

use std::net::SocketAddr;

use ingress_model::{HostId, Transport};

use super::{Conn, state::CompactAddress};

impl Conn {
    /// Attributes further packets of the connection to `host`.
    pub(super) fn attribute(&self, host: HostId) {
        self.host.set(Some(host));
        if let Some(flows) = &self.worker.shared.flows {
            let (transport, remote) = self.flow();
            flows.insert(transport, remote, self.local(), host);
        }
    }

    /// Moves the entry to the address that a client of HTTP/3 uses now. The address may be forged; then packets from it
    /// count for this host.
    pub(crate) fn moves_to(&self, current: SocketAddr) {
        let (transport, before) = self.flow();
        self.extras().moved.set(Some(CompactAddress::canonical(current)));
        let (_, current) = self.flow();
        if before != current
            && let Some(host) = self.host.get()
            && let Some(flows) = &self.worker.shared.flows
        {
            flows.insert(transport, current, self.local(), host);
            flows.remove(transport, before, self.local());
        }
    }

    /// Removes the entry of an ended connection.
    pub(super) fn leave_flows(&self) {
        if self.host.get().is_some()
            && let Some(flows) = &self.worker.shared.flows
        {
            let (transport, remote) = self.flow();
            flows.remove(transport, remote, self.local());
        }
    }

    /// Returns the protocol and the client's address in packets.
    fn flow(&self) -> (Transport, SocketAddr) {
        if !self.is_http3() {
            return (Transport::Tcp, self.remote());
        }
        let moved = self.extras.get().and_then(|extras| extras.moved.get());
        (Transport::Udp, moved.map_or_else(|| self.remote(), CompactAddress::socket))
    }
}
