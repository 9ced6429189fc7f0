//! Progress of a client's connection, and the time-outs that apply to it. Plain cells, read by the worker's tick: no
//! timer per connection or request.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use ingress_model::Settings;

use crate::downstream::{h1_framing::ScanPosition, pace::Pace};

/// Activity of one connection. Times are the worker's coarse clock.
#[derive(Debug)]
pub(crate) struct Progress {
    place: Cell<ScanPosition>,
    /// Latest of: the entry into the current place, bytes that arrived in it, the end of a request.
    since: Cell<Instant>,
    /// The stream has no more bytes for now.
    reading: Cell<bool>,
    /// Start of the current write stall: bytes are pending and the client has taken none of them since.
    unwritten: Cell<Option<Instant>>,
    /// The client's pace in reading the responses in flight.
    taken: Cell<Pace>,
    /// Requests in flight.
    active: Cell<u32>,
}

/// Verdict on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Idle for longer than allowed.
    Idle,
    /// The client makes no progress.
    Stalled,
    /// The client reads responses below the minimum rate.
    Slow,
}

impl Progress {
    /// Starts a new connection, which owes its first head within the time-out for heads.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            place: Cell::new(ScanPosition::Head),
            since: Cell::new(now),
            reading: Cell::new(true),
            unwritten: Cell::new(None),
            taken: Cell::default(),
            active: Cell::new(0),
        }
    }

    /// Records that bytes arrived, after which the stream stands at `place`.
    pub(crate) fn read(&self, place: ScanPosition, now: Instant) {
        self.reading.set(false);
        // A head must be complete in time, however slowly it arrives; a body must only make progress.
        if place != ScanPosition::Head || self.place.replace(place) != ScanPosition::Head {
            self.since.set(now);
        }
        self.place.set(place);
    }

    pub(crate) fn read_pending(&self, now: Instant) {
        // A client cannot be late while the proxy does not read, for example because an upstream is slow.
        if !self.reading.replace(true) && self.place.get() == ScanPosition::Body {
            self.since.set(now);
        }
    }

    pub(crate) fn write_pending(&self, now: Instant) {
        if self.unwritten.get().is_none() {
            self.unwritten.set(Some(now));
        }
    }

    pub(crate) fn wrote(&self) {
        self.unwritten.set(None);
    }

    /// Records that the client took `count` bytes of responses.
    pub(crate) fn took(&self, count: usize, now: Instant) {
        let taken = self.taken.get();
        self.taken.set(match self.unwritten.take() {
            Some(since) => taken.add(now.saturating_duration_since(since), count),
            None => taken.with(count),
        });
    }

    /// Returns whether bytes are pending for the client.
    pub(crate) fn is_blocked(&self) -> bool {
        self.unwritten.get().is_some()
    }

    /// Returns for how long the client has taken none of its pending bytes, if there are any.
    pub(crate) fn blocked(&self, now: Instant) -> Option<Duration> {
        self.unwritten.get().map(|since| now.saturating_duration_since(since))
    }

    /// Returns whether the stream has no more bytes for now.
    pub(crate) fn is_read(&self) -> bool {
        self.reading.get()
    }

    /// Records that the proxy has closed its side, and that bytes may just have arrived. The client has as long as for
    /// a head to send more or to close its own side.
    pub(crate) fn linger(&self, now: Instant) {
        self.place.set(ScanPosition::Head);
        self.since.set(now);
    }

    /// Requests in flight.
    pub(crate) fn active(&self) -> u32 {
        self.active.get()
    }

    pub(crate) fn begin_request(&self) {
        self.active.set(self.active.get() + 1);
    }

    pub(crate) fn end_request(&self, now: Instant) {
        self.active.set(self.active.get().saturating_sub(1));
        if self.active.get() == 0 {
            self.taken.set(Pace::default());
        }
        if self.place.get() == ScanPosition::Between {
            self.since.set(now);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.active.get() == 0 && self.place.get() == ScanPosition::Between
    }

    /// Returns whether the connection is idle, has no more bytes to read, and none pending for the client.
    pub(crate) fn is_parkable(&self) -> bool {
        self.is_idle() && self.reading.get() && !self.is_blocked()
    }

    /// Returns for how long an idle connection has been idle.
    pub(crate) fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since.get())
    }

    pub(crate) fn due(&self, now: Instant, settings: &Settings) -> Due {
        let passed = now.saturating_duration_since(self.since.get());
        if self.unwritten.get().is_some_and(|since| now.saturating_duration_since(since) >= settings.stall_timeout) {
            return Due::Stalled;
        }
        if self.taken.get().is_below(settings.read_min_rate) {
            return Due::Slow;
        }
        match self.place.get() {
            // HTTP/2 closes an idle connection with the client's cooperation, and the rest of a response keeps it open.
            ScanPosition::Between
                if self.active.get() == 0 && passed >= settings.idle_timeout + settings.stall_timeout =>
            {
                Due::Stalled
            }
            ScanPosition::Between if self.active.get() == 0 && passed >= settings.idle_timeout => Due::Idle,
            ScanPosition::Head if self.active.get() == 0 && passed >= settings.head_timeout => Due::Stalled,
            ScanPosition::Body if self.reading.get() && passed >= settings.stall_timeout => Due::Stalled,
            ScanPosition::Between | ScanPosition::Head | ScanPosition::Body => Due::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
            ..Settings::default()
        }
    }

    type Step<'s> = &'s dyn Fn(&Progress, Instant);

    /// Runs `steps` at their times and compares the verdict at `seconds`.
    fn check(steps: &[(u64, Step<'_>)], seconds: u64, expect: Due) {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let progress = Progress::new(start);
        for (seconds, step) in steps {
            step(&progress, at(*seconds));
        }
        assert_eq!(progress.due(at(seconds), &settings()), expect, "after {} steps at {seconds} s", steps.len());
    }

    #[test]
    fn a_head_has_one_time_out_from_its_first_byte() {
        let head: Step<'_> = &|p, now| p.read(ScanPosition::Head, now);
        let between: Step<'_> = &|p, now| p.read(ScanPosition::Between, now);
        check(&[], 9, Due::Nothing);
        check(&[], 10, Due::Stalled);
        check(&[(9, head)], 10, Due::Stalled);
        check(&[(5, between), (50, head), (59, head)], 59, Due::Nothing);
        check(&[(5, between), (50, head), (59, head)], 60, Due::Stalled);
    }

    #[test]
    fn an_idle_connection_is_closed_a_busy_one_is_not() {
        let between: Step<'_> = &|p, now| p.read(ScanPosition::Between, now);
        let begin: Step<'_> = &|p, _| p.begin_request();
        let end: Step<'_> = &|p, now| p.end_request(now);
        check(&[(0, between)], 74, Due::Nothing);
        check(&[(0, between)], 75, Due::Idle);
        check(&[(0, between), (0, begin)], 1000, Due::Nothing);
        check(&[(0, between), (0, begin), (1000, end)], 1074, Due::Nothing);
        check(&[(0, between), (0, begin), (1000, end)], 1075, Due::Idle);
        check(&[(0, between)], 134, Due::Idle);
        check(&[(0, between)], 135, Due::Stalled);
    }

    #[test]
    fn an_idle_connection_has_nothing_in_progress() {
        let between: Step<'_> = &|p, now| p.read(ScanPosition::Between, now);
        let head: Step<'_> = &|p, now| p.read(ScanPosition::Head, now);
        let pending: Step<'_> = &|p, now| p.read_pending(now);
        let begin: Step<'_> = &|p, _| p.begin_request();
        let end: Step<'_> = &|p, now| p.end_request(now);
        let stuck: Step<'_> = &|p, now| p.write_pending(now);
        let wrote: Step<'_> = &|p, _| p.wrote();
        let cases: [(&[Step<'_>], bool); 8] = [
            (&[], false),
            (&[between], false),
            (&[between, pending], true),
            (&[between, begin, pending], false),
            (&[between, begin, pending, end], true),
            (&[between, begin, pending, stuck, end], false),
            (&[between, begin, pending, stuck, end, wrote], true),
            (&[between, pending, head, pending], false),
        ];
        for (number, (steps, expect)) in cases.into_iter().enumerate() {
            let now = Instant::now();
            let progress = Progress::new(now);
            steps.iter().for_each(|step| step(&progress, now));
            assert_eq!(progress.is_parkable(), expect, "case {number}");
            assert_eq!(progress.idle_time(now + Duration::from_secs(3)), Duration::from_secs(3));
        }
    }

    #[test]
    fn a_body_stalls_only_while_it_is_being_read() {
        let body: Step<'_> = &|p, now| p.read(ScanPosition::Body, now);
        let pending: Step<'_> = &|p, now| p.read_pending(now);
        check(&[(0, body)], 1000, Due::Nothing);
        check(&[(0, body), (0, pending)], 59, Due::Nothing);
        check(&[(0, body), (0, pending)], 60, Due::Stalled);
        check(&[(0, body), (100, pending)], 159, Due::Nothing);
        check(&[(0, body), (0, pending), (50, body), (51, pending)], 110, Due::Nothing);
    }

    #[test]
    fn a_client_that_reads_too_slowly_is_disconnected() {
        let begin: Step<'_> = &|p, _| p.begin_request();
        let end: Step<'_> = &|p, now| p.end_request(now);
        let stuck: Step<'_> = &|p, now| p.write_pending(now);
        let few: Step<'_> = &|p, now| p.took(100, now);
        let many: Step<'_> = &|p, now| p.took(100_000, now);
        let slow = [(0, begin), (0, stuck), (4, few), (4, stuck), (8, few)];
        check(&slow, 8, Due::Slow);
        check(&slow[..4], 8, Due::Nothing);
        check(&[(0, begin), (0, few), (30, few), (60, few)], 60, Due::Nothing);
        check(&[(0, begin), (0, stuck), (50, many), (50, stuck), (55, few)], 55, Due::Nothing);
        let quick_once = [(0, begin), (0, stuck), (1, many)].into_iter();
        let steps: Vec<_> = quick_once.chain((0..40).flat_map(|n| [(1 + n * 30, stuck), (31 + n * 30, few)])).collect();
        check(&steps, 1201, Due::Slow);
        check(&[&slow[..], &[(8, end), (8, begin)]].concat(), 8, Due::Nothing);
    }

    #[test]
    fn a_client_that_reads_no_bytes_is_disconnected() {
        let between: Step<'_> = &|p, now| p.read(ScanPosition::Between, now);
        let begin: Step<'_> = &|p, _| p.begin_request();
        let stuck: Step<'_> = &|p, now| p.write_pending(now);
        let wrote: Step<'_> = &|p, _| p.wrote();
        check(&[(0, between), (0, begin), (1, stuck), (30, stuck)], 61, Due::Stalled);
        check(&[(0, between), (0, begin), (1, stuck), (30, wrote), (31, stuck)], 61, Due::Nothing);
    }
}
