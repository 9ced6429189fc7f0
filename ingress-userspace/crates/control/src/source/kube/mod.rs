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
//! | Nodes | all: name, zone, addresses | zones are unknown; names and endpoints may lead to nodes |
//! | Namespaces | the watched one, the selected ones, or all: name, deletion time, labels | Ingresses of a namespace that is being deleted count until each is gone; with a selector nothing is served |
//! | ReferenceGrants | all, if the API server knows them and all namespaces are watched | no grant allows anything |
//! | GatewayClasses | all, if the API server knows them | the Gateway API is not served |
//! | Gateways, ListenerSets, routes, BackendTLSPolicies | of the watched namespace, or all, once a GatewayClass is of this controller; each kind that the API server knows | they are not served |
//! | Secrets | those that an Ingress, a Gateway, a ListenerSet, a BackendTLSPolicy or the operator names, each by itself | the default certificate is served |
//! | ConfigMaps | those that the operator, a class of this controller, an object of the Gateway API, or one of these ConfigMaps names, each by itself | settings are the defaults |
//! | Services, EndpointSlices | of the default backend and `default/kubernetes`, if they are outside the watched namespace | as above |
//!
//! Watches by name need no right to list all Secrets or ConfigMaps of a cluster, but `list` and `watch` on that name.
//!
//! The first batch is sent when every watch has its first list. For some lists it waits no longer than a while (see
//! `held_changes`). Later changes are sent at once, with one exception. An Ingress that names another Secret is sent
//! together with the Secret, and with the removal of the one it named before, so that its hosts always have a
//! certificate. Other changes do not wait for that. Secrets are not watched if only Ingresses of other controllers name
//! them, or Ingresses too large to be served.
//!
//! An error removes nothing: objects are removed when the server reports it, or when a complete later list is without
//! them (see `watching`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::NamespaceResourceScope;
use kube::{Client, Resource};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::strip;
use crate::{
    Contact, SourceError,
    change::{Batch, Change, Kind, Object, ObjectId, ObjectName},
    clock::expiry,
    gateway::{
        BackendTlsPolicy, Gateway, GatewayClass, ListenerSet, StoredKind,
        route::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, UdpRoute},
    },
    slice::SERVICE_NAME,
    translate::{self, GatewayApi},
};
use ingress_panics::vital;

mod client;
mod config;
mod connections;
mod gate;
mod gateway_names;
mod held_changes;
mod tracker;
mod watched_kind;
mod watching;

pub use client::connect;
pub use config::KubernetesConfig;
use gate::Gate;
use held_changes::{FirstHold, HeldChanges};
use tracker::{Need, Tracker, TrackerEvent, WatchId};
use watched_kind::{Watched, WatchedKind};
use watching::WatchSelection;

/// Capacity of the queue of watch events. A watch that gets ahead waits, and with it the server's stream.
const QUEUED_EVENTS: usize = 1024;

/// Sends the changes that the API server reports, until the receiver is dropped.
///
/// # Errors
/// If the configuration cannot be read. A server that does not answer is not an error; requests to it are repeated.
pub async fn watch(
    config: KubernetesConfig,
    options: &translate::Options,
    contact: &Contact,
    batches: mpsc::Sender<Batch>,
) -> Result<(), SourceError> {
    contact.begin(config.namespace.as_deref());
    let client = connect(&config, contact).await?;
    let KubernetesConfig { kubeconfig: _, context: _, namespace, namespace_selector } = config;
    let scope = Scope { namespace: namespace.as_deref(), selector: namespace_selector.as_deref() };
    watch_with_client(client, scope, options, batches).await;
    Ok(())
}

/// The namespaces from which objects are watched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope<'n> {
    pub(crate) namespace: Option<&'n str>,
    pub(crate) selector: Option<&'n str>,
}

/// Like [`watch`], with a client.
pub(crate) async fn watch_with_client(
    client: Client,
    scope: Scope<'_>,
    options: &translate::Options,
    batches: mpsc::Sender<Batch>,
) {
    let (sender, mut events) = mpsc::channel(QUEUED_EVENTS);
    let (tasks, by_name) = (JoinSet::new(), BTreeMap::new());
    let may_have_ended = BTreeSet::new();
    let Scope { namespace, selector } = scope;
    let mut watches =
        Watches { client, namespace, selector, events: sender, tasks, by_name, may_have_ended, gate: None };
    let mut tracker = Tracker::new(options, named(options));
    watches.start(&mut tracker, options.default_backend.as_ref());
    if options.gateway_api == GatewayApi::Serve {
        watches.watch_gateway_api(&mut tracker);
    }
    watches.begin_references(&mut tracker);
    let (mut batch, mut held) = (Batch::default(), HeldChanges::default());
    let (mut is_first, mut first_hold) = (true, FirstHold::default());
    let mut held_until = None;
    loop {
        let mut changes = Vec::new();
        tokio::select! {
            // `watches` keeps a sender, so the channel does not end before this loop does.
            Some((id, event)) = events.recv() => {
                batch.received.get_or_insert_with(Instant::now);
                changes.extend(watches.on(id, event, &mut tracker));
                // No wait here: the receiver decides whether a batch is published at once.
                for _ in 0..QUEUED_EVENTS {
                    let Ok((id, event)) = events.try_recv() else { break };
                    changes.extend(watches.on(id, event, &mut tracker));
                }
            }
            () = expiry(held_until) => if is_first {
                batch.unread.extend(tracker.give_up_waiting(FirstHold::awaited(&tracker)));
            },
            () = batches.closed() => return,
        }
        watches.begin_references(&mut tracker);
        if is_first {
            batch.changes.extend(changes);
            tracker.release_all();
            if !tracker.is_settled() {
                // One Secret that the server does not list must not keep all others from being served.
                held_until = first_hold.deadline(&tracker, Instant::now());
                continue;
            }
        } else {
            held.pass(changes, &mut tracker, Instant::now(), &mut batch);
        }
        held_until = held.deadline();
        watches.begin_references(&mut tracker);
        watches.end_references(&mut tracker, &mut batch);
        if !is_first && batch.changes.is_empty() && batch.unread.is_empty() {
            // Held changes count from the event that releases them: until then they wait for the API server.
            batch.received = None;
            continue;
        }
        is_first = false;
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            return;
        }
    }
}

/// Returns the Secrets and ConfigMaps that the operator names.
fn named(options: &translate::Options) -> BTreeSet<ObjectId> {
    let id = |kind, name: &Option<ObjectName>| name.clone().map(|name| ObjectId { kind, name });
    let secrets = [&options.default_certificate, &options.ticket_secret];
    let secrets = secrets.into_iter().filter_map(|name| id(Kind::Secret, name));
    let config_maps = [&options.config_map, &options.tcp_services, &options.udp_services];
    secrets.chain(config_maps.into_iter().filter_map(|name| id(Kind::ConfigMap, name))).collect()
}

/// The watch tasks; all stop when this is dropped.
struct Watches<'n> {
    client: Client,
    namespace: Option<&'n str>,
    selector: Option<&'n str>,
    events: mpsc::Sender<(WatchId, TrackerEvent)>,
    tasks: JoinSet<()>,
    /// Watches of single Secrets and ConfigMaps.
    by_name: BTreeMap<ObjectId, (WatchId, AbortHandle)>,
    /// Objects that had no reference left at some time since watches were last ended.
    may_have_ended: BTreeSet<ObjectId>,
    /// Holds back the watches of the Gateway API, if it is served.
    gate: Option<Gate>,
}

/// The functions that are lost without the objects of a watch, for the log.
const NOTHING_NEW: &str = "changes in the cluster do not reach the proxy, and after a start nothing is served";
const NO_NODES: &str = "zones of nodes are unknown, and names and endpoints of Services may lead to programs on nodes";
const NO_NAMESPACES: &str = "Ingresses of a namespace that is being deleted are served, and keep their hosts, until each of them \
     is gone; Gateways know no labels of namespaces but their names";
const NO_GRANTS: &str = "changes of ReferenceGrants have no effect, and after a start no grant is in effect";
const NO_GATEWAYS: &str =
    "changes of the Gateway API's objects have no effect, and after a start none of them is served";
const NO_BACKEND: &str = "the API server's Service, or one of another namespace that the operator names, is unknown";
const NO_CERTIFICATE: &str =
    "the default certificate is served for its hosts, and what the Gateway API uses it for is not served";
const NO_SETTINGS: &str = "its settings have their defaults, and what the Gateway API uses it for is not served";

// === impl Watches ===

impl Watches<'_> {
    fn start(&mut self, tracker: &mut Tracker, default_backend: Option<&ObjectName>) {
        let whole = || WatchSelection { lost: NOTHING_NEW, ..WatchSelection::default() };
        self.watch(tracker.open(Need::Required), self.namespaced(Kind::Ingress, strip::ingress), whole());
        self.watch(tracker.open(Need::Required), self.all(Kind::IngressClass, strip::ingress_class), whole());
        self.watch(tracker.open(Need::Required), self.namespaced(Kind::Service, strip::service), whole());
        self.watch(tracker.open(Need::Required), self.namespaced(Kind::EndpointSlice, strip::endpoint_slice), whole());
        let nodes = WatchSelection { lost: NO_NODES, ..WatchSelection::default() };
        self.watch(tracker.open(Need::Optional), self.all(Kind::Node, strip::node), nodes);
        let fields = self.namespace.map(|namespace| format!("metadata.name={namespace}"));
        let (labels, lost, need) = match self.selector {
            Some(selector) => (Some(selector.to_owned()), NOTHING_NEW, Need::Required),
            None => (None, NO_NAMESPACES, Need::Optional),
        };
        let namespaces = WatchSelection { fields, labels, lost, ..WatchSelection::default() };
        self.watch(tracker.open(need), self.all(Kind::Namespace, strip::namespace), namespaces);
        if self.namespace.is_none() {
            // With one namespace, no Service of another is known, so grants have no effect.
            self.watch_grants(tracker.open(Need::Optional));
        }
        let api_server = ObjectName::new("default", "kubernetes");
        let services: BTreeSet<&ObjectName> = default_backend.into_iter().chain([&api_server]).collect();
        for service in services {
            if self.namespace.is_some_and(|namespace| namespace != &*service.namespace) {
                self.watch_service(service, tracker);
            }
        }
    }

    fn watch_grants(&mut self, id: WatchId) {
        let newer = self.all(Kind::ReferenceGrant, strip::reference_grant::<false>);
        let older = self.all(Kind::ReferenceGrant, strip::reference_grant::<true>);
        let selection = WatchSelection { lost: NO_GRANTS, ..WatchSelection::default() };
        self.tasks.spawn(vital(watching::watch_if_known(id, newer, Some(older), selection, self.events.clone())));
    }

    /// Watches GatewayClasses, and the other kinds of the Gateway API once one of the classes is of this controller.
    fn watch_gateway_api(&mut self, tracker: &mut Tracker) {
        let gate = Gate::new(tracker.open(Need::Answered));
        let classes = self.all(Kind::GatewayClass, strip::gateway_api::<GatewayClass>);
        let selection = WatchSelection { lost: NO_GATEWAYS, ..WatchSelection::default() };
        let watch = watching::watch_if_known(gate.classes, classes, None, selection, self.events.clone());
        self.tasks.spawn(vital(watch));
        self.watch_behind::<Gateway>(Kind::Gateway, &gate, tracker);
        self.watch_behind::<ListenerSet>(Kind::ListenerSet, &gate, tracker);
        self.watch_behind::<HttpRoute>(Kind::HttpRoute, &gate, tracker);
        self.watch_behind::<GrpcRoute>(Kind::GrpcRoute, &gate, tracker);
        self.watch_behind::<TlsRoute>(Kind::TlsRoute, &gate, tracker);
        self.watch_behind::<TcpRoute>(Kind::TcpRoute, &gate, tracker);
        self.watch_behind::<UdpRoute>(Kind::UdpRoute, &gate, tracker);
        self.watch_behind::<BackendTlsPolicy>(Kind::BackendTlsPolicy, &gate, tracker);
        self.gate = Some(gate);
    }

    fn watch_behind<K>(&mut self, kind: Kind, gate: &Gate, tracker: &mut Tracker)
    where
        K: StoredKind,
        K::Sent: Watched + Resource<Scope = NamespaceResourceScope>,
    {
        let id = tracker.open(Need::Answered);
        let watched = self.namespaced(kind, strip::gateway_api::<K>);
        let selection = WatchSelection { lost: NO_GATEWAYS, ..WatchSelection::default() };
        let watch = watching::watch_if_known(id, watched, None, selection, self.events.clone());
        self.tasks.spawn(vital(gate::behind(gate.subscribe(), id, self.events.clone(), watch)));
    }

    /// Applies an event of a watch.
    fn on(&self, id: WatchId, event: TrackerEvent, tracker: &mut Tracker) -> Vec<Change> {
        if let Some(gate) = &self.gate {
            gate.look(id, &event);
        }
        tracker.on(id, event)
    }

    /// Watches a Service outside the watched namespace, and its slices.
    fn watch_service(&mut self, service: &ObjectName, tracker: &mut Tracker) {
        let ObjectName { namespace, name } = service;
        let by_name = WatchSelection {
            fields: Some(format!("metadata.name={name}")),
            labels: None,
            lost: NO_BACKEND,
            ..WatchSelection::default()
        };
        let services = WatchedKind::of(&self.client, Some(namespace), Kind::Service, strip::service);
        self.watch(tracker.open(Need::Optional), services, by_name);
        let by_label = WatchSelection {
            fields: None,
            labels: Some(format!("{}={name}", SERVICE_NAME)),
            lost: NO_BACKEND,
            ..WatchSelection::default()
        };
        let slices = WatchedKind::of(&self.client, Some(namespace), Kind::EndpointSlice, strip::endpoint_slice);
        self.watch(tracker.open(Need::Optional), slices, by_label);
    }

    /// Starts watches for Secrets and ConfigMaps that have become named.
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
            let (client, namespace) = (&self.client, Some(&*name.namespace));
            let (watched, lost) = if *kind == Kind::ConfigMap {
                (WatchedKind::of(client, namespace, *kind, strip::config_map), NO_SETTINGS)
            } else {
                (WatchedKind::of(client, namespace, *kind, strip::secret), NO_CERTIFICATE)
            };
            let task = self.watch(id, watched, WatchSelection { fields, lost, ..WatchSelection::default() });
            self.by_name.insert(object, (id, task));
        }
    }

    /// Ends the watches of objects that have no references left. Their removals are in the same batch as the change
    /// that removed the last reference.
    fn end_references(&mut self, tracker: &mut Tracker, batch: &mut Batch) {
        while let Some(object) = self.may_have_ended.pop_first() {
            if tracker.is_named(&object) {
                continue;
            }
            if let Some((id, task)) = self.by_name.remove(&object) {
                task.abort();
                batch.changes.extend(tracker.close(id));
                // Objects named by the removed one may have lost their last reference, too.
                self.may_have_ended.extend(tracker.take_changed_references());
            }
        }
    }

    /// Returns the kind `K` in the watched namespace; in all namespaces without one.
    fn namespaced<K: Watched + Resource<Scope = NamespaceResourceScope>>(
        &self,
        kind: Kind,
        convert: fn(K) -> Object,
    ) -> WatchedKind {
        WatchedKind::of(&self.client, self.namespace, kind, convert)
    }

    /// Returns the kind `K` in the whole cluster.
    fn all<K: Watched>(&self, kind: Kind, convert: fn(K) -> Object) -> WatchedKind {
        WatchedKind::of(&self.client, None, kind, convert)
    }

    fn watch(&mut self, id: WatchId, watched: WatchedKind, selection: WatchSelection) -> AbortHandle {
        // Without this task, the served state would no longer follow the cluster.
        let events = self.events.clone();
        self.tasks.spawn(vital(async move {
            watching::watch(id, &watched, selection, events).await;
        }))
    }
}

#[cfg(test)]
mod tests;
