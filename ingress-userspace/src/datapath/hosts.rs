//! Host ids: one number per host name, kept in the kernel, never given to another name while its counters live.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ingress_common::{HostId, HostName, flow::UNATTRIBUTED};

use super::{Shared, error::Error};

/// The host ids of this node. Every living process may hand out new ones; the latest one handed out stands in the map itself, under
/// the empty name, and is changed under the lock of the pins.
#[derive(Debug)]
pub struct HostIds {
    shared: Arc<Shared>,
    known: Mutex<HashMap<Box<str>, HostId>>,
}

/// The key of the latest id that was handed out.
const LATEST: HostName = HostName { name: [0; 256] };

// === impl HostIds ===

impl HostIds {
    /// Reads the ids handed out so far.
    pub(super) fn read(shared: Arc<Shared>) -> Result<Self, Error> {
        let known = shared.maps.host_ids()?.into_iter().map(|(name, id)| (name.into_boxed_str(), id)).collect();
        Ok(Self { shared, known: Mutex::new(known) })
    }

    /// The id of `name`: the one it has had before, also in earlier processes, or the next.
    ///
    /// # Errors
    /// [`Error::HostsFull`] if there are no ids left (the caller counts such a host as 0), [`Error::HostName`] for a name that no
    /// key can hold, [`Error::Kernel`] if the map cannot be read or written.
    pub fn assign(&self, name: &str) -> Result<HostId, Error> {
        let mut known = self.known();
        if let Some(&id) = known.get(name) {
            return Ok(id);
        }
        let capacity = self.shared.maps.host_capacity();
        let table = &self.shared.maps.host_ids;
        let key = HostName::new(name).ok_or_else(|| Error::HostName(name.to_owned()))?;
        let _exclusive = self.shared.pins.lock()?;
        // Another process may have been here first.
        let id = match table.get(&key)? {
            Some(id) => id,
            None => {
                let latest = table.get(&LATEST)?.unwrap_or(UNATTRIBUTED);
                let id = latest + 1;
                if id >= capacity {
                    return Err(Error::HostsFull { capacity });
                }
                // In this order: an id whose name was not written is lost, not given away twice.
                table.set(&LATEST, &id)?;
                table.set(&key, &id)?;
                id
            }
        };
        known.insert(name.into(), id);
        Ok(id)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Box<str>, HostId>> {
        // Changed in one step, so a panic elsewhere leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
