//! Publishes translations as snapshots, and logs their outcomes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ingress_control::{
    Translation,
    outcome::{ObjectRef, Origin, Outcome, Reason, Severity},
    status,
};
use ingress_model::{HostId, RouteTable, Tree, tree::Difference};
use ingress_proxy::{CertificateProblem, Shared, Snapshot};
use prometheus_client::metrics::histogram::Histogram;
use tracing::{info, warn};

use super::{
    change_log::{ChangeLog, ChangeRecord, ChangedNames},
    changed_hosts::changed_hosts,
    numbers::{HostNumbers, Returned},
};

/// Publisher of translations, on the control thread.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    numbers: HostNumbers,
    progress: Arc<PublishProgress>,
    /// The task that tells Ingresses of hosts without a number; `None` where none runs.
    status: Option<Arc<status::StatusHandle>>,
    /// The translation published last.
    published: Translation,
    /// Counter names of TCP services.
    streams: BTreeSet<String>,
    /// Outcomes already logged, so that each is logged once, and the number of warnings among them.
    outcomes: Tree<Arc<Outcome>, ()>,
    warnings: usize,
    /// Outcomes of the publication itself that are already logged.
    own: BTreeSet<Arc<Outcome>>,
    lines: LineCounts,
}

/// Number of lines per object, to limit the log for an object with ten thousand bad paths and frequent edits.
#[derive(Debug, Default)]
struct LineCounts {
    written: HashMap<String, (Instant, usize)>,
    left_out: BTreeMap<String, usize>,
    evicted: Option<Instant>,
}

/// Maximum number of lines per object within [`WINDOW`].
const LINES: usize = 100;
const WINDOW: Duration = Duration::from_secs(300);

/// Progress of publishing, for readiness and metrics.
#[derive(Debug, Default)]
pub(super) struct PublishProgress {
    pub(super) hosts: AtomicUsize,
    pub(super) upstreams: AtomicUsize,
    pub(super) warnings: AtomicUsize,
    pub(super) hosts_over_capacity: AtomicUsize,
    pub(super) applied: ApplyDurations,
    /// The translation that is served.
    pub(super) served: Mutex<Translation>,
    /// Every outcome, with the Unix time in seconds since when it holds.
    pub(super) problems: Mutex<Tree<Arc<Outcome>, i64>>,
    pub(super) changes: ChangeLog,
    /// Every host with a number, including removed ones until their numbers are released.
    pub(super) names: Mutex<Tree<Arc<str>, u32>>,
}

impl PublishProgress {
    /// Returns the table that is served.
    pub(super) fn table(&self) -> RouteTable {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).table.clone()
    }
}

/// Durations in seconds from the receipt of a change by this process until it is served.
#[derive(Clone, Debug)]
pub(crate) struct ApplyDurations(pub(crate) Histogram);

/// Upper bounds in seconds of the buckets of [`ApplyDurations`].
const APPLY_BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

impl Default for ApplyDurations {
    fn default() -> Self {
        Self(Histogram::new(APPLY_BOUNDS))
    }
}

// === impl Publisher ===

impl Publisher {
    pub(super) fn new(
        shared: Arc<Shared>,
        numbers: HostNumbers,
        progress: Arc<PublishProgress>,
        status: Option<Arc<status::StatusHandle>>,
    ) -> Self {
        Self {
            shared,
            numbers,
            progress,
            status,
            published: Translation::default(),
            streams: BTreeSet::new(),
            outcomes: Tree::new(),
            warnings: 0,
            own: BTreeSet::new(),
            lines: LineCounts::default(),
        }
    }

    /// Publishes `translation`, the first change of which was received at this time.
    pub(super) fn apply(&mut self, translation: Translation, received: Instant) {
        let mut change = self.publish(translation);
        let took = received.elapsed();
        self.progress.applied.0.observe(took.as_secs_f64());
        change.took = took;
        self.progress.changes.add(change);
    }

    /// Publishes `translation` for all new requests, and logs new outcomes. Returns what has changed.
    pub(super) fn publish(&mut self, translation: Translation) -> ChangeRecord {
        let before = std::mem::replace(&mut self.published, translation.clone());
        let Translation { table, outcomes, served: _, in_effect: _, statuses: _, external_names: _ } = translation;
        let previous = self.shared.snapshot();
        let previous = (previous.generation > 0).then_some(previous);
        let mut streams_over_capacity = 0;
        // Only new or changed hosts; others have their numbers and names already.
        let mut named = Vec::new();
        let mut number = |name: String| {
            let number = self.numbers.number(&name)?;
            named.push((number.0, name));
            Some(number)
        };
        let (mut snapshot, problems) = Snapshot::compile(previous.as_deref(), &table, |host| number(host.to_string()));
        let mut streams = BTreeSet::new();
        snapshot.number_streams(|port| {
            streams.insert(port.to_string());
            let number = number(port.to_string()).unwrap_or(HostId::UNATTRIBUTED);
            streams_over_capacity += usize::from(number == HostId::UNATTRIBUTED);
            number
        });
        let over_capacity = snapshot.unnumbered() + streams_over_capacity;
        let generation = snapshot.generation;
        if let Some(status) = &self.status {
            status.set_uncounted(snapshot.unnumbered_hosts(), self.numbers.capacity());
        }
        self.shared.publish(snapshot);
        let now = Instant::now();
        let streams = std::mem::replace(&mut self.streams, streams);
        let hosts_changed = changed_hosts(&before.table, &table);
        let mut change = ChangeRecord {
            hosts: ChangedNames::of(hosts_changed.iter().map(|host| host.name)),
            upstreams: ChangedNames::of(before.table.upstreams.differences(&table.upstreams).iter().map(|one| one.key)),
            certificates: ChangedNames::of(
                before.table.certificates.differences(&table.certificates).iter().map(|one| one.key),
            ),
            ..ChangeRecord::now(generation)
        };
        let gone = hosts_changed.into_iter().filter(|host| host.is_gone);
        let gone = gone.map(|host| host.name.to_string()).chain(streams.difference(&self.streams).cloned());
        gone.for_each(|name| self.numbers.leave(name, now));

        let progress = Arc::clone(&self.progress);
        let PublishProgress { hosts, upstreams, warnings, hosts_over_capacity, names, served, .. } = &*progress;
        served.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.published);
        named.retain(|(number, _)| *number != HostId::UNATTRIBUTED.0);
        let named = named.into_iter().map(|(number, name)| (name.into(), number));
        names.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        hosts.store(table.hosts.len(), Relaxed);
        upstreams.store(table.upstreams.len(), Relaxed);
        hosts_over_capacity.store(over_capacity, Relaxed);
        let (new, resolved) = self.compare(outcomes);
        warnings.store(self.warnings + problems.len() + usize::from(over_capacity > 0), Relaxed);

        let count = self.warnings;
        info!(generation, hosts = table.hosts.len(), upstreams = table.upstreams.len(), warnings = count, "published");
        log(&mut self.lines, now, &new, &resolved);
        let mut own: BTreeSet<_> = problems.into_iter().map(|problem| Arc::new(unusable(problem))).collect();
        if over_capacity > 0 {
            own.insert(Arc::new(uncounted(over_capacity)));
        }
        let before = std::mem::replace(&mut self.own, own);
        let own_new: BTreeSet<_> = self.own.difference(&before).cloned().collect();
        let own_resolved: BTreeSet<_> = before.difference(&self.own).cloned().collect();
        log(&mut self.lines, now, &own_new, &own_resolved);

        let mut known = progress.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for outcome in resolved.iter().chain(&own_resolved) {
            known.remove(outcome);
        }
        for outcome in new.iter().chain(&own_new) {
            known.insert(Arc::clone(outcome), change.at);
        }
        (change.new_problems, change.resolved_problems) =
            (new.len() + own_new.len(), resolved.len() + own_resolved.len());
        change
    }

    /// Releases the numbers of hosts removed long ago, and assigns them to hosts without one. Must be called every
    /// minute.
    pub(super) fn give_back(&mut self, now: Instant) {
        let Returned { numbers, has_freed } = self.numbers.give_back(now);
        if !numbers.is_empty() {
            info!(count = numbers.len(), "released the ids of hosts that are gone");
        }
        if !numbers.is_empty() {
            let mut names = self.progress.names.lock().unwrap_or_else(PoisonError::into_inner);
            let gone: BTreeSet<_> = numbers.iter().map(|number| number.0).collect();
            let released = names.iter().filter(|(_, number)| gone.contains(number));
            let released: Vec<_> = released.map(|(name, _)| Arc::clone(name)).collect();
            for name in &released {
                names.remove(name);
            }
        }
        numbers.into_iter().for_each(|number| self.shared.forget_durations(number));
        if has_freed && self.progress.hosts_over_capacity.load(Relaxed) > 0 {
            let _unchanged = self.publish(self.published.clone());
        }
    }

    /// Returns outcomes that are new in `outcomes`, and outcomes that are resolved. One that reappears counts as new.
    fn compare(&mut self, outcomes: Tree<Arc<Outcome>, ()>) -> (BTreeSet<Arc<Outcome>>, BTreeSet<Arc<Outcome>>) {
        let (mut new, mut resolved) = (BTreeSet::new(), BTreeSet::new());
        for Difference { key: outcome, old: _, new: is_new } in self.outcomes.differences(&outcomes) {
            let is_warning = usize::from(outcome.severity() == Severity::Warning);
            if is_new.is_some() {
                self.warnings += is_warning;
                new.insert(Arc::clone(outcome));
            } else {
                self.warnings -= is_warning;
                resolved.insert(Arc::clone(outcome));
            }
        }
        self.outcomes = outcomes;
        (new, resolved)
    }
}

fn log(lines: &mut LineCounts, now: Instant, new: &BTreeSet<Arc<Outcome>>, resolved: &BTreeSet<Arc<Outcome>>) {
    for outcome in new {
        let (reason, object, message) = (outcome.reason.as_str(), outcome.object.to_string(), &outcome.message);
        if lines.allow(&object, now) {
            match outcome.severity() {
                Severity::Warning => warn!(reason, object, "{message}"),
                Severity::Note => info!(reason, object, "{message}"),
            }
        }
    }
    for outcome in resolved {
        let (reason, object, message) = (outcome.reason.as_str(), outcome.object.to_string(), &outcome.message);
        if lines.allow(&object, now) {
            info!(reason, object, "resolved: {message}");
        }
    }
    for (object, count) in lines.take_left_out() {
        warn!(object, count, "further lines about this object are left out; the limit is {LINES} within {WINDOW:?}");
    }
}

/// Describes a certificate that no connection can use.
fn unusable(CertificateProblem { origin, reason }: CertificateProblem) -> Outcome {
    let (namespace, name) = origin.split_once('/').unwrap_or(("", &origin));
    let object =
        ObjectRef { kind: "Secret".into(), namespace: namespace.into(), name: name.into(), origin: Origin::Api };
    let message = format!("{reason}; correct it, its hosts get the self-signed certificate until then");
    Outcome::new(object, Reason::InvalidCertificate, message)
}

/// Describes hosts without a number of their own.
fn uncounted(hosts: usize) -> Outcome {
    let object = ObjectRef { kind: "counters".into(), namespace: "".into(), name: "".into(), origin: Origin::Api };
    let message = format!(
        "{hosts} hosts are counted as unattributed; run `xdp-ingress unload`, then start with a larger \
         `--host-capacity`, or remove hosts; their ids become free some 12 minutes later"
    );
    Outcome::new(object, Reason::HostCapacity, message)
}

// === impl LineCounts ===

impl LineCounts {
    /// Returns whether another line about `object` is allowed.
    fn allow(&mut self, object: &str, now: Instant) -> bool {
        if self.evicted.is_none_or(|evicted| now.saturating_duration_since(evicted) >= WINDOW) {
            self.written.retain(|_, (began, _)| now.saturating_duration_since(*began) < WINDOW);
            self.evicted = Some(now);
        }
        let (began, count) = self.written.entry(object.to_owned()).or_insert((now, 0));
        if now.saturating_duration_since(*began) >= WINDOW {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        let is_allowed = *count <= LINES;
        if !is_allowed {
            *self.left_out.entry(object.to_owned()).or_default() += 1;
        }
        is_allowed
    }

    /// Returns the number of omitted lines per object since the last call. Each object is reported once per window.
    fn take_left_out(&mut self) -> Vec<(String, usize)> {
        let left_out = std::mem::take(&mut self.left_out);
        let is_first = |object: &str, count: usize| {
            self.written.get(object).is_some_and(|(_, written)| written.saturating_sub(count) <= LINES)
        };
        left_out.into_iter().filter(|(object, count)| is_first(object, *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use ingress_common::HostL7Cell;
    use ingress_model::HostPattern;

    use super::*;

    #[test]
    fn log_lines_are_limited_for_each_object() {
        let (mut lines, began) = (LineCounts::default(), Instant::now());
        let written =
            |lines: &mut LineCounts, object, count, now| (0..count).filter(|_| lines.allow(object, now)).count();
        assert_eq!(written(&mut lines, "bad", 10_000, began), LINES);
        assert_eq!(written(&mut lines, "other", LINES, began), LINES);
        assert_eq!(lines.take_left_out(), [("bad".to_owned(), 10_000 - LINES)]);
        // Further edits produce as many messages, without log lines.
        assert_eq!(written(&mut lines, "bad", 10_000, began + WINDOW / 2), 0);
        assert_eq!(lines.take_left_out(), []);
        assert_eq!(written(&mut lines, "bad", 10_000, began + WINDOW), LINES);
        assert_eq!(lines.take_left_out().len(), 1);
        assert!(lines.allow("third", began + WINDOW * 3) && lines.written.len() == 1, "what is over is forgotten");
    }

    #[test]
    fn a_freed_number_goes_to_a_host_without_one() {
        let cells: &'static [HostL7Cell] = Box::leak(Box::new([(); 2].map(|()| HostL7Cell::default())));
        let shared = Arc::new(Shared::new(cells, None).expect("a state"));
        let progress = Arc::new(PublishProgress::default());
        let numbers = HostNumbers::memory(cells);
        let status = Arc::<status::StatusHandle>::default();
        let told = Some(Arc::clone(&status));
        let mut publisher = Publisher::new(Arc::clone(&shared), numbers, Arc::clone(&progress), told);
        let mut publish = |hosts: &[&str]| {
            let mut translation = Translation::default();
            for host in hosts {
                let host = HostPattern::parse(host).expect("a host");
                translation.table.hosts.insert(host, Arc::default());
            }
            publisher.publish(translation)
        };
        let number = |host| shared.snapshot().routes.host(host).map(|entry| entry.id.0);
        let over = || progress.hosts_over_capacity.load(Relaxed);
        let told = || status.uncounted_hosts().keys().map(ToString::to_string).collect::<Vec<_>>();
        publish(&["a.test", "b.test"]);
        assert_eq!((number("a.test"), number("b.test"), over()), (Some(1), Some(0), 1));
        assert_eq!(told(), ["b.test"]);
        publish(&["b.test"]);
        assert_eq!((number("a.test"), number("b.test"), over()), (None, Some(0), 1), "not before it has long gone");
        cells[1].bytes_out.fetch_add(9, Relaxed);
        publisher.give_back(Instant::now() + Duration::from_secs(3600));
        assert_eq!((number("b.test"), over(), told()), (Some(1), 0, Vec::new()));
        assert_eq!(cells[1].load().bytes_out, 0);
        let names = progress.names.lock().expect("whole").clone();
        assert_eq!(names.iter().collect::<Vec<_>>(), [(&"b.test".into(), &1)]);
    }
}
