//! Turns the events of watches into changes. Pure: it waits for nothing and asks nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::control::change::{Change, Object, ObjectId, ObjectName};
use crate::control::outcome::Origin;

/// Number of a watch; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WatchId(u64);

/// What a watch tells.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A complete list begins.
    ListBegins,
    /// An object of the list.
    Listed(Object),
    ListEnds,
    Applied(Object),
    Deleted(Object),
    /// The server refuses this watch: there is nothing to wait for.
    Refused,
}

/// Whether anything can be served without the list of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Need {
    /// No: routes made without it would be wrong. A refusal is waited out.
    #[default]
    Required,
    /// Yes: a refusal concerns the objects of this watch alone.
    Optional,
}

/// What each watch has told, and which Secrets the Ingresses name.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    next: u64,
    watches: BTreeMap<WatchId, Watch>,
    /// Secrets by the Ingress that names them.
    references: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    references_changed: bool,
}

#[derive(Debug, Default)]
struct Watch {
    need: Need,
    known: BTreeSet<ObjectId>,
    /// The objects of the list that is under way.
    listing: Option<BTreeSet<ObjectId>>,
    is_settled: bool,
}

// === impl Tracker ===

impl Tracker {
    pub(super) fn open(&mut self, need: Need) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        self.watches.insert(id, Watch { need, ..Watch::default() });
        id
    }

    /// Forgets a watch; its objects go.
    pub(super) fn close(&mut self, id: WatchId) -> Vec<Change> {
        let known = self.watches.remove(&id).map(|watch| watch.known).unwrap_or_default();
        known.into_iter().map(Change::Remove).collect()
    }

    /// Whether every watch has had a complete list, or was refused one that is not required, or is not waited for any more.
    pub(super) fn is_settled(&self) -> bool {
        self.watches.values().all(|watch| watch.is_settled)
    }

    /// Whether every watch that is required has had a complete list.
    pub(super) fn has_what_is_required(&self) -> bool {
        self.watches.values().all(|watch| watch.is_settled || watch.need == Need::Optional)
    }

    /// Takes every watch that is not required as settled, whatever it has had.
    pub(super) fn give_up_waiting(&mut self) {
        for watch in self.watches.values_mut() {
            watch.is_settled |= watch.need == Need::Optional;
        }
    }

    pub(super) fn on(&mut self, id: WatchId, event: Event) -> Vec<Change> {
        // A watch that was closed may have events under way.
        let Some(watch) = self.watches.get_mut(&id) else { return Vec::new() };
        let changes = watch.on(event);
        for change in &changes {
            self.refer(change);
        }
        changes
    }

    pub(super) fn take_references_changed(&mut self) -> bool {
        std::mem::take(&mut self.references_changed)
    }

    pub(super) fn referenced_secrets(&self) -> BTreeSet<ObjectName> {
        self.references.values().flatten().cloned().collect()
    }

    fn refer(&mut self, change: &Change) {
        let (name, secrets) = match change {
            Change::Apply { object: Object::Ingress(ingress), origin: _ } => {
                let name = ObjectName::of(&ingress.metadata);
                let tls = ingress.spec.iter().flat_map(|spec| spec.tls.iter().flatten());
                let secrets = tls.filter_map(|tls| tls.secret_name.as_deref()).filter(|secret| !secret.is_empty());
                let secrets: BTreeSet<_> = secrets.map(|secret| ObjectName::new(&name.namespace, secret)).collect();
                (name, secrets)
            }
            Change::Remove(ObjectId { kind: crate::control::change::Kind::Ingress, name }) => {
                (name.clone(), BTreeSet::new())
            }
            _ => return,
        };
        let before = if secrets.is_empty() {
            self.references.remove(&name).unwrap_or_default()
        } else {
            self.references.insert(name, secrets.clone()).unwrap_or_default()
        };
        self.references_changed |= before != secrets;
    }
}

// === impl Watch ===

impl Watch {
    fn on(&mut self, event: Event) -> Vec<Change> {
        match event {
            Event::ListBegins => {
                self.listing = Some(BTreeSet::new());
                Vec::new()
            }
            Event::Listed(object) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(object.id());
                }
                self.apply(object)
            }
            Event::ListEnds => {
                self.is_settled = true;
                let Some(listing) = self.listing.take() else { return Vec::new() };
                let gone = self.known.extract_if(.., |id| !listing.contains(id));
                gone.map(Change::Remove).collect()
            }
            Event::Applied(object) => self.apply(object),
            Event::Deleted(object) => {
                let id = object.id();
                self.known.remove(&id);
                vec![Change::Remove(id)]
            }
            Event::Refused => {
                self.is_settled |= self.need == Need::Optional;
                Vec::new()
            }
        }
    }

    fn apply(&mut self, object: Object) -> Vec<Change> {
        self.known.insert(object.id());
        vec![Change::Apply { object, origin: Origin::Api }]
    }
}
