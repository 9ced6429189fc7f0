//! Watches an API server for the same objects that a directory of manifests holds. It writes nothing to the cluster.
//!
//! ```text
//! one task per watch ──(number, Event)──> Tracker ──Change──> Batch
//!        ^                                   │ which Secrets do the Ingresses name?
//!        └───────── start / stop ────────────┘
//! ```
//!
//! Ingresses, IngressClasses, Services and EndpointSlices are watched whole; of Secrets only those that an Ingress names,
//! each by itself, so that no right to list Secrets is needed. ConfigMaps are not watched while nothing refers to one.
//!
//! The first batch is sent when every watch has its first list. Later, an Ingress that names another Secret is told together
//! with the Secret, and with the end of the one it named before, so that its hosts always have a certificate. An error removes nothing: objects go when the server says
//! so, or when a complete later list is without them.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::{Ingress, IngressClass},
    },
};
use kube::{
    Api, Client, Config, Resource,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout_at},
};

use super::{strip, strip_secret};
use crate::control::{
    Error,
    change::{Batch, Object, ObjectName},
};

mod tracker;
mod watching;

use tracker::{Event, Need, Tracker, WatchId};

/// How to reach an API server, and how much of it to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// A kubeconfig file. Default: what `$KUBECONFIG` names, `~/.kube/config`, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Only objects of this namespace. Default: all namespaces.
    pub namespace: Option<String>,
}

/// Events under way from the watches. A watch that gets ahead waits, and with it the server's stream.
const QUEUED_EVENTS: usize = 1024;

/// Events that come this close together become one batch, as when a controller writes several objects …
const QUIET: Duration = Duration::from_millis(1);

/// … but a stream of events without a pause is told after this time.
const MAX_DELAY: Duration = Duration::from_millis(20);

/// How long changes wait for the first lists of Secrets that Ingresses have begun to name. An answer usually takes some ms; a
/// server that gives none must not keep endpoints from being told.
const MAX_HOLD: Duration = Duration::from_secs(2);

/// Sends what the API server tells, until the receiver goes.
///
/// # Errors
/// If the configuration cannot be read. A server that does not answer is no error: it is asked until it does.
pub async fn follow(config: KubernetesConfig, batches: mpsc::Sender<Batch>) -> Result<(), Error> {
    let KubernetesConfig { kubeconfig, namespace } = config;
    let config = match kubeconfig {
        Some(path) => {
            let error = |source| Error::Kubeconfig { path: path.clone(), source };
            let file = Kubeconfig::read_from(&path).map_err(error)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(error)?
        }
        None => Config::infer().await.map_err(|source| Error::NoCluster { source })?,
    };
    let client = Client::try_from(config).map_err(|source| Error::Client { source })?;
    follow_client(client, namespace.as_deref(), batches).await;
    Ok(())
}

/// As [`follow`], with a client.
pub(crate) async fn follow_client(client: Client, namespace: Option<&str>, batches: mpsc::Sender<Batch>) {
    let (sender, mut events) = mpsc::channel(QUEUED_EVENTS);
    let (tasks, secrets) = (JoinSet::new(), BTreeMap::new());
    let mut watches = Watches { client, namespace, events: sender, tasks, secrets, may_have_ended: false };
    let mut tracker = Tracker::default();
    watches.start(&mut tracker);
    let mut batch = Batch::default();
    let mut is_first = true;
    let mut held_until = None;
    loop {
        tokio::select! {
            // `watches` keeps a sender, so the channel does not end before this loop does.
            Some((id, event)) = events.recv() => {
                batch.changes.extend(tracker.on(id, event));
                let deadline = Instant::now() + MAX_DELAY;
                while let Ok(Some((id, event))) = timeout_at(deadline.min(Instant::now() + QUIET), events.recv()).await {
                    batch.changes.extend(tracker.on(id, event));
                }
            }
            () = expiry(held_until) => tracker.give_up_waiting(),
            () = batches.closed() => return,
        }
        watches.begin_references(&mut tracker);
        if !tracker.is_settled() {
            // One Secret that is not answered for must not keep all others from being served, at the start as little as later.
            if tracker.has_what_is_required() {
                held_until.get_or_insert_with(|| Instant::now() + MAX_HOLD);
            }
            continue;
        }
        held_until = None;
        watches.end_references(&mut tracker, &mut batch);
        if !is_first && batch.changes.is_empty() {
            continue;
        }
        is_first = false;
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            return;
        }
    }
}

async fn expiry(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The tasks that watch; all stop when this is dropped.
struct Watches<'n> {
    client: Client,
    namespace: Option<&'n str>,
    events: mpsc::Sender<(WatchId, Event)>,
    tasks: JoinSet<()>,
    secrets: BTreeMap<ObjectName, (WatchId, AbortHandle)>,
    /// Whether references changed since watches were last ended.
    may_have_ended: bool,
}

// === impl Watches ===

impl Watches<'_> {
    fn start(&mut self, tracker: &mut Tracker) {
        self.watch(tracker.open(Need::Required), self.api(), None, |mut object: Ingress| {
            strip(&mut object.metadata);
            object.status = None;
            Object::Ingress(Arc::new(object))
        });
        self.watch(tracker.open(Need::Required), Api::all(self.client.clone()), None, |mut object: IngressClass| {
            strip(&mut object.metadata);
            Object::IngressClass(Arc::new(object))
        });
        self.watch(tracker.open(Need::Required), self.api(), None, |mut object: Service| {
            strip(&mut object.metadata);
            object.status = None;
            Object::Service(Arc::new(object))
        });
        self.watch(tracker.open(Need::Required), self.api(), None, |mut object: EndpointSlice| {
            strip(&mut object.metadata);
            Object::EndpointSlice(Arc::new(object))
        });
    }

    /// Starts watches for Secrets that Ingresses name now.
    fn begin_references(&mut self, tracker: &mut Tracker) {
        if !tracker.take_references_changed() {
            return;
        }
        self.may_have_ended = true;
        for name in tracker.referenced_secrets() {
            if self.secrets.contains_key(&name) {
                continue;
            }
            let id = tracker.open(Need::Optional);
            let api = Api::namespaced(self.client.clone(), &name.namespace);
            let fields = format!("metadata.name={}", name.name);
            let task = self.watch(id, api, Some(fields), |object: Secret| Object::Secret(strip_secret(object)));
            self.secrets.insert(name, (id, task));
        }
    }

    /// Ends the watches of Secrets that no Ingress names any more; they go in the same batch as the change that did it.
    fn end_references(&mut self, tracker: &mut Tracker, batch: &mut Batch) {
        if !std::mem::take(&mut self.may_have_ended) {
            return;
        }
        let wanted = tracker.referenced_secrets();
        for (_, (id, task)) in self.secrets.extract_if(.., |name, _| !wanted.contains(name)) {
            task.abort();
            batch.changes.extend(tracker.close(id));
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn watch<K: watching::Watched>(
        &mut self,
        id: WatchId,
        api: Api<K>,
        fields: Option<String>,
        convert: fn(K) -> Object,
    ) -> AbortHandle {
        self.tasks.spawn(watching::watch(id, api, fields, convert, self.events.clone()))
    }
}

#[cfg(test)]
mod tests;
