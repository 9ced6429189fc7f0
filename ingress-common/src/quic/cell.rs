//! The state of QUIC as processes share it. The kernel's target has no atomics of 32 bits, and needs none of this.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{
    CURRENT_KEY, ConnectionId, Issuer, KEY_LOST, KEYS, NONCE_LENGTH, QuicState, SealKey, issue, key_number, open,
};
use crate::sizes::WORKER_GROUPS;

/// [`QuicState`] in memory shared between processes and the kernel: the same bytes, accessed by atomic operations only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct QuicCell {
    keys: [[AtomicU64; 2]; KEYS],
    epochs: [AtomicU32; WORKER_GROUPS as usize],
    version: AtomicU32,
    flags: AtomicU32,
}

// === impl QuicCell ===

impl QuicCell {
    /// Returns [`QuicState::version`].
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Acquire)
    }

    /// Sets [`QuicState::version`].
    pub fn set_version(&self, version: u32) {
        self.version.store(version, Release);
    }

    /// Returns the number of the key for new IDs.
    #[must_use]
    pub fn current_key(&self) -> u8 {
        (self.flags.load(Acquire) & CURRENT_KEY) as u8
    }

    /// Returns a key by its number; zero beyond the last.
    #[must_use]
    pub fn key(&self, number: usize) -> SealKey {
        self.keys.get(number).map_or([0; 2], |words| words.each_ref().map(|word| word.load(Relaxed)))
    }

    /// Sets a key by its number, which is below [`KEYS`], and makes it the one for new IDs. No ID with this number may
    /// be in use. The caller holds the lock of the pins.
    pub fn set_current_key(&self, number: u8, key: &SealKey) {
        let number = number % KEYS as u8;
        if let Some(words) = self.keys.get(usize::from(number)) {
            for (word, value) in words.iter().zip(key) {
                word.store(*value, Relaxed);
            }
        }
        let others = self.flags.load(Relaxed) & !CURRENT_KEY;
        self.flags.store(others | u32::from(number), Release);
    }

    /// Returns [`KEY_LOST`].
    #[must_use]
    pub fn has_lost_key(&self) -> bool {
        self.flags.load(Acquire) & KEY_LOST != 0
    }

    /// Sets [`KEY_LOST`]. The caller holds the lock of the pins.
    pub fn set_lost_key(&self, is_lost: bool) {
        let others = self.flags.load(Relaxed) & !KEY_LOST;
        self.flags.store(if is_lost { others | KEY_LOST } else { others }, Release);
    }

    /// Enters the process `epoch`, which has sockets, in place of an ended one with the same epoch modulo 8; or removes
    /// it, unless another one has replaced it. The caller holds the lock of the pins.
    pub fn set_epoch(&self, epoch: u32, is_open: bool) {
        let Some(entry) = self.epochs.get(Issuer::new(epoch, 0).group()) else { return };
        if is_open {
            entry.store(epoch, Release);
        } else {
            let _is_replaced = entry.compare_exchange(epoch, 0, AcqRel, Acquire).is_err();
        }
    }

    /// Returns the epochs of all processes that are entered.
    pub fn epochs(&self) -> impl Iterator<Item = u32> {
        self.epochs.iter().map(|epoch| epoch.load(Acquire)).filter(|epoch| *epoch != 0)
    }

    /// Returns a new ID of a worker of the process `epoch`, by the current key. Use a new random nonce each time.
    #[must_use]
    pub fn issue(&self, nonce: [u8; NONCE_LENGTH], issuer: Issuer) -> ConnectionId {
        let number = self.current_key();
        issue(number, &self.key(usize::from(number)), nonce, issuer)
    }

    /// Returns the issuer of an ID; `None` if no key opens it.
    #[must_use]
    pub fn open(&self, id: &ConnectionId) -> Option<Issuer> {
        open(&self.key(key_number(id)?), id)
    }

    /// Returns the whole epoch of the issuer's process if that has sockets.
    #[must_use]
    pub fn living(&self, issuer: Issuer) -> Option<u32> {
        let epoch = self.epochs.get(issuer.group())?.load(Acquire);
        issuer.is_of(epoch).then_some(epoch)
    }
}

const _: () = assert!(size_of::<QuicCell>() == size_of::<QuicState>());
const _: () = assert!(align_of::<QuicCell>() == 8);
