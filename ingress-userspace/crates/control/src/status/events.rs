//! Decides which events to write, and when. The module is pure: it takes the time as an argument, and writes nothing.
//!
//! A problem is reported when it appears, and again at intervals while it persists, so that the server does not forget
//! the event. A problem that was resolved and comes back is reported again. Problems that tend to appear and vanish by
//! themselves must persist for a while first. Events above the rate limit are not queued; a later look takes them from
//! the problems that persist by then.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use tokio::time::Instant;

use super::input::Problem;
use crate::hash::fnv;
use crate::outcome::Reason;

/// Interval at which a persistent problem is reported again. It is half of the API server's event lifetime
/// (`--event-ttl`, 1 h), so that `kubectl describe` shows the problem as long as it persists.
pub(super) const REPEAT: Duration = Duration::from_secs(30 * 60);
/// How long endpoints must be missing, or too many: a rolling update may leave none, or twice as many, for a moment.
pub(super) const ENDPOINTS_UNUSUAL: Duration = Duration::from_secs(5);
/// Maximum number of problems tracked per object; the log has all of them.
const MAX_OF_OBJECT: usize = 100;

/// Maximum number of problems tracked. Further ones are counted and not reported. Each takes a few hundred bytes.
pub(super) const MAX_PERSISTENT: usize = 10_000;

/// Rate for one object, as in client-go's spam filter: 25 at once, then one every five minutes.
const PER_OBJECT: EventRate = EventRate { burst: 25, every: Duration::from_secs(300) };
/// Rate for all objects together. A thousand broken Ingresses are reported within minutes, at a rate that an API server
/// sustains easily.
const OVERALL: EventRate = EventRate { burst: 50, every: Duration::from_millis(200) };

/// The action that all events name: the operation that found the problem.
const ACTION: &str = "Translate";
/// Limits of the API (k/k pkg/apis/core/validation/events.go).
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;
const MAX_NAME: usize = 253;

/// The persistent problems, and when each was reported.
#[derive(Debug)]
pub(super) struct EventDeduper {
    persistent: BTreeMap<Problem, Reported>,
    /// Keyed by the UID of the object.
    objects: BTreeMap<Arc<str>, TokenBucket>,
    overall: TokenBucket,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    since: Instant,
    /// When the problem was last reported, and how often so far.
    last: Option<(Instant, i32)>,
    /// Set when the problem could not be reported.
    not_before: Option<Instant>,
}

/// The next step of the recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecorderStep {
    /// Report this problem, which was reported this often before.
    Report(Problem, i32),
    /// Wait until this time, unless an input changes.
    Wait(Option<Instant>),
}

#[derive(Clone, Copy, Debug)]
struct EventRate {
    burst: u32,
    every: Duration,
}

/// A token bucket, stored as the time at which it is full again.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    rate: EventRate,
    full_at: Instant,
}

/// Builds the event that reports `problem` for the first time.
///
/// The name is derived from the content, so that another leader, or this one after a restart, finds the event instead
/// of repeating it.
pub(super) fn event(problem: &Problem, controller: &str, instance: &str, wall: Timestamp) -> Event {
    let Problem { kind: _, name, uid, reason, message } = problem;
    let hash = fnv([uid.as_bytes(), reason.as_bytes(), message.as_bytes()].join(&0).as_slice());
    let suffix = format!(".{hash:016x}");
    let stem = truncated(&name.name, MAX_NAME - suffix.len()).trim_end_matches(['-', '.']);
    // By convention, events about objects without a namespace go to this one.
    let namespace = if name.namespace.is_empty() { "default" } else { &name.namespace };
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{stem}{suffix}")),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".into()),
        reason: Some((*reason).into()),
        action: Some(ACTION.into()),
        note: Some(truncated(message, MAX_NOTE).into()),
        regarding: Some(problem.regarding()),
        // A qualified name has one slash (apimachinery, `IsQualifiedName`), while the controller of a class may have
        // several.
        reporting_controller: Some(qualified(controller)),
        reporting_instance: Some(truncated(instance, MAX_INSTANCE).into()),
        event_time: Some(MicroTime(wall)),
        ..Event::default()
    }
}

/// Returns the controller with only its first slash, as the API requires of a reporter.
fn qualified(controller: &str) -> String {
    match controller.split_once('/') {
        Some((domain, rest)) => format!("{domain}/{}", rest.replace('/', "-")),
        None => controller.into(),
    }
}

/// Returns the longest prefix of `text` that fits into `bytes`.
fn truncated(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn must_stand_for(reason: &str) -> Duration {
    let may_pass = [Reason::NoReadyEndpoints, Reason::HealthChecksDelayed].map(Reason::as_str);
    if may_pass.contains(&reason) { ENDPOINTS_UNUSUAL } else { Duration::ZERO }
}

// === impl EventDeduper ===

impl EventDeduper {
    pub(super) fn new(now: Instant) -> Self {
        Self { persistent: BTreeMap::new(), objects: BTreeMap::new(), overall: TokenBucket::new(OVERALL, now) }
    }

    /// Replaces the set of persistent problems by `problems`. Returns how many of them are not tracked because of the
    /// limits.
    pub(super) fn observe(&mut self, problems: &BTreeSet<Problem>, now: Instant) -> u64 {
        self.persistent.retain(|problem, _| problems.contains(problem));
        self.objects.retain(|_, bucket| !bucket.is_full(now));
        let mut dropped = 0;
        let mut of_object: BTreeMap<&str, usize> = BTreeMap::new();
        for problem in problems {
            let number = of_object.entry(&problem.uid).or_default();
            *number += 1;
            if self.persistent.contains_key(problem) {
                continue;
            }
            // One object must not use up the room of all others.
            if *number <= MAX_OF_OBJECT && self.persistent.len() < MAX_PERSISTENT {
                self.persistent.insert(problem.clone(), Reported { since: now, last: None, not_before: None });
            } else {
                dropped += 1;
            }
        }
        dropped
    }

    /// Returns the next problem to report, or the earliest time at which one may be due.
    pub(super) fn next(&self, now: Instant) -> RecorderStep {
        let mut wait: Option<Instant> = None;
        let overall = self.overall.ready_at(now);
        for (problem, Reported { since, last, not_before }) in &self.persistent {
            let due = last.map_or_else(|| *since + must_stand_for(problem.reason), |(last, _)| last + REPEAT);
            let due = not_before.map_or(due, |not_before| due.max(not_before));
            let object = self.objects.get(&problem.uid).map_or(now, |bucket| bucket.ready_at(now));
            let at = due.max(object).max(overall);
            if at <= now {
                return RecorderStep::Report(problem.clone(), last.map_or(0, |(_, count)| count));
            }
            wait = Some(wait.map_or(at, |wait| wait.min(at)));
        }
        RecorderStep::Wait(wait)
    }

    /// Delays a problem that could not be reported, so that others come first.
    pub(super) fn put_off(&mut self, problem: &Problem, until: Instant) {
        if let Some(reported) = self.persistent.get_mut(problem) {
            reported.not_before = Some(until);
        }
    }

    /// Records that `problem` has been reported `count` times by now; zero means that the server refuses it as it is.
    pub(super) fn reported(&mut self, problem: &Problem, count: i32, now: Instant) {
        if let Some(reported) = self.persistent.get_mut(problem) {
            (reported.last, reported.not_before) = (Some((now, count)), None);
        }
        self.overall.take(now);
        let bucket = self.objects.entry(Arc::clone(&problem.uid));
        bucket.or_insert_with(|| TokenBucket::new(PER_OBJECT, now)).take(now);
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    fn new(rate: EventRate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Returns when a token is available: now, or later.
    fn ready_at(&self, now: Instant) -> Instant {
        let EventRate { burst, every } = self.rate;
        let slack = every * (burst - 1);
        if self.full_at <= now + slack { now } else { self.full_at - slack }
    }

    fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.rate.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Kind, ObjectName};

    fn problem(name: &str, reason: Reason, message: &str) -> Problem {
        Problem {
            kind: Kind::Ingress,
            name: ObjectName::new("n", name),
            uid: format!("uid-{name}").into(),
            reason: reason.as_str(),
            message: message.into(),
        }
    }

    /// Reports all problems that are due. Returns them with the time at which the next one is due.
    fn report(deduper: &mut EventDeduper, now: Instant) -> (Vec<(Problem, i32)>, Option<Instant>) {
        let mut reported = Vec::new();
        loop {
            match deduper.next(now) {
                RecorderStep::Report(problem, count) => {
                    deduper.reported(&problem, count + 1, now);
                    reported.push((problem, count));
                }
                RecorderStep::Wait(at) => return (reported, at),
            }
        }
    }

    #[test]
    fn a_problem_is_reported_when_it_appears_and_repeated_later() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let missing = problem("a", Reason::ServiceNotFound, "gone");
        let persistent = BTreeSet::from([missing.clone()]);
        deduper.observe(&persistent, start);
        assert_eq!(report(&mut deduper, start), (vec![(missing.clone(), 0)], Some(start + REPEAT)));
        deduper.observe(&persistent, start + REPEAT / 2);
        assert_eq!(report(&mut deduper, start + REPEAT / 2), (Vec::new(), Some(start + REPEAT)));
        assert_eq!(report(&mut deduper, start + REPEAT).0, [(missing.clone(), 1)], "as a series");
        let later = start + REPEAT + Duration::from_secs(1);
        deduper.observe(&BTreeSet::new(), later);
        assert_eq!(report(&mut deduper, later + REPEAT), (Vec::new(), None), "resolved");
        deduper.observe(&persistent, later);
        assert_eq!(report(&mut deduper, later).0, [(missing, 0)], "and back");
    }

    #[test]
    fn briefly_missing_endpoints_are_not_reported() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let missing = problem("a", Reason::NoReadyEndpoints, "none");
        let persistent = BTreeSet::from([missing.clone()]);
        let (none, half) = (BTreeSet::new(), ENDPOINTS_UNUSUAL / 2);
        for (problems, after) in
            [(&persistent, Duration::ZERO), (&none, half), (&persistent, half * 2), (&persistent, half * 3)]
        {
            deduper.observe(problems, start + after);
            assert_eq!(report(&mut deduper, start + after).0, [], "{after:?}");
        }
        assert_eq!(report(&mut deduper, start + half * 4), (vec![(missing, 0)], Some(start + half * 4 + REPEAT)));
    }

    #[test]
    fn an_object_with_many_problems_does_not_delay_others() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let mut persistent: BTreeSet<Problem> =
            (0..40).map(|number| problem("a", Reason::InvalidPath, &number.to_string())).collect();
        persistent.insert(problem("z", Reason::InvalidPath, "x"));
        deduper.observe(&persistent, start);
        let (reported, next) = report(&mut deduper, start);
        let (of_a, of_z): (Vec<_>, Vec<_>) = reported.iter().partition(|(problem, _)| &*problem.name.name == "a");
        assert_eq!((of_a.len(), of_z.len(), next), (25, 1, Some(start + PER_OBJECT.every)));
        assert_eq!(report(&mut deduper, start + PER_OBJECT.every).0.len(), 1, "nothing is lost, only later");
    }

    #[test]
    fn reports_are_limited_by_rate() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let persistent = (0..200).map(|number| problem(&format!("i{number:03}"), Reason::InvalidPath, "x")).collect();
        deduper.observe(&persistent, start);
        assert_eq!(report(&mut deduper, start).0.len(), 50);
        assert_eq!(report(&mut deduper, start + Duration::from_secs(10)).0.len(), 50);
        assert_eq!(report(&mut deduper, start + Duration::from_secs(20)).0.len(), 50);
    }

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let persistent =
            (0..=MAX_PERSISTENT).map(|number| problem(&number.to_string(), Reason::InvalidPath, "x")).collect();
        assert_eq!(deduper.observe(&persistent, start), 1);
        assert_eq!(deduper.observe(&BTreeSet::new(), start), 0);
    }

    #[test]
    fn problems_are_limited_for_each_object() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let mut persistent: BTreeSet<Problem> =
            (0..MAX_OF_OBJECT + 7).map(|number| problem("a", Reason::InvalidPath, &format!("{number:03}"))).collect();
        persistent.insert(problem("z", Reason::InvalidPath, "x"));
        assert_eq!(deduper.observe(&persistent, start), 7);
        assert_eq!(deduper.persistent.len(), MAX_OF_OBJECT + 1);
        // Tracked problems stay tracked, and others join them as room becomes free.
        assert_eq!(deduper.observe(&persistent, start), 7);
        persistent.retain(|problem| &*problem.message >= "010");
        assert_eq!(deduper.observe(&persistent, start), 0);
        assert_eq!(deduper.persistent.len(), MAX_OF_OBJECT + 7 - 10 + 1);
    }

    #[test]
    fn a_failed_report_is_queued_behind_the_others() {
        let start = Instant::now();
        let mut deduper = EventDeduper::new(start);
        let [a, b] = ["a", "b"].map(|name| problem(name, Reason::InvalidPath, "x"));
        deduper.observe(&[a.clone(), b.clone()].into(), start);
        assert_eq!(deduper.next(start), RecorderStep::Report(a.clone(), 0));
        let until = start + Duration::from_secs(10);
        deduper.put_off(&a, until);
        assert_eq!(report(&mut deduper, start), (vec![(b, 0)], Some(until)));
        assert_eq!(report(&mut deduper, until).0, [(a.clone(), 0)]);
        // After the report it is not delayed any more.
        assert_eq!(report(&mut deduper, until + REPEAT).0.len(), 2);
    }

    #[test]
    fn an_event_has_the_fields_of_the_api() {
        let missing = problem("web", Reason::ServiceNotFound, "service `n/api` does not exist; create it");
        let event = event(&missing, "xdp-ingress.io/controller", "xdp-ingress-x7k2p", Timestamp::UNIX_EPOCH);
        expect_test::expect![[r#"
            {
              "apiVersion": "events.k8s.io/v1",
              "kind": "Event",
              "action": "Translate",
              "eventTime": "1970-01-01T00:00:00.000000Z",
              "metadata": {
                "name": "web.0385c7f8e3d1a3fb",
                "namespace": "n"
              },
              "note": "service `n/api` does not exist; create it",
              "reason": "ServiceNotFound",
              "regarding": {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "Ingress",
                "name": "web",
                "namespace": "n",
                "uid": "uid-web"
              },
              "reportingController": "xdp-ingress.io/controller",
              "reportingInstance": "xdp-ingress-x7k2p",
              "type": "Warning"
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&event).expect("JSON"));
    }

    #[test]
    fn long_texts_are_truncated_and_names_stay_valid() {
        let name = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        let long = problem(&name, Reason::InvalidPath, &"é".repeat(600));
        let event = event(&long, "c", &"i".repeat(300), Timestamp::UNIX_EPOCH);
        let name = event.metadata.name.expect("a name");
        assert!(name.len() <= MAX_NAME && name.starts_with("aaa") && !name.contains("-."), "{name}");
        assert_eq!(event.note.map(|note| note.len()), Some(1024));
        assert_eq!(event.reporting_instance.map(|instance| instance.len()), Some(128));
    }

    #[test]
    fn the_hash_matches_published_vectors() {
        assert_eq!(
            (fnv(b""), fnv(b"a"), fnv(b"foobar")),
            (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8)
        );
    }
}
