//! The loop of the control path: batches in, translations out. It neither reads objects nor publishes by itself.
//!
//! ```text
//! source ────Batch────┐                                          ┌──> publish
//! names  ────Batch────┼──> Cluster ──changed?──> translate ──────┼──> names: which are wanted now?
//! saved file ─────────┘                                          └──> saved file
//!   (where the source is silent at the start)                           (some seconds later)
//! ```
//!
//! Batches only mark what is published as out of date; one translation makes up for all that have come meanwhile. When
//! it is published, `debounce` says: sources tell at once what they know.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::control::expiry;

use super::{
    Error, Options, SourceConfig,
    change::{Batch, Change, ObjectId},
    cluster::Cluster,
    outcome::{ObjectRef, Origin, Outcome, Reason},
    saved::{Content, Restored},
    source::{
        self, kube, manifests,
        names::{self, Dns, Names},
    },
    status,
    translate::{Translation, Translator},
};

use crate::model::Tree;

mod debounce;
mod keeper;

use debounce::Debounce;
use keeper::Keeper;

/// Batches that are applied before a translation is due whatever comes: bounds the delay of a stream without a pause.
const MAX_BATCHES: usize = 64;

/// How often is looked whether something is out of date.
const HOUR: Duration = Duration::from_secs(3600);

/// Follows `source` and hands every new translation to `publish`, until `shutdown` is ready.
///
/// The first translation is published when everything has been read once, even if it is empty; or, if an API server is
/// silent for 3 s, from what was saved, if anything was. Later ones are published only if they differ from the one
/// before. An error of the source, once it runs, never takes routes away.
///
/// # Errors
/// If the source cannot be read at the start: see [`Error`].
pub async fn run(
    source: SourceConfig,
    options: &Options,
    publish: impl FnMut(Translation) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let (sender, receiver) = source::queue();
    let status = status::Task::begin(&source, options.status.as_ref()).await?;
    // A directory of manifests is its own saved configuration.
    let file = options.saved.clone().filter(|_| matches!(source, SourceConfig::Kubernetes(_)));
    // Boxed, as the trackers of an API server are large, and nobody else waits for them.
    let source = Box::pin(async {
        match source {
            SourceConfig::Manifests(root) => manifests::follow(root, sender).await,
            SourceConfig::Kubernetes(config) => {
                kube::follow(config, &options.translate, &options.contact, sender).await
            }
        }
    });
    let mut state = State::new(options);
    let mut keeper = Keeper::new(file);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        result = async { tokio::join!(source, follow(receiver, options, &mut state, &mut keeper, &status, publish)).0 } => result,
    };
    keeper.finish(state.content(options)).await;
    status.end().await;
    result
}

/// Translates what comes from `source` until it ends.
async fn follow(
    mut source: mpsc::Receiver<Batch>,
    options: &Options,
    state: &mut State,
    keeper: &mut Keeper,
    status: &status::Task,
    mut publish: impl FnMut(Translation),
) {
    let (wanted, wanted_receiver) = watch::channel(BTreeSet::new());
    let mut hours = tokio::time::interval(HOUR);
    let (sender, mut resolved) = source::queue();
    let mut names = Tree::new();
    let translations = async move {
        loop {
            tokio::select! {
                batch = source.recv() => {
                    let Some(batch) = batch else { return };
                    state.confirm(&batch.unread);
                    keeper.forget();
                    state.apply(batch);
                    drain(&mut source, state);
                }
                Some(batch) = resolved.recv() => {
                    state.apply(batch);
                    drain(&mut resolved, state);
                }
                _ = hours.tick() => state.strike(SystemTime::now()),
                () = expiry(keeper.restore_at()) => {
                    state.restored = keeper.restore().await;
                    // The file does not say which hour it is.
                    state.strike(SystemTime::now());
                }
                () = keeper.is_due() => keeper.save(state.content(options)),
                () = expiry(state.debounce.due()) => {}
            }
            options.contact.set_serves_saved(state.restored.is_some());
            let translation = state.translate(Instant::now());
            state.tell(status);
            let Some(translation) = translation else { continue };
            if names != translation.external_names {
                names.clone_from(&translation.external_names);
                wanted.send_replace(names.keys().cloned().collect());
            }
            if state.is_confirmed {
                keeper.mark();
            }
            publish(translation);
            // Not when it began: what came meanwhile came right behind it.
            state.debounce.publish(Instant::now());
        }
    };
    tokio::select! {
        () = translations => {}
        // Nobody wants names any more only when the translations have ended.
        () = names::follow(Dns::system(Names::Cluster), wanted_receiver, sender) => {}
    }
}

/// Applies what is there already.
fn drain(receiver: &mut mpsc::Receiver<Batch>, state: &mut State) {
    for _ in 0..MAX_BATCHES {
        let Ok(batch) = receiver.try_recv() else { return };
        state.apply(batch);
    }
}

struct State {
    translator: Translator,
    cluster: Cluster,
    remarks: Vec<Outcome>,
    published: Option<Published>,
    /// Whether the source has told everything once.
    is_confirmed: bool,
    /// Whether anything has come since it was last asked for a translation.
    is_changed: bool,
    debounce: Debounce,
    /// Whether there is something to tell the status task.
    is_news: bool,
    /// What is served until then.
    restored: Option<Restored>,
}

struct Published {
    translation: Translation,
    /// What it was made of: objects that are not published yet are ahead of it.
    cluster: Cluster,
}

// === impl State ===

impl State {
    fn new(options: &Options) -> Self {
        Self {
            translator: Translator::new(options.translate.clone()),
            cluster: Cluster::default(),
            remarks: Vec::new(),
            published: None,
            is_confirmed: false,
            is_changed: false,
            debounce: Debounce::default(),
            is_news: false,
            restored: None,
        }
    }

    fn apply(&mut self, batch: Batch) {
        let Batch { changes, remarks, unread: _ } = batch;
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
    }

    /// Takes in which hour it is.
    fn strike(&mut self, now: SystemTime) {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let hour = Duration::from_secs(now.as_secs() / HOUR.as_secs() * HOUR.as_secs());
        let restored = self.restored.as_mut().map(|restored| &mut restored.cluster.hour);
        for known in restored.into_iter().chain([&mut self.cluster.hour]) {
            self.is_changed |= std::mem::replace(known, hour) != hour;
        }
    }

    /// From now on only what the source tells counts. What was saved stays of what the source has not read yet, until
    /// it has; and the addresses of names, which do not come from it.
    fn confirm(&mut self, unread: &[ObjectId]) {
        if std::mem::replace(&mut self.is_confirmed, true) {
            return;
        }
        self.is_changed = true;
        if let Some(Restored { cluster, age: _ }) = self.restored.take() {
            tracing::info!("the API server has answered; the saved configuration is not served any more");
            for object in unread.iter().filter_map(|id| cluster.named(id)) {
                self.cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let mut resolved = cluster.resolved;
            resolved
                .extend(self.cluster.resolved.iter().map(|(name, addresses)| (Arc::clone(name), addresses.clone())));
            self.cluster.resolved = resolved;
        }
    }

    /// What is served, as the source told it, to be saved.
    fn content(&self, options: &Options) -> Option<Content> {
        let Options { translate, saved, contact: _, status: _ } = options;
        let Published { translation, cluster } = self.published.as_ref().filter(|_| self.is_confirmed)?;
        Some(Content {
            cluster: cluster.clone(),
            translation: translation.clone(),
            options: translate.clone(),
            keys: saved.as_ref()?.private_keys,
        })
    }

    /// The translation of what is known now, if it differs from the last and is to be published now.
    fn translate(&mut self, now: Instant) -> Option<Translation> {
        let (cluster, remark) = match &self.restored {
            Some(Restored { cluster, age }) => (cluster, Some(serving_saved(*age))),
            None if self.is_confirmed => (&self.cluster, None),
            None => return None,
        };
        if std::mem::take(&mut self.is_changed) {
            self.debounce.change(now);
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
                return None;
            }
            if !self.debounce.is_due(now) && debounce::is_in_doubt(published, &translation) {
                return None;
            }
        }
        self.debounce.publish(now);
        self.published = Some(Published { translation: translation.clone(), cluster: cluster.clone() });
        self.is_news = true;
        Some(translation)
    }

    /// Tells `status` what is published, if that or an Ingress has changed since. What was saved is no ground to write.
    fn tell(&mut self, status: &status::Task) {
        // What waits is told of with its translation.
        if let Some(published) = self.published.as_ref().filter(|_| self.is_confirmed && self.debounce.due().is_none())
            && std::mem::take(&mut self.is_news)
        {
            status.tell(&self.cluster, &published.translation);
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
    Outcome { object, reason: Reason::SavedConfiguration, message }
}

#[cfg(test)]
mod tests;
