//! Decides whether a new connection is taken or left to another listener of its port (ADR 0056).

use crate::node_facts::Node;
use ingress_common::{
    Handoff, PortRule,
    steer::{LEFT_BY_SHARE, NO_SLOT},
};

/// Returns the entry to store for a connection that is left; `None` if it is taken.
///
/// A port that is rewritten takes all clients: each of its packets is rewritten without a look at the connection, and
/// another listener has no such port.
#[must_use]
#[inline(always)]
pub fn left(node: &impl Node, rule: &PortRule, client: &[u8; 16], now_ns: u64) -> Option<Handoff> {
    let is_taken = rule.rewrite_be != 0 || node.share().takes(client, now_ns);
    if is_taken { None } else { Some(Handoff { slot: NO_SLOT, chosen_by: LEFT_BY_SHARE, time_ns: now_ns }) }
}
