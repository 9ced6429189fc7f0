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
    /// Number of ACK frames from the client.
    acks: u64,
    /// Number of STREAM frames that were sent when the last ACK was seen.
    sent: u64,
    /// Looks since then that found more frames sent.
    silent: u8,
}

impl State {
    /// Returns the bytes of responses that wait for the client or for its acknowledgement: those written since the
    /// connection had nothing to send, if a task or a complete response waits, or the client is silent.
    pub(crate) fn look(&mut self) -> Held {
        let stats = self.quic.stats();
        let (acks, sent) = (stats.frame_rx.acks, stats.frame_tx.stream);
        let is_silent = self.is_silent(acks, sent);
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

    /// Returns whether the client acknowledges nothing of its responses, of which it has sent this number of ACK frames.
    /// quinn-proto sends frames again that are not acknowledged, so it sends to such a client although nothing is written.
    fn is_silent(&mut self, acks: u64, sent: u64) -> bool {
        let Looked { acks: seen, sent: sent_then, silent, .. } = &mut self.looked;
        if std::mem::replace(seen, acks) != acks {
            (*sent_then, *silent) = (sent, 0);
        } else if sent != *sent_then {
            *silent = silent.saturating_add(1);
        }
        *silent >= SILENT_LOOKS && (self.unacknowledged > 0 || !self.requests.is_empty())
    }

    /// Returns for how long the client has taken nothing of the responses that wait for it; `None` if none does.
    pub(crate) fn blocked(&self) -> Option<Duration> {
        self.has_writers().then(|| self.blocked_at.elapsed())
    }

    fn has_writers(&self) -> bool {
        self.requests.values().any(|exchange| exchange.writer.is_some())
    }
}
