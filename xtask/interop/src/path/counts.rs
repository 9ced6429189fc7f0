//! Counts of a path: datagrams, faults, and what shows that the server kept to its limits.

use std::time::{Duration, Instant};

use super::fate::Direction;

/// Shortest datagram of a transfer, in bytes: acknowledgements and the like are shorter.
const LARGE: usize = 1_000;

/// Datagrams of a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Connections that clients began, each from a port of its own.
    pub(crate) connections: usize,
    /// Time when the first datagram of a client came.
    pub(crate) begun: Option<Instant>,
    pub(crate) to_server: Tally,
    pub(crate) to_client: Tally,
    /// Changes of a client's address or port.
    pub(crate) moves: u64,
    /// Changes after which the server sent something there.
    pub(crate) answered: u64,
    /// Changes after which the server sent further datagrams when three times what came from there was spent, as only to
    /// a proven address.
    pub(crate) proven: u64,
    /// Bytes that the server got and sent until the client sent a Handshake packet, which proves its address.
    pub(crate) unproven: Option<(usize, usize)>,
    /// Whether the server ever sent more than three times what it got before that, or before a client at a new address
    /// can have proven it.
    pub(crate) is_over_limit: bool,
    /// Arrivals at the client: the first after the handshake, and the last of a long datagram.
    pub(crate) transfer: Option<(Instant, Instant)>,
    /// Bytes of the handshake that arrived at clients.
    pub(crate) handshake: usize,
    /// Greatest time by which the relay itself was late with a datagram.
    pub(crate) latest: Duration,
}

/// Datagrams in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Datagrams that came.
    pub(crate) all: u64,
    /// Datagrams that met the fault.
    pub(crate) hit: u64,
    /// Datagrams that were lost since the queue was full.
    pub(crate) overflowed: u64,
    /// Datagrams of a handshake that met the fault.
    pub(crate) hit_in_handshake: u64,
    /// Datagrams that came with ECT(0).
    pub(crate) marked: u64,
    /// Datagrams that came with ECT(0) one after another, up to the last.
    pub(crate) marked_to_the_end: u64,
}

impl Counts {
    pub(super) fn tally(&mut self, direction: Direction) -> &mut Tally {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    /// Notes the first datagram from a port of a client, which begins a connection with a handshake.
    pub(super) fn begins(&mut self, is_of_handshake: bool) {
        self.connections += usize::from(is_of_handshake);
        self.begun.get_or_insert_with(Instant::now);
    }

    /// Notes by how much the relay is late with a datagram.
    pub(super) fn is_late(&mut self, time: Duration) {
        self.latest = self.latest.max(time);
    }

    /// Notes that a datagram arrives at a client.
    pub(super) fn arrives(&mut self, length: usize, is_of_handshake: bool) {
        let now = Instant::now();
        self.handshake += if is_of_handshake { length } else { 0 };
        match &mut self.transfer {
            None if !is_of_handshake => self.transfer = Some((now, now)),
            Some((_, last)) if length >= LARGE => *last = now,
            _ => {}
        }
    }

    /// Returns the time between the first datagram after the handshake and the last long one.
    pub(crate) fn transfer_time(&self) -> Duration {
        self.transfer.map(|(first, last)| last - first).unwrap_or_default()
    }

    /// Returns the time between the first datagram of a client and the first one after the handshake at a client.
    pub(crate) fn handshake_time(&self) -> Duration {
        self.begun.zip(self.transfer).map(|(begun, (first, _))| first - begun).unwrap_or_default()
    }

    /// Returns the datagrams of both directions, and those that met the fault.
    pub(crate) const fn hit_of_all(&self) -> (u64, u64) {
        (self.to_server.hit + self.to_client.hit, self.to_server.all + self.to_client.all)
    }
}
