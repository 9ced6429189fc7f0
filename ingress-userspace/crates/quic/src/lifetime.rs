//! Deadlines of a connection: handshake, heads of requests, keep-alive, and the end of the worker's service.

use std::time::{Duration, Instant};

use ingress_http3::Code;

use crate::{
    connection::{GoAway, Stage, State},
    exchange::Exchange,
    shared::Drain,
};

/// Largest heads whose bytes a connection keeps while the rest of them is awaited.
const HEADS_MAX: usize = 8;

/// Round trips that a client has at least for the answer to a question, each with a delayed ACK. A packet may be lost.
const ANSWER_ROUND_TRIPS: u32 = 4;

/// Time by which a client may delay an ACK, unless it says otherwise (RFC 9000, 18.2).
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Signs of life from a client after the announcement of an end. UDP does not tell of a client that is gone, which would
/// hold the end of the worker by a request or by a response that it has not acknowledged.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// When the end was announced, its latest packet was seen, or it was asked.
    since: Instant,
    /// Number of datagrams that have come.
    datagrams: u64,
    /// Whether it was asked after its latest packet.
    is_asked: bool,
}

impl State {
    /// Begins to watch whether the client answers.
    pub(crate) fn watch(&mut self, now: Instant) {
        let datagrams = self.quic.stats().udp_rx.datagrams;
        self.vigil.get_or_insert(Vigil { since: now, datagrams, is_asked: false });
    }

    /// Returns for how long the client may be silent before it is asked, and then before it counts as gone. A short drain
    /// leaves time for an answer, too.
    fn patience(&self) -> Duration {
        self.limits.drain_idle.max(ANSWER_ROUND_TRIPS * (self.quic.rtt() + ACK_DELAY))
    }

    /// Asks a client that was silent, and then closes the connection to one that is gone.
    fn expire_vigil(&mut self, now: Instant) {
        let patience = self.patience();
        let Some(vigil) = &mut self.vigil else { return };
        let datagrams = self.quic.stats().udp_rx.datagrams;
        if vigil.datagrams != datagrams {
            *vigil = Vigil { since: now, datagrams, is_asked: false };
        }
        if now < vigil.since + patience {
            return;
        }
        // A turn may be late. The answer has its time all the same.
        vigil.since = now;
        if std::mem::replace(&mut vigil.is_asked, true) {
            return self.close(Code::NoError, "the client is gone", now);
        }
        self.quic.ping();
    }

    /// Returns when the connection needs a turn, unless something happens before.
    pub(crate) fn deadline(&mut self) -> Option<Instant> {
        self.quic_deadline().into_iter().chain(self.own_deadline()).min()
    }

    fn own_deadline(&self) -> Option<Instant> {
        let limits = &self.limits;
        match self.stage {
            Stage::Closed => None,
            Stage::Handshake => {
                let end = self.ending().map(|drain| drain.deadline);
                end.into_iter().chain([self.idle_since + self.handshake_time()]).min()
            }
            Stage::Serving => {
                let head = self.heads.front().map(|(since, _)| *since + limits.head_timeout);
                let drain = self.ending();
                let end = drain.map(|Drain { begun, deadline }| match self.goaway {
                    GoAway::None => begun,
                    GoAway::Soon => deadline.min(begun + limits.drain_grace),
                    GoAway::At(_) => deadline,
                });
                let vigil = self.vigil.as_ref().map(|vigil| vigil.since + self.patience());
                head.into_iter().chain(end).chain(self.idle_deadline()).chain(vigil).min()
            }
        }
    }

    /// Returns the time for the handshake: half of the limit for addresses that may be forged, which hold places of others.
    fn handshake_time(&self) -> Duration {
        let limit = self.limits.handshake_timeout;
        if self.unproven.is_some() { limit / 2 } else { limit }
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let limits = &self.limits;
        let silence = match self.goaway {
            GoAway::None | GoAway::Soon => limits.keep_alive,
            GoAway::At(_) => limits.drain_idle.min(limits.keep_alive),
        };
        // Closing drops what the client has not acknowledged. One that acknowledges nothing has a bound, too.
        let silence = if self.unacknowledged > 0 { silence.max(limits.send_timeout) } else { silence };
        self.requests.is_empty().then(|| self.idle_since + silence)
    }

    /// Does the work of deadlines that have passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        let (head, grace) = (self.limits.head_timeout, self.limits.drain_grace);
        match self.stage {
            Stage::Closed => return,
            Stage::Handshake if now >= self.idle_since + self.handshake_time() => {
                return self.close(Code::NoError, "the handshake takes too long", now);
            }
            Stage::Handshake => {}
            Stage::Serving => {
                self.expire_heads(now, head);
                self.expire_vigil(now);
            }
        }
        if let Some(Drain { begun, deadline }) = self.ending() {
            if now >= deadline {
                return self.close(Code::NoError, "the server ends", now);
            }
            if self.stage == Stage::Serving && self.goaway == GoAway::None {
                self.announce(GoAway::Soon, now);
            }
            if self.goaway == GoAway::Soon && now >= begun + grace {
                self.announce(GoAway::At(self.next_request), now);
            }
        }
        if self.stage == Stage::Serving && self.idle_deadline().is_some_and(|deadline| now >= deadline) {
            self.close(Code::NoError, "the connection is idle", now);
        }
    }

    /// Ends the oldest streams whose heads have come in part, while these take more than [`HEADS_MAX`] heads.
    pub(crate) fn limit_heads(&mut self, now: Instant) {
        if !std::mem::take(&mut self.has_partial_head) {
            return;
        }
        let max = self.limits.section_max.saturating_mul(HEADS_MAX);
        let of = |state: &Self, id| state.requests.get(&id).map_or(0, Exchange::head_bytes);
        let mut bytes: usize = self.heads.iter().map(|(_, id)| of(self, *id)).sum();
        let mut at = 0;
        while bytes > max
            && let Some(&(_, id)) = self.heads.get(at)
        {
            let kept = of(self, id);
            if kept == 0 {
                at += 1;
                continue;
            }
            bytes -= kept;
            self.heads.remove(at);
            // No service has seen it, so the client may send it again (RFC 9114, 4.1.1).
            self.abandon(id, Code::RequestRejected, now);
            self.draw_reset(now);
        }
    }

    fn expire_heads(&mut self, now: Instant, timeout: Duration) {
        while let Some(&(since, id)) = self.heads.front() {
            let is_awaited = self.awaits_head(id);
            if is_awaited && now < since + timeout {
                return;
            }
            self.heads.pop_front();
            if is_awaited {
                self.abandon(id, Code::RequestIncomplete, now);
                self.draw_reset(now);
            }
        }
    }
}
