//! WebSocket handshakes on a connection of HTTP/1, and the tunnel that follows one.

use super::{Conn, state::HandshakeState};
use crate::downstream::tunnel::Tunnel;

impl Conn {
    /// Records that the head of a WebSocket handshake was read.
    pub(crate) fn handshake(&self) {
        self.handshake.set(HandshakeState::Asked);
    }

    /// Returns whether a WebSocket handshake waits for its response. Earlier requests on the connection may still be in
    /// flight.
    pub(crate) fn is_asked_handshake(&self) -> bool {
        self.handshake.get() == HandshakeState::Asked
    }

    /// Declines the handshake, which gets a response like any other request.
    pub(crate) fn decline(&self) {
        self.handshake.set(HandshakeState::Declined);
        self.wake();
    }

    /// Returns whether the handshake was declined, and clears that state.
    pub(crate) fn take_declined(&self) -> bool {
        let declined = self.handshake.get() == HandshakeState::Declined;
        if declined {
            self.handshake.set(HandshakeState::None);
        }
        declined
    }

    /// Turns the connection into a tunnel after the next response that hyper sends.
    pub(crate) fn switch(&self, tunnel: Tunnel) {
        self.tunnel.set(Some(Box::new(tunnel)));
    }

    pub(crate) fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.take()
    }
}
