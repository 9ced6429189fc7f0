//! The open questions, the answers of nodes, and the decision about each object. Pure: the time is an
//! argument, and nothing is sent.
//!
//! A node that answers is waited for, at most [`BOUND`]. A node that does not answer at all is waited for once; then
//! only [`GRACE`], until it answers again. The same holds for the list of nodes, if it cannot be read. A verdict that is
//! not the last one stays until a better one is known, so that statuses do not change to and fro.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    open::{LONGEST_PAUSE, Open, Peer},
    queue::Lane,
    wire::Item,
};
use crate::change::ObjectId;

/// Longest time for which a status waits for other nodes.
pub(in crate::status::gateway) const BOUND: Duration = Duration::from_secs(2);
/// Time for nodes that did not answer lately.
pub(super) const GRACE: Duration = Duration::from_millis(50);
/// Pause before nodes are asked again about objects that they lack. It doubles up to [`LONGEST_RECHECK`], and begins anew
/// with the next object that they lack.
pub(super) const RECHECK: Duration = Duration::from_secs(1);
const LONGEST_RECHECK: Duration = Duration::from_secs(30);
/// Most objects without a verdict that are asked about at a time.
pub(super) const ACTIVE: usize = 512;
/// Most objects that are asked about again at a time. They have a verdict, so they never take the room of those that
/// wait for one.
pub(super) const AGAIN: usize = 128;

/// Decision about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::status::gateway) enum Verdict {
    /// All nodes serve it, this one included.
    Served {
        nodes: usize,
        /// Time from the receipt of the change by this process to the last confirmation; `None`: not known.
        took: Option<Duration>,
    },
    /// Nodes answer that they do not serve it.
    Behind { serving: usize, nodes: usize, behind: BTreeSet<Arc<str>> },
    /// The nodes that do not confirm it do not answer.
    Silent { serving: usize, nodes: usize, silent: BTreeSet<Arc<str>> },
    /// The other nodes are not known.
    Unknown,
}

/// Questions and answers. See the module.
#[derive(Debug)]
pub(in crate::status::gateway) struct Inquiry {
    /// Other nodes with a Ready replica; `None`: not known yet.
    peers: Option<BTreeMap<IpAddr, Peer>>,
    /// Whether an object waited in vain for the other nodes to become known.
    has_waited_for_peers: bool,
    open: BTreeMap<ObjectId, Open>,
    /// Objects without a verdict.
    undecided: Lane,
    /// Objects whose verdict may improve.
    again: Lane,
    /// Objects with a new verdict since the last look.
    decided: BTreeSet<ObjectId>,
    recheck: Option<Instant>,
    /// Number of rechecks since an object was lacked for the first time.
    rechecks: u32,
}

// === impl Inquiry ===

impl Inquiry {
    /// Returns the verdict about an object in the state of `fingerprint`, if there is one. Otherwise, the other nodes
    /// are asked. `since` is the time at which this process received the change, if it is known.
    pub(in crate::status::gateway) fn judge(
        &mut self,
        id: &ObjectId,
        fingerprint: u64,
        since: Option<Instant>,
        now: Instant,
    ) -> Option<&Verdict> {
        let before = self.open.get(id);
        if before.is_none_or(|open| open.fingerprint != fingerprint) {
            // Further changes of an object do not put its status off.
            let waits = before.filter(|open| open.verdict.is_none()).and_then(|open| open.waits);
            self.undecided.remove(id);
            self.again.remove(id);
            self.open.insert(id.clone(), Open { waits, ..Open::new(fingerprint, since, now) });
            self.undecided.push(id.clone());
            self.begin(now);
            // The caller learns the verdict right now.
            self.decided.remove(id);
        }
        self.open.get(id)?.verdict.as_ref()
    }

    /// Forgets an object whose status needs no verdict.
    pub(in crate::status::gateway) fn dismiss(&mut self, id: &ObjectId) {
        self.open.remove(id);
        self.undecided.remove(id);
        self.again.remove(id);
    }

    /// Returns the objects with a new verdict since the last call.
    pub(in crate::status::gateway) fn take_decided(&mut self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut self.decided)
    }

    pub(super) fn has_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Sets the other nodes that run a Ready replica, by their address.
    pub(in crate::status::gateway) fn set_peers(&mut self, nodes: BTreeMap<IpAddr, Arc<str>>, now: Instant) {
        let mut before = self.peers.take().unwrap_or_default();
        let peers = nodes.into_iter().map(|(address, node)| {
            let peer = before.remove(&address).filter(|peer| peer.node == node);
            (address, peer.unwrap_or(Peer { node, known: now, heard: None, is_silent: false }))
        });
        self.peers = Some(peers.collect());
        self.has_waited_for_peers = false;
        self.ask_again(self.unconfirmed());
        self.advance(now);
    }

    /// Returns the questions to each node that are due.
    pub(in crate::status::gateway) fn take_due(&mut self, now: Instant) -> BTreeMap<IpAddr, Vec<Item>> {
        if self.recheck.is_some_and(|recheck| recheck <= now) {
            self.recheck = None;
            self.rechecks = self.rechecks.saturating_add(1);
            self.ask_again(self.to_recheck());
        }
        self.advance(now);
        let mut due: BTreeMap<IpAddr, Vec<Item>> = BTreeMap::new();
        let Some(peers) = &self.peers else { return due };
        for id in self.undecided.active().iter().chain(self.again.active()) {
            let Some(open) = self.open.get_mut(id).filter(|open| open.next <= now) else { continue };
            open.next = now + open.pause;
            open.pause = LONGEST_PAUSE.min(open.pause * 2);
            for address in peers.keys().filter(|address| !open.confirmed.contains_key(*address)) {
                due.entry(*address).or_default().push(Item { id: id.clone(), fingerprint: open.fingerprint });
            }
        }
        due
    }

    /// Returns when [`Inquiry::take_due`] is to be called next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let of_active = self.active().filter_map(|id| self.open.get(id)).flat_map(|open| {
            let question = self.peers.is_some().then_some(open.next);
            [question, Some(open.began + GRACE).filter(|grace| now < *grace), Some(open.deadline())]
        });
        of_active.flatten().chain(self.recheck).min()
    }

    /// Returns `true` if an object waits for a verdict, or for a better one.
    pub(super) fn has_questions(&self) -> bool {
        self.active().next().is_some() || self.recheck.is_some()
    }

    /// Returns the objects that are asked about now.
    fn active(&self) -> impl Iterator<Item = &ObjectId> {
        self.undecided.active().iter().chain(self.again.active())
    }

    fn ask_again(&mut self, ids: Vec<ObjectId>) {
        ids.into_iter().for_each(|id| self.again.push(id));
    }

    /// Takes note of the answers of a node about `items`.
    pub(in crate::status::gateway) fn hear(&mut self, from: IpAddr, items: &[Item], serves: &[bool], now: Instant) {
        let Some(peer) = self.peers.as_mut().and_then(|peers| peers.get_mut(&from)) else { return };
        peer.heard = Some(now);
        if std::mem::take(&mut peer.is_silent) {
            tracing::info!(node = %peer.node, "a node answers again");
            self.recheck = Some(now);
        }
        for (Item { id, fingerprint }, serves) in items.iter().zip(serves) {
            let Some(open) = self.open.get_mut(id).filter(|open| open.fingerprint == *fingerprint) else { continue };
            if *serves {
                open.confirmed.entry(from).or_insert(now);
            } else if !open.confirmed.contains_key(&from) {
                open.refused.insert(from);
            }
            self.conclude(id, now);
        }
        self.begin(now);
    }

    /// Decides about all objects about which that is possible by now, and begins with further ones.
    fn advance(&mut self, now: Instant) {
        let silent = |inquiry: &Self| inquiry.peers.iter().flatten().filter(|(_, peer)| peer.is_silent).count();
        let before = silent(self);
        self.conclude_all(now);
        // No object waits any longer for a node that has just been found silent.
        if silent(self) > before {
            self.conclude_all(now);
        }
        self.begin(now);
    }

    fn conclude_all(&mut self, now: Instant) {
        let active: Vec<_> = self.active().cloned().collect();
        active.iter().for_each(|id| self.conclude(id, now));
    }

    /// Begins with further objects, as far as there is room.
    fn begin(&mut self, now: Instant) {
        while let Some(id) = self.undecided.begin().or_else(|| self.again.begin()) {
            if let Some(open) = self.open.get_mut(&id) {
                open.begin(now);
                self.conclude(&id, now);
            } else {
                self.dismiss(&id);
            }
        }
    }

    /// Decides about an object, if that is possible. Answers may come after the verdict: the last one improves it.
    fn conclude(&mut self, id: &ObjectId, now: Instant) {
        let is_active = self.undecided.active().contains(id) || self.again.active().contains(id);
        let Some(open) = self.open.get_mut(id) else { return };
        if !is_active && (open.verdict.as_ref().is_none_or(Verdict::is_last) || open.lacks(self.peers.as_ref())) {
            return;
        }
        let Some(verdict) = open.decide(self.peers.as_mut(), self.has_waited_for_peers, now) else { return };
        self.undecided.remove(id);
        self.again.remove(id);
        match verdict {
            Verdict::Served { .. } => {}
            // It is asked about once the nodes are known.
            Verdict::Unknown => self.has_waited_for_peers = true,
            Verdict::Behind { .. } | Verdict::Silent { .. } => {
                if open.verdict.is_none() {
                    self.rechecks = 0;
                }
                let pause = LONGEST_RECHECK.min(RECHECK * 2_u32.pow(self.rechecks.min(16)));
                self.recheck.get_or_insert(now + pause);
            }
        }
        open.waits = None;
        if open.verdict.as_ref() != Some(&verdict) {
            open.verdict = Some(verdict);
            self.decided.insert(id.clone());
        }
    }

    /// Returns the objects whose verdict may improve.
    fn unconfirmed(&self) -> Vec<ObjectId> {
        let unconfirmed = self.open.iter().filter(|(_, open)| open.verdict.as_ref().is_some_and(|one| !one.is_last()));
        unconfirmed.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the objects to ask about again. If only silent nodes lack, one question finds out whether they answer.
    fn to_recheck(&self) -> Vec<ObjectId> {
        let peers = self.peers.as_ref();
        let is_hopeless = |id: &ObjectId| {
            self.open.get(id).zip(peers).is_some_and(|(open, peers)| {
                let missing = peers.iter().filter(|(address, _)| !open.confirmed.contains_key(*address));
                let mut missing = missing.peekable();
                missing.peek().is_some() && missing.all(|(_, peer)| peer.is_silent)
            })
        };
        let (hopeless, mut again): (Vec<_>, Vec<_>) = self.unconfirmed().into_iter().partition(is_hopeless);
        again.extend(hopeless.into_iter().next());
        again
    }

    /// Returns the number of objects that are held, and of places that they have.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.open.len(), self.undecided.len() + self.again.len())
    }
}

impl Default for Inquiry {
    fn default() -> Self {
        Self {
            peers: None,
            has_waited_for_peers: false,
            open: BTreeMap::new(),
            undecided: Lane::new(ACTIVE),
            again: Lane::new(AGAIN),
            decided: BTreeSet::new(),
            recheck: None,
            rechecks: 0,
        }
    }
}

// === impl Verdict ===

impl Verdict {
    fn is_last(&self) -> bool {
        matches!(self, Self::Served { .. })
    }
}
