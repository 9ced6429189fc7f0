//! Converts the events of watches into changes. The module is pure: it neither waits nor sends requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::networking::v1::{Ingress, IngressClass, IngressClassParametersReference};

use super::gateway_names::{GatewayNames, is_kind_with_names};
use crate::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    outcome::Origin,
    translate::{Affected, Namer, Options, settings_references},
};

/// Number of a watch; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WatchId(u64);

/// `metadata.resourceVersion`, which grows with every change of any object of a kind (KEP-5504). 0 if there is none
/// that can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64);

/// An event of a watch.
#[derive(Clone, Debug)]
pub(super) enum TrackerEvent {
    /// A complete list begins.
    ListBegins,
    /// An object of the list.
    Listed(Object, Version),
    /// The list is complete; objects that it did not hold are gone.
    ListEnds,
    Applied(Object, Version),
    /// An object, of a list or changed, that cannot be read. What was known of it stays.
    Unreadable(ObjectId, Version),
    Deleted(ObjectId, Version),
    /// The server refuses this watch, so there is no list to wait for.
    Refused,
}

/// Whether the first changes wait for the list of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Need {
    /// Routes made without the list would be wrong, so a refusal is waited out.
    #[default]
    Required,
    /// The tracker waits for it until the server sends a list, or refuses one. It does not wait without end: a kind of
    /// which no list can be read, as after a faulty change of its definition, must not keep all others from being
    /// served.
    Answered,
    /// A refusal concerns only the objects of this watch, and a list that is late does, too.
    Optional,
}

/// State of each watch, and the Secrets and ConfigMaps that are named by Ingresses, by their classes, by ConfigMaps, by
/// objects of the Gateway API, and by the operator.
pub(super) struct Tracker {
    next: u64,
    watches: BTreeMap<WatchId, TrackedWatch>,
    /// Watches of single objects.
    by_object: BTreeMap<ObjectId, WatchId>,
    namer: Namer,
    /// Ingresses that name other objects, of any class: their classes may turn out later to belong to this controller.
    ingresses: BTreeMap<ObjectId, Arc<Ingress>>,
    gateway_names: GatewayNames,
    /// Named objects by the object that names them.
    references: BTreeMap<ObjectId, BTreeSet<ObjectId>>,
    /// References removed by a change that has not been sent yet; they count until then.
    leaving: BTreeMap<ObjectId, Vec<ObjectId>>,
    /// Number of references to each object; the operator counts as one.
    named: BTreeMap<ObjectId, usize>,
    /// Objects that gained their first reference, or lost their last one, since the last call of
    /// [`Tracker::take_changed_references`].
    changed: BTreeSet<ObjectId>,
    unsettled: Unsettled,
}

/// Number of watches that neither had a complete list nor were given up.
#[derive(Debug, Default)]
struct Unsettled {
    required: usize,
    answered: usize,
    optional: usize,
}

#[derive(Debug, Default)]
struct TrackedWatch {
    need: Need,
    /// The watched object, if the watch is of a single object by name.
    object: Option<ObjectId>,
    known: BTreeMap<ObjectId, Version>,
    /// The newest version so far. An older event is a repetition, or out of order.
    newest: Version,
    /// The objects of the list in progress.
    listing: Option<BTreeMap<ObjectId, Version>>,
    is_settled: bool,
}

// === impl Version ===

impl Version {
    pub(super) fn of(text: Option<&str>) -> Self {
        Self(text.and_then(|text| text.parse().ok()).unwrap_or_default())
    }

    /// Returns `true` if this version is equal to `other` or older; never if one of the two is unknown.
    fn is_no_newer_than(self, other: Self) -> bool {
        self != Self::default() && other != Self::default() && self <= other
    }
}

// === impl Tracker ===

impl Tracker {
    /// Returns a tracker that also wants `fixed`.
    pub(super) fn new(options: &Options, fixed: BTreeSet<ObjectId>) -> Self {
        Self {
            next: 0,
            watches: BTreeMap::new(),
            by_object: BTreeMap::new(),
            namer: Namer::new(options),
            ingresses: BTreeMap::new(),
            gateway_names: GatewayNames::new(options.max_references),
            references: BTreeMap::new(),
            leaving: BTreeMap::new(),
            named: fixed.iter().map(|id| (id.clone(), 1)).collect(),
            changed: fixed,
            unsettled: Unsettled::default(),
        }
    }

    pub(super) fn open(&mut self, need: Need) -> WatchId {
        self.insert(TrackedWatch { need, ..TrackedWatch::default() })
    }

    /// Opens the watch of one object, which is not required.
    pub(super) fn open_by_name(&mut self, object: ObjectId) -> WatchId {
        let id =
            self.insert(TrackedWatch { need: Need::Optional, object: Some(object.clone()), ..TrackedWatch::default() });
        self.by_object.insert(object, id);
        id
    }

    fn insert(&mut self, watch: TrackedWatch) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        *self.unsettled.of(watch.need) += 1;
        self.watches.insert(id, watch);
        id
    }

    /// Removes a watch; its objects are removed, and their references with them.
    pub(super) fn close(&mut self, id: WatchId) -> Vec<Change> {
        let Some(TrackedWatch { need, known, is_settled, object, .. }) = self.watches.remove(&id) else {
            return Vec::new();
        };
        if let Some(object) = object {
            self.by_object.remove(&object);
        }
        if !is_settled {
            *self.unsettled.of(need) -= 1;
        }
        let changes: Vec<_> = known.into_keys().map(Change::Remove).collect();
        for change in &changes {
            self.refer(change);
            if let Some(owner) = owner(change) {
                self.release(&owner);
            }
        }
        changes
    }

    /// Returns `true` if no watch is waited for: each has had a complete list, was refused a list that is not required,
    /// or was given up.
    pub(super) fn is_settled(&self) -> bool {
        self.has_what_is_required() && self.has_answers() && self.unsettled.optional == 0
    }

    /// Returns `true` if every required watch has had a complete list.
    pub(super) fn has_what_is_required(&self) -> bool {
        self.unsettled.required == 0
    }

    /// Returns `true` if every watch that is to be answered has been, or was given up.
    pub(super) fn has_answers(&self) -> bool {
        self.unsettled.answered == 0
    }

    /// Takes every watch of a need as settled, and returns the objects that are unread for that reason.
    pub(super) fn give_up_waiting(&mut self, need: Need) -> Vec<ObjectId> {
        *self.unsettled.of(need) = 0;
        let given_up = self.watches.values_mut().filter(|watch| watch.need == need && !watch.is_settled);
        given_up.filter_map(TrackedWatch::give_up_waiting).collect()
    }

    pub(super) fn on(&mut self, id: WatchId, event: TrackerEvent) -> Vec<Change> {
        // A closed watch may have events in the queue.
        let Some(watch) = self.watches.get_mut(&id) else { return Vec::new() };
        let was_settled = watch.is_settled;
        let changes = watch.on(event);
        if watch.is_settled && !was_settled {
            *self.unsettled.of(watch.need) -= 1;
        }
        for change in &changes {
            self.refer(change);
        }
        changes
    }

    /// Returns the objects that gained their first reference, or lost their last one, since the last call.
    pub(super) fn take_changed_references(&mut self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.changed)
    }

    /// Returns `true` if an object names this Secret or ConfigMap.
    pub(super) fn is_named(&self, id: &ObjectId) -> bool {
        self.named.contains_key(id)
    }

    /// Returns `true` if `owner` names an object that has no complete list yet.
    pub(super) fn awaits(&self, owner: &ObjectId) -> bool {
        self.references.get(owner).into_iter().flatten().any(|id| self.unanswered(id).is_some())
    }

    /// Gives up waiting for the objects that `owner` names, and returns those that are unread for that reason.
    pub(super) fn give_up_on(&mut self, owner: &ObjectId) -> Vec<ObjectId> {
        let named = self.references.get(owner).into_iter().flatten();
        let unanswered: Vec<_> = named.filter_map(|id| self.unanswered(id)).collect();
        let mut unread = Vec::new();
        for id in unanswered {
            if let Some(watch) = self.watches.get_mut(&id) {
                *self.unsettled.of(watch.need) -= 1;
                unread.extend(watch.give_up_waiting());
            }
        }
        unread
    }

    fn unanswered(&self, id: &ObjectId) -> Option<WatchId> {
        let id = self.by_object.get(id)?;
        self.watches.get(id).is_some_and(|watch| !watch.is_settled).then_some(*id)
    }

    /// Drops the former references of `owner`, once its change is sent.
    pub(super) fn release(&mut self, owner: &ObjectId) {
        for id in self.leaving.remove(owner).into_iter().flatten() {
            let Some(uses) = self.named.get_mut(&id) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.named.remove(&id);
                self.changed.insert(id);
            }
        }
    }

    /// Like [`Tracker::release`], for all owners.
    pub(super) fn release_all(&mut self) {
        while let Some((owner, _)) = self.leaving.first_key_value() {
            let owner = owner.clone();
            self.release(&owner);
        }
    }

    fn refer(&mut self, change: &Change) {
        let affected = self.namer.learn(change);
        for (id, ingress) in self.affected(&affected) {
            self.name(&id, self.namer.named(&ingress));
            self.release(&id);
        }
        let of_gateways = match &affected {
            Affected::OfNamespace(namespace) => {
                self.gateway_names.of(Some(namespace), |namespace| self.namer.selects(namespace))
            }
            Affected::NoIngress | Affected::All => Vec::new(),
        };
        let through = self.gateway_names.learn_config_map(change, |namespace| self.namer.selects(namespace));
        let learnt = self.gateway_names.learn(change, |namespace| self.namer.selects(namespace));
        let is_of_gateways = learnt.is_some();
        let id = owner(change);
        for (other, named) in of_gateways.into_iter().chain(through).chain(learnt.into_iter().flatten()) {
            self.name(&other, named);
            if Some(&other) != id.as_ref() {
                self.release(&other);
            }
        }
        let Some(id) = id.filter(|_| !is_of_gateways) else { return };
        let named = match change {
            Change::Apply { object: Object::Ingress(ingress), origin: _ } => {
                if names_anything(ingress) {
                    self.ingresses.insert(id.clone(), Arc::clone(ingress));
                } else {
                    self.ingresses.remove(&id);
                }
                self.namer.named(ingress)
            }
            Change::Apply { object: Object::IngressClass(class), origin: _ } => {
                parameters(class, &self.namer.options().classes.controller).into_iter().collect()
            }
            Change::Apply { object: Object::ConfigMap(config_map), origin: _ } => {
                let settings = settings_references(config_map).map(|name| ObjectId { kind: Kind::ConfigMap, name });
                // Its change waits for what routes name through it, as an Ingress waits for what it names.
                let through = self.gateway_names.named_through(&id, |namespace| self.namer.selects(namespace));
                settings.chain(through).collect()
            }
            _ => {
                self.ingresses.remove(&id);
                BTreeSet::new()
            }
        };
        self.name(&id, named);
    }

    /// Returns the Ingresses with references that may differ after a change of their class or namespace.
    fn affected(&self, affected: &Affected) -> Vec<(ObjectId, Arc<Ingress>)> {
        let namespace = match affected {
            Affected::NoIngress => return Vec::new(),
            Affected::All => None,
            Affected::OfNamespace(namespace) => Some(Arc::clone(namespace)),
        };
        let name = ObjectName { namespace: namespace.clone().unwrap_or_else(|| "".into()), name: "".into() };
        let first = ObjectId { kind: Kind::Ingress, name };
        let is_affected = |id: &ObjectId| namespace.as_ref().is_none_or(|namespace| id.name.namespace == *namespace);
        let affected = self.ingresses.range(first..).take_while(|(id, _)| is_affected(id));
        affected.map(|(id, ingress)| (id.clone(), Arc::clone(ingress))).collect()
    }

    /// Sets the references of `owner`. Its former references count until [`Tracker::release`].
    fn name(&mut self, owner: &ObjectId, named: BTreeSet<ObjectId>) {
        let before = self.references.remove(owner).unwrap_or_default();
        for id in named.difference(&before) {
            let uses = self.named.entry(id.clone()).or_default();
            *uses += 1;
            if *uses == 1 {
                self.changed.insert(id.clone());
            }
        }
        let mut gone = before.difference(&named).cloned().peekable();
        if gone.peek().is_some() {
            self.leaving.entry(owner.clone()).or_default().extend(gone);
        }
        if !named.is_empty() {
            self.references.insert(owner.clone(), named);
        }
    }
}

/// Returns the object that `change` is about, if it may name others.
pub(super) fn owner(change: &Change) -> Option<ObjectId> {
    let id = match change {
        Change::Apply { object, origin: _ } => object.id(),
        Change::Remove(id) => id.clone(),
        Change::Resolve { .. } | Change::Forget { .. } => return None,
    };
    let names = matches!(id.kind, Kind::Ingress | Kind::IngressClass | Kind::ConfigMap) || is_kind_with_names(id.kind);
    names.then_some(id)
}

/// Returns `true` if `ingress` has fields by which it could name other objects.
fn names_anything(ingress: &Ingress) -> bool {
    let has_tls = ingress.spec.as_ref().is_some_and(|spec| spec.tls.iter().flatten().next().is_some());
    has_tls || ingress.metadata.annotations.iter().flatten().next().is_some()
}

/// Returns the ConfigMap that `spec.parameters` of a class of `controller` names.
fn parameters(class: &IngressClass, controller: &str) -> Option<ObjectId> {
    let spec = class.spec.as_ref().filter(|spec| spec.controller.as_deref() == Some(controller))?;
    let IngressClassParametersReference { api_group, kind, name, namespace, scope: _ } = spec.parameters.as_ref()?;
    let is_config_map = kind == "ConfigMap" && api_group.as_deref().unwrap_or_default().is_empty();
    let namespace = namespace.as_deref().filter(|namespace| is_config_map && !namespace.is_empty())?;
    Some(ObjectId { kind: Kind::ConfigMap, name: ObjectName::new(namespace, name) })
}

// === impl Unsettled ===

impl Unsettled {
    fn of(&mut self, need: Need) -> &mut usize {
        match need {
            Need::Required => &mut self.required,
            Need::Answered => &mut self.answered,
            Need::Optional => &mut self.optional,
        }
    }
}

// === impl TrackedWatch ===

impl TrackedWatch {
    fn give_up_waiting(&mut self) -> Option<ObjectId> {
        self.is_settled = true;
        let object = self.object.clone()?;
        // A receiver may have the object from earlier, and must learn if it does not exist.
        self.known.entry(object.clone()).or_default();
        Some(object)
    }

    fn on(&mut self, event: TrackerEvent) -> Vec<Change> {
        match event {
            TrackerEvent::ListBegins => {
                self.listing = Some(BTreeMap::new());
                Vec::new()
            }
            TrackerEvent::Listed(object, version) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(object.id(), version);
                }
                // This applies even an older version: the server may have been restored to an earlier state.
                self.apply(object, version)
            }
            TrackerEvent::ListEnds => {
                self.is_settled = true;
                let Some(listing) = self.listing.take() else { return Vec::new() };
                self.newest = listing.values().copied().max().unwrap_or_default();
                let gone = self.known.extract_if(.., |id, _| !listing.contains_key(id));
                let changes = gone.map(|(id, _)| Change::Remove(id)).collect();
                // Insertion in key order leaves the nodes half empty; a map that is built at once has full nodes.
                self.known = std::mem::take(&mut self.known).into_iter().collect();
                changes
            }
            TrackerEvent::Applied(_, version) if version.is_no_newer_than(self.newest) => Vec::new(),
            TrackerEvent::Applied(object, version) => {
                self.newest = self.newest.max(version);
                self.apply(object, version)
            }
            TrackerEvent::Unreadable(id, version) => {
                match &mut self.listing {
                    Some(listing) => drop(listing.insert(id, version)),
                    None => self.newest = self.newest.max(version),
                }
                Vec::new()
            }
            TrackerEvent::Deleted(id, version) => {
                // Some servers send the version of the last change of the object, not that of its deletion.
                let is_old = |known: &Version| version != *known && version.is_no_newer_than(*known);
                if self.known.get(&id).is_some_and(is_old) {
                    return Vec::new();
                }
                self.newest = self.newest.max(version);
                self.known.remove(&id);
                vec![Change::Remove(id)]
            }
            TrackerEvent::Refused => {
                self.is_settled |= self.need != Need::Required;
                Vec::new()
            }
        }
    }

    fn apply(&mut self, object: Object, version: Version) -> Vec<Change> {
        self.known.insert(object.id(), version);
        vec![Change::Apply { object, origin: Origin::Api }]
    }
}
