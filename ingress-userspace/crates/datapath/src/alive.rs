//! Node ownership: epochs, the heartbeat that XDP watches, and the handover from one process to the next.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use ingress_common::{
    Alive,
    map::{ALIVE, ALIVE_CURRENT, ALIVE_DRAINING, ALIVE_MAX, WORKER_GROUPS},
    steer,
};

use super::{
    error::Error,
    maps::Maps,
    pins::{Lock, Pins},
    sys::{self, Mapping, SharedCell},
};

/// [`Alive`] in memory shared between processes and the kernel.
#[repr(C)]
struct AliveCell {
    heartbeat_ns: AtomicU64,
    epoch: AtomicU32,
    state: AtomicU32,
}

const _: () = assert!(size_of::<AliveCell>() == size_of::<Alive>());

// SAFETY: `repr(C)`, atomics only, 16 bytes.
unsafe impl SharedCell for AliveCell {}

/// This process's place in the succession.
#[derive(Debug)]
pub(super) struct Life {
    cells: Mapping<AliveCell>,
    epoch: u32,
    /// Lock held for the life of the process, so that others can detect whether it is alive.
    mark: Lock,
}

/// The owner of the node according to the map, dead or alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    This,
    /// Another process, by its epoch.
    Other(u32),
    /// Another process that has offered the node.
    Leaving,
}

// === impl Life ===

impl Life {
    /// Registers this process under its own epoch, [the next](next) after the latest. The caller holds the lock of the
    /// pins.
    ///
    /// Also returns whether another process is alive.
    pub(super) fn begin(pins: &Pins, maps: &Maps) -> Result<(Self, bool), Error> {
        let cells = Mapping::<AliveCell>::new(maps.alive.fd(), ALIVE_MAX as usize)
            .map_err(|source| Error::kernel("map", ALIVE, source))?;
        let (current, draining) = (cell(&cells, ALIVE_CURRENT)?, cell(&cells, ALIVE_DRAINING)?);
        let live = pins.live_epochs()?;
        let latest = live.iter().copied().chain([current.epoch.load(Acquire), draining.epoch.load(Acquire)]).max();
        let epoch = next(latest.unwrap_or(0), &live);
        let mark = pins.live(epoch)?;
        Ok((Self { cells, epoch, mark }, !live.is_empty()))
    }

    /// Makes this process the owner of the node: starts its heartbeat, and moves a living predecessor aside. For the
    /// current owner, only an offer is withdrawn. The caller holds the lock of the pins.
    pub(super) fn take_over(&self, pins: &Pins) -> Result<(), Error> {
        let (current, draining) = (cell(&self.cells, ALIVE_CURRENT)?, cell(&self.cells, ALIVE_DRAINING)?);
        let live = pins.live_epochs()?;
        let predecessor = current.epoch.load(Acquire);
        if predecessor == self.epoch {
            current.state.store(steer::ALIVE_SERVING, Release);
            return Ok(());
        }
        if live.contains(&predecessor) {
            draining.write(current.heartbeat_ns.load(Relaxed), predecessor, steer::ALIVE_DRAINING);
        } else {
            let aside = draining.epoch.load(Acquire);
            if aside == self.epoch || !live.contains(&aside) {
                // Kept, so that the next process does not reuse an epoch that may still have flows.
                draining.write(0, predecessor.max(aside), steer::ALIVE_NONE);
            }
        }
        current.write(sys::now_ns(), self.epoch, steer::ALIVE_SERVING);
        Ok(())
    }

    /// Returns whether the pins are still those among which this process began. After `unload`, another process may have
    /// made new ones.
    pub(super) fn is_registered(&self, pins: &Pins) -> bool {
        pins.has_mark(self.epoch, &self.mark)
    }

    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the index of the first entry of this process in the map of workers.
    pub(super) const fn first_worker(&self) -> u32 {
        group(self.epoch) * steer::SLOTS_PER_PORT
    }

    /// Reports to the kernel that this process is responsive; costs one store.
    ///
    /// A successor may claim the node between the check of the epoch and the store. The store then refreshes the
    /// successor's heartbeat once, which is correct at that moment.
    pub(super) fn beat(&self) {
        for cell in self.cells.as_slice() {
            if cell.epoch.load(Acquire) == self.epoch {
                cell.heartbeat_ns.store(sys::now_ns(), Relaxed);
                return;
            }
        }
    }

    /// Offers the node to any other process, if this one is the owner. The ownership remains until another process
    /// accepts. The caller holds the lock of the pins.
    pub(super) fn give_up(&self) -> Result<(), Error> {
        let current = cell(&self.cells, ALIVE_CURRENT)?;
        if current.epoch.load(Acquire) == self.epoch {
            current.state.store(steer::ALIVE_DRAINING, Release);
        }
        Ok(())
    }

    /// Returns the process that owns the node.
    pub(super) fn holder(&self) -> Holder {
        let Some(current) = self.cells.as_slice().first() else { return Holder::This };
        match current.epoch.load(Acquire) {
            epoch if epoch == self.epoch => Holder::This,
            _ if current.state.load(Acquire) == steer::ALIVE_DRAINING => Holder::Leaving,
            epoch => Holder::Other(epoch),
        }
    }
}

// === impl AliveCell ===

impl AliveCell {
    fn write(&self, heartbeat_ns: u64, epoch: u32, state: u32) {
        self.heartbeat_ns.store(heartbeat_ns, Relaxed);
        self.state.store(state, Relaxed);
        self.epoch.store(epoch, Release);
    }
}

impl std::fmt::Debug for AliveCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AliveCell").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Returns the epoch after `latest`. If a living process uses the worker entries of that epoch, returns the first later
/// one with free entries. With more processes than groups of entries, two processes share a group.
fn next(latest: u32, live: &[u32]) -> u32 {
    let next = latest.wrapping_add(1);
    let is_free = |epoch: &u32| !live.iter().any(|&other| group(other) == group(*epoch));
    (0..WORKER_GROUPS).map(|skipped| next.wrapping_add(skipped)).find(is_free).unwrap_or(next)
}

const fn group(epoch: u32) -> u32 {
    epoch % WORKER_GROUPS
}

fn cell(cells: &Mapping<AliveCell>, index: u32) -> Result<&AliveCell, Error> {
    let cell = usize::try_from(index).ok().and_then(|index| cells.as_slice().get(index));
    cell.ok_or_else(|| Error::kernel("map", ALIVE, std::io::ErrorKind::UnexpectedEof.into()))
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn the_next_epoch_skips_entries_in_use() {
        assert_eq!(next(0, &[]), 1);
        assert_eq!(next(7, &[6, 7]), 8);
        // Epoch 1 still drains after eight others: its entries are those of 9 and 17.
        assert_eq!(next(8, &[1, 8]), 10);
        assert_eq!(next(16, &[1, 2, 16]), 19);
        assert_eq!(next(u32::MAX, &[u32::MAX, 0]), 1);
        assert_eq!(next(8, &[1, 2, 3, 4, 5, 6, 7, 8]), 9, "all are in use");
    }
}
