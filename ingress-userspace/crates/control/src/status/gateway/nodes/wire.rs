//! The datagrams between replicas: questions about objects, and the answers. This module sends nothing.
//!
//! An answer is always shorter than its question, so that a forged sender gains nothing. A question names each object
//! with a fingerprint that includes its UID. A sender that does not know the UID cannot learn whether an object exists.

use crate::{
    change::{Kind, ObjectId, ObjectName},
    hash::fnv,
    object_status::{Condition, ListenerStatus, ObjectStatus, ParentReference, ParentStatus, StatusBody},
};

/// Longest datagram, which no network cuts.
pub(super) const LENGTH: usize = 1200;

/// Most objects in a question.
const ITEMS: usize = 64;

const QUESTION: [u8; 5] = *b"xdpq\x01";
const ANSWER: [u8; 5] = *b"xdpa\x01";

/// An object in a certain state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::status::gateway) struct Item {
    pub(super) id: ObjectId,
    pub(super) fingerprint: u64,
}

/// A datagram to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// A random number, which the answer repeats.
    pub(super) nonce: u64,
    pub(super) items: Vec<Item>,
}

/// A datagram from a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) nonce: u64,
    /// Whether the replica serves each object of the question.
    pub(super) serves: Vec<bool>,
}

/// Returns a hash of what `status` says about serving an object with this UID, which is the same on every node. The order
/// of conditions, listeners, parents and addresses has no meaning. Only conditions that every release has are part of it,
/// so that releases understand each other during an update.
pub(super) fn fingerprint(uid: &str, status: &ObjectStatus) -> u64 {
    let ObjectStatus { generation, body } = status;
    let mut parts = Vec::new();
    match body {
        StatusBody::GatewayClass { conditions, .. } => parts.push(of_conditions(conditions)),
        StatusBody::Gateway { conditions, listeners, addresses, .. } => {
            parts.push(of_conditions(conditions));
            parts.extend(listeners.iter().map(of_listener));
            parts.extend(addresses.iter().map(|address| format!("address {address}")));
        }
        StatusBody::ListenerSet { conditions, listeners } => {
            parts.push(of_conditions(conditions));
            parts.extend(listeners.iter().map(of_listener));
        }
        StatusBody::Route { parents } | StatusBody::Policy { ancestors: parents } => {
            parts.extend(parents.iter().map(of_parent));
        }
    }
    parts.sort_unstable();
    fnv(format!("{uid} {generation};{}", parts.join(";")).as_bytes())
}

fn of_conditions(conditions: &[Condition]) -> String {
    let counts = |condition: &&Condition| matches!(condition.kind, "Accepted" | "Programmed" | "ResolvedRefs");
    let mut texts: Vec<_> = conditions
        .iter()
        .filter(counts)
        .map(|Condition { kind, status, .. }| format!(" {kind}={}", status.as_str()))
        .collect();
    texts.sort_unstable();
    texts.concat()
}

fn of_listener(ListenerStatus { name, conditions, .. }: &ListenerStatus) -> String {
    format!("listener {name}{}", of_conditions(conditions))
}

fn of_parent(ParentStatus { parent, conditions }: &ParentStatus) -> String {
    let ParentReference { group, kind, namespace, name, section_name, port } = parent;
    let (namespace, section) = (namespace.as_deref().unwrap_or_default(), section_name.as_deref().unwrap_or_default());
    let port = port.unwrap_or_default();
    format!("parent {group}/{kind} {namespace}/{name} {section}:{port}{}", of_conditions(conditions))
}

/// Returns the number of a kind in datagrams, or `None` for a kind that is not asked about.
fn code(kind: Kind) -> Option<u8> {
    Some(match kind {
        Kind::Gateway => 1,
        Kind::ListenerSet => 2,
        Kind::HttpRoute => 3,
        Kind::GrpcRoute => 4,
        Kind::TlsRoute => 5,
        Kind::TcpRoute => 6,
        Kind::UdpRoute => 7,
        _ => return None,
    })
}

fn kind(code: u8) -> Option<Kind> {
    let kinds = [
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::UdpRoute,
    ];
    kinds.into_iter().nth(usize::from(code.checked_sub(1)?))
}

fn split_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((str::from_utf8(text).ok()?, rest))
}

// === impl Item ===

impl Item {
    /// Appends the item, unless it has no place. Names of Kubernetes always have one.
    fn encode(&self, bytes: &mut Vec<u8>) -> bool {
        let Self { id: ObjectId { kind, name: ObjectName { namespace, name } }, fingerprint } = self;
        let (Some(code), Ok(namespaces), Ok(names)) =
            (code(*kind), u8::try_from(namespace.len()), u8::try_from(name.len()))
        else {
            return false;
        };
        if bytes.len() + 11 + namespace.len() + name.len() > LENGTH {
            return false;
        }
        bytes.extend([code, namespaces]);
        bytes.extend(namespace.as_bytes());
        bytes.push(names);
        bytes.extend(name.as_bytes());
        bytes.extend(fingerprint.to_be_bytes());
        true
    }

    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (code, rest) = bytes.split_first()?;
        let (namespace, rest) = split_text(rest)?;
        let (name, rest) = split_text(rest)?;
        let (fingerprint, rest) = rest.split_first_chunk()?;
        let id = ObjectId { kind: kind(*code)?, name: ObjectName::new(namespace, name) };
        Some((Self { id, fingerprint: u64::from_be_bytes(*fingerprint) }, rest))
    }
}

// === impl Question ===

impl Question {
    /// Returns the datagrams that ask about `items`, each with a number of `nonce`. An item without a place is left out.
    pub(super) fn datagrams(items: Vec<Item>, mut nonce: impl FnMut() -> u64) -> Vec<(Self, Vec<u8>)> {
        let mut datagrams = Vec::new();
        let mut left = items.into_iter().peekable();
        while left.peek().is_some() {
            let nonce = nonce();
            let mut bytes = [&QUESTION[..], &nonce.to_be_bytes()].concat();
            let mut items = Vec::new();
            while items.len() < ITEMS
                && let Some(item) = left.next_if(|item| item.encode(&mut bytes))
            {
                items.push(item);
            }
            if items.is_empty() {
                left.next();
                continue;
            }
            datagrams.push((Self { nonce, items }, bytes));
        }
        datagrams
    }

    /// Returns `None` for anything but a whole question.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&QUESTION)?;
        let (nonce, mut rest) = rest.split_first_chunk()?;
        let mut items = Vec::new();
        while !rest.is_empty() {
            let (item, after) = Item::decode(rest)?;
            if items.len() == ITEMS {
                return None;
            }
            items.push(item);
            rest = after;
        }
        (!items.is_empty()).then_some(Self { nonce: u64::from_be_bytes(*nonce), items })
    }
}

// === impl Answer ===

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { nonce, serves } = self;
        let mut bytes = [&ANSWER[..], &nonce.to_be_bytes()].concat();
        bytes.extend(serves.iter().map(|serves| u8::from(*serves)));
        bytes
    }

    /// Returns `None` for anything but a whole answer.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes.strip_prefix(&ANSWER)?.split_first_chunk()?;
        if rest.len() > ITEMS {
            return None;
        }
        let serves = rest.iter().map(|byte| match byte {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        });
        Some(Self { nonce: u64::from_be_bytes(*nonce), serves: serves.collect::<Option<_>>()? })
    }
}
