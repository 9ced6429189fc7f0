//! An object about which nodes are asked, and the decision about it from their answers. Other objects are not known here.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::inquiry::{BOUND, GRACE, Verdict};
use crate::NODES_PORT;

/// Pause after the first question about an object. It doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(5);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Another node, as far as it answers.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: Arc<str>,
    /// Time since which it is known.
    pub(super) known: Instant,
    /// Time of the last answer.
    pub(super) heard: Option<Instant>,
    pub(super) is_silent: bool,
}

/// An object whose status is to say whether all nodes serve it.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) fingerprint: u64,
    /// Time at which this process received the change.
    pub(super) since: Option<Instant>,
    /// Time since which the status waits, also for an earlier state of the object. `None`: no question was sent, or the
    /// status does not wait.
    pub(super) waits: Option<Instant>,
    /// Time of the first question of this round.
    pub(super) began: Instant,
    pub(super) next: Instant,
    pub(super) pause: Duration,
    pub(super) confirmed: BTreeMap<IpAddr, Instant>,
    /// Nodes that answered in this round that they do not serve it.
    pub(super) refused: BTreeSet<IpAddr>,
    pub(super) verdict: Option<Verdict>,
}

// === impl Open ===

impl Open {
    pub(super) fn new(fingerprint: u64, since: Option<Instant>, now: Instant) -> Self {
        Self {
            fingerprint,
            since,
            waits: None,
            began: now,
            next: now,
            pause: PAUSE,
            confirmed: BTreeMap::new(),
            refused: BTreeSet::new(),
            verdict: None,
        }
    }

    /// Begins a round of questions.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.began, self.next, self.pause) = (now, now, PAUSE);
        self.refused.clear();
        if self.verdict.is_none() {
            self.waits.get_or_insert(now);
        }
    }

    /// Returns the time at which the round ends. Nodes have a moment to answer about the latest state.
    pub(super) fn deadline(&self) -> Instant {
        (self.waits.unwrap_or(self.began) + BOUND).max(self.began + GRACE)
    }

    /// Returns `true` unless all nodes confirm it.
    pub(super) fn lacks(&self, peers: Option<&BTreeMap<IpAddr, Peer>>) -> bool {
        peers.is_none_or(|peers| !peers.keys().all(|address| self.confirmed.contains_key(address)))
    }

    /// Returns the verdict, unless it is too early. Nodes that did not answer in time are marked as silent.
    /// `has_waited` tells whether an object waited in vain for the nodes to become known.
    pub(super) fn decide(
        &self,
        peers: Option<&mut BTreeMap<IpAddr, Peer>>,
        has_waited: bool,
        now: Instant,
    ) -> Option<Verdict> {
        let is_over = now >= self.deadline();
        let had_grace = now >= self.began + GRACE;
        let Some(peers) = peers else { return (is_over || has_waited && had_grace).then_some(Verdict::Unknown) };
        let nodes = peers.len() + 1;
        let mut missing: Vec<_> =
            peers.iter_mut().filter(|(address, _)| !self.confirmed.contains_key(*address)).collect();
        if missing.is_empty() {
            let last = peers.keys().filter_map(|address| self.confirmed.get(address)).max();
            let took = self.since.map(|since| last.unwrap_or(&now).saturating_duration_since(since));
            return Some(Verdict::Served { nodes, took });
        }
        let is_awaited =
            |(address, peer): &(&IpAddr, &mut Peer)| match (self.refused.contains(*address), peer.is_silent) {
                // It may learn of the object in a moment. A status that is written does not wait for that.
                (true, _) => self.verdict.is_none(),
                (false, true) => !had_grace,
                (false, false) => true,
            };
        if !is_over && missing.iter().any(is_awaited) {
            return None;
        }
        let serving = nodes - missing.len();
        let mut behind = BTreeSet::new();
        let mut silent = BTreeSet::new();
        for (address, peer) in &mut missing {
            if self.refused.contains(*address) {
                behind.insert(Arc::clone(&peer.node));
                continue;
            }
            silent.insert(Arc::clone(&peer.node));
            let waits = self.waits.unwrap_or(self.began).max(peer.known);
            if !peer.is_silent && now >= waits + BOUND && peer.heard.is_none_or(|heard| heard < waits) {
                peer.is_silent = true;
                tracing::warn!(
                    node = %peer.node, %address,
                    "a node does not answer whether it serves an object, and statuses no longer wait for it; let UDP \
                     port {NODES_PORT} in from other nodes (firewalls, network policies), and look at the log there"
                );
            }
        }
        Some(if behind.is_empty() {
            Verdict::Silent { serving, nodes, silent }
        } else {
            Verdict::Behind { serving, nodes, behind }
        })
    }
}
