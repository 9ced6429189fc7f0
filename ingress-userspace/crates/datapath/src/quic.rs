//! The sockets of QUIC, which `ingress_quic` chooses by connection ID (ADR 0060).
//!
//! ```text
//! main thread ── Datapath::quic ──────────> version of `quic`, before any socket is bound
//!                binds one socket for each worker: same port, same address, SO_REUSEPORT, same user
//!                Quic::use_key ───────────> quic.keys
//!                Quic::open ──────────────> quic_sockets, then quic.epochs, then the program of the group
//!                Datapath::set_ports ─────> the rule with PORT_QUIC: new connections come to this process
//!                Quic::sweep ─────────────> quic.epochs without the processes that have died
//! workers ────── Quic::cell ──────────────> new IDs; owners of IDs
//! ```
//!
//! Everything but the cell calls bpf(2), so it belongs to a thread with capabilities. A worker adds the connections that
//! it accepts or refuses to [`ingress_common::WorkerCell::settled`], as for TCP.
//!
//! The kernel chooses a socket once for a train of datagrams that GRO or a GSO send has merged: all get the socket of the
//! first one's ID. The receiver must look at the ID of each datagram in a train ([`QuicCell::open`]).

use std::{
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
};

use aya::programs::SkReuseport;

use super::{
    Datapath,
    error::Error,
    object,
    pins::Pins,
    shared::DatapathShared,
    sys::{Mapping, PinAccess, SharedCell},
    table::MapTable,
};
use ingress_common::{
    QuicCell, QuicState,
    map::{QUIC, QUIC_MAX, QUIC_SOCKETS},
    quic::{KEYS, SealKey, VERSION},
    steer::SLOTS_PER_PORT,
};

// SAFETY: `repr(C)`, eight `AtomicU64`s and ten `AtomicU32`s; 104 bytes (asserted beside the type).
unsafe impl SharedCell for QuicCell {}

/// Key that seals connection IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicKey {
    /// This key, such as one that every process of the node derives from a shared secret.
    Derived(SealKey),
    /// The key of the process before, or this random one if there is none.
    Kept { otherwise: SealKey },
}

/// Sockets of this process for QUIC. Dropped, they get no more packets.
#[derive(Debug)]
pub struct Quic {
    shared: Arc<DatapathShared>,
    cell: &'static QuicCell,
    sockets: MapTable<u32, u32>,
    /// The keys that were the current one while this process ran, so that IDs of its connections may have them. With one
    /// more than there are places, they are never all there again, so that further ones do not matter.
    used: Mutex<Vec<SealKey>>,
}

// === impl Datapath ===

impl Datapath {
    /// Prepares QUIC. Call it before sockets are bound, because each process in a group of sockets must use the same
    /// maps.
    ///
    /// # Errors
    /// Fails with [`Error::QuicVersion`] if a process of another version has laid the maps out; then bind no socket for
    /// QUIC. Fails with [`Error::Program`] if the kernel refuses the program, or with [`Error::Kernel`].
    pub fn quic(&self) -> Result<Quic, Error> {
        let exclusive = self.shared.pins.lock()?;
        let (cell, sockets) = open_maps(&self.shared.pins)?;
        match cell.version() {
            0 => cell.set_version(VERSION),
            VERSION => {}
            found => return Err(Error::QuicVersion { found, expected: VERSION }),
        }
        object::loaded(&mut self.nics_mut().object, object::REUSEPORT)?;
        sweep(&self.shared.pins, cell);
        drop(exclusive);
        // Only now, because its end takes the lock.
        Ok(Quic { shared: Arc::clone(&self.shared), cell, sockets, used: Mutex::default() })
    }
}

// === impl Quic ===

impl Quic {
    /// Makes a key the one for new IDs of all processes of the node. IDs by the three keys before it still open, unless an
    /// older key was made current again in between. A key that is already the current one changes nothing.
    ///
    /// If a key has to make room while processes have sockets, the programs drop no packet for an ID that does not open,
    /// until [`Quic::sweep`] finds a process alone.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked; then nothing has changed.
    pub fn use_key(&self, key: QuicKey) -> Result<(), Error> {
        if self.missing(key).is_some() {
            self.replace_key(key)?;
        }
        self.note_key();
        Ok(())
    }

    fn replace_key(&self, key: QuicKey) -> Result<(), Error> {
        let _exclusive = self.shared.pins.lock()?;
        // Again, as another process may have set it.
        let Some(key) = self.missing(key) else { return Ok(()) };
        let current = self.cell.current_key();
        let from_current = (0..KEYS as u8).map(|step| (current + step) % KEYS as u8);
        let place_of = |key| from_current.clone().find(|&number| self.cell.key(usize::from(number)) == key);
        let number = place_of(key).or_else(|| place_of([0; 2])).unwrap_or_else(|| {
            if self.cell.epochs().next().is_some() {
                self.cell.set_lost_key(true);
            }
            (current + 1) % KEYS as u8
        });
        self.cell.set_current_key(number, &key);
        Ok(())
    }

    /// Remembers the current key, and returns whether all keys that this process has used are still there.
    fn note_key(&self) -> bool {
        let current = self.cell.key(usize::from(self.cell.current_key()));
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() <= KEYS && !used.contains(&current) {
            used.push(current);
        }
        used.iter().all(|key| (0..KEYS).any(|number| self.cell.key(number) == *key))
    }

    /// Returns the key to set, if the current one is another.
    fn missing(&self, key: QuicKey) -> Option<SealKey> {
        let present = self.cell.key(usize::from(self.cell.current_key()));
        match key {
            QuicKey::Derived(key) => (key != present).then_some(key),
            QuicKey::Kept { otherwise } => (present == [0; 2]).then_some(otherwise),
        }
    }

    /// Gives the workers their sockets, in order, so that packets with their IDs reach them; then attaches the program to
    /// the group of the sockets, in place of that of an earlier process. New connections come only by a port rule with
    /// [`ingress_common::steer::PORT_QUIC`] ([`Datapath::set_ports`]).
    ///
    /// All are UDP sockets bound to the same port and address by the same user, each with `SO_REUSEPORT` before `bind`.
    ///
    /// # Errors
    /// Fails with [`Error::Slot`] for more than 64 sockets, with [`Error::Kernel`] if a socket is not as described or
    /// the lock of the pins fails, or with [`Error::Program`]. Afterwards none of the sockets is chosen.
    pub fn open(&self, datapath: &Datapath, sockets: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        if count > SLOTS_PER_PORT {
            return Err(Error::Slot { slot: count - 1, max: SLOTS_PER_PORT });
        }
        let _exclusive = self.shared.pins.lock()?;
        let opened = self.enter(datapath, sockets);
        if opened.is_err() {
            let _the_first_error_counts = self.leave().is_err();
        }
        opened
    }

    fn enter(&self, datapath: &Datapath, sockets: &[BorrowedFd<'_>]) -> Result<(), Error> {
        // No ID of this epoch is issued yet, so none reaches a socket of a process that had the same entries.
        self.cell.set_epoch(self.shared.life.epoch(), true);
        for (index, socket) in (self.shared.life.first_worker()..).zip(sockets) {
            self.sockets.set(&index, &socket.as_raw_fd().cast_unsigned())?;
        }
        let Some(first) = sockets.first() else { return Ok(()) };
        let refused = |source| object::refused(object::REUSEPORT, source);
        let mut nics = datapath.nics_mut();
        let program = object::loaded(&mut nics.object, object::REUSEPORT)?;
        let program = <&mut SkReuseport>::try_from(program).map_err(refused)?;
        program.attach(first).map_err(refused)
    }

    /// Takes the sockets of this process out of the choice, and its epoch out of the map: packets of its connections go
    /// to the owner's preferred worker. Call it when the last connection has left its closing period. Idempotent; done on
    /// drop as well.
    ///
    /// # Errors
    /// Fails if the kernel refuses the removal. A closed socket leaves the map by itself.
    pub fn close(&self) -> Result<(), Error> {
        let _exclusive = self.shared.pins.lock()?;
        self.leave()
    }

    fn leave(&self) -> Result<(), Error> {
        let first = self.shared.life.first_worker();
        let epoch = self.shared.life.epoch();
        // With more than eight processes, the entries may be another's by now.
        if !self.cell.epochs().any(|entered| entered == epoch) {
            return Ok(());
        }
        self.cell.set_epoch(epoch, false);
        for index in first..first + SLOTS_PER_PORT {
            self.sockets.remove(&index)?;
        }
        Ok(())
    }

    /// Removes the processes that have died, so that their connections are no longer [living](QuicCell::living). If this
    /// process is left alone with all of its keys, every ID of a connection opens again ([`Quic::use_key`]). Returns the
    /// number of the removed. [`Datapath::quic`] does it too; call it several times a second. If there is nothing to do, it
    /// reads less than 200 bytes of memory.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked, which is done only if there is a process to remove, or a key was lost.
    pub fn sweep(&self) -> Result<usize, Error> {
        let own = self.shared.life.epoch();
        let is_alone = || self.cell.epochs().all(|epoch| epoch == own);
        if self.note_key() && self.cell.has_lost_key() && is_alone() {
            let _exclusive = self.shared.pins.lock()?;
            // Again, as a successor may have come, or another process may have set a key.
            self.cell.set_lost_key(!(self.note_key() && is_alone()));
        }
        if self.cell.epochs().all(|epoch| epoch == own || self.shared.pins.is_live(epoch)) {
            return Ok(0);
        }
        let _exclusive = self.shared.pins.lock()?;
        Ok(sweep(&self.shared.pins, self.cell))
    }

    /// Returns whether another process of the node has sockets, which those of this process join. Otherwise any process
    /// that has the port is a foreign one.
    #[must_use]
    pub fn has_predecessor(&self) -> bool {
        self.cell.epochs().any(|epoch| epoch != self.shared.life.epoch())
    }

    /// Returns the state that issues and recognises connection IDs, without system calls. The mapping stays until the
    /// process ends. This process's IDs name [`super::Report::epoch`].
    #[must_use]
    pub const fn cell(&self) -> &'static QuicCell {
        self.cell
    }
}

/// Opens the maps, and maps the state into memory until the process ends.
fn open_maps(pins: &Pins) -> Result<(&'static QuicCell, MapTable<u32, u32>), Error> {
    let state = MapTable::<u32, QuicState>::open(pins, QUIC, PinAccess::Write)?;
    let cells = Mapping::<QuicCell>::new(state.fd(), QUIC_MAX as usize);
    let cells = cells.map_err(|source| Error::kernel("map", QUIC, source))?.leak();
    let cell = cells.first().ok_or_else(|| Error::kernel("map", QUIC, std::io::ErrorKind::UnexpectedEof.into()))?;
    Ok((cell, MapTable::open(pins, QUIC_SOCKETS, PinAccess::Write)?))
}

/// Removes dead processes, and returns their number. The caller holds the lock of the pins.
fn sweep(pins: &Pins, cell: &QuicCell) -> usize {
    let dead = cell.epochs().filter(|&epoch| !pins.is_live(epoch));
    dead.inspect(|&epoch| cell.set_epoch(epoch, false)).count()
}

impl Drop for Quic {
    fn drop(&mut self) {
        // The sockets leave when they close, and the epoch with the next sweep.
        let _remains = self.close().is_err();
    }
}
