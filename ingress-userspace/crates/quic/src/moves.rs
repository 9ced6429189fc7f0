//! Timers of QUIC around a change of the client's address. quinn-proto counts packets in flight by address, but keeps the
//! timer of probes for those of the old one. If that ends before a packet was sent to the new address, a debug build takes
//! it for a fault, and a release build waits twice as long for the next probe. So timers wait for packets. A client that is
//! back at its old address counts as one at a new address, for quinn-proto and here.

use std::{net::SocketAddr, time::Instant};

use quinn_proto::{ConnectionEvent, Transmit};

use crate::{
    amplification::{Arrival, frames},
    connection::{Stage, State},
};

/// Transmissions after a change, of which one is on the new path. The first may be a question to the address before.
const AWAITED: u8 = 2;

impl State {
    /// Takes a datagram of the client, which came from `remote`.
    pub(crate) fn take(&mut self, event: ConnectionEvent, arrival: Arrival, remote: SocketAddr) {
        let before = self.path();
        if self.unproven.is_some() {
            self.take_unproven(event, arrival, remote);
        } else {
            self.quic.handle_event(event);
        }
        if self.path() != before {
            self.awaited = AWAITED;
        }
    }

    /// Does the same while the client's address is not proven.
    fn take_unproven(&mut self, event: ConnectionEvent, arrival: Arrival, remote: SocketAddr) {
        if let Some(unproven) = &mut self.unproven
            && remote == self.quic.remote_address()
        {
            unproven.receive(arrival);
        }
        let before = arrival.is_handshake.then(|| frames(&self.quic.stats().frame_rx));
        self.quic.handle_event(event);
        if before.is_some_and(|before| frames(&self.quic.stats().frame_rx) != before) {
            self.unproven = None;
        }
    }

    /// Does the work of QUIC's timers that have ended.
    pub(crate) fn expire_quic(&mut self, now: Instant) {
        if self.quic_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let before = self.path();
        self.quic.handle_timeout(now);
        if self.path() != before {
            // The new address did not answer, and the one before counts again. Its probes need a packet, too.
            self.awaited = AWAITED;
            self.quic.ping();
        } else if self.is_owed() && self.is_silent() {
            self.quic.ping();
        }
    }

    /// Returns whether no datagram has come since timers of QUIC last ended while a response was owed.
    ///
    /// Where no ACK comes, quinn-proto repeats control frames and no data. Chromium sends no ACK for a repeated
    /// NEW_CONNECTION_ID alone. The lost end of a response would wait until the client gives up. A PING gets an ACK.
    /// The timers include that of pacing, so a client may also be asked once during a burst, which costs a byte.
    fn is_silent(&mut self) -> bool {
        let datagrams = self.quic.stats().udp_rx.datagrams;
        std::mem::replace(&mut self.heard, datagrams) == datagrams
    }

    fn is_owed(&self) -> bool {
        self.stage == Stage::Serving && (self.unacknowledged > 0 || !self.requests.is_empty())
    }

    /// Returns when QUIC's timers end; `None` while they wait for a packet.
    pub(crate) fn quic_deadline(&mut self) -> Option<Instant> {
        if self.awaited > 0 { None } else { self.quic.poll_timeout() }
    }

    /// Writes the next packets, in up to `segments` datagrams.
    pub(crate) fn poll_transmit(&mut self, now: Instant, segments: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        let allowed = self.unproven.as_ref().map(|unproven| unproven.datagrams(self.quic.current_mtu()));
        let segments = allowed.map_or(segments, |allowed| segments.min(allowed));
        let transmit = if segments > 0 { self.quic.poll_transmit(now, segments, out) } else { None };
        if let (Some(unproven), Some(transmit)) = (&mut self.unproven, &transmit) {
            unproven.send(transmit.size);
        }
        self.awaited = if transmit.is_some() { self.awaited.saturating_sub(1) } else { 0 };
        transmit
    }

    /// Returns the identity of the path to the client, for one comparison: that of its congestion control, which each path
    /// has for itself. The address does not tell, as a client may be back at it, on a new path.
    fn path(&self) -> *const () {
        std::ptr::from_ref(self.quic.congestion_state()).cast()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        time::Duration,
    };

    use super::*;
    use crate::pair::{Begun, Pair, Timers, client_at};

    /// Ports of a client that moves away from port 1, and of one that is back before the server's turn.
    const AWAY: &[u16] = &[2];
    const BACK: &[u16] = &[2, 1];

    /// The client moves from port to port when a probe of its old address is due.
    fn move_with_a_due_probe(ports: &[u16], timers: Timers) -> Pair {
        let mut pair = Pair::connected();
        pair.conn.with(|state| state.quic.ping());
        assert!(!pair.server_sends().is_empty(), "a packet that is lost");
        pair.now = pair.deadline();
        for port in ports {
            pair.client_moves(*port, 0);
        }
        pair.turn(timers);
        pair
    }

    /// The client moves from port to port, and is not heard of again.
    fn move_without_an_answer(ports: &[u16], timers: Timers) -> Pair {
        let mut pair = Pair::connected();
        for port in ports {
            pair.client_moves(*port, 8_000);
        }
        let begun = pair.now;
        // Each timer is handled less late than the one before it, so that the second probe is due only after the old
        // address counts again.
        let mut late = Duration::from_millis(16);
        while pair.now < begun + Duration::from_secs(20) {
            pair.turn(timers);
            let _lost = pair.server_sends();
            pair.now = pair.now.max(pair.deadline() + late);
            late /= 2;
        }
        assert_eq!(pair.conn.with(|state| state.quic.remote_address()), client_at(1), "the proven address");
        pair
    }

    /// Returns the number of PINGs to a client that gets nothing after its handshake, which owes ACKs for so many responses.
    fn pings_to_a_silent_client(unacknowledged: usize) -> u64 {
        let mut pair = Pair::begun(&Begun { names: 1, length: 1200 });
        pair.turn(Timers::OfState);
        while pair.conn.with(|state| state.stage == Stage::Handshake) {
            let sent = pair.server_sends();
            pair.client_takes(sent);
            for datagram in pair.client_sends() {
                pair.server_takes(datagram, 1);
            }
            pair.now += Duration::from_millis(10);
            pair.turn(Timers::OfState);
        }
        pair.conn.with(|state| state.unacknowledged = unacknowledged);
        for _ in 0..8 {
            let _lost = pair.server_sends();
            pair.now = pair.now.max(pair.deadline());
            pair.turn(Timers::OfState);
        }
        pair.conn.with(|state| state.quic.stats().frame_tx.ping)
    }

    /// Returns how long a handshake with a silent client lasts.
    fn handshake_lasts(is_proven: bool) -> Duration {
        let mut pair = Pair::begun(&Begun { names: 1, length: 1200 });
        pair.turn(Timers::OfState);
        if is_proven {
            pair.conn.with(|state| state.unproven = None);
        }
        let begun = pair.now;
        while pair.conn.with(|state| state.stage == Stage::Handshake) {
            let _lost = pair.server_sends();
            let next = pair.conn.with(|state| state.deadline()).expect("a limit");
            pair.now = pair.now.max(next);
            pair.turn(Timers::OfState);
        }
        pair.now - begun
    }

    #[test]
    fn a_handshake_has_half_of_its_time_until_the_address_is_proven() {
        let limit = crate::Limits::default().handshake_timeout;
        assert_eq!((handshake_lasts(false), handshake_lasts(true)), (limit / 2, limit));
    }

    #[test]
    fn a_silent_client_is_asked_while_it_is_owed_a_response() {
        // Discovery of the MTU has PINGs of its own.
        let (owed, idle) = (pings_to_a_silent_client(1), pings_to_a_silent_client(0));
        assert!(owed > idle + 2, "{owed} PINGs, and {idle} without a response");
    }

    #[test]
    fn probes_of_an_old_address_are_no_fault() {
        for ports in [AWAY, BACK] {
            let mut pair = move_with_a_due_probe(ports, Timers::OfState);
            let sent = pair.server_sends();
            pair.client_takes(sent);
            assert!(pair.deadline() >= pair.now, "the timers of the new address");
            pair.turn(Timers::OfState);
            assert_eq!(Some(pair.conn.peer.current()), ports.last().map(|port| client_at(*port)));
        }
    }

    #[test]
    fn a_question_to_the_address_before_ends_no_waiting() {
        for ports in [AWAY, BACK] {
            let mut pair = move_with_a_due_probe(ports, Timers::OfState);
            // The socket takes one transmission.
            let first = pair.conn.with(|state| state.poll_transmit(pair.now, 1, &mut Vec::new()));
            assert_eq!(first.map(|sent| sent.destination), Some(client_at(1)), "{ports:?}");
            pair.turn(Timers::OfState);
            assert_eq!(pair.conn.with(State::quic_deadline), None, "{ports:?}");
            assert!(!pair.server_sends().is_empty(), "{ports:?}");
            assert!(pair.conn.with(State::quic_deadline).is_some(), "{ports:?}");
        }
    }

    #[test]
    fn an_address_without_an_answer_is_given_up() {
        for ports in [AWAY, BACK] {
            let pair = move_without_an_answer(ports, Timers::OfState);
            assert_eq!(pair.conn.peer.current(), client_at(1), "{ports:?}");
        }
    }

    /// Tells when quinn-proto needs this file no more.
    #[cfg(debug_assertions)]
    #[test]
    fn quinn_proto_takes_these_probes_for_faults() {
        for (name, scene) in
            [("a due probe", move_with_a_due_probe as fn(_, _) -> _), ("no answer", move_without_an_answer)]
        {
            for ports in [AWAY, BACK] {
                let result = catch_unwind(AssertUnwindSafe(|| scene(ports, Timers::OfQuinn)));
                assert!(result.is_err(), "{name} {ports:?}: quinn-proto mends it");
            }
        }
    }
}
