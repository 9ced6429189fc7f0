//! Host ids: one number per host name, kept in the kernel, never given to another name while its counters live.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ingress_common::{HostId, HostName, flow::UNATTRIBUTED};

use super::{Shared, error::Error};

/// The host ids of this node. One process at a time hands out new ones: the one that owns the node.
#[derive(Debug)]
pub struct HostIds {
    shared: Arc<Shared>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    ids: HashMap<Box<str>, HostId>,
    next: HostId,
}

// === impl HostIds ===

impl HostIds {
    /// Reads the ids handed out so far. The process owns the node already, so no other process adds to them.
    pub(super) fn read(shared: Arc<Shared>) -> Result<Self, Error> {
        let ids: HashMap<Box<str>, HostId> =
            shared.maps.host_ids()?.into_iter().map(|(name, id)| (name.into_boxed_str(), id)).collect();
        let next = ids.values().copied().max().unwrap_or(UNATTRIBUTED).saturating_add(1);
        Ok(Self { shared, known: Mutex::new(Known { ids, next }) })
    }

    /// The id of `name`, if it has one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<HostId> {
        self.known().ids.get(name).copied()
    }

    /// Number of names with an id.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known().ids.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of `name`: the one it has had before, also in earlier processes, or the next.
    ///
    /// # Errors
    /// [`Error::HostsFull`] if there are no ids left (the caller counts such a host as 0), [`Error::Superseded`] if a newer
    /// process hands them out now, [`Error::HostName`] for a name that no key can hold.
    pub fn assign(&self, name: &str) -> Result<HostId, Error> {
        let mut known = self.known();
        if let Some(&id) = known.ids.get(name) {
            return Ok(id);
        }
        let capacity = self.shared.maps.host_capacity();
        if known.next >= capacity {
            return Err(Error::HostsFull { capacity });
        }
        let key = HostName::new(name).ok_or_else(|| Error::HostName(name.to_owned()))?;
        // A successor takes the node over under the same lock and reads the ids after that: either it sees this one, or this
        // process sees that it is superseded.
        let _exclusive = self.shared.pins.lock()?;
        if self.shared.life.is_superseded() {
            return Err(Error::Superseded);
        }
        let id = known.next;
        self.shared.maps.host_ids.set(&key, &id)?;
        known.ids.insert(name.into(), id);
        known.next += 1;
        Ok(id)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Both fields are changed together at the end of `assign`, where nothing can panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
