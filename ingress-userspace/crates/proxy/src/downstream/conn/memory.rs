//! The memory that a connection holds for its client, as the memory limit counts it.

use std::time::Instant;

use ingress_quic::Held;

use super::Conn;
use crate::{
    downstream::buffer_size::PIECE,
    server::eviction::{self, Keeper, MemoryLoad},
};

impl Conn {
    /// Adds the memory held for its client to `keepers`; called once in each round of [`eviction`]. If the client reads
    /// but ignores some streams, those are added individually, and only they are reset.
    pub(crate) fn weigh<'c>(&'c self, now: Instant, keepers: &mut Vec<(MemoryLoad, Keeper<&'c Self>)>) {
        let is_blocked = self.progress.blocked(now) >= Some(eviction::PERIOD);
        if let Some(peer) = self.quic() {
            let Held { bytes, is_stuck } = peer.look();
            keepers.push((MemoryLoad { bytes: bytes + self.kept(), stuck: is_stuck }, Keeper::Connection(self)));
            return;
        }
        if !self.is_http2() {
            let bytes = if self.progress.is_blocked() { PIECE } else { 0 } + self.kept();
            keepers.push((MemoryLoad { bytes, stuck: is_blocked }, Keeper::Connection(self)));
            return;
        }
        let backlog = self.backlog();
        let is_stuck = backlog.is_stuck();
        let is_any_open = backlog.look(eviction::STREAM_LOOKS, |bytes, stream| {
            // A reset would wait behind the bytes that the connection holds.
            if !is_blocked {
                keepers.push((MemoryLoad { bytes: bytes + eviction::STREAM, stuck: true }, Keeper::Stream(stream)));
            }
        });
        // Responses that h2 holds completely can only be dropped together with the connection.
        let stuck = is_stuck && (is_blocked || !is_any_open);
        keepers.push((MemoryLoad { bytes: backlog.held() + self.kept(), stuck }, Keeper::Connection(self)));
    }
}
