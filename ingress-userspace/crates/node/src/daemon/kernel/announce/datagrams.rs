//! Datagrams among the nodes: what this node hears and says, and the keys that sign it.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Holding,
    auth::{Datagram, LONGEST_SIGNED},
    messages::{Hello, Message, Serves},
    peers::Members,
};
use crate::node::Mac;

impl Holding {
    /// Waits for another node and takes note of it. Cancel-safe. Never returns without a pool.
    pub(in crate::daemon::kernel) async fn hear(&mut self) {
        let Some(sockets) = &mut self.sockets else { return std::future::pending().await };
        let mut bytes = [0; LONGEST_SIGNED + 1];
        let (interface, length) = sockets.hear(&mut bytes).await;
        let Some(datagram) = Datagram::decode(&bytes[..length]) else { return };
        let (message, now) = (datagram.message, Instant::now());
        // Another installation may have another key.
        if message.pool() != self.pool {
            return;
        }
        if let Err(refusal) = self.authenticator.verify(&datagram, interface, unix_ms()) {
            return self.alarm.refuse(refusal, message.node(), now);
        }
        let Self { below, moves, members, is_crowded, .. } = self;
        match (message, interface) {
            (Message::Serves(Serves { node, mac, .. }), Some(interface)) if self.forwards => {
                match below.get(&interface) {
                    Some(ports) => ports.iter().for_each(|port| moves.hear(node, (*port, mac), now)),
                    None => moves.hear(node, (interface, mac), now),
                }
            }
            (Message::Serves(_), _) => {}
            (Message::Hello(hello), _) => {
                let is_noted = members.hear(&hello, now);
                if !is_noted && !std::mem::replace(is_crowded, true) {
                    warn!(
                        limit = Members::MAX,
                        "there are more nodes on this link than can announce addresses; further ones are ignored"
                    );
                }
            }
        }
    }

    /// Reads the file of the keys again if it is time.
    pub(super) fn read_keys(&mut self, now: Instant) {
        let Some(file) = &mut self.key_file else { return };
        match file.read_again(now) {
            None => {}
            Some(Ok(keys)) => {
                let count = keys.len();
                if self.authenticator.replace(keys) {
                    info!(count, "the keys of `--gateway-address-key-file` changed");
                }
            }
            Some(Err(error)) => warn!(
                path = %file.path().display(),
                error = &error as &dyn std::error::Error,
                "cannot use the changed file of `--gateway-address-key-file`; the keys before stay in use"
            ),
        }
    }

    /// Tells other nodes that this one takes part, or `leaves`, and that it serves.
    pub(super) fn say(&mut self, leaves: bool) {
        // Others ask for the latter when they take over from a node that leaves.
        self.say_serves();
        let Some(node) = self.id() else { return };
        let Self { sockets, authenticator, pool, .. } = self;
        let hello = Message::Hello(Hello { pool: *pool, node, leaves });
        if let Some(sockets) = sockets {
            sockets.say(|_| Some(authenticator.sign(&hello, unix_ms())));
        }
    }

    /// Tells other nodes that this one serves the connections that it has, if they may forward packets to it.
    pub(in crate::daemon::kernel) fn say_serves(&mut self) {
        let Some(node) = self.id().filter(|_| self.forwards) else { return };
        let Self { sockets, authenticator, macs, pool, .. } = self;
        let serves = |mac: &Mac| Message::Serves(Serves { pool: *pool, node, mac: *mac });
        if let Some(sockets) = sockets {
            sockets.say(|index| Some(authenticator.sign(&serves(macs.get(&index)?), unix_ms())));
        }
    }
}

/// Returns the Unix time in milliseconds, by which nodes tell old datagrams from new ones.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
