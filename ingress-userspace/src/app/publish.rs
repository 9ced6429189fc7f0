//! From a translation to the snapshot that is served, and from its outcomes to the log.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ingress_userspace::{
    control::{
        Translation,
        outcome::{Outcome, Reason, Severity},
    },
    datapath::{self, Datapath},
    model::{HostId, Tree, tree::Difference},
    proxy::{CertificateProblem, Shared, Snapshot},
};
use tracing::{info, warn};

/// Publishes translations; lives on the control thread.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    numbers: HostNumbers,
    progress: Arc<Progress>,
    /// What the log has said already of the objects, so that it says it once, and how many of it are warnings.
    outcomes: Tree<Arc<Outcome>, ()>,
    warnings: usize,
    /// What it has said of anything else.
    told: BTreeSet<Remark>,
    lines: Lines,
}

/// Something to say about the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Remark {
    severity: Severity,
    /// From a fixed list, see [`Reason`].
    reason: &'static str,
    object: String,
    message: String,
}

/// How many lines were written about each object: one with ten thousand bad paths is not to fill the log with each edit.
#[derive(Debug, Default)]
struct Lines {
    written: HashMap<String, (Instant, usize)>,
    left_out: BTreeMap<String, usize>,
    swept: Option<Instant>,
}

/// Lines about one object within [`WINDOW`].
const LINES: usize = 100;
const WINDOW: Duration = Duration::from_secs(300);

/// How far publishing has come, for readiness and metrics.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) hosts: AtomicUsize,
    pub(super) upstreams: AtomicUsize,
    pub(super) warnings: AtomicUsize,
    pub(super) hosts_over_capacity: AtomicUsize,
    /// Every host with a number, also those whose routes are gone: their counters are not.
    pub(super) names: Mutex<BTreeMap<u32, String>>,
}

/// Gives every host its number, once and for good.
pub(super) enum HostNumbers {
    /// In a map that outlives the process.
    Kernel(Arc<Datapath>),
    /// In memory, without the kernel part.
    Memory { numbers: BTreeMap<String, u32>, capacity: u32 },
}

// === impl Publisher ===

impl Publisher {
    pub(super) fn new(shared: Arc<Shared>, numbers: HostNumbers, progress: Arc<Progress>) -> Self {
        Self {
            shared,
            numbers,
            progress,
            outcomes: Tree::new(),
            warnings: 0,
            told: BTreeSet::new(),
            lines: Lines::default(),
        }
    }

    /// Makes `translation` what every new request sees, and logs what is new in its outcomes.
    pub(super) fn publish(&mut self, translation: Translation) {
        let Translation { table, outcomes, served: _, external_names: _ } = translation;
        let previous = self.shared.snapshot();
        let previous = (previous.generation > 0).then_some(previous);
        let mut streams_over_capacity = 0;
        // Of hosts that are new or changed; the others have their numbers and names.
        let mut named = Vec::new();
        let mut number = |name: String| {
            let number = self.numbers.number(&name)?;
            named.push((number.0, name));
            Some(number)
        };
        let (mut snapshot, problems) =
            Snapshot::compile(previous.as_deref(), &table, |pattern| number(pattern.to_string()));
        snapshot.number_streams(|port| {
            let number = number(port.to_string()).unwrap_or(HostId::UNATTRIBUTED);
            streams_over_capacity += usize::from(number == HostId::UNATTRIBUTED);
            number
        });
        let over_capacity = snapshot.unnumbered() + streams_over_capacity;
        let generation = snapshot.generation;
        self.shared.publish(snapshot);

        let progress = Arc::clone(&self.progress);
        let Progress { hosts, upstreams, warnings, hosts_over_capacity, names } = &*progress;
        named.retain(|(number, _)| *number != HostId::UNATTRIBUTED.0);
        names.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        hosts.store(table.hosts.len(), Relaxed);
        upstreams.store(table.upstreams.len(), Relaxed);
        hosts_over_capacity.store(over_capacity, Relaxed);
        let (new, resolved) = self.compare(outcomes);
        warnings.store(self.warnings + problems.len() + usize::from(over_capacity > 0), Relaxed);

        let count = self.warnings;
        info!(generation, hosts = table.hosts.len(), upstreams = table.upstreams.len(), warnings = count, "published");
        let now = Instant::now();
        log(&mut self.lines, now, &new, &resolved);
        let mut remarks: BTreeSet<Remark> = problems.into_iter().map(Remark::from).collect();
        if over_capacity > 0 {
            let message = format!(
                "{over_capacity} hosts are counted as unattributed; run `xdp-ingress unload`, then start with a larger `--host-capacity`"
            );
            let object = "counters".to_owned();
            remarks.insert(Remark { severity: Severity::Warning, reason: "HostCapacity", object, message });
        }
        let told = std::mem::replace(&mut self.told, remarks);
        log(&mut self.lines, now, self.told.difference(&told), told.difference(&self.told));
    }

    /// What `outcomes` say that was not said the last time, and what they say no more. One that comes back is told again.
    fn compare(&mut self, outcomes: Tree<Arc<Outcome>, ()>) -> (BTreeSet<Remark>, BTreeSet<Remark>) {
        let (mut new, mut resolved) = (BTreeSet::new(), BTreeSet::new());
        for Difference { key: outcome, old: _, new: is_said } in self.outcomes.differences(&outcomes) {
            let is_warning = usize::from(outcome.severity() == Severity::Warning);
            if is_said.is_some() {
                self.warnings += is_warning;
                new.insert(Remark::from(&**outcome));
            } else {
                self.warnings -= is_warning;
                resolved.insert(Remark::from(&**outcome));
            }
        }
        self.outcomes = outcomes;
        (new, resolved)
    }
}

fn log<'r>(
    lines: &mut Lines,
    now: Instant,
    new: impl IntoIterator<Item = &'r Remark>,
    resolved: impl IntoIterator<Item = &'r Remark>,
) {
    for Remark { severity, reason, object, message } in new {
        if lines.allow(object, now) {
            match severity {
                Severity::Warning => warn!(reason, object, "{message}"),
                Severity::Note => info!(reason, object, "{message}"),
            }
        }
    }
    for Remark { severity: _, reason, object, message } in resolved {
        if lines.allow(object, now) {
            info!(reason, object, "resolved: {message}");
        }
    }
    for (object, count) in lines.take_left_out() {
        warn!(object, count, "more lines about this object are left out, for {LINES} within {WINDOW:?} are the limit");
    }
}

// === impl Lines ===

impl Lines {
    /// Whether there may be another line about `object`.
    fn allow(&mut self, object: &str, now: Instant) -> bool {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= WINDOW) {
            self.written.retain(|_, (began, _)| now.saturating_duration_since(*began) < WINDOW);
            self.swept = Some(now);
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

    /// How many were left out since this was asked, by object; an object is told of once within its time.
    fn take_left_out(&mut self) -> Vec<(String, usize)> {
        let left_out = std::mem::take(&mut self.left_out);
        let is_first = |object: &str, count: usize| {
            self.written.get(object).is_some_and(|(_, written)| written.saturating_sub(count) <= LINES)
        };
        left_out.into_iter().filter(|(object, count)| is_first(object, *count)).collect()
    }
}

// === impl Remark ===

impl From<&Outcome> for Remark {
    fn from(outcome: &Outcome) -> Self {
        let Outcome { object, reason, message } = outcome;
        Self {
            severity: outcome.severity(),
            reason: reason.as_str(),
            object: object.to_string(),
            message: message.clone(),
        }
    }
}

impl From<CertificateProblem> for Remark {
    fn from(CertificateProblem { origin, reason }: CertificateProblem) -> Self {
        let message = format!("{reason}; correct it, its hosts get the self-signed certificate meanwhile");
        let reason = Reason::InvalidCertificate.as_str();
        Self { severity: Severity::Warning, reason, object: format!("Secret {origin}"), message }
    }
}

// === impl HostNumbers ===

impl HostNumbers {
    pub(super) fn memory(capacity: u32) -> Self {
        Self::Memory { numbers: BTreeMap::new(), capacity }
    }

    /// [`HostId::UNATTRIBUTED`] when all numbers are taken, as they stay; `None` when that cannot be found out now.
    fn number(&mut self, name: &str) -> Option<HostId> {
        match self {
            Self::Kernel(datapath) => match datapath.host_ids().assign(name) {
                Ok(number) => Some(HostId(number)),
                Err(datapath::Error::HostsFull { .. }) => Some(HostId::UNATTRIBUTED),
                Err(error) => {
                    warn!(
                        name,
                        error = &error as &dyn std::error::Error,
                        "cannot number a host; counted as unattributed"
                    );
                    None
                }
            },
            Self::Memory { numbers, capacity } => {
                if let Some(&number) = numbers.get(name) {
                    return Some(HostId(number));
                }
                let next = u32::try_from(numbers.len()).ok()?.checked_add(1)?;
                if next >= *capacity {
                    return Some(HostId::UNATTRIBUTED);
                }
                numbers.insert(name.to_owned(), next);
                Some(HostId(next))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_so_many_lines_and_no_other_has_fewer_for_that() {
        let (mut lines, began) = (Lines::default(), Instant::now());
        let written = |lines: &mut Lines, object, count, now| (0..count).filter(|_| lines.allow(object, now)).count();
        assert_eq!(written(&mut lines, "bad", 10_000, began), LINES);
        assert_eq!(written(&mut lines, "other", LINES, began), LINES);
        assert_eq!(lines.take_left_out(), [("bad".to_owned(), 10_000 - LINES)]);
        // Each edit has as many again, and nothing more is said of them.
        assert_eq!(written(&mut lines, "bad", 10_000, began + WINDOW / 2), 0);
        assert_eq!(lines.take_left_out(), []);
        assert_eq!(written(&mut lines, "bad", 10_000, began + WINDOW), LINES);
        assert_eq!(lines.take_left_out().len(), 1);
        assert!(lines.allow("third", began + WINDOW * 3) && lines.written.len() == 1, "what is over is forgotten");
    }

    #[test]
    fn numbers_stay_and_run_out() {
        let mut numbers = HostNumbers::memory(3);
        let mut number = |name: &str| numbers.number(name);
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("*.test"), Some(HostId(2)));
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("b.test"), Some(HostId::UNATTRIBUTED));
    }
}
