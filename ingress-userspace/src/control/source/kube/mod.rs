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
//! The first batch is sent when every watch has its first list. An error removes nothing: objects go when the server says
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
    time::{Instant, timeout_at},
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
    let mut watches = Watches { client, namespace, events: sender, tasks: JoinSet::new(), secrets: BTreeMap::new() };
    let mut tracker = Tracker::default();
    watches.start(&mut tracker);
    let mut batch = Batch::default();
    let mut is_first = true;
    loop {
        let (id, event) = tokio::select! {
            // `watches` keeps a sender, so the channel does not end before this loop does.
            Some(event) = events.recv() => event,
            () = batches.closed() => return,
        };
        batch.changes.extend(tracker.on(id, event));
        let deadline = Instant::now() + MAX_DELAY;
        while let Ok(Some((id, event))) = timeout_at(deadline.min(Instant::now() + QUIET), events.recv()).await {
            batch.changes.extend(tracker.on(id, event));
        }
        watches.follow_references(&mut tracker, &mut batch);
        if (is_first && !tracker.is_settled()) || (!is_first && batch.changes.is_empty()) {
            continue;
        }
        is_first = false;
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            return;
        }
    }
}

/// The tasks that watch; all stop when this is dropped.
struct Watches<'n> {
    client: Client,
    namespace: Option<&'n str>,
    events: mpsc::Sender<(WatchId, Event)>,
    tasks: JoinSet<()>,
    secrets: BTreeMap<ObjectName, (WatchId, AbortHandle)>,
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

    /// Starts watches for Secrets that Ingresses name now, and ends those of Secrets that none names any more.
    fn follow_references(&mut self, tracker: &mut Tracker, batch: &mut Batch) {
        if !tracker.take_references_changed() {
            return;
        }
        let wanted = tracker.referenced_secrets();
        for (_, (id, task)) in self.secrets.extract_if(.., |name, _| !wanted.contains(name)) {
            task.abort();
            batch.changes.extend(tracker.close(id));
        }
        for name in wanted {
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
