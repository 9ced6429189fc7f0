//! Authenticates the datagrams of nodes by keys that they share. Pure; the time is an argument.
//!
//! ```text
//! "xdpi" 3 | version 1 | key ID 4 | process 8 | sequence 8 | Unix time in ms 8 | message | HMAC-SHA256 of all before, 32
//! ```
//!
//! Each line of the key file is the input of HKDF-SHA256, which gives a key and its ID. The first one signs, and all of
//! them verify, so that keys can be rolled. A datagram counts once on each interface, and only within [`SKEW_MS`] of its
//! time.

use std::collections::BTreeMap;

use aws_lc_rs::{
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Salt},
    hmac, rand,
};
use zeroize::Zeroizing;

use super::messages::{LONGEST, MAGIC_LENGTH, Message};

/// Maximum difference between the clocks of two nodes, with the time on the way, in milliseconds.
pub(super) const SKEW_MS: u64 = 30_000;
/// Maximum number of processes that are heard. Only nodes with a key can add one.
const PROCESSES_MAX: usize = 1024;
/// Bytes of the longest datagram.
pub(super) const LONGEST_SIGNED: usize = HEAD_LENGTH + LONGEST + MAC_LENGTH;

/// Protocol and kind, and the version of the frame around the message.
const SIGNED: [u8; SIGNED_LENGTH] = *b"xdpi\x03\x01";
const SIGNED_LENGTH: usize = MAGIC_LENGTH + 1;
const ID_LENGTH: usize = 4;
const MAC_LENGTH: usize = 32;
const HEAD_LENGTH: usize = SIGNED_LENGTH + ID_LENGTH + 3 * 8;
/// Separates these keys from those of another use of the same secret.
const SALT: &[u8] = b"xdp-ingress gateway addresses 1";

type KeyId = [u8; ID_LENGTH];

/// The keys of this node, and the datagrams that it heard, against replays.
#[derive(Debug)]
pub(super) struct Authenticator {
    /// Empty if datagrams are neither signed nor verified.
    keys: Vec<Key>,
    /// Random number of this process.
    process: u64,
    /// Number of the latest datagram.
    sequence: u64,
    heard: BTreeMap<u64, Process>,
}

/// A key of HMAC-SHA256. `Debug` shows no secret: aws-lc-rs shows the algorithm alone.
#[derive(Clone, Debug)]
pub(super) struct Key {
    id: KeyId,
    mac: hmac::Key,
}

/// The reason why a datagram does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Refusal {
    /// A MAC is missing, and this node has a key.
    Unsigned,
    /// A MAC is there, and this node has no key.
    NoKey,
    /// The key is one that this node does not have.
    UnknownKey,
    /// The MAC is wrong.
    BadMac,
    /// The time is too far from that of this node.
    WrongTime,
    /// The datagram was heard before, or is older than the latest ones.
    Replayed,
    /// There are more processes than [`PROCESSES_MAX`].
    Crowded,
}

/// A datagram of this protocol, not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram<'b> {
    pub(super) message: Message,
    /// `None` for a message alone, as nodes without a key send it.
    signature: Option<Signature<'b>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature<'b> {
    key: KeyId,
    process: u64,
    sequence: u64,
    sent_ms: u64,
    signed: &'b [u8],
    mac: &'b [u8],
}

/// The datagrams heard from a process (RFC 4303, section 3.4.3). Each interface on its link gets a copy.
#[derive(Debug)]
struct Process {
    /// Highest number on any interface.
    highest: u64,
    /// Numbers lately heard, by interface. Interfaces without one have no entry.
    heard: Vec<(Option<u32>, Window)>,
    latest_ms: u64,
}

/// Bit `n` for the datagram `highest - n`.
type Window = u128;

// === impl Refusal ===

impl Refusal {
    pub(in crate::daemon) const ALL: [Self; 7] =
        [Self::Unsigned, Self::NoKey, Self::UnknownKey, Self::BadMac, Self::WrongTime, Self::Replayed, Self::Crowded];

    /// Returns the value of the label `reason`.
    pub(in crate::daemon) const fn name(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::NoKey => "no_key",
            Self::UnknownKey => "unknown_key",
            Self::BadMac => "bad_mac",
            Self::WrongTime => "wrong_time",
            Self::Replayed => "replayed",
            Self::Crowded => "crowded",
        }
    }

    /// Returns an explanation with a remedy.
    pub(super) const fn explained(self) -> &'static str {
        match self {
            Self::Unsigned => "it is not signed; give the node the file of `--gateway-address-key-file`, too",
            Self::NoKey => "it is signed, and this node has no key; give it `--gateway-address-key-file`",
            Self::UnknownKey => "the node has another key; give all nodes the same file",
            Self::BadMac => "its MAC is wrong; a program on the link may have sent it",
            Self::WrongTime => {
                "the clocks of the nodes differ by more than 30 s, or it is an old one that was repeated"
            }
            Self::Replayed => {
                "it was heard before; a program on the link may have repeated it, or this node has several interfaces on \
                 the link"
            }
            Self::Crowded => "there are more processes than can be told apart",
        }
    }
}

// === impl Key ===

impl Key {
    /// Derives a key from a line of the file.
    pub(super) fn derive(secret: &[u8]) -> Result<Self, Unspecified> {
        struct Length(usize);
        impl KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let root = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let (mut id, mut bytes) = ([0; ID_LENGTH], Zeroizing::new([0; MAC_LENGTH]));
        root.expand(&[b"id"], Length(ID_LENGTH))?.fill(&mut id)?;
        root.expand(&[b"key"], Length(MAC_LENGTH))?.fill(&mut *bytes)?;
        Ok(Self { id, mac: hmac::Key::new(hmac::HMAC_SHA256, &*bytes) })
    }
}

// === impl Datagram ===

impl<'b> Datagram<'b> {
    /// Returns `None` for another protocol or an unknown message.
    pub(super) fn decode(bytes: &'b [u8]) -> Option<Self> {
        let Some(rest) = bytes.strip_prefix(&SIGNED) else {
            return Some(Self { message: Message::decode(bytes)?, signature: None });
        };
        let (key, rest) = rest.split_first_chunk()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (sent_ms, rest) = rest.split_first_chunk()?;
        let (message, mac) = rest.split_last_chunk::<MAC_LENGTH>()?;
        let (signed, _) = bytes.split_last_chunk::<MAC_LENGTH>()?;
        let signature = Signature {
            key: *key,
            process: u64::from_be_bytes(*process),
            sequence: u64::from_be_bytes(*sequence),
            sent_ms: u64::from_be_bytes(*sent_ms),
            signed,
            mac,
        };
        Some(Self { message: Message::decode(message)?, signature: Some(signature) })
    }
}

// === impl Authenticator ===

impl Authenticator {
    /// # Errors
    /// Fails if the system has no randomness.
    pub(super) fn new(keys: Vec<Key>) -> Result<Self, Unspecified> {
        let mut process = [0; 8];
        rand::fill(&mut process)?;
        Ok(Self { keys, process: u64::from_be_bytes(process), sequence: 0, heard: BTreeMap::new() })
    }

    /// Signs and verifies by other keys from now on. Returns whether they differ.
    pub(super) fn replace(&mut self, keys: Vec<Key>) -> bool {
        let is_other = !self.keys.iter().map(|key| key.id).eq(keys.iter().map(|key| key.id));
        self.keys = keys;
        is_other
    }

    /// Returns the datagram with a message of this node, signed if there is a key. Each call gives another one.
    pub(super) fn sign(&mut self, message: &Message, now_ms: u64) -> Vec<u8> {
        let Some(Key { id, mac }) = self.keys.first() else { return message.encode() };
        self.sequence += 1;
        let numbers = [self.process, self.sequence, now_ms].map(u64::to_be_bytes);
        let mut bytes = [&SIGNED[..], id, numbers.as_flattened(), &message.encode()].concat();
        let tag = hmac::sign(mac, &bytes);
        bytes.extend_from_slice(tag.as_ref());
        bytes
    }

    /// Verifies a datagram that an interface received, and takes note of it. One whose interface is not known counts once for
    /// all of them.
    ///
    /// # Errors
    /// Returns the reason if it does not count.
    pub(super) fn verify(
        &mut self,
        datagram: &Datagram<'_>,
        interface: Option<u32>,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let Some(signature) = datagram.signature else {
            return if self.keys.is_empty() { Ok(()) } else { Err(Refusal::Unsigned) };
        };
        let Signature { key, process, sequence, sent_ms, signed, mac } = signature;
        if self.keys.is_empty() {
            return Err(Refusal::NoKey);
        }
        let key = self.keys.iter().find(|known| known.id == key).ok_or(Refusal::UnknownKey)?;
        hmac::verify(&key.mac, signed, mac).map_err(|Unspecified| Refusal::BadMac)?;
        if now_ms.abs_diff(sent_ms) > SKEW_MS {
            return Err(Refusal::WrongTime);
        }
        if let Some(process) = self.heard.get_mut(&process) {
            process.latest_ms = process.latest_ms.max(now_ms);
            return if process.hear(interface, sequence) { Ok(()) } else { Err(Refusal::Replayed) };
        }
        if self.heard.len() >= PROCESSES_MAX {
            // All datagrams of such a process are too old by now.
            self.heard.retain(|_, process| process.latest_ms.saturating_add(2 * SKEW_MS) >= now_ms);
        }
        if self.heard.len() >= PROCESSES_MAX {
            return Err(Refusal::Crowded);
        }
        self.heard.insert(process, Process { highest: sequence, heard: vec![(interface, 1)], latest_ms: now_ms });
        Ok(())
    }
}

// === impl Process ===

impl Process {
    /// Takes note of a datagram. Returns `false` for one that this interface has received before, and for one that is too old
    /// to tell. Datagrams of several sockets overtake each other.
    fn hear(&mut self, interface: Option<u32>, sequence: u64) -> bool {
        let Self { highest, heard, latest_ms: _ } = self;
        if sequence > *highest {
            let ahead = u32::try_from(sequence - *highest).unwrap_or(u32::MAX);
            for (_, window) in &mut *heard {
                *window = window.checked_shl(ahead).unwrap_or(0);
            }
            heard.retain(|(_, window)| *window != 0);
            *highest = sequence;
        }
        let behind = u32::try_from(*highest - sequence).unwrap_or(u32::MAX);
        let Some(bit) = Window::checked_shl(1, behind) else { return false };
        // A number is sent by one family alone, and over IPv4 no interface is known. A copy over the other is a stranger's.
        if heard.iter().any(|(known, window)| known.is_none() != interface.is_none() && window & bit != 0) {
            return false;
        }
        match heard.iter_mut().find(|(known, _)| *known == interface) {
            Some((_, window)) => {
                let is_new = *window & bit == 0;
                *window |= bit;
                is_new
            }
            None => {
                heard.push((interface, bit));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
