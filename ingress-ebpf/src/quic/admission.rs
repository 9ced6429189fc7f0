//! Finds datagrams for a port of QUIC that no process of the node can have asked for, by the datagram alone.

use super::{LONG, QuicNode};
use ingress_common::{
    Total,
    quic::{self, ID_LENGTH},
};

/// Least length of a datagram with an Initial packet of a client, and of one that may ask for the versions of a server
/// (RFC 9000, 14.1 and 5.2.2).
const INITIAL_MIN: u16 = 1200;
/// Bits of a word that hold the nonce of an ID.
const NONCE: u64 = (1 << (8 * quic::NONCE_LENGTH)) - 1;

/// Type of a long header, by its meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LongType {
    Initial,
    ZeroRtt,
    /// Handshake, or Retry, which servers send.
    Later,
}

/// The beginning of a datagram, in words, so that a program holds it in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of the payload, by the header of UDP.
    pub length: u16,
    /// Bytes 0–7, 8–15 and 14–21 of the payload, each in little-endian order.
    pub words: [u64; 3],
}

// === impl Datagram ===

impl Datagram {
    /// Bytes of the payload in [`Datagram::words`]. A datagram with less is no packet of QUIC: a short header with an ID of
    /// this node, a packet number, and the seal of the encryption have more.
    pub const HEAD: usize = super::HEAD_LENGTH;

    /// Returns why a server drops the datagram, whatever its connections are; `None` if a process decides.
    ///
    /// The fixed bit does not count, because peers may agree not to set it (RFC 9287).
    #[must_use]
    #[inline(always)]
    pub fn refused(&self, quic: &impl QuicNode) -> Option<Total> {
        // First, because many datagrams pass with any ID, and because fewer values are then kept through the hash.
        let verdict = self.refused_without_id()?;
        if self.has_id(quic) { None } else { Some(verdict) }
    }

    /// Returns the same for a datagram without an ID of this node.
    #[inline(always)]
    const fn refused_without_id(&self) -> Option<Total> {
        let Self { length, words: [start, ..] } = *self;
        if start as u8 & LONG == 0 {
            return Some(Total::QuicUnknown);
        }
        match long_type((start >> 8) as u32, start as u8) {
            Some(LongType::ZeroRtt) => None,
            Some(LongType::Later) => Some(Total::QuicUnknown),
            Some(LongType::Initial) | None if length < INITIAL_MIN => Some(Total::QuicShort),
            Some(LongType::Initial) | None => None,
        }
    }

    /// Returns `true` if a process of this node has issued the ID, or may have.
    #[inline(always)]
    fn has_id(&self, quic: &impl QuicNode) -> bool {
        let Self { length: _, words: [a, b, c] } = *self;
        let is_long = a as u8 & LONG != 0;
        if is_long && (a >> 40) as u8 != ID_LENGTH as u8 {
            return false;
        }
        // The first byte of the ID, its nonce, and its seal.
        let (first, nonce, seal) = if is_long {
            (a >> 48, (a >> 56 | b << 8) & NONCE, c)
        } else {
            (a >> 8, (a >> 16 | b << 48) & NONCE, b >> 8 | (c >> 16) << 56)
        };
        let Some(number) = quic::key_number_of(first as u8) else { return false };
        quic::open_words(&quic.key(number), nonce, seal).is_some()
    }
}

/// Returns the type of a long header; `None` for other versions than 1 and 2. `version` is read in little-endian order.
#[inline(always)]
pub(super) const fn long_type(version: u32, first: u8) -> Option<LongType> {
    const V1: u32 = 1_u32.swap_bytes();
    /// RFC 9369, 3.1 and 3.2.
    const V2: u32 = 0x6b33_43cf_u32.swap_bytes();
    let kind = first >> 4 & 3;
    let kind = match version {
        // Version negotiation, which servers send.
        0 => 3,
        V1 => kind,
        V2 => kind.wrapping_sub(1) & 3,
        _ => return None,
    };
    Some(match kind {
        0 => LongType::Initial,
        1 => LongType::ZeroRtt,
        _ => LongType::Later,
    })
}

#[cfg(test)]
mod tests;
