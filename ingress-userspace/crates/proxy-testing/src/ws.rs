//! A WebSocket handshake, and a pod that answers it.

use crate::Peer;

/// Header fields of the handshake.
pub const FIELDS: &str = "Host: a.test\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
pub const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

pub fn handshake() -> String {
    format!("GET /chat HTTP/1.1\r\n{FIELDS}\r\n")
}

/// Accepts a handshake and sends everything back, until the client ends its side.
pub fn echo(peer: &mut Peer) {
    if peer.head().is_some() {
        peer.send(format!("{SWITCH}hello"));
        loop {
            let received = peer.take();
            peer.send(received);
            if !peer.more() {
                break;
            }
        }
        peer.send("bye");
    }
}
