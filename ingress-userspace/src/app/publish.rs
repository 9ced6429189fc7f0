//! From a translation to the snapshot that is served, and from its outcomes to the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ingress_userspace::{
    control::{
        Translation,
        outcome::{Outcome, Reason, Severity},
    },
    datapath::{self, Datapath},
    model::{HostId, HostPattern},
    proxy::{CertificateProblem, Shared, Snapshot},
};
use tracing::{info, warn};

/// Publishes translations; lives on the control thread.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    numbers: HostNumbers,
    progress: Arc<Progress>,
    /// What the log has said already, so that it says it once.
    told: BTreeSet<Remark>,
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
        Self { shared, numbers, progress, told: BTreeSet::new() }
    }

    /// Makes `translation` what every new request sees, and logs what is new in its outcomes.
    pub(super) fn publish(&mut self, translation: Translation) {
        let Translation { table, outcomes, served: _, external_names: _ } = translation;
        let previous = self.shared.snapshot();
        let previous = (previous.generation > 0).then_some(previous);
        let mut over_capacity = 0;
        // Of hosts that are new or changed; the others have their numbers and names.
        let mut named = Vec::new();
        let (snapshot, problems) = Snapshot::compile(previous.as_deref(), &table, |pattern| {
            let Some(number) = self.numbers.number(pattern) else {
                over_capacity += 1;
                return HostId::UNATTRIBUTED;
            };
            named.push((number.0, pattern.to_string()));
            number
        });
        let generation = snapshot.generation;
        self.shared.publish(snapshot);

        let Progress { hosts, upstreams, warnings, hosts_over_capacity, names } = &*self.progress;
        named.retain(|(number, _)| *number != HostId::UNATTRIBUTED.0);
        names.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        hosts.store(table.hosts.len(), Relaxed);
        upstreams.store(table.upstreams.len(), Relaxed);
        hosts_over_capacity.store(over_capacity, Relaxed);
        let count = outcomes.iter().filter(|outcome| outcome.severity() == Severity::Warning).count();
        warnings.store(count + problems.len() + usize::from(over_capacity > 0), Relaxed);

        info!(generation, hosts = table.hosts.len(), upstreams = table.upstreams.len(), warnings = count, "published");
        let mut remarks: Vec<Remark> = outcomes.into_iter().map(Remark::from).collect();
        remarks.extend(problems.into_iter().map(Remark::from));
        if over_capacity > 0 {
            let message = format!(
                "{over_capacity} hosts are counted as unattributed; run `xdp-ingress unload`, then start with a larger `--host-capacity`"
            );
            let object = "counters".to_owned();
            remarks.push(Remark { severity: Severity::Warning, reason: "HostCapacity", object, message });
        }
        self.tell(remarks);
    }

    /// Logs the remarks that were not there the last time; one that comes back is told again.
    fn tell(&mut self, remarks: Vec<Remark>) {
        let standing: BTreeSet<Remark> = remarks.into_iter().collect();
        for Remark { severity, reason, object, message } in standing.difference(&self.told) {
            match severity {
                Severity::Warning => warn!(reason, object, "{message}"),
                Severity::Note => info!(reason, object, "{message}"),
            }
        }
        for Remark { severity: _, reason, object, message } in self.told.difference(&standing) {
            info!(reason, object, "resolved: {message}");
        }
        self.told = standing;
    }
}

// === impl Remark ===

impl From<Outcome> for Remark {
    fn from(outcome: Outcome) -> Self {
        let severity = outcome.severity();
        let Outcome { object, reason, message } = outcome;
        Self { severity, reason: reason.as_str(), object: object.to_string(), message }
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

    /// `None` when all numbers are taken.
    fn number(&mut self, pattern: &HostPattern) -> Option<HostId> {
        let name = pattern.to_string();
        match self {
            Self::Kernel(datapath) => match datapath.host_ids().assign(&name) {
                Ok(number) => Some(HostId(number)),
                Err(datapath::Error::HostsFull { .. }) => None,
                Err(error) => {
                    warn!(
                        name,
                        error = &error as &dyn std::error::Error,
                        "cannot number a host; counted as unattributed"
                    );
                    Some(HostId::UNATTRIBUTED)
                }
            },
            Self::Memory { numbers, capacity } => {
                if let Some(&number) = numbers.get(&name) {
                    return Some(HostId(number));
                }
                let next = u32::try_from(numbers.len()).ok()?.checked_add(1)?;
                (next < *capacity).then(|| {
                    numbers.insert(name, next);
                    HostId(next)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_run_out() {
        let mut numbers = HostNumbers::memory(3);
        let mut number = |text: &str| numbers.number(&HostPattern::parse(text).expect("valid host"));
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("*.test"), Some(HostId(2)));
        assert_eq!(number("a.test"), Some(HostId(1)));
        assert_eq!(number("b.test"), None);
    }
}
