//! Leader election by a Lease, without the requests: which record to write after which was read, and how long a term
//! lasts.
//!
//! The rules are those of client-go's `leaderelection`. A candidate trusts no clock but its own, and that one only for
//! durations. A Lease has expired when its record has not changed for its duration *since this candidate first saw it*.
//! A holder counts its term from before it sent the renewal, and ends it at two thirds of the duration. So it has
//! stopped writing before another candidate can have seen the record unchanged for long enough. `resourceVersion`
//! decides between two candidates that write at the same time.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use tokio::{sync::watch, time::Instant};

use crate::clock::expiry;

/// The durations of an election, all derived from `ttl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseTimings {
    /// How long a Lease is valid for other candidates after a renewal.
    pub(super) ttl: Duration,
    /// How long a holder regards itself as the leader after the start of a renewal: two thirds of `ttl`.
    pub(super) office: Duration,
    /// Pause between renewals, and between reads by candidates that wait: a quarter of `ttl`.
    pub(super) retry: Duration,
    /// Time limit of one request: a sixth of `ttl`, at most [`Self::LONGEST_REQUEST`]. Together with `office` it stays
    /// within `ttl`.
    pub(super) request: Duration,
}

/// Whether this process is the leader, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderState {
    Out,
    Until(Instant),
    Always,
}

/// View of the Lease by one candidate.
#[derive(Debug)]
pub(super) struct Election {
    name: String,
    identity: String,
    timings: LeaseTimings,
    seen: Option<SeenLease>,
    held_until: Option<Instant>,
}

/// The Lease as it was last read or written.
#[derive(Clone, Debug)]
struct SeenLease {
    lease: Lease,
    /// When this record was first seen.
    since: Instant,
}

/// The next step towards the Lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LeaseStep {
    Create(Lease),
    Replace(Lease),
    /// Another candidate holds the Lease.
    Wait,
}

// === impl LeaseTimings ===

impl LeaseTimings {
    pub(super) const LONGEST_REQUEST: Duration = Duration::from_secs(5);

    pub(super) fn of(ttl: Duration) -> Self {
        Self { ttl, office: ttl * 2 / 3, retry: ttl / 4, request: (ttl / 6).min(Self::LONGEST_REQUEST) }
    }
}

// === impl LeaderState ===

impl LeaderState {
    pub(super) fn is_held(self, now: Instant) -> bool {
        match self {
            Self::Out => false,
            Self::Until(end) => now < end,
            Self::Always => true,
        }
    }

    pub(super) fn end(self) -> Option<Instant> {
        match self {
            Self::Until(end) => Some(end),
            Self::Out | Self::Always => None,
        }
    }
}

/// Resolves when the term has ended; a renewal prolongs the term.
pub(super) async fn out_of_office(leader_state: &mut watch::Receiver<LeaderState>) {
    loop {
        let current = *leader_state.borrow_and_update();
        if !current.is_held(Instant::now()) {
            return;
        }
        tokio::select! {
            () = expiry(current.end()) => {}
            changed = leader_state.changed() => if changed.is_err() { return },
        }
    }
}

// === impl Election ===

impl Election {
    pub(super) fn new(name: &str, identity: &str, timings: LeaseTimings) -> Self {
        Self { name: name.into(), identity: identity.into(), timings, seen: None, held_until: None }
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn leader_state(&self) -> LeaderState {
        self.held_until.map_or(LeaderState::Out, LeaderState::Until)
    }

    /// Returns the next step for the Lease as read, where `None` means that it does not exist. `wall` is written for
    /// people to read and decides nothing.
    pub(super) fn read(&mut self, lease: Option<Lease>, now: Instant, wall: Timestamp) -> LeaseStep {
        let Some(lease) = lease else {
            self.seen = None;
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            return LeaseStep::Create(Lease { metadata, spec: Some(self.record(None, wall)) });
        };
        let since = match &self.seen {
            Some(seen) if seen.lease.spec == lease.spec => seen.since,
            _ => now,
        };
        let spec = lease.spec.clone().unwrap_or_default();
        self.seen = Some(SeenLease { lease: lease.clone(), since });
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
        if holder.is_some_and(|holder| holder != self.identity) {
            // Another candidate holds the Lease, so an earlier term of this process is over.
            self.held_until = None;
            if now < since + self.duration_of(&spec) {
                return LeaseStep::Wait;
            }
        }
        LeaseStep::Replace(Lease { spec: Some(self.record(Some(&spec), wall)), ..lease })
    }

    /// Records that the server accepted a write, which was sent at `sent`.
    pub(super) fn written(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.seen = Some(SeenLease { lease, since: now });
        self.held_until = Some(sent + self.timings.office);
    }

    /// Returns a renewal that needs no read first, since the Lease rarely changes between two renewals.
    pub(super) fn renewal(&self, now: Instant, wall: Timestamp) -> Option<Lease> {
        let SeenLease { lease, since: _ } = self.seen.as_ref()?;
        if !self.leader_state().is_held(now) {
            return None;
        }
        Some(Lease { spec: Some(self.record(lease.spec.as_ref(), wall)), ..lease.clone() })
    }

    /// Ends the term, and returns the record that gives the Lease back, so that no candidate has to wait for its
    /// expiry. Returns `None` if this process does not hold the Lease.
    pub(super) fn release(&mut self, now: Instant, wall: Timestamp) -> Option<Lease> {
        let is_held = self.leader_state().is_held(now);
        self.held_until = None;
        let SeenLease { lease, since: _ } = self.seen.take().filter(|_| is_held)?;
        let spec = lease.spec.unwrap_or_default();
        let renewed = Some(MicroTime(wall));
        let spec = LeaseSpec {
            holder_identity: None,
            // The shortest valid duration; zero is invalid.
            lease_duration_seconds: Some(1),
            acquire_time: renewed.clone(),
            renew_time: renewed,
            ..spec
        };
        Some(Lease { metadata: lease.metadata, spec: Some(spec) })
    }

    /// Returns the record with this process as the holder, as the successor of `before`.
    fn record(&self, before: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let now = Some(MicroTime(wall));
        let before = before.cloned().unwrap_or_default();
        let is_ours = before.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.timings.ttl.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: if is_ours { before.acquire_time.or_else(|| now.clone()) } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(if is_ours { transitions } else { transitions.saturating_add(1) }),
            ..before
        }
    }

    /// Returns the duration in `spec`, even where it differs from this process's configuration.
    fn duration_of(&self, spec: &LeaseSpec) -> Duration {
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(self.timings.ttl, Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn election(identity: &str) -> Election {
        Election::new("leader", identity, LeaseTimings::of(TTL))
    }

    fn holder(lease: &Lease) -> (Option<&str>, Option<i32>) {
        let spec = lease.spec.as_ref().expect("a record");
        (spec.holder_identity.as_deref(), spec.lease_transitions)
    }

    /// Runs one election step on `lease`, and returns the Lease as the server then holds it.
    fn elect(election: &mut Election, lease: Option<Lease>, now: Instant) -> Lease {
        match election.read(lease, now, Timestamp::UNIX_EPOCH) {
            LeaseStep::Create(lease) | LeaseStep::Replace(lease) => {
                election.written(lease.clone(), now, now);
                lease
            }
            LeaseStep::Wait => panic!("it waits"),
        }
    }

    #[test]
    fn a_term_ends_before_another_can_begin() {
        for seconds in [3, 6, 15, 30, 60, 3600] {
            let LeaseTimings { ttl, office, retry, request } = LeaseTimings::of(Duration::from_secs(seconds));
            assert!(office + request < ttl, "{seconds}");
            assert!(retry + request < office, "{seconds}: a renewal that fails once is tried again in time");
        }
    }

    #[test]
    fn the_first_candidate_leads_and_the_second_waits_for_expiry() {
        let (mut a, mut b) = (election("a"), election("b"));
        let start = Instant::now();
        let lease = elect(&mut a, None, start);
        assert_eq!(holder(&lease), (Some("a"), Some(1)));
        assert!(a.leader_state().is_held(start) && !b.leader_state().is_held(start));
        let late = start + Duration::from_secs(5);
        assert_eq!(b.read(Some(lease.clone()), late, Timestamp::UNIX_EPOCH), LeaseStep::Wait);
        let before = late + TTL - Duration::from_millis(1);
        assert_eq!(
            b.read(Some(lease.clone()), before, Timestamp::UNIX_EPOCH),
            LeaseStep::Wait,
            "counted from the first look"
        );
        assert!(!a.leader_state().is_held(before), "a has ended its term by then");
        let taken = elect(&mut b, Some(lease), late + TTL);
        assert_eq!(holder(&taken), (Some("b"), Some(2)));
        assert!(b.leader_state().is_held(late + TTL));
        // The former holder comes back.
        assert_eq!(a.read(Some(taken), late + TTL, Timestamp::UNIX_EPOCH), LeaseStep::Wait);
    }

    #[test]
    fn clock_skew_does_not_matter() {
        let start = Instant::now();
        for skew in [-86_400, 86_400] {
            let (mut a, mut b) = (election("a"), election("b"));
            let wall = Timestamp::now() + SignedDuration::from_secs(skew);
            let LeaseStep::Create(lease) = a.read(None, start, wall) else { panic!("there is none") };
            assert_eq!(b.read(Some(lease.clone()), start, Timestamp::now()), LeaseStep::Wait, "skew {skew}");
            assert_ne!(b.read(Some(lease), start + TTL, Timestamp::now()), LeaseStep::Wait, "skew {skew}");
        }
    }

    #[test]
    fn a_renewal_extends_the_term_and_restarts_the_wait_of_others() {
        let (mut a, mut b) = (election("a"), election("b"));
        let start = Instant::now();
        let lease = elect(&mut a, None, start);
        b.read(Some(lease), start, Timestamp::UNIX_EPOCH);
        let later = start + Duration::from_secs(15);
        let renewed = a.renewal(later, Timestamp::UNIX_EPOCH + SignedDuration::from_secs(15)).expect("in office");
        assert_eq!(holder(&renewed), (Some("a"), Some(1)));
        a.written(renewed.clone(), later, later);
        assert_eq!(b.read(Some(renewed), start + TTL, Timestamp::UNIX_EPOCH), LeaseStep::Wait);
        assert!(a.leader_state().is_held(start + TTL));
        assert!(a.renewal(later + TTL, Timestamp::UNIX_EPOCH).is_none(), "not without reading, out of office");
    }

    #[test]
    fn a_term_counts_from_the_sending_of_the_renewal() {
        let mut a = election("a");
        let sent = Instant::now();
        let LeaseStep::Create(lease) = a.read(None, sent, Timestamp::UNIX_EPOCH) else { panic!("there is none") };
        a.written(lease, sent, sent + Duration::from_secs(4));
        assert_eq!(a.leader_state(), LeaderState::Until(sent + Duration::from_secs(20)));
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let (mut a, mut b) = (election("a"), election("b"));
        let start = Instant::now();
        elect(&mut a, None, start);
        let free = a.release(start, Timestamp::UNIX_EPOCH).expect("it is held");
        assert_eq!(holder(&free), (None, Some(1)));
        assert!(!a.leader_state().is_held(start) && a.release(start, Timestamp::UNIX_EPOCH).is_none());
        assert_eq!(holder(&elect(&mut b, Some(free), start)), (Some("b"), Some(2)));
    }

    #[test]
    fn a_restart_under_the_same_name_keeps_the_lease() {
        let start = Instant::now();
        let lease = elect(&mut election("a"), None, start);
        let resumed = elect(&mut election("a"), Some(lease), start);
        assert_eq!(holder(&resumed), (Some("a"), Some(1)));
    }
}
