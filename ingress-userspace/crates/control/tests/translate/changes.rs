//! Random clusters and their changes.

use std::{path::Path, sync::Arc};

use ingress_control::{
    Origin,
    change::{Change, Object, ObjectId},
    source::manifests::parse,
};
use proptest::prelude::*;

use crate::objects::any_object;

/// An event in a cluster: mostly an object that is added or changed.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Comes(String),
    /// Any of the existing objects.
    Goes(prop::sample::Index),
    Resolves(Vec<u8>),
    Forgets,
}

pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    events_of(any_object())
}

/// An event about one of these objects.
pub(crate) fn events_of(objects: impl Strategy<Value = String>) -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => objects.prop_map(Event::Comes),
        6 => any::<prop::sample::Index>().prop_map(Event::Goes),
        1 => prop::collection::vec(0..3u8, 0..3).prop_map(Event::Resolves),
        1 => Just(Event::Forgets),
    ]
}

/// Objects with distinct names, in two random orders.
pub(crate) fn any_objects() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    objects_of(any_object(), 14)
}

/// Fewer than `end` of these objects, with distinct names, in two random orders.
pub(crate) fn objects_of(
    objects: impl Strategy<Value = String>,
    end: usize,
) -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    prop::collection::vec(objects, 0..end)
        .prop_map(|texts| {
            let path: Arc<Path> = Path::new("in.yaml").into();
            let parsed = parse(&path, &texts.join("---\n"));
            assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
            let mut objects = parsed.objects;
            objects.sort_by_key(Object::id);
            objects.dedup_by_key(|object| object.id());
            objects
        })
        .prop_flat_map(|objects| (Just(objects.clone()).prop_shuffle(), Just(objects).prop_shuffle()))
}

/// Returns the change for `event`; `known` are the existing objects.
pub(crate) fn change(event: &Event, known: &mut Vec<ObjectId>) -> Option<Change> {
    let name: Arc<str> = "a.example".into();
    Some(match event {
        Event::Comes(text) => {
            let path: Arc<Path> = Path::new("in.yaml").into();
            let parsed = parse(&path, text);
            assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
            let object = parsed.objects.into_iter().next()?;
            known.retain(|id| *id != object.id());
            known.push(object.id());
            Change::Apply { object, origin: Origin::Api }
        }
        Event::Goes(_) if known.is_empty() => return None,
        Event::Goes(index) => Change::Remove(known.remove(index.index(known.len()))),
        Event::Resolves(addresses) => {
            // One of them may be an address of a node.
            let addresses = addresses.iter().map(|last| [10, 9, 0, *last].into()).collect();
            Change::Resolve { name, addresses }
        }
        Event::Forgets => Change::Forget { name },
    })
}
