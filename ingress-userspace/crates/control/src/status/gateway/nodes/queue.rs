//! Objects to ask about, each once, in the order in which they came. This module decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::ObjectId;

/// Objects that are asked about now, and those that wait for room. It never holds an object twice, so that it is not
/// longer than the list of open objects, however often these change.
#[derive(Debug)]
pub(super) struct Lane {
    /// Most objects that are asked about at a time.
    room: usize,
    active: BTreeSet<ObjectId>,
    waiting: BTreeMap<u64, ObjectId>,
    /// Place in `waiting` of each object there.
    places: BTreeMap<ObjectId, u64>,
    next: u64,
}

// === impl Lane ===

impl Lane {
    pub(super) const fn new(room: usize) -> Self {
        Self { room, active: BTreeSet::new(), waiting: BTreeMap::new(), places: BTreeMap::new(), next: 0 }
    }

    /// Adds an object at the end, unless it is there.
    pub(super) fn push(&mut self, id: ObjectId) {
        if !self.active.contains(&id) && !self.places.contains_key(&id) {
            self.waiting.insert(self.next, id.clone());
            self.places.insert(id, self.next);
            self.next += 1;
        }
    }

    /// Returns the next object, which is asked about from now on; `None` without one, or without room.
    pub(super) fn begin(&mut self) -> Option<ObjectId> {
        if self.active.len() >= self.room {
            return None;
        }
        let (_, id) = self.waiting.pop_first()?;
        self.places.remove(&id);
        self.active.insert(id.clone());
        Some(id)
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        self.active.remove(id);
        if let Some(place) = self.places.remove(id) {
            self.waiting.remove(&place);
        }
    }

    /// Returns the objects that are asked about now.
    pub(super) const fn active(&self) -> &BTreeSet<ObjectId> {
        &self.active
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.active.len() + self.waiting.len()
    }
}
