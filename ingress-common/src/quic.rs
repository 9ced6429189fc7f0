//! Connection IDs of QUIC that name the socket of their connection, and the pinned state that opens them.
//!
//! ```text
//! byte 0      3 bits: number of the key │ 5 bits: length − 1 = 15       (the first octet of QUIC-LB)
//! bytes 1–7   nonce, random
//! bytes 8–15  little-endian: SipHash-2-4(key, nonce) XOR index, where the index is 16 bits and the other 48 are the seal
//! index       10 bits: epoch of the process │ 6 bits: its worker
//! ```
//!
//! A client sees random bytes, and cannot tell two IDs of a connection from those of two connections. Changed bits break
//! the seal or lead to another worker, which does not know the ID.
//!
//! The layouts here are frozen. The program of the newest process chooses the sockets for all processes of the node, also
//! for those of older versions, and a downgrade attaches an older program.

#[cfg(not(target_arch = "bpf"))]
mod cell;

use crate::sizes::{QUIC_SOCKETS_MAX, SLOTS_PER_PORT, WORKER_GROUPS};

#[cfg(not(target_arch = "bpf"))]
pub use cell::QuicCell;

/// Length of the IDs that a node issues, in bytes.
pub const ID_LENGTH: usize = 16;
/// Random bytes in an ID.
pub const NONCE_LENGTH: usize = 7;
/// Keys that a node has at one time.
pub const KEYS: usize = 4;
/// Value of [`QuicState::version`] for the layouts of this file; 0 before a process has used the map.
pub const VERSION: u32 = 1;
/// Bits of [`QuicState::flags`] that hold the number of the key for new IDs.
pub const CURRENT_KEY: u32 = 3;
/// Bit of [`QuicState::flags`]: a key made room for another one while a process lived that may have issued IDs by it. So
/// an ID that does not open may be one of a living connection.
pub const KEY_LOST: u32 = 4;

/// A connection ID that this node has issued, or may have.
pub type ConnectionId = [u8; ID_LENGTH];
/// Key of SipHash as two little-endian words. Zero stands for no key, and opens no ID.
pub type SealKey = [u64; 2];

/// Bits of the epoch in an ID.
const EPOCH_MASK: u32 = 0x3ff;
/// Lower bits of the first byte of each ID.
const LENGTH_BITS: u8 = ID_LENGTH as u8 - 1;

/// The worker that issued an ID. The epoch is known by its last ten bits only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Epoch of the process ([`crate::Alive::epoch`]) modulo 1024.
    pub epoch: u16,
    /// Number of the worker in its process, below 64.
    pub worker: u8,
}

/// Value of [`crate::map::QUIC`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QuicState {
    /// Keys by their number.
    pub keys: [SealKey; KEYS],
    /// Epoch of each process with sockets, at its epoch modulo 8; 0 for none.
    pub epochs: [u32; WORKER_GROUPS as usize],
    /// [`VERSION`].
    pub version: u32,
    /// [`CURRENT_KEY`] and [`KEY_LOST`]; other bits are 0.
    pub flags: u32,
}

// === impl Issuer ===

impl Issuer {
    /// Returns the worker `worker` of the process `epoch`. Only the last six bits of the worker are used.
    #[must_use]
    #[inline(always)]
    pub const fn new(epoch: u32, worker: u8) -> Self {
        Self { epoch: (epoch & EPOCH_MASK) as u16, worker: worker % SLOTS_PER_PORT as u8 }
    }

    /// Returns `true` if the process with this whole epoch can be the issuer's. 0 is no process.
    #[must_use]
    #[inline(always)]
    pub const fn is_of(self, epoch: u32) -> bool {
        epoch != 0 && epoch & EPOCH_MASK == self.epoch as u32
    }

    /// Returns the index of the process in [`QuicState::epochs`].
    #[must_use]
    #[inline(always)]
    pub const fn group(self) -> usize {
        self.epoch as usize % WORKER_GROUPS as usize
    }

    /// Returns the index of the worker's socket in [`crate::map::QUIC_SOCKETS`]: the same as that of its load in
    /// [`crate::map::WORKERS`].
    #[must_use]
    #[inline(always)]
    pub const fn socket(self) -> u32 {
        self.group() as u32 * SLOTS_PER_PORT + self.worker as u32
    }

    #[inline(always)]
    const fn index(self) -> u16 {
        self.epoch << 6 | self.worker as u16
    }
}

// === IDs ===

/// Returns the ID of `issuer` with a nonce, sealed by the key of this number. Use a new random nonce each time.
///
/// `number` is below [`KEYS`]; only its last two bits are used.
#[must_use]
#[inline(always)]
pub const fn issue(number: u8, key: &SealKey, nonce: [u8; NONCE_LENGTH], issuer: Issuer) -> ConnectionId {
    let first = (number % KEYS as u8) << 5 | LENGTH_BITS;
    let [a, b, c, d, e, f, g] = nonce;
    let block = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
    let [s, t, u, v, w, x, y, z] = (siphash(key, block) ^ issuer.index() as u64).to_le_bytes();
    [first, a, b, c, d, e, f, g, s, t, u, v, w, x, y, z]
}

/// Returns the number of the key that seals `id`; `None` if this node issues no such IDs.
#[must_use]
#[inline(always)]
pub const fn key_number(id: &ConnectionId) -> Option<usize> {
    key_number_of(id[0])
}

/// Does the same as [`key_number`] by the first byte of the ID.
#[must_use]
#[inline(always)]
pub const fn key_number_of(first: u8) -> Option<usize> {
    let number = (first >> 5) as usize;
    if number < KEYS && first & 0x1f == LENGTH_BITS { Some(number) } else { None }
}

/// Returns the issuer of `id`, which names `key` as its own ([`key_number`]); `None` if the seal is broken.
#[must_use]
#[inline(always)]
pub const fn open(key: &SealKey, id: &ConnectionId) -> Option<Issuer> {
    let [_, a, b, c, d, e, f, g, s, t, u, v, w, x, y, z] = *id;
    let (nonce, seal) = ([a, b, c, d, e, f, g, 0], [s, t, u, v, w, x, y, z]);
    open_words(key, u64::from_le_bytes(nonce), u64::from_le_bytes(seal))
}

/// Does the same as [`open`] by two little-endian words: the nonce, with 0 as its eighth byte, and the rest of the ID.
#[must_use]
#[inline(always)]
pub const fn open_words(key: &SealKey, nonce: u64, seal: u64) -> Option<Issuer> {
    let plain = seal ^ siphash(key, nonce);
    if plain >> 16 != 0 || (key[0] | key[1]) == 0 {
        return None;
    }
    Some(Issuer { epoch: (plain >> 6) as u16, worker: (plain & 0x3f) as u8 })
}

/// SipHash-2-4 of seven bytes, which are one block. `nonce` is that block without its length.
#[inline(always)]
const fn siphash(key: &SealKey, nonce: u64) -> u64 {
    let block = nonce | (NONCE_LENGTH as u64) << 56;
    let [k0, k1] = *key;
    let state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573 ^ block,
    ];
    let [v0, v1, v2, v3] = round(round(state));
    let [v0, v1, v2, v3] = round(round(round(round([v0 ^ block, v1, v2 ^ 0xff, v3]))));
    v0 ^ v1 ^ v2 ^ v3
}

#[inline(always)]
const fn round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v1 = v1.rotate_left(13) ^ v0;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

const _: () = assert!(size_of::<QuicState>() == 104 && align_of::<QuicState>() == 8);
// The index of a socket consists of the group of the epoch and of six bits of the worker.
const _: () = assert!(SLOTS_PER_PORT == 64 && 1024 % WORKER_GROUPS == 0);
const _: () = assert!(QUIC_SOCKETS_MAX == WORKER_GROUPS * SLOTS_PER_PORT);

#[cfg(test)]
mod tests;
