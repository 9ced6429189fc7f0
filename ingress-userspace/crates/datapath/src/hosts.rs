//! Host ids: one number per host name, kept in the kernel. A number is reused only when nothing counts for its host.
//!
//! ```text
//! assign ──────────> name → N ──── give_back ────> "(free) N" ──── assign ────> other name → N
//!                       │   twice quiet, no other process       all counters zero
//!                       └── its counters ─────> "(gone)", so that hosts add up to the totals as before
//! ```

mod known;

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
};

use self::known::{HostMaps, KnownIds, LATEST};
use super::{error::Error, maps::Maps};
use crate::shared::DatapathShared;
use ingress_common::{
    HostL7Cell, HostName, HostNet, RawHostId,
    flow::{GONE, UNATTRIBUTED},
};

pub use self::known::Given;
/// The host ids of this node. Every living process may assign new ones. The latest id is stored in the map itself,
/// under the empty name, and is changed under the lock of the pins.
#[derive(Debug)]
pub struct HostIds {
    shared: Arc<DatapathShared>,
    cells: &'static [HostL7Cell],
    known: Mutex<KnownIds>,
}

/// Minimum number of ids: with fewer, the one for [`GONE`] would leave none for hosts.
const CAPACITY_MIN: u32 = 3;

// === impl HostIds ===

impl HostIds {
    /// Reads the ids assigned so far.
    pub(super) fn read(shared: Arc<DatapathShared>, cells: &'static [HostL7Cell]) -> Result<Self, Error> {
        let known = {
            let _exclusive = shared.pins.lock()?;
            let ledger = Live { maps: &shared.maps, cells };
            let mut known = KnownIds::read(&ledger)?;
            if is_alone(&shared)? {
                known.mend(&ledger)?;
            }
            known
        };
        Ok(Self { shared, cells, known: Mutex::new(known) })
    }

    /// Returns the names with an id.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.known().ids.keys().filter(|name| &***name != GONE).map(ToString::to_string).collect()
    }

    /// Returns whether `name` has an id.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.known().ids.contains_key(name)
    }

    /// Returns the id of `name`: its previous one, also from earlier processes, or a free one.
    ///
    /// # Errors
    /// Fails with [`Error::HostsFull`] if no ids are left (the caller counts such a host as 0), with
    /// [`Error::HostName`] if the name does not fit in a key, and with [`Error::Kernel`] if the map cannot be read or
    /// written.
    pub fn assign(&self, name: &str) -> Result<RawHostId, Error> {
        let mut known = self.known();
        if let Some(&id) = known.ids.get(name) {
            return Ok(id);
        }
        let capacity = self.shared.maps.host_capacity();
        let table = &self.shared.maps.host_ids;
        let key = HostName::new(name).ok_or_else(|| Error::HostName(name.to_owned()))?;
        let _exclusive = self.shared.pins.lock()?;
        // Another process may have assigned an id first.
        let id = if let Some(id) = table.get(&key)? {
            id
        } else if let Some(id) = known.take_free(&self.ledger())? {
            table.set(&key, &id)?;
            id
        } else {
            let latest = table.get(&LATEST)?.unwrap_or(UNATTRIBUTED);
            let id = latest + 1;
            if id >= capacity {
                return Err(Error::HostsFull { capacity });
            }
            // The order matters: an id without a name is freed at a later start, and is never assigned twice.
            table.set(&LATEST, &id)?;
            table.set(&key, &id)?;
            id
        };
        known.ids.insert(name.into(), id);
        Ok(id)
    }

    /// Releases the ids of those `names` for which nothing counts any more, at most `most` of them in the given order,
    /// and returns them. The caller stopped counting for them long ago: no snapshot contains them.
    ///
    /// An id is released if its host has no request in flight and no flow refers to it, both now and at the previous
    /// call: a program may still be about to count a packet of a flow that was just removed. In addition, no other
    /// process of the node may be alive, because it could still route the host. While another process changes the pins,
    /// no id is released either.
    ///
    /// From then on, the counters are part of [`GONE`], so that hosts still add up to the totals. (If the process is
    /// killed between two writes for one host, some of its counters may be in both places, or in neither.) Reads all
    /// flows, about 0.1 µs for each.
    pub fn give_back(&self, names: &[String], most: usize) -> Given {
        self.try_give_back(names, most).unwrap_or_else(|error| Given { error: Some(error), ..Given::default() })
    }

    fn try_give_back(&self, names: &[String], most: usize) -> Result<Given, Error> {
        let mut known = self.known();
        let Some(_exclusive) = self.shared.pins.try_lock() else { return Ok(Given::default()) };
        if self.shared.maps.host_capacity() < CAPACITY_MIN || !is_alone(&self.shared)? {
            known.quiet.clear();
            return Ok(Given::default());
        }
        let wanted: Vec<_> =
            names.iter().filter_map(|name| Some((name.as_str(), *known.ids.get(name.as_str())?))).collect();
        if wanted.is_empty() && known.nameless.is_empty() {
            return Ok(Given::default());
        }
        let mut in_use = HashSet::new();
        self.shared.maps.flows.scan(|_, flow| {
            in_use.insert(flow.host_id);
        })?;
        let is_active = |id: RawHostId| cell(self.cells, id).is_none_or(|cell| cell.active.load(Relaxed) > 0);
        let is_quiet = |id: &RawHostId| !in_use.contains(id) && !is_active(*id);
        let quiet: HashSet<_> = wanted.iter().map(|(_, id)| *id).filter(is_quiet).collect();
        let before = mem::replace(&mut known.quiet, quiet.clone());
        let unused = wanted.into_iter().filter(|(_, id)| before.contains(id) && quiet.contains(id));
        Ok(known.give_back(&self.ledger(), unused, most))
    }

    /// Returns whether some ids have lost their names but are not free yet: [`Self::give_back`] tries again.
    #[must_use]
    pub fn has_unfinished(&self) -> bool {
        !self.known().nameless.is_empty()
    }

    fn ledger(&self) -> Live<'_> {
        Live { maps: &self.shared.maps, cells: self.cells }
    }

    fn known(&self) -> MutexGuard<'_, KnownIds> {
        // Each change leaves the value equal to the map, or to the map before another process took a free number.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Live ===

/// The maps of a live node.
struct Live<'m> {
    maps: &'m Maps,
    cells: &'static [HostL7Cell],
}

impl HostMaps for Live<'_> {
    fn id(&self, name: &HostName) -> Result<Option<RawHostId>, Error> {
        self.maps.host_ids.get(name)
    }

    fn set(&self, name: &HostName, id: RawHostId) -> Result<(), Error> {
        self.maps.host_ids.set(name, &id)
    }

    fn remove(&self, name: &HostName) -> Result<bool, Error> {
        self.maps.host_ids.remove(name)
    }

    fn visit(&self, mut visit: impl FnMut(&HostName, RawHostId)) -> Result<(), Error> {
        self.maps.host_ids.scan(|name, id| visit(name, *id))
    }

    fn net(&self, id: RawHostId) -> Result<HostNet, Error> {
        self.maps.host_net.sum(id)
    }

    fn add_net(&self, id: RawHostId, net: HostNet) -> Result<(), Error> {
        self.maps.host_net.change_first(id, |first| *first += net)
    }

    fn reset_net(&self, id: RawHostId) -> Result<(), Error> {
        self.maps.host_net.reset(id)
    }

    fn move_requests(&self, from: RawHostId, to: RawHostId) {
        if let (Some(from), Some(to)) = (cell(self.cells, from), cell(self.cells, to)) {
            to.add(from.take());
        }
    }
}

/// Returns whether no other process of the node is alive. The caller holds the lock of the pins, so that none can
/// start.
fn is_alone(shared: &DatapathShared) -> Result<bool, Error> {
    Ok(shared.pins.live_epochs()?.iter().all(|&epoch| epoch == shared.life.epoch()))
}

fn cell(cells: &[HostL7Cell], id: RawHostId) -> Option<&HostL7Cell> {
    cells.get(usize::try_from(id).ok()?)
}
