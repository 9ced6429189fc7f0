//! The main loop of the control path: batches in, translations out. It neither reads objects nor publishes by itself.
//!
//! ```text
//! source ────Batch────┐                                          ┌──> publish
//! names  ────Batch────┼──> Cluster ──changed?──> translate ──────┼──> names: which are wanted now?
//! saved file ─────────┘                                          └──> saved file
//!   (where the source is silent at the start)                           (some seconds later)
//! ```
//!
//! A batch only marks the published translation as out of date; one translation covers all batches that have arrived
//! since. `debounce` decides when it is published, because sources report every change at once.

use std::{
    collections::BTreeSet,
    future::Future,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    Options, SourceConfig, SourceError,
    change::{Batch, Change, ObjectId},
    cluster::Cluster,
    outcome::{ObjectRef, Origin, Outcome, Reason},
    saved::{Restored, SavedContent},
    source::{
        self, kube, manifests,
        names::{self, Dns, NameKind},
    },
    status,
    translate::{Translation, Translator},
};
use crate::clock::expiry;
use ingress_model::Tree;

mod debounce;
mod own;
mod save_scheduler;

use debounce::Debounce;
use save_scheduler::SaveScheduler;

/// Maximum number of batches applied before a translation is made. Bounds the delay of a stream without a pause.
const MAX_BATCHES: usize = 64;

/// How often the loop checks whether something has expired.
const HOUR: Duration = Duration::from_secs(3600);

/// How often this node's addresses are read. Until the next read, routes to private addresses or to nodes can reach a
/// listener on a new address.
const LOOK_AT_ADDRESSES: Duration = Duration::from_secs(10);

/// Follows `source` and hands every new translation to `publish`, until `shutdown` is ready. `publish` also gets the
/// time at which the first of its changes was received.
///
/// The first translation is published when everything has been read once, even if it is empty. If an API server is
/// silent for 3 s, the first one is made from the saved configuration, if there is one. Later translations are
/// published only if they differ from the one before. Once a source runs, its errors never remove routes.
///
/// # Errors
/// If the source cannot be read at the start: see [`SourceError`].
pub async fn run(
    source: SourceConfig,
    options: &Options,
    publish: impl FnMut(Translation, Instant) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), SourceError> {
    let (sender, receiver) = source::queue();
    let status = status::StatusTask::begin(&source, options.status.as_ref()).await?;
    // A directory of manifests is its own saved configuration.
    let file = options.saved.clone().filter(|_| matches!(source, SourceConfig::Kubernetes(_)));
    // Boxed, because the trackers of an API server are large.
    let source = Box::pin(async {
        match source {
            SourceConfig::Manifests(root) => manifests::watch(root, sender).await,
            SourceConfig::Kubernetes(config) => kube::watch(config, &options.translate, &options.contact, sender).await,
        }
    });
    let mut state = WatchState::new(options);
    let mut save_scheduler = SaveScheduler::new(file);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        result = async { tokio::join!(source, translate_batches(receiver, options, &mut state, &mut save_scheduler, &status, publish)).0 } => result,
    };
    save_scheduler.finish(state.content(options)).await;
    status.end().await;
    result
}

/// Translates batches of `source` until it ends.
async fn translate_batches(
    mut source: mpsc::Receiver<Batch>,
    options: &Options,
    state: &mut WatchState,
    save_scheduler: &mut SaveScheduler,
    status: &status::StatusTask,
    mut publish: impl FnMut(Translation, Instant),
) {
    let (wanted, wanted_receiver) = watch::channel(BTreeSet::new());
    let (mut hours, mut looks) = (tokio::time::interval(HOUR), tokio::time::interval(LOOK_AT_ADDRESSES));
    let (sender, mut resolved) = source::queue();
    let mut names = Tree::new();
    let translations = async move {
        loop {
            tokio::select! {
                batch = source.recv() => {
                    let Some(batch) = batch else { return };
                    state.confirm(&batch.unread);
                    save_scheduler.forget();
                    state.apply(batch);
                    drain(&mut source, state);
                }
                Some(batch) = resolved.recv() => {
                    state.apply(batch);
                    drain(&mut resolved, state);
                }
                _ = hours.tick() => state.strike(SystemTime::now()),
                _ = looks.tick() => state.locate(own::addresses(&options.translate.gateway_addresses)),
                () = expiry(save_scheduler.restore_at()) => {
                    state.restored = save_scheduler.restore().await;
                    if let Some(Restored { cluster, age: _ }) = &mut state.restored
                        && options.translate.selects_namespaces
                    {
                        cluster.select_namespaces();
                    }
                    state.locate(own::addresses(&options.translate.gateway_addresses));
                    // The file does not record the current hour.
                    state.strike(SystemTime::now());
                }
                () = save_scheduler.is_due() => save_scheduler.save(state.content(options)),
                () = expiry(state.debounce.due()) => {}
            }
            options.contact.set_serves_saved(state.restored.is_some());
            let translation = state.translate(Instant::now());
            let received = translation.as_ref().map(|(_, received)| *received);
            if let Some((translation, received)) = translation {
                if names != translation.external_names {
                    names.clone_from(&translation.external_names);
                    wanted.send_replace(names.keys().cloned().collect());
                }
                if state.is_confirmed {
                    save_scheduler.mark();
                }
                publish(translation, received);
                // The time after publishing, not before: changes that arrived meanwhile count as right behind it.
                state.debounce.publish(Instant::now());
            }
            // What statuses say is served by now.
            state.update(status, received);
        }
    };
    tokio::select! {
        () = translations => {}
        // The set of wanted names closes only when the translations have ended.
        () = names::resolve(Dns::system(NameKind::Cluster), wanted_receiver, sender) => {}
    }
}

/// Applies the batches that are already in the queue.
fn drain(receiver: &mut mpsc::Receiver<Batch>, state: &mut WatchState) {
    for _ in 0..MAX_BATCHES {
        let Ok(batch) = receiver.try_recv() else { return };
        state.apply(batch);
    }
}

struct WatchState {
    translator: Translator,
    cluster: Cluster,
    remarks: Vec<Outcome>,
    published: Option<Published>,
    /// Whether the source has reported everything once.
    is_confirmed: bool,
    /// Whether anything has changed since the last call of [`WatchState::translate`].
    is_changed: bool,
    /// Time at which the first change that is not published yet was received.
    received: Option<Instant>,
    debounce: Debounce,
    /// Whether the status task has new input to receive.
    is_news: bool,
    /// The saved configuration, which is served until the source has answered.
    restored: Option<Restored>,
}

struct Published {
    translation: Translation,
    /// The cluster that the translation was made from. `WatchState::cluster` may be ahead of it.
    cluster: Cluster,
}

// === impl WatchState ===

impl WatchState {
    fn new(options: &Options) -> Self {
        Self {
            translator: Translator::new(options.translate.clone()),
            cluster: Cluster::new(options.translate.selects_namespaces),
            remarks: Vec::new(),
            published: None,
            is_confirmed: false,
            is_changed: false,
            received: None,
            debounce: Debounce::default(),
            is_news: false,
            restored: None,
        }
    }

    fn apply(&mut self, batch: Batch) {
        let Batch { changes, remarks, unread: _, received } = batch;
        for change in changes {
            self.is_news |= status::concerns(&change);
            if let Some(Restored { cluster, age: _ }) = &mut self.restored {
                self.is_changed |= cluster.apply(change.clone());
            }
            self.is_changed |= self.cluster.apply(change);
        }
        if let Some(remarks) = remarks {
            self.is_changed |= self.remarks != remarks;
            self.remarks = remarks;
        }
        if self.is_changed {
            self.received = self.received.or(received);
        }
    }

    /// Sets the current hour.
    fn strike(&mut self, now: SystemTime) {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let hour = Duration::from_secs(now.as_secs() / HOUR.as_secs() * HOUR.as_secs());
        let restored = self.restored.as_mut().map(|restored| &mut restored.cluster.hour);
        for known in restored.into_iter().chain([&mut self.cluster.hour]) {
            self.is_changed |= std::mem::replace(known, hour) != hour;
        }
    }

    /// Sets the addresses of this node. `None` keeps the former ones, because the new ones could not be read.
    fn locate(&mut self, addresses: Option<BTreeSet<IpAddr>>) {
        let addresses = addresses.map_or_else(|| Arc::clone(&self.cluster.own_addresses), Arc::new);
        let restored = self.restored.as_mut().map(|restored| &mut restored.cluster.own_addresses);
        for known in restored.into_iter().chain([&mut self.cluster.own_addresses]) {
            self.is_changed |= std::mem::replace(known, Arc::clone(&addresses)) != addresses;
        }
    }

    /// Ends the use of the saved configuration once the source has reported everything. Saved objects remain where the
    /// source has not read them yet. Resolved addresses of names remain, too, as they do not come from the source.
    fn confirm(&mut self, unread: &[ObjectId]) {
        if std::mem::replace(&mut self.is_confirmed, true) {
            return;
        }
        self.is_changed = true;
        if let Some(Restored { cluster, age: _ }) = self.restored.take() {
            tracing::info!("the API server has answered; the saved configuration is no longer served");
            for object in unread.iter().filter_map(|id| cluster.named(id)) {
                self.cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let mut resolved = cluster.resolved;
            resolved
                .extend(self.cluster.resolved.iter().map(|(name, addresses)| (Arc::clone(name), addresses.clone())));
            self.cluster.resolved = resolved;
        }
    }

    /// Returns the served state to save, once the source has confirmed it.
    fn content(&self, options: &Options) -> Option<SavedContent> {
        let Options { translate, saved, contact: _, status: _ } = options;
        let Published { translation, cluster } = self.published.as_ref().filter(|_| self.is_confirmed)?;
        Some(SavedContent {
            cluster: cluster.clone(),
            translation: translation.clone(),
            options: translate.clone(),
            keys: saved.as_ref()?.private_keys,
        })
    }

    /// Returns the translation of the current state if it differs from the last one and is due, and the time at which
    /// its first change was received.
    fn translate(&mut self, now: Instant) -> Option<(Translation, Instant)> {
        let (cluster, remark) = match &self.restored {
            Some(Restored { cluster, age }) => (cluster, Some(serving_saved(*age))),
            None if self.is_confirmed => (&self.cluster, None),
            None => return None,
        };
        if std::mem::take(&mut self.is_changed) {
            self.debounce.change(now);
            self.received.get_or_insert(now);
        }
        if self.published.is_some() && !self.debounce.is_open(now) {
            return None;
        }
        let mut translation = self.translator.translate(cluster);
        let remarks = self.remarks.iter().cloned().chain(remark);
        translation.outcomes.extend(remarks.map(|remark| (Arc::new(remark), ())));
        if let Some(Published { translation: published, cluster: _ }) = &self.published {
            if *published == translation {
                self.debounce.dismiss();
                self.received = None;
                return None;
            }
            if !self.debounce.is_due(now) && debounce::is_in_doubt(published, &translation) {
                return None;
            }
        }
        self.debounce.publish(now);
        self.published = Some(Published { translation: translation.clone(), cluster: cluster.clone() });
        self.is_news = true;
        Some((translation, self.received.take().unwrap_or(now)))
    }

    /// Hands the published translation to `status`, if the translation or an Ingress has changed since. Nothing is
    /// written on the ground of a saved configuration.
    fn update(&mut self, status: &status::StatusTask, received: Option<Instant>) {
        // Pending changes are handed over together with their translation.
        if let Some(published) = self.published.as_ref().filter(|_| self.is_confirmed && self.debounce.due().is_none())
            && std::mem::take(&mut self.is_news)
        {
            status.update(&self.cluster, &published.translation, received);
        }
    }
}

fn serving_saved(age: Duration) -> Outcome {
    let (kind, name) = ("Configuration".into(), "saved".into());
    let object = ObjectRef { kind, namespace: "".into(), name, origin: Origin::Api };
    let message = format!(
        "the API server does not answer; serving the saved configuration of {} s ago; make the API server reachable",
        age.as_secs()
    );
    Outcome::new(object, Reason::SavedConfiguration, message)
}

#[cfg(test)]
mod tests;
