//! The messages between nodes, one a datagram. A version ignores those that it does not know.

use super::choice::NodeId;
use crate::node::Mac;

/// Bytes of the longest message.
pub(super) const LONGEST: usize = SERVES_LENGTH;

/// Bytes of the protocol and the kind.
pub(super) const MAGIC_LENGTH: usize = 5;
/// Protocol, and the kind of the message.
const HELLO: [u8; MAGIC_LENGTH] = *b"xdpi\x01";
const SERVES: [u8; MAGIC_LENGTH] = *b"xdpi\x02";
/// Bytes of a hello: kind, pool, node, whether it leaves.
const HELLO_LENGTH: usize = MAGIC_LENGTH + 8 + 6 + 1;
/// Bytes of the other message: kind, pool, node, Ethernet address.
const SERVES_LENGTH: usize = MAGIC_LENGTH + 8 + 6 + 6;

/// A message of a node to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Hello(Hello),
    Serves(Serves),
}

/// The node takes part in announcing, or ends that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Hash of the pool: nodes with another pool take no part.
    pub(super) pool: u64,
    pub(super) node: NodeId,
    /// Whether the node no longer announces.
    pub(super) leaves: bool,
}

/// The node has a process that serves connections to the pool, and may be draining. Versions before it do not say so; their
/// connections end with a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Serves {
    pub(super) pool: u64,
    pub(super) node: NodeId,
    /// Its Ethernet address on the link of the datagram.
    pub(super) mac: Mac,
}

// === impl Message ===

impl Message {
    /// Returns `None` for another protocol or an unknown message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk()?;
        let (pool, rest) = rest.split_first_chunk()?;
        let (node, rest) = rest.split_first_chunk()?;
        let (pool, node) = (u64::from_be_bytes(*pool), *node);
        match (*kind, rest) {
            (HELLO, [0]) => Some(Self::Hello(Hello { pool, node, leaves: false })),
            (HELLO, [1]) => Some(Self::Hello(Hello { pool, node, leaves: true })),
            (SERVES, &[a, b, c, d, e, f]) => Some(Self::Serves(Serves { pool, node, mac: [a, b, c, d, e, f] })),
            _ => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => hello.encode().into(),
            Self::Serves(serves) => serves.encode().into(),
        }
    }

    pub(super) const fn pool(&self) -> u64 {
        match self {
            Self::Hello(Hello { pool, .. }) | Self::Serves(Serves { pool, .. }) => *pool,
        }
    }

    pub(super) const fn node(&self) -> NodeId {
        match self {
            Self::Hello(Hello { node, .. }) | Self::Serves(Serves { node, .. }) => *node,
        }
    }
}

// === impl Hello ===

impl Hello {
    fn encode(&self) -> [u8; HELLO_LENGTH] {
        let Self { pool, node, leaves } = self;
        let mut bytes = [0; HELLO_LENGTH];
        bytes[..5].copy_from_slice(&HELLO);
        bytes[5..13].copy_from_slice(&pool.to_be_bytes());
        bytes[13..19].copy_from_slice(node);
        bytes[19] = u8::from(*leaves);
        bytes
    }
}

// === impl Serves ===

impl Serves {
    fn encode(&self) -> [u8; SERVES_LENGTH] {
        let Self { pool, node, mac } = self;
        let mut bytes = [0; SERVES_LENGTH];
        bytes[..5].copy_from_slice(&SERVES);
        bytes[5..13].copy_from_slice(&pool.to_be_bytes());
        bytes[13..19].copy_from_slice(node);
        bytes[19..].copy_from_slice(mac);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Hello = Hello { pool: 7, node: [2, 0, 0, 0, 0, 1], leaves: false };
    const SERVING: Serves = Serves { pool: 7, node: [2, 0, 0, 0, 0, 1], mac: [2, 0, 0, 0, 0, 9] };

    #[track_caller]
    fn only_whole(bytes: &[u8], message: Message) {
        assert_eq!(Message::decode(bytes), Some(message));
        for cut in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..cut]), None, "{cut} bytes");
        }
        assert_eq!(Message::decode(&[bytes, &[0]].concat()), None, "a byte too many");
    }

    #[test]
    fn messages_are_understood_and_others_ignored() {
        for hello in [HERE, Hello { leaves: true, pool: u64::MAX, ..HERE }] {
            only_whole(&hello.encode(), Message::Hello(hello));
        }
        only_whole(&SERVING.encode(), Message::Serves(SERVING));
        for (at, to) in [(0, b'y'), (4, 3), (19, 2)] {
            let mut other = HERE.encode();
            other[at] = to;
            assert_eq!(Message::decode(&other), None, "byte {at}");
        }
    }

    /// Nodes of both versions must hear each other.
    #[test]
    fn a_hello_has_the_same_bytes_in_all_versions() {
        let bytes = [b"xdpi\x01".as_slice(), &[0, 0, 0, 0, 0, 0, 0, 7], &[2, 0, 0, 0, 0, 1], &[0]].concat();
        assert_eq!(HERE.encode().as_slice(), bytes);
    }
}
