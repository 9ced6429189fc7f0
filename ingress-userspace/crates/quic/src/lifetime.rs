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

/// Signs of life from a client after the announcement of an end. UDP does not tell of a client that is gone, which would
/// hold the end of the worker by a request or by a response that it has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// When its latest packet was seen; `None` before the first look.
    heard: Option<Instant>,
    /// Number of datagrams that have come.
    datagrams: u64,
    /// Whether it was asked since then.
    is_asked: bool,
}

impl Vigil {
    /// Returns when the client is to be asked, or counts as gone. It has `patience` for each.
    fn deadline(&self, patience: Duration) -> Option<Instant> {
        self.heard.map(|heard| heard + if self.is_asked { 2 * patience } else { patience })
    }
}

impl State {
    /// Begins to watch whether the client answers.
    pub(crate) fn watch(&mut self) {
        self.vigil.get_or_insert_default();
    }

    /// Asks a client that was silent, and then closes the connection to one that is gone.
    fn expire_vigil(&mut self, now: Instant) {
        let patience = self.limits.drain_idle;
        let Some(vigil) = &mut self.vigil else { return };
        let datagrams = self.quic.stats().udp_rx.datagrams;
        if vigil.heard.is_none() || vigil.datagrams != datagrams {
            *vigil = Vigil { heard: Some(now), datagrams, is_asked: false };
        }
        if vigil.deadline(patience).is_none_or(|deadline| now < deadline) {
            return;
        }
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
                end.into_iter().chain([self.idle_since + limits.handshake_timeout]).min()
            }
            Stage::Serving => {
                let head = self.heads.front().map(|(since, _)| *since + limits.head_timeout);
                let drain = self.ending();
                let end = drain.map(|Drain { begun, deadline }| match self.goaway {
                    GoAway::None => begun,
                    GoAway::Soon => deadline.min(begun + limits.drain_grace),
                    GoAway::At(_) => deadline,
                });
                let vigil = self.vigil.as_ref().and_then(|vigil| vigil.deadline(limits.drain_idle));
                head.into_iter().chain(end).chain(self.idle_deadline()).chain(vigil).min()
            }
        }
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
        let limits = &self.limits;
        let (handshake, head, grace) = (limits.handshake_timeout, limits.head_timeout, limits.drain_grace);
        match self.stage {
            Stage::Closed => return,
            Stage::Handshake if now >= self.idle_since + handshake => {
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
                self.announce(GoAway::Soon);
            }
            if self.goaway == GoAway::Soon && now >= begun + grace {
                self.announce(GoAway::At(self.next_request));
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
