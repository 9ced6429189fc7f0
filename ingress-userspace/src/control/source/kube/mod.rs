//! Watches an API server for the same objects that a directory of manifests holds. It writes nothing to the cluster.
//!
//! ```text
//! one task per watch ──(number, Event)──> Tracker ──Change──> Batch
//!        ^                                   │ which Secrets do the Ingresses name?
//!        └───────── start / stop ────────────┘
//! ```
//!
//! | objects | which | without them |
//! |---|---|---|
//! | Ingresses, Services, EndpointSlices | of the watched namespace, or all | nothing is served |
//! | IngressClasses | all | nothing is served |
//! | Nodes | all: name, zone, addresses | zones are unknown; names may lead to nodes |
//! | Secrets | those that an Ingress or the operator names, each by itself | the default certificate is served |
//! | ConfigMaps | those that the operator, a class of ours, or one of these ConfigMaps names, each by itself | settings are the defaults |
//! | Services, EndpointSlices | of the default backend and `default/kubernetes`, where the watched namespace is another | as said |
//!
//! Watches by name need no right to list all Secrets or ConfigMaps of a cluster, but `list` and `watch` on that name.
//!
//! The first batch is sent when every watch has its first list. Later, what has come is told at once; but an Ingress that
//! names another Secret is told together with the Secret, and with the end of the one it named before, so that its hosts
//! always have a certificate. Nothing else waits for that. What is named by an Ingress that is not ours, or is too large
//! to be served, is not watched.
//!
//! An error removes nothing: objects go when the server says so, or when a complete later list is without them (see
//! `watching`).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{ConfigMap, Node, Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::{Ingress, IngressClass},
    },
};
use kube::{Api, Client, Resource};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::strip;
use crate::control::{
    Contact, Error,
    change::{Batch, Kind, Object, ObjectId, ObjectName},
    expiry,
    slice::SERVICE_NAME,
    translate,
};
use crate::panics::vital;

mod client;
mod connections;
mod held;
mod tracker;
mod watching;

pub use client::connect;
use held::{Held, MAX_HOLD};
use tracker::{Event, Need, Tracker, WatchId};
use watching::Selection;

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

/// Sends what the API server tells, until the receiver goes.
///
/// # Errors
/// If the configuration cannot be read. A server that does not answer is no error: it is asked until it does.
pub async fn follow(
    config: KubernetesConfig,
    options: &translate::Options,
    contact: &Contact,
    batches: mpsc::Sender<Batch>,
) -> Result<(), Error> {
    let KubernetesConfig { kubeconfig, namespace } = config;
    contact.begin(namespace.as_deref());
    let client = connect(kubeconfig.as_deref(), contact).await?;
    follow_client(client, namespace.as_deref(), options, batches).await;
    Ok(())
}

/// As [`follow`], with a client.
pub(crate) async fn follow_client(
    client: Client,
    namespace: Option<&str>,
    options: &translate::Options,
    batches: mpsc::Sender<Batch>,
) {
    let (sender, mut events) = mpsc::channel(QUEUED_EVENTS);
    let (tasks, by_name) = (JoinSet::new(), BTreeMap::new());
    let may_have_ended = BTreeSet::new();
    let mut watches = Watches { client, namespace, events: sender, tasks, by_name, may_have_ended };
    let mut tracker = Tracker::new(options, named(options));
    watches.start(&mut tracker, options.default_backend.as_ref());
    watches.begin_references(&mut tracker);
    let (mut batch, mut held) = (Batch::default(), Held::default());
    let mut is_first = true;
    let mut held_until = None;
    loop {
        let mut changes = Vec::new();
        tokio::select! {
            // `watches` keeps a sender, so the channel does not end before this loop does.
            Some((id, event)) = events.recv() => {
                changes.extend(tracker.on(id, event));
                // Nothing is waited for here: whether what is told is published at once is another's to decide.
                for _ in 0..QUEUED_EVENTS {
                    let Ok((id, event)) = events.try_recv() else { break };
                    changes.extend(tracker.on(id, event));
                }
            }
            () = expiry(held_until) => if is_first { batch.unread.extend(tracker.give_up_waiting()) },
            () = batches.closed() => return,
        }
        watches.begin_references(&mut tracker);
        if is_first {
            batch.changes.extend(changes);
            tracker.release_all();
            if !tracker.is_settled() {
                // One Secret that is not answered for must not keep all others from being served.
                if tracker.has_what_is_required() {
                    held_until.get_or_insert_with(|| Instant::now() + MAX_HOLD);
                }
                continue;
            }
        } else {
            held.pass(changes, &mut tracker, Instant::now(), &mut batch);
        }
        held_until = held.deadline();
        watches.begin_references(&mut tracker);
        watches.end_references(&mut tracker, &mut batch);
        if !is_first && batch.changes.is_empty() && batch.unread.is_empty() {
            continue;
        }
        is_first = false;
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            return;
        }
    }
}

/// Secrets and ConfigMaps that the operator names.
fn named(options: &translate::Options) -> BTreeSet<ObjectId> {
    let id = |kind, name: &Option<ObjectName>| name.clone().map(|name| ObjectId { kind, name });
    let secrets = [&options.default_certificate, &options.ticket_secret];
    let secrets = secrets.into_iter().filter_map(|name| id(Kind::Secret, name));
    let config_maps = [&options.config_map, &options.tcp_services, &options.udp_services];
    secrets.chain(config_maps.into_iter().filter_map(|name| id(Kind::ConfigMap, name))).collect()
}

/// The tasks that watch; all stop when this is dropped.
struct Watches<'n> {
    client: Client,
    namespace: Option<&'n str>,
    events: mpsc::Sender<(WatchId, Event)>,
    tasks: JoinSet<()>,
    /// Watches of single Secrets and ConfigMaps.
    by_name: BTreeMap<ObjectId, (WatchId, AbortHandle)>,
    /// What was named no more at some time since watches were last ended.
    may_have_ended: BTreeSet<ObjectId>,
}

/// What is lost without the objects of a watch, for the log.
const NOTHING_NEW: &str = "what is served does not follow the cluster, and at the start nothing is served";
const NO_NODES: &str = "zones of nodes are unknown, and names of ExternalName Services may lead to nodes";
const NO_BACKEND: &str = "a Service of another namespace that the operator names, or the API server's, is unknown";
const NO_CERTIFICATE: &str = "the default certificate is served for its hosts";
const NO_SETTINGS: &str = "its settings have their defaults";

// === impl Watches ===

impl Watches<'_> {
    fn start(&mut self, tracker: &mut Tracker, default_backend: Option<&ObjectName>) {
        let whole = || Selection { lost: NOTHING_NEW, ..Selection::default() };
        self.watch::<Ingress>(tracker.open(Need::Required), self.api(), whole(), strip::ingress);
        let classes = Api::all(self.client.clone());
        self.watch::<IngressClass>(tracker.open(Need::Required), classes, whole(), strip::ingress_class);
        self.watch::<Service>(tracker.open(Need::Required), self.api(), whole(), strip::service);
        self.watch::<EndpointSlice>(tracker.open(Need::Required), self.api(), whole(), strip::endpoint_slice);
        let nodes = Selection { lost: NO_NODES, ..Selection::default() };
        self.watch::<Node>(tracker.open(Need::Optional), Api::all(self.client.clone()), nodes, strip::node);
        let api_server = ObjectName::new("default", "kubernetes");
        let services: BTreeSet<&ObjectName> = default_backend.into_iter().chain([&api_server]).collect();
        for service in services {
            if self.namespace.is_some_and(|namespace| namespace != &*service.namespace) {
                self.watch_service(service, tracker);
            }
        }
    }

    /// Watches a Service outside the watched namespace, and its slices.
    fn watch_service(&mut self, service: &ObjectName, tracker: &mut Tracker) {
        let ObjectName { namespace, name } = service;
        let api = Api::namespaced(self.client.clone(), namespace);
        let by_name = Selection { fields: Some(format!("metadata.name={name}")), labels: None, lost: NO_BACKEND };
        self.watch::<Service>(tracker.open(Need::Optional), api, by_name, strip::service);
        let api = Api::namespaced(self.client.clone(), namespace);
        let by_label = Selection { fields: None, labels: Some(format!("{}={name}", SERVICE_NAME)), lost: NO_BACKEND };
        self.watch::<EndpointSlice>(tracker.open(Need::Optional), api, by_label, strip::endpoint_slice);
    }

    /// Starts watches for Secrets and ConfigMaps that are named now.
    fn begin_references(&mut self, tracker: &mut Tracker) {
        for object in tracker.take_changed_references() {
            if !tracker.is_named(&object) {
                self.may_have_ended.insert(object);
                continue;
            }
            if self.by_name.contains_key(&object) {
                continue;
            }
            let id = tracker.open_by_name(object.clone());
            let ObjectId { kind, name } = &object;
            let fields = Some(format!("metadata.name={}", name.name));
            let (client, namespace) = (self.client.clone(), &name.namespace);
            let task = if *kind == Kind::ConfigMap {
                let selection = Selection { fields, labels: None, lost: NO_SETTINGS };
                self.watch::<ConfigMap>(id, Api::namespaced(client, namespace), selection, strip::config_map)
            } else {
                let selection = Selection { fields, labels: None, lost: NO_CERTIFICATE };
                self.watch::<Secret>(id, Api::namespaced(client, namespace), selection, strip::secret)
            };
            self.by_name.insert(object, (id, task));
        }
    }

    /// Ends the watches of what nothing names any more; the objects go in the same batch as the change that did it.
    fn end_references(&mut self, tracker: &mut Tracker, batch: &mut Batch) {
        while let Some(object) = self.may_have_ended.pop_first() {
            if tracker.is_named(&object) {
                continue;
            }
            if let Some((id, task)) = self.by_name.remove(&object) {
                task.abort();
                batch.changes.extend(tracker.close(id));
                // What it named may be named by nobody else.
                self.may_have_ended.extend(tracker.take_changed_references());
            }
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
        selection: Selection,
        convert: fn(K) -> Object,
    ) -> AbortHandle {
        // Without it, what is served would no longer follow the cluster.
        self.tasks.spawn(vital(watching::watch(id, api, selection, convert, self.events.clone())))
    }
}

#[cfg(test)]
mod tests;
