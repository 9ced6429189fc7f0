//! Watches the objects that addresses are read from: the Service to publish, or nodes and pods. Only the leader runs
//! it. [`super::addresses`] selects the addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client, ResourceExt,
    runtime::watcher::{self, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Options,
    access::{Permission, RequestFailure, RetryLog},
    addresses::{self, Address, NodeFacts, PodFacts, Publish},
    replicas,
};
use crate::{
    clock::expiry,
    wire_object::{UnreadableLog, WireObject},
};

/// Changes this close together are shown as one: a rollout touches every pod and node …
const SETTLE: Duration = Duration::from_secs(1);
/// … but a continuous stream of changes is shown after this time.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Sends the addresses as they change, until the future is dropped. It sends nothing before the first complete list,
/// nor while the addresses are not known.
pub(super) async fn watch(client: &Client, options: &Options, addresses: &watch::Sender<Option<Vec<Address>>>) {
    match &options.publish {
        Publish::Addresses(explicit) => {
            addresses.send_replace(Some(addresses::ordered(explicit.clone())));
            future::pending().await
        }
        Publish::Service(name) => {
            let api = WireObject::api::<Service>(client, Some(&*name.namespace));
            let config = watcher::Config::default().fields(&format!("metadata.name={}", name.name));
            let lost = "the addresses of `--publish-service` are not known";
            let mut service = WatchedObjects::default();
            let events = events(api, config, "services", lost, |service| addresses::of_service(&service)).boxed();
            watch_events(events, addresses, |event| {
                service.on(event);
                let found = service.known()?.values().next().cloned().filter(|addresses| !addresses.is_empty());
                if found.is_none() {
                    tracing::warn!(service = %name, "the Service to publish does not exist or has no address; statuses stay as they are");
                }
                found
            })
            .await;
        }
        Publish::Nodes(which) => {
            let lost = "the addresses of nodes are not known";
            let nodes = WireObject::api::<Node>(client, None);
            let nodes = events(nodes, watcher::Config::default(), "nodes", lost, |node| NodeFacts::of(&node));
            let pods = replicas::events(client, options, lost);
            let (mut known_nodes, mut known_pods) = (WatchedObjects::default(), WatchedObjects::default());
            let events = stream::select(nodes.map(Either::Node), pods.map(Either::Pod)).boxed();
            watch_events(events, addresses, |event| {
                match event {
                    Either::Node(event) => known_nodes.on(event),
                    Either::Pod(event) => known_pods.on(event),
                }
                let found = addresses::of_nodes(known_nodes.known()?, known_pods.known()?, *which);
                if found.is_none() {
                    let namespace = &options.namespace;
                    tracing::debug!(
                        namespace,
                        label = replicas::LABEL,
                        "no Ready node runs a Ready pod; statuses stay"
                    );
                }
                found
            })
            .await;
        }
    }
}

enum Either {
    Node(AddressEvent<NodeFacts>),
    Pod(AddressEvent<PodFacts>),
}

/// An event of a watch, with the relevant fields of each object.
pub(super) enum AddressEvent<T> {
    ListBegins,
    Listed(String, T),
    ListEnds,
    Applied(String, T),
    Deleted(String),
    /// The object has another form. What was last read of it stays; if nothing was, the objects of the watch are not known.
    Unreadable(String),
}

/// The objects of a watch.
#[derive(Debug)]
pub(super) struct WatchedObjects<T> {
    current: Held<T>,
    listing: Option<Held<T>>,
    is_complete: bool,
}

/// The objects of a list, with the changes since.
#[derive(Debug)]
struct Held<T> {
    objects: BTreeMap<String, T>,
    /// Objects that were never readable.
    unread: BTreeSet<String>,
}

/// Sends the result of `read` for the events: the first at once, later ones when they have settled.
async fn watch_events<E>(
    mut events: impl Stream<Item = E> + Unpin,
    addresses: &watch::Sender<Option<Vec<Address>>>,
    mut read: impl FnMut(E) -> Option<Vec<Address>>,
) {
    let mut found = None;
    let mut due: Option<Instant> = None;
    let mut latest = Instant::now();
    loop {
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return };
                let now = Instant::now();
                if due.is_none() {
                    latest = now + SETTLE_MAX;
                }
                found = read(event);
                if addresses.borrow().is_none() {
                    show(addresses, found.as_deref());
                } else {
                    due = Some(latest.min(now + SETTLE));
                }
            }
            () = expiry(due) => {
                due = None;
                show(addresses, found.as_deref());
            }
        }
    }
}

/// Sends `found` if it is known and differs from the addresses shown.
fn show(addresses: &watch::Sender<Option<Vec<Address>>>, found: Option<&[Address]>) {
    let Some(found) = found else { return };
    addresses.send_if_modified(|shown| {
        let is_news = shown.as_deref() != Some(found);
        if is_news {
            let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            tracing::info!(addresses = ?texts, "the addresses in statuses changed");
            *shown = Some(found.to_vec());
        }
        is_news
    });
}

/// Returns the events of one watch. After an error the watch starts again with a list; objects and errors are both few.
pub(super) fn events<K, T>(
    api: Api<WireObject>,
    config: watcher::Config,
    resource: &'static str,
    lost: &'static str,
    read: fn(K) -> T,
) -> impl Stream<Item = AddressEvent<T>>
where
    K: DeserializeOwned + 'static,
    T: 'static,
{
    let retry_log = RetryLog::new(Permission { verb: "list and watch", resource, lost });
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let read = move |object: &WireObject, log: &mut UnreadableLog, event: fn(String, T) -> AddressEvent<T>| {
        let name = object.name_any();
        match object.decode() {
            Ok(decoded) => event(name, read(decoded)),
            Err(error) => {
                log.report(resource, &name, &error.to_string());
                AddressEvent::Unreadable(name)
            }
        }
    };
    let state = (begin(), retry_log, UnreadableLog::default(), begin);
    let events = stream::unfold(state, move |(mut watch, mut retry_log, mut log, begin)| async move {
        let event = match watch.next().await? {
            Ok(event) => Some(match event {
                watcher::Event::Init => AddressEvent::ListBegins,
                watcher::Event::InitApply(object) => read(&object, &mut log, AddressEvent::Listed),
                watcher::Event::InitDone => {
                    retry_log.succeeded();
                    AddressEvent::ListEnds
                }
                watcher::Event::Apply(object) => read(&object, &mut log, AddressEvent::Applied),
                watcher::Event::Delete(object) => AddressEvent::Deleted(object.name_any()),
            }),
            Err(error) => {
                sleep(retry_log.failed(&failure(error))).await;
                watch = begin();
                None
            }
        };
        Some((event, (watch, retry_log, log, begin)))
    });
    events.filter_map(future::ready)
}

fn failure(error: watcher::Error) -> RequestFailure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => RequestFailure::of(&error),
        watcher::Error::WatchError(status) => RequestFailure::of(&kube::Error::Api(status)),
        error => RequestFailure::Other(error.to_string()),
    }
}

// === impl WatchedObjects ===

impl<T> Default for WatchedObjects<T> {
    fn default() -> Self {
        Self { current: Held::default(), listing: None, is_complete: false }
    }
}

impl<T: Clone> WatchedObjects<T> {
    /// Returns all objects; `None` before the first complete list, and while one of them was never readable.
    pub(super) fn known(&self) -> Option<&BTreeMap<String, T>> {
        let Self { current, listing: _, is_complete } = self;
        (*is_complete && current.unread.is_empty()).then_some(&current.objects)
    }

    pub(super) fn on(&mut self, event: AddressEvent<T>) {
        match event {
            AddressEvent::ListBegins => self.listing = Some(Held::default()),
            AddressEvent::Listed(name, facts) => self.listing.get_or_insert_default().insert(name, facts),
            AddressEvent::ListEnds => {
                self.current = self.listing.take().unwrap_or_default();
                self.is_complete = true;
            }
            AddressEvent::Applied(name, facts) => self.current.insert(name, facts),
            AddressEvent::Deleted(name) => {
                self.current.objects.remove(&name);
                self.current.unread.remove(&name);
            }
            AddressEvent::Unreadable(name) => {
                let last = self.current.objects.get(&name).cloned();
                let held = self.listing.as_mut().unwrap_or(&mut self.current);
                match last {
                    Some(facts) => held.insert(name, facts),
                    None => drop(held.unread.insert(name)),
                }
            }
        }
    }
}

// === impl Held ===

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), unread: BTreeSet::new() }
    }
}

impl<T> Held<T> {
    fn insert(&mut self, name: String, facts: T) {
        self.unread.remove(&name);
        self.objects.insert(name, facts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_object_keeps_its_last_state_and_is_missed_without_one() {
        use AddressEvent::{Applied, Deleted, ListBegins, ListEnds, Listed, Unreadable};
        let name = |name: &str| name.to_owned();
        let mut objects = WatchedObjects::default();
        let mut after = |events: Vec<AddressEvent<u8>>| {
            events.into_iter().for_each(|event| objects.on(event));
            objects.known().map(|known| known.values().copied().collect::<Vec<_>>())
        };
        assert_eq!(after(vec![ListBegins, Listed(name("a"), 1)]), None);
        assert_eq!(after(vec![ListEnds]), Some(vec![1]));
        assert_eq!(after(vec![Unreadable(name("a"))]), Some(vec![1]));
        assert_eq!(after(vec![ListBegins, Unreadable(name("a")), ListEnds]), Some(vec![1]));
        assert_eq!(after(vec![Unreadable(name("b"))]), None);
        assert_eq!(after(vec![ListBegins, Listed(name("a"), 2), Unreadable(name("b"))]), None);
        assert_eq!(after(vec![ListEnds]), None);
        assert_eq!(after(vec![Applied(name("b"), 3)]), Some(vec![2, 3]));
        assert_eq!(after(vec![Unreadable(name("c"))]), None);
        assert_eq!(after(vec![Deleted(name("c"))]), Some(vec![2, 3]));
    }
}
