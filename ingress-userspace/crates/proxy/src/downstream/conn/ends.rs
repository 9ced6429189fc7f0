//! The two ends of a connection: the peer, as the socket or a PROXY protocol header names it, and the address it came to.

use std::net::{IpAddr, SocketAddr};

use ingress_model::ProxyVersion;

use super::Conn;
use crate::{
    downstream::proxy_protocol::{Header, ProxyHeader},
    http::client_address::Peer,
    limits::violations::Violation,
};

impl Conn {
    /// Returns the address that the connection comes from.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote.socket()
    }

    /// Returns the address that the connection was made to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local.socket()
    }

    /// Returns the peer: from the PROXY protocol header if there is one, and otherwise from the socket.
    pub(crate) fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| Peer::new(self.remote().ip(), self.secure, self.local().port()))
    }

    /// Sets the peer from a PROXY protocol header with `source` and `destination`. Returns `false` if the peer was
    /// already set or used.
    pub(crate) fn meet(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let peer = Peer::proxied(source.ip(), self.secure, destination.port());
        self.peer.set(peer).is_ok() && self.ends.set(Box::new((source, destination))).is_ok()
    }

    /// Records a violation by the peer, if violations escalate and the peer is a client, not a proxy.
    pub(crate) fn offend(&self, violation: Violation) {
        let (settings, peer) = (self.worker.settings(), self.remote().ip());
        let Some(escalation) = settings.escalation.as_ref().filter(|asked| violation.counts(asked)) else { return };
        // Trusted proxies of the settings when the connection began, and of the current ones.
        let is_trusted = self.settings.trust.is_trusted_peer(peer) || settings.trust.is_trusted_peer(peer);
        if self.ends.get().is_none() && !is_trusted {
            self.worker.shared.violations.note(violation, peer, escalation, self.worker.clock());
        }
    }

    /// Returns the PROXY protocol header for a connection to an endpoint on behalf of `client`. The port of a client
    /// that a trusted proxy has named is unknown.
    pub(crate) fn proxy_header(&self, version: ProxyVersion, client: IpAddr) -> ProxyHeader {
        let (source, destination) = self.ends.get().map_or((self.remote(), self.local()), |ends| **ends);
        let source = if source.ip() == client { source } else { SocketAddr::new(client, 0) };
        ProxyHeader { version, header: Header::Proxied { source, destination } }
    }
}
