//! Keeps the addresses of DNS names known: those that Services of type ExternalName refer to. It does not judge
//! addresses.
//!
//! ```text
//! Translation.external_names ──> Schedule ──due──> lookup ──> answer ──> Change::Resolve ──┐
//!                                    │                                                     ├─> Batch
//!                                    └──────── no longer wanted ─────> Change::Forget ─────┘
//! ```
//!
//! A name is asked again when nine tenths of its time to live are over, at the soonest after [`MIN_TTL`] and at the
//! latest after [`MAX_TTL`]. While DNS fails, the last answer stays for [`MAX_STALE`]; that a name does not exist is an
//! answer.
//!
//! Who can make Services can make names whose servers never answer, or late. So that they delay no other, names are
//! asked for in places of three kinds (see [`Standing`]): such names wait for each other only.

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

use crate::control::change::{Batch, Change};
use crate::control::expiry;

mod dns;

pub(in crate::control) use dns::{Dns, Names};

/// The least time for which an answer is taken as valid: bounds what a TTL of 0 asks of DNS.
const MIN_TTL: Duration = Duration::from_secs(5);

/// The longest time for which an answer is taken as valid: bounds how late a change is seen.
const MAX_TTL: Duration = Duration::from_secs(300);

/// How long the last answer is used while DNS fails. RFC 8767, 5, suggests one to three days.
const MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// The first pause after a failure; doubled for each further one, up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// What is more than this, for all questions about a name together, is slow.
const SLOW: Duration = Duration::from_secs(1);

/// What a name has shown of itself: which places it is asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Answered in time when last asked for.
    Prompt,
    /// Never asked for.
    New,
    /// Failed or slow when last asked for.
    Slow,
}

/// What DNS says of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control) struct Answer {
    /// Sorted, without duplicates; none if the name does not exist or has none.
    pub(in crate::control) addresses: Vec<IpAddr>,
    pub(in crate::control) ttl: Duration,
}

/// Why DNS said nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::control) enum LookupError {
    #[error("cannot use `/etc/resolv.conf`; give a file that names a server")]
    Configuration { source: hickory_resolver::net::NetError },
    #[error("cannot resolve `{name}`")]
    Lookup { name: Arc<str>, source: hickory_resolver::net::NetError },
    #[error("`{name}` is not answered for within {after:?}")]
    Timeout { name: Arc<str>, after: Duration },
}

/// Sends the addresses of the names that are wanted, and what becomes of them, until the receiver goes.
pub(in crate::control) async fn follow(
    dns: Dns,
    wanted: watch::Receiver<BTreeSet<Arc<str>>>,
    batches: mpsc::Sender<Batch>,
) {
    let lookup = |name: Arc<str>| {
        let dns = dns.clone();
        async move { dns.lookup(&name).await }
    };
    follow_with(lookup, wanted, batches).await;
}

async fn follow_with<F: Future<Output = Result<Answer, LookupError>>>(
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

/// When to ask for which name. Pure: it is told the time.
#[derive(Debug, Default)]
struct Schedule {
    names: BTreeMap<Arc<str>, Known>,
    /// Lookups under way, also of names that are given up meanwhile: in which kind of place, and since when.
    under_way: BTreeMap<Arc<str>, (Standing, Instant)>,
}

#[derive(Debug)]
struct Known {
    /// What was told, and when it was true for the last time.
    told: Option<(Vec<IpAddr>, Instant)>,
    /// When to ask, unless a lookup is under way.
    due: Instant,
    standing: Standing,
    failures: u32,
}

// === impl Standing ===

impl Standing {
    const ALL: [Self; 3] = [Self::Prompt, Self::New, Self::Slow];

    /// Names asked for at one time; a thousand names must not be a thousand packets at once.
    fn places(self) -> usize {
        match self {
            Self::Prompt | Self::New => 8,
            Self::Slow => 4,
        }
    }
}

// === impl Schedule ===

impl Schedule {
    /// Takes up the names that are new and gives up those that are gone.
    fn want(&mut self, names: &BTreeSet<Arc<str>>, now: Instant) -> Vec<Change> {
        for name in names {
            let new = || Known { told: None, due: now, standing: Standing::New, failures: 0 };
            self.names.entry(Arc::clone(name)).or_insert_with(new);
        }
        let gone = self.names.extract_if(.., |name, _| !names.contains(name));
        gone.map(|(name, _)| Change::Forget { name }).collect()
    }

    /// The names to ask for now, those that wait longest first, as far as there are places.
    fn take_due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        for standing in Standing::ALL {
            let mut due: Vec<_> = self.waiting(standing).filter(|(due, _)| *due <= now).collect();
            due.sort();
            due.truncate(self.free(standing));
            let due: Vec<_> = due.into_iter().map(|(_, name)| Arc::clone(name)).collect();
            self.under_way.extend(due.iter().map(|name| (Arc::clone(name), (standing, now))));
            taken.extend(due);
        }
        taken
    }

    /// When the next name is due for which there is a place.
    fn next_due(&self) -> Option<Instant> {
        let open = Standing::ALL.into_iter().filter(|standing| self.free(*standing) > 0);
        open.flat_map(|standing| self.waiting(standing)).map(|(due, _)| due).min()
    }

    fn waiting(&self, standing: Standing) -> impl Iterator<Item = (Instant, &Arc<str>)> {
        let known = self.names.iter().filter(move |(_, known)| known.standing == standing);
        known.filter(|(name, _)| !self.under_way.contains_key(*name)).map(|(name, known)| (known.due, name))
    }

    fn free(&self, standing: Standing) -> usize {
        let taken = self.under_way.values().filter(|(place, _)| *place == standing).count();
        standing.places().saturating_sub(taken)
    }

    /// What an answer changes, if anything. A name that is given up meanwhile has none.
    fn answer(&mut self, name: &Arc<str>, result: Result<Answer, LookupError>, now: Instant) -> Option<Change> {
        let asked = self.under_way.remove(name);
        let known = self.names.get_mut(name)?;
        let is_slow = asked.is_some_and(|(_, since)| now.saturating_duration_since(since) > SLOW);
        known.standing = if is_slow || result.is_err() { Standing::Slow } else { Standing::Prompt };
        let addresses = match result {
            Ok(Answer { addresses, ttl }) => {
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
                if known.failures == 1 {
                    tracing::warn!(%name, error, "cannot resolve; its last addresses stay for {MAX_STALE:?}");
                } else {
                    tracing::debug!(%name, error, "cannot resolve");
                }
                let is_stale = |(_, at): &(Vec<IpAddr>, Instant)| now.saturating_duration_since(*at) > MAX_STALE;
                known.told.as_ref().filter(|told| is_stale(told))?;
                Vec::new()
            }
        };
        let is_new = known.told.as_ref().is_none_or(|(told, _)| *told != addresses);
        known.told = Some((addresses.clone(), now));
        is_new.then(|| Change::Resolve { name: Arc::clone(name), addresses })
    }
}

#[cfg(test)]
mod tests;
