//! The bytes of responses that a connection holds for its client, as far as quinn-proto tells, and whether the client
//! takes them.

use std::time::Duration;

use crate::{connection::State, shared::Held};

/// Looks without an acknowledgement, one after the other, after which a client counts as silent. The owner looks four
/// times a second, and few round trips take that long.
const SILENT_LOOKS: u8 = 4;

/// The state of a connection at the last look.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Number of writes, of acknowledged responses, and of STREAM frames sent.
    taken: u64,
    /// Number of ACK frames from the client, and the estimate of the round trip. A repeated ACK adds to the number alone:
    /// one of new packets changes the estimate, to the nanosecond. So does a change of address, whose path may begin with
    /// the initial estimate, and its failed validation, which restores the old one: at most twice a validation.
    acks: u64,
    round_trip: Duration,
    /// Number of STREAM frames that were sent when the last ACK was seen.
    sent: u64,
    /// Looks since then that found more frames sent.
    silent: u8,
}

impl Looked {
    /// Returns whether the client acknowledges nothing new. quinn-proto sends frames again that are not acknowledged, so it
    /// sends to such a client although nothing is written.
    fn is_silent(&mut self, acks: u64, round_trip: Duration, sent: u64) -> bool {
        let Self { acks: seen, round_trip: known, sent: sent_then, silent, .. } = self;
        let has_acks = std::mem::replace(seen, acks) != acks;
        if has_acks && std::mem::replace(known, round_trip) != round_trip {
            (*sent_then, *silent) = (sent, 0);
        } else if sent != *sent_then {
            *silent = silent.saturating_add(1);
        }
        *silent >= SILENT_LOOKS
    }
}

impl State {
    /// Returns the bytes of responses that wait for the client or for its acknowledgement: those written since the
    /// connection had nothing to send, if a task or a complete response waits, or the client is silent.
    pub(crate) fn look(&mut self) -> Held {
        let stats = self.quic.stats();
        let (acks, sent) = (stats.frame_rx.acks, stats.frame_tx.stream);
        let is_owed = self.unacknowledged > 0 || !self.requests.is_empty();
        let is_silent = self.looked.is_silent(acks, stats.path.rtt, sent) && is_owed;
        let is_waiting = is_silent || self.unacknowledged > 0 || self.has_writers();
        // quinn-proto sends as the client takes. Repetitions to one that is silent do not count.
        let taken = self.writes + self.finished + sent;
        let is_unchanged = std::mem::replace(&mut self.looked.taken, taken) == taken;
        let window = usize::try_from(self.limits.send_window).unwrap_or(usize::MAX);
        Held {
            bytes: if is_waiting { self.written.min(window) } else { 0 },
            is_stuck: is_waiting && (is_unchanged || is_silent),
        }
    }

    /// Returns for how long the client has taken nothing of the responses that wait for it; `None` if none does.
    pub(crate) fn blocked(&self) -> Option<Duration> {
        self.has_writers().then(|| self.blocked_at.elapsed())
    }

    fn has_writers(&self) -> bool {
        if self.may_have_writers.get() {
            self.may_have_writers.set(self.requests.values().any(|exchange| exchange.writer.is_some()));
        }
        self.may_have_writers.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_repeats_old_acknowledgements_is_silent() {
        let millis = Duration::from_millis;
        // ACK frames, round trip and STREAM frames at each look, and whether it finds the client silent.
        let living: &[_] = &[(1, 20, 10), (2, 21, 20), (3, 22, 30), (4, 21, 40), (5, 20, 50), (6, 21, 60), (7, 22, 70)];
        let repeating: &[_] = &[(1, 20, 10), (2, 20, 20), (3, 20, 21), (4, 20, 21), (5, 20, 22), (6, 20, 22)];
        let mute: &[_] = &[(1, 20, 10), (1, 20, 20), (1, 20, 21), (1, 20, 21), (1, 20, 22), (1, 20, 22)];
        // Without packets that wait for an ACK, none is missing.
        let done: &[_] = &[(1, 20, 10), (1, 20, 10), (2, 20, 10), (2, 20, 10), (2, 20, 10), (3, 20, 10)];
        for (looks, expected) in [(living, false), (repeating, true), (mute, true), (done, false)] {
            let mut looked = Looked::default();
            let found = looks.iter().map(|&(acks, rtt, sent)| looked.is_silent(acks, millis(rtt), sent));
            assert_eq!(found.last(), Some(expected), "{looks:?}");
        }
    }
}
