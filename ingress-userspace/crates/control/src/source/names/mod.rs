//! Keeps the addresses of DNS names up to date: the names that Services of type ExternalName refer to. It does not
//! judge addresses.
//!
//! ```text
//! Translation.external_names ──> Schedule ──due──> lookup ──> answer ──> Change::Resolve ──┐
//!                                    │                                                     ├─> Batch
//!                                    └──────── no longer wanted ─────> Change::Forget ─────┘
//! ```
//!
//! A name is looked up again when nine tenths of its TTL are over, at the earliest after [`MIN_TTL`] and at the latest
//! after [`MAX_TTL`]. While DNS fails, the last answer is kept for [`MAX_STALE`]; "does not exist" is an answer. A name
//! without an answer counts as one without addresses from its second failure on, so that its users learn of it.
//!
//! Users with the right to make Services can choose names with servers that never answer, or answer late. To keep such
//! names from delaying others, lookups use three separate pools of slots (see [`LookupHistory`]), and slow names wait
//! for each other only.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    change::{Batch, Change},
    clock::expiry,
};
use answer::{LookupAnswer, LookupError};

mod answer;
mod dns;

pub use dns::lookup_over;
pub(crate) use dns::{Dns, NameKind};

/// Minimum validity of an answer: bounds the query rate for a TTL of 0.
const MIN_TTL: Duration = Duration::from_secs(5);

/// Maximum validity of an answer: bounds how late a change is seen.
const MAX_TTL: Duration = Duration::from_secs(300);

/// How long the last answer is used while DNS fails. RFC 8767, 5, suggests one to three days.
const MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// The first pause after a failure; doubled for each further one, up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Total time of all queries about a name above which the name is slow.
const SLOW: Duration = Duration::from_secs(1);

/// History of a name, which selects its pool of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupHistory {
    /// The last lookup was answered in time.
    Prompt,
    /// The name was never looked up.
    New,
    /// The last lookup failed or was slow.
    Slow,
}

/// Sends the addresses of the wanted names, and their changes, until the receiver is dropped.
pub(crate) async fn resolve(dns: Dns, wanted: watch::Receiver<BTreeSet<Arc<str>>>, batches: mpsc::Sender<Batch>) {
    let lookup = |name: Arc<str>| {
        let dns = dns.clone();
        async move { dns.lookup(&name).await }
    };
    resolve_with(lookup, wanted, batches).await;
}

async fn resolve_with<F: Future<Output = Result<LookupAnswer, LookupError>>>(
    lookup: impl Fn(Arc<str>) -> F,
    mut wanted: watch::Receiver<BTreeSet<Arc<str>>>,
    batches: mpsc::Sender<Batch>,
) {
    let mut schedule = Schedule::default();
    let mut lookups = FuturesUnordered::new();
    loop {
        for name in schedule.take_due(Instant::now()) {
            let result = lookup(Arc::clone(&name));
            lookups.push(async move { (name, result.await) });
        }
        let next_due = schedule.next_due();
        let changes: Vec<Change> = tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let names = wanted.borrow_and_update().clone();
                schedule.want(&names, Instant::now())
            }
            Some((name, result)) = lookups.next() => schedule.answer(&name, result, Instant::now()).into_iter().collect(),
            () = expiry(next_due) => Vec::new(),
            () = batches.closed() => return,
        };
        if !changes.is_empty() && batches.send(Batch { changes, ..Batch::default() }).await.is_err() {
            return;
        }
    }
}

/// Schedule of lookups by name. It is pure: it takes the time as an argument.
#[derive(Debug, Default)]
struct Schedule {
    names: BTreeMap<Arc<str>, KnownName>,
    /// Lookups in progress, also of names that are no longer wanted: the pool and the start time of each.
    under_way: BTreeMap<Arc<str>, (LookupHistory, Instant)>,
}

#[derive(Debug)]
struct KnownName {
    /// The addresses sent last, and when they were last confirmed.
    reported: Option<(Vec<IpAddr>, Instant)>,
    /// Time of the next lookup, unless one is in progress.
    due: Instant,
    history: LookupHistory,
    failures: u32,
}

// === impl LookupHistory ===

impl LookupHistory {
    const ALL: [Self; 3] = [Self::Prompt, Self::New, Self::Slow];

    /// Returns the number of concurrent lookups; a thousand names must not be a thousand packets at once.
    fn slots(self) -> usize {
        match self {
            Self::Prompt | Self::New => 8,
            Self::Slow => 4,
        }
    }
}

// === impl Schedule ===

impl Schedule {
    /// Adds new names and drops those that are no longer wanted.
    fn want(&mut self, names: &BTreeSet<Arc<str>>, now: Instant) -> Vec<Change> {
        for name in names {
            let new = || KnownName { reported: None, due: now, history: LookupHistory::New, failures: 0 };
            self.names.entry(Arc::clone(name)).or_insert_with(new);
        }
        let gone = self.names.extract_if(.., |name, _| !names.contains(name));
        gone.map(|(name, _)| Change::Forget { name }).collect()
    }

    /// Returns the names to look up now, as far as there are slots. Names that have waited longest come first.
    fn take_due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        for history in LookupHistory::ALL {
            let mut due: Vec<_> = self.waiting(history).filter(|(due, _)| *due <= now).collect();
            due.sort();
            due.truncate(self.free(history));
            let due: Vec<_> = due.into_iter().map(|(_, name)| Arc::clone(name)).collect();
            self.under_way.extend(due.iter().map(|name| (Arc::clone(name), (history, now))));
            taken.extend(due);
        }
        taken
    }

    /// Returns when the next name is due for which there is a slot.
    fn next_due(&self) -> Option<Instant> {
        let open = LookupHistory::ALL.into_iter().filter(|history| self.free(*history) > 0);
        open.flat_map(|history| self.waiting(history)).map(|(due, _)| due).min()
    }

    fn waiting(&self, history: LookupHistory) -> impl Iterator<Item = (Instant, &Arc<str>)> {
        let known = self.names.iter().filter(move |(_, known)| known.history == history);
        known.filter(|(name, _)| !self.under_way.contains_key(*name)).map(|(name, known)| (known.due, name))
    }

    fn free(&self, history: LookupHistory) -> usize {
        let taken = self.under_way.values().filter(|(pool, _)| *pool == history).count();
        history.slots().saturating_sub(taken)
    }

    /// Processes an answer, and returns the change it makes, if any. An answer for a dropped name changes nothing.
    fn answer(&mut self, name: &Arc<str>, result: Result<LookupAnswer, LookupError>, now: Instant) -> Option<Change> {
        let asked = self.under_way.remove(name);
        let known = self.names.get_mut(name)?;
        let is_slow = asked.is_some_and(|(_, since)| now.saturating_duration_since(since) > SLOW);
        known.history = if is_slow || result.is_err() { LookupHistory::Slow } else { LookupHistory::Prompt };
        let addresses = match result {
            Ok(LookupAnswer { addresses, ttl }) => {
                if std::mem::take(&mut known.failures) > 0 {
                    tracing::info!(%name, "the name is resolved again");
                }
                known.due = now + ttl.mul_f64(0.9).clamp(MIN_TTL, MAX_TTL);
                addresses
            }
            Err(error) => {
                let pause = MIN_RETRY.saturating_mul(1 << known.failures.min(4)).min(MAX_RETRY);
                known.due = now + pause;
                known.failures = known.failures.saturating_add(1);
                let error = &error as &dyn std::error::Error;
                match (known.failures, &known.reported) {
                    (1, Some(_)) => {
                        tracing::warn!(%name, error, "cannot resolve; its last addresses stay for {MAX_STALE:?}")
                    }
                    (1, None) => {
                        tracing::warn!(%name, error, "cannot resolve; the name has no addresses until DNS answers")
                    }
                    (_, _) => tracing::debug!(%name, error, "cannot resolve"),
                }
                let is_given_up = match &known.reported {
                    Some((_, at)) => now.saturating_duration_since(*at) > MAX_STALE,
                    None => known.failures > 1,
                };
                if !is_given_up {
                    return None;
                }
                Vec::new()
            }
        };
        let is_new = known.reported.as_ref().is_none_or(|(reported, _)| *reported != addresses);
        known.reported = Some((addresses.clone(), now));
        is_new.then(|| Change::Resolve { name: Arc::clone(name), addresses })
    }
}

#[cfg(test)]
mod tests;
