//! State of Namespaces: an Ingress does not count after the deletion of its namespace was requested, nor while a
//! selector does not match its namespace. This module translates nothing.
//!
//! Once a deletion is requested, the API server creates nothing in the namespace and removes its content. Pods go first
//! (KEP-5080), which may take minutes. Until then the Ingresses still exist, and would keep their hosts from the
//! namespace that replaces this one.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{core::v1, networking::v1::Ingress},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{
    change::ObjectName,
    cluster::{Store, Stored},
};
use ingress_model::Tree;

/// A Namespace, reduced to the fields in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Namespace {
    pub name: ObjectName,
    /// Time of the deletion request.
    pub deleted: Option<Time>,
    /// These include `kubernetes.io/metadata.name`.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// Namespaces that are being deleted or not selected, and their Ingresses, which do not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LeftOut {
    deleted: Tree<Arc<str>, Time>,
    /// The known Namespaces, if only known ones count. `None`: all count.
    selected: Option<Tree<Arc<str>, ()>>,
    ingresses: Store<Ingress>,
}

/// Label with the name of the Namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

// === impl Namespace ===

impl From<v1::Namespace> for Namespace {
    fn from(object: v1::Namespace) -> Self {
        let name = ObjectName::of(&object.metadata);
        let ObjectMeta { deletion_timestamp: deleted, labels, .. } = object.metadata;
        let mut labels = labels.unwrap_or_default();
        // The API server sets it on every Namespace; those of files may lack it.
        labels.entry(NAME_LABEL.to_owned()).or_insert_with(|| (*name.name).to_owned());
        Self { name, deleted, labels: labels.into() }
    }
}

/// The form in which it is saved, without the time of deletion: what counted goes on to count.
impl From<&Namespace> for v1::Namespace {
    fn from(Namespace { name, deleted: _, labels }: &Namespace) -> Self {
        let (name, labels) = (Some((*name.name).to_owned()), Some((**labels).clone()));
        Self { metadata: ObjectMeta { name, labels, ..ObjectMeta::default() }, ..Self::default() }
    }
}

// === impl LeftOut ===

impl LeftOut {
    /// Makes an empty state. With `selects`, only the Ingresses of known Namespaces count.
    pub(super) fn new(selects: bool) -> Self {
        Self { selected: selects.then(Tree::default), ..Self::default() }
    }

    /// Returns the Ingress of this name, if it does not count.
    pub(super) fn get(&self, name: &ObjectName) -> Option<&Stored<Ingress>> {
        self.ingresses.get(name)
    }

    /// Returns `true` if an Ingress does not count.
    pub(super) fn takes(&self, ingress: &Ingress) -> bool {
        let ObjectMeta { namespace, uid, creation_timestamp, .. } = &ingress.metadata;
        let namespace = namespace.as_deref().unwrap_or_default();
        if !self.selects(namespace) {
            return true;
        }
        let deleted = self.deleted.get(namespace);
        // The Namespace may have been reported gone before the Ingress is.
        let same = |known: &Stored<Ingress>| uid.is_some() && known.object.metadata.uid == *uid;
        deleted.is_some_and(|deleted| is_of(deleted, creation_timestamp.as_ref()))
            || self.get(&ObjectName::of(&ingress.metadata)).is_some_and(same)
    }

    /// Changes the state so that only the Ingresses of these Namespaces count, and of those reported later.
    pub(super) fn select(&mut self, known: impl Iterator<Item = Arc<str>>) {
        self.selected = Some(known.map(|name| (name, ())).collect());
    }

    /// Returns `true` unless only known Namespaces count, and this one is not known.
    pub(super) fn selects(&self, namespace: &str) -> bool {
        self.selected.as_ref().is_none_or(|selected| selected.contains_key(namespace))
    }

    pub(super) fn insert(&mut self, name: ObjectName, ingress: Stored<Ingress>) {
        self.ingresses.insert(name, ingress);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.ingresses.remove(name);
    }

    /// Returns `true` if the stored state of the Namespace is the same.
    pub(super) fn knows(&self, namespace: &Namespace) -> bool {
        let Namespace { name: ObjectName { namespace: _, name }, deleted, labels: _ } = namespace;
        self.selects(name)
            && self.deleted.get(name) == deleted.as_ref()
            && (deleted.is_some() || of_namespace(&self.ingresses, name).next().is_none())
    }

    /// Removes the Ingresses of a Namespace from those that count, or puts them back.
    pub(super) fn set(&mut self, namespace: &Namespace, counting: &mut Store<Ingress>) {
        let Namespace { name: ObjectName { namespace: _, name }, deleted, labels: _ } = namespace;
        if let Some(selected) = &mut self.selected {
            selected.insert(Arc::clone(name), ());
        }
        let Some(deleted) = deleted else {
            self.deleted.remove(name);
            self.put_back(name, |_| true, counting);
            return;
        };
        self.deleted.insert(Arc::clone(name), deleted.clone());
        self.take_out(name, |created| is_of(deleted, created), counting);
    }

    /// Removes a Namespace that is gone or no longer selected. Returns `true` if other Ingresses count than before.
    /// Ingresses older than the deletion go with the Namespace, and are reported gone later; one created in the same
    /// second may belong to the next Namespace of that name.
    pub(super) fn forget(&mut self, namespace: &ObjectName, counting: &mut Store<Ingress>) -> bool {
        if let Some(selected) = &mut self.selected {
            self.deleted.remove(&namespace.name);
            let was_selected = selected.remove(&namespace.name).is_some();
            self.take_out(&namespace.name, |_| true, counting);
            return was_selected;
        }
        let Some(deleted) = self.deleted.remove(&namespace.name) else { return false };
        let stays = |created: Option<&Time>| created.is_none_or(|created| *created >= deleted);
        self.put_back(&namespace.name, stays, counting)
    }

    fn take_out(&mut self, namespace: &str, which: impl Fn(Option<&Time>) -> bool, from: &mut Store<Ingress>) {
        let goes = of_namespace(from, namespace)
            .filter(|(_, stored)| which(stored.object.metadata.creation_timestamp.as_ref()));
        let goes: Vec<_> = goes.map(|(name, stored)| (name.clone(), stored.clone())).collect();
        goes.iter().for_each(|(name, _)| drop(from.remove(name)));
        self.ingresses.extend(goes);
    }

    fn put_back(&mut self, namespace: &str, which: impl Fn(Option<&Time>) -> bool, to: &mut Store<Ingress>) -> bool {
        let back = of_namespace(&self.ingresses, namespace)
            .filter(|(_, stored)| which(stored.object.metadata.creation_timestamp.as_ref()));
        let back: Vec<_> = back.map(|(name, stored)| (name.clone(), stored.clone())).collect();
        back.iter().for_each(|(name, _)| drop(self.ingresses.remove(name)));
        let any = !back.is_empty();
        to.extend(back);
        any
    }
}

/// Returns the Ingresses of a namespace, which are adjacent in the store.
fn of_namespace<'s>(
    store: &'s Store<Ingress>,
    namespace: &str,
) -> impl Iterator<Item = (&'s ObjectName, &'s Stored<Ingress>)> {
    let namespace: Arc<str> = namespace.into();
    let first = ObjectName { namespace: Arc::clone(&namespace), name: "".into() };
    store.iter_from(&first).take_while(move |(name, _)| name.namespace == namespace)
}

/// Returns `true` if an object created then belongs to the Namespace with a deletion requested at `deleted`. A later
/// object belongs to the next Namespace of that name, which has not been reported yet.
fn is_of(deleted: &Time, created: Option<&Time>) -> bool {
    created.is_none_or(|created| created <= deleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Origin,
        change::{Change, Kind, Object, ObjectId},
        cluster::Cluster,
    };

    fn time(second: i64) -> Time {
        serde_json::from_value(serde_json::json!(format!("2026-01-01T00:00:{second:02}Z"))).expect("a time")
    }

    fn apply(cluster: &mut Cluster, object: Object) -> bool {
        cluster.apply(Change::Apply { object, origin: Origin::Api })
    }

    fn namespace(deleted: Option<i64>) -> Object {
        let (name, labels) = (ObjectName::new("", "n"), Arc::default());
        Object::Namespace(Arc::new(Namespace { name, deleted: deleted.map(time), labels }))
    }

    fn ingress(name: &str, uid: &str, created: i64) -> Object {
        let mut ingress = Ingress::default();
        ingress.metadata.namespace = Some("n".to_owned());
        ingress.metadata.name = Some(name.to_owned());
        ingress.metadata.uid = Some(uid.to_owned());
        ingress.metadata.creation_timestamp = Some(time(created));
        Object::Ingress(Arc::new(ingress))
    }

    fn gone(kind: Kind, namespace: &str, name: &str) -> Change {
        Change::Remove(ObjectId { kind, name: ObjectName::new(namespace, name) })
    }

    fn names(cluster: &Cluster) -> Vec<String> {
        cluster.ingresses.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn ingresses_of_a_terminating_namespace_do_not_count() {
        let mut cluster = Cluster::default();
        apply(&mut cluster, ingress("a", "1", 1));
        assert!(!apply(&mut cluster, namespace(None)), "a Namespace that stays changes nothing");
        assert!(apply(&mut cluster, namespace(Some(5))));
        assert!(names(&cluster).is_empty());
        assert!(!apply(&mut cluster, namespace(Some(5))), "nothing is new");
        assert!(!apply(&mut cluster, ingress("b", "2", 2)), "told late, and older than the deletion");
        assert!(names(&cluster).is_empty());
        assert!(!cluster.apply(gone(Kind::Ingress, "n", "a")));
        assert!(!cluster.apply(gone(Kind::Namespace, "", "n")));
        assert!(!apply(&mut cluster, ingress("b", "2", 2)), "told once more before its end is");
        assert!(names(&cluster).is_empty());
        cluster.apply(gone(Kind::Ingress, "n", "b"));
        assert_eq!(cluster, Cluster::default(), "nothing is kept of what is gone");
    }

    #[test]
    fn a_recreated_namespace_is_a_new_one() {
        let mut cluster = Cluster::default();
        apply(&mut cluster, ingress("a", "1", 1));
        apply(&mut cluster, namespace(Some(5)));
        // The new Namespace has not been reported yet.
        assert!(apply(&mut cluster, ingress("a", "2", 9)));
        assert_eq!(names(&cluster), ["n/a"]);
        // Within the same second the two cannot be told apart until the Namespace is gone.
        assert!(!apply(&mut cluster, ingress("c", "3", 5)));
        assert!(cluster.apply(gone(Kind::Namespace, "", "n")));
        assert_eq!(names(&cluster), ["n/a", "n/c"]);
    }

    #[test]
    fn a_namespace_restored_with_the_server_has_its_ingresses() {
        let mut cluster = Cluster::default();
        apply(&mut cluster, ingress("a", "1", 1));
        let before = cluster.clone();
        apply(&mut cluster, namespace(Some(5)));
        assert!(apply(&mut cluster, namespace(None)));
        assert_eq!(cluster, before);
        apply(&mut cluster, namespace(Some(5)));
        cluster.apply(gone(Kind::Namespace, "", "n"));
        assert!(apply(&mut cluster, namespace(None)));
        assert_eq!(cluster, before);
    }

    #[test]
    fn ingresses_count_while_their_namespace_is_selected() {
        let mut cluster = Cluster::new(true);
        let empty = cluster.clone();
        assert!(!apply(&mut cluster, ingress("a", "1", 1)), "the Namespace is told later");
        assert!(names(&cluster).is_empty());
        assert!(apply(&mut cluster, namespace(None)));
        assert_eq!(names(&cluster), ["n/a"]);
        assert!(!apply(&mut cluster, namespace(None)), "nothing is new");
        assert!(apply(&mut cluster, ingress("b", "2", 2)));
        assert!(cluster.apply(gone(Kind::Namespace, "", "n")), "its labels are others");
        assert!(!apply(&mut cluster, ingress("c", "3", 3)));
        assert!(names(&cluster).is_empty());
        assert!(apply(&mut cluster, namespace(None)));
        assert_eq!(names(&cluster), ["n/a", "n/b", "n/c"]);
        // The Namespace is deleted while it is selected, and the next one of its name is not selected.
        assert!(apply(&mut cluster, namespace(Some(5))));
        assert!(names(&cluster).is_empty());
        assert!(cluster.apply(gone(Kind::Namespace, "", "n")));
        assert!(!apply(&mut cluster, ingress("a", "9", 9)));
        assert!(names(&cluster).is_empty());
        for name in ["a", "b", "c"] {
            cluster.apply(gone(Kind::Ingress, "n", name));
        }
        assert_eq!(cluster, empty, "nothing is kept of what is gone");
    }

    #[test]
    fn saved_ingresses_count_once_namespaces_are_selected() {
        let mut cluster = Cluster::default();
        apply(&mut cluster, ingress("a", "1", 1));
        cluster.select_namespaces();
        assert_eq!(names(&cluster), ["n/a"]);
        assert!(apply(&mut cluster, ingress("b", "2", 2)));
        cluster.apply(gone(Kind::Namespace, "", "n"));
        assert!(names(&cluster).is_empty());
    }
}
