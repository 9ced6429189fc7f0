//! The open questions, the answers of nodes, and the decision about each object. Pure: the time is an
//! argument, and nothing is sent.
//!
//! A node that answers is waited for, at most [`BOUND`]. A node that does not answer at all is waited for once; then
//! only [`GRACE`], until it answers again. A verdict that is not the last one stays until a better one is known, so that
//! statuses do not change to and fro.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::wire::Item;
use crate::change::ObjectId;

/// Longest time for which a status waits for other nodes.
pub(in crate::status::gateway) const BOUND: Duration = Duration::from_secs(2);
/// Time for nodes that did not answer lately.
pub(super) const GRACE: Duration = Duration::from_millis(50);
/// Pause before nodes are asked again about objects that they lack. It doubles up to [`LONGEST_RECHECK`], and begins anew
/// with the next object that they lack.
pub(super) const RECHECK: Duration = Duration::from_secs(1);
const LONGEST_RECHECK: Duration = Duration::from_secs(30);
/// Most objects that are asked about at a time.
pub(super) const ACTIVE: usize = 512;
/// Pause after the first question about an object. It doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

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
#[derive(Debug, Default)]
pub(in crate::status::gateway) struct Inquiry {
    /// Other nodes with a Ready replica; `None`: not known yet.
    peers: Option<BTreeMap<IpAddr, Peer>>,
    open: BTreeMap<ObjectId, Open>,
    /// Objects that are asked about now.
    active: BTreeSet<ObjectId>,
    /// Objects to ask about after those. It may name some that are not open any more.
    queue: VecDeque<ObjectId>,
    /// Objects with a new verdict since the last look.
    decided: BTreeSet<ObjectId>,
    recheck: Option<Instant>,
    /// Number of rechecks since an object was lacked for the first time.
    rechecks: u32,
}

#[derive(Debug)]
struct Peer {
    node: Arc<str>,
    /// Time of the last answer.
    heard: Option<Instant>,
    is_silent: bool,
}

/// An object whose status is to say whether all nodes serve it.
#[derive(Debug)]
struct Open {
    fingerprint: u64,
    /// Time at which this process received the change.
    since: Option<Instant>,
    /// Time of the first question of this round.
    began: Instant,
    next: Instant,
    pause: Duration,
    confirmed: BTreeMap<IpAddr, Instant>,
    /// Nodes that answered in this round that they do not serve it.
    refused: BTreeSet<IpAddr>,
    verdict: Option<Verdict>,
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
        if self.open.get(id).is_none_or(|open| open.fingerprint != fingerprint) {
            self.active.remove(id);
            self.open.insert(id.clone(), Open::new(fingerprint, since, now));
            self.queue.push_back(id.clone());
            self.begin(now);
            // The caller learns the verdict right now.
            self.decided.remove(id);
        }
        self.open.get(id)?.verdict.as_ref()
    }

    /// Forgets an object whose status needs no verdict.
    pub(in crate::status::gateway) fn dismiss(&mut self, id: &ObjectId) {
        self.open.remove(id);
        self.active.remove(id);
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
            (address, peer.unwrap_or(Peer { node, heard: None, is_silent: false }))
        });
        self.peers = Some(peers.collect());
        self.queue.extend(self.unconfirmed());
        self.advance(now);
    }

    /// Returns the questions to each node that are due.
    pub(in crate::status::gateway) fn take_due(&mut self, now: Instant) -> BTreeMap<IpAddr, Vec<Item>> {
        if self.recheck.is_some_and(|recheck| recheck <= now) {
            self.recheck = None;
            self.rechecks = self.rechecks.saturating_add(1);
            let again = self.to_recheck();
            self.queue.extend(again);
        }
        self.advance(now);
        let mut due: BTreeMap<IpAddr, Vec<Item>> = BTreeMap::new();
        let Some(peers) = &self.peers else { return due };
        for id in &self.active {
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
        let of_active = self.active.iter().filter_map(|id| self.open.get(id)).flat_map(|open| {
            let question = self.peers.is_some().then_some(open.next);
            [question, Some(open.began + GRACE).filter(|grace| now < *grace), Some(open.began + BOUND)]
        });
        of_active.flatten().chain(self.recheck).min()
    }

    /// Returns `true` if an object waits for a verdict, or for a better one.
    pub(super) fn has_questions(&self) -> bool {
        !self.active.is_empty() || self.recheck.is_some()
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
        let active: Vec<_> = self.active.iter().cloned().collect();
        active.iter().for_each(|id| self.conclude(id, now));
        self.begin(now);
    }

    /// Begins with further objects, as far as there is room.
    fn begin(&mut self, now: Instant) {
        while self.active.len() < ACTIVE
            && let Some(id) = self.queue.pop_front()
        {
            if let Some(open) = self.open.get_mut(&id)
                && self.active.insert(id.clone())
            {
                open.begin(now);
                self.conclude(&id, now);
            }
        }
    }

    /// Decides about an object that is asked about now, if that is possible.
    fn conclude(&mut self, id: &ObjectId, now: Instant) {
        let Some(open) = self.open.get_mut(id).filter(|_| self.active.contains(id)) else { return };
        let Some(verdict) = open.decide(self.peers.as_mut(), now) else { return };
        self.active.remove(id);
        if !verdict.is_last() {
            if open.verdict.is_none() {
                self.rechecks = 0;
            }
            let pause = LONGEST_RECHECK.min(RECHECK * 2_u32.pow(self.rechecks.min(16)));
            self.recheck.get_or_insert(now + pause);
        }
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
                let mut missing = peers.iter().filter(|(address, _)| !open.confirmed.contains_key(*address));
                missing.all(|(_, peer)| peer.is_silent)
            })
        };
        let (hopeless, mut again): (Vec<_>, Vec<_>) = self.unconfirmed().into_iter().partition(is_hopeless);
        again.extend(hopeless.into_iter().next());
        again
    }
}

// === impl Open ===

impl Open {
    fn new(fingerprint: u64, since: Option<Instant>, now: Instant) -> Self {
        Self {
            fingerprint,
            since,
            began: now,
            next: now,
            pause: PAUSE,
            confirmed: BTreeMap::new(),
            refused: BTreeSet::new(),
            verdict: None,
        }
    }

    /// Begins a round of questions.
    fn begin(&mut self, now: Instant) {
        (self.began, self.next, self.pause) = (now, now, PAUSE);
        self.refused.clear();
    }

    /// Returns the verdict, unless it is too early. Nodes that did not answer in time are marked as silent.
    fn decide(&self, peers: Option<&mut BTreeMap<IpAddr, Peer>>, now: Instant) -> Option<Verdict> {
        let is_over = now >= self.began + BOUND;
        let Some(peers) = peers else { return is_over.then_some(Verdict::Unknown) };
        let nodes = peers.len() + 1;
        let mut missing: Vec<_> =
            peers.iter_mut().filter(|(address, _)| !self.confirmed.contains_key(*address)).collect();
        if missing.is_empty() {
            let last = peers.keys().filter_map(|address| self.confirmed.get(address)).max();
            let took = self.since.map(|since| last.unwrap_or(&now).saturating_duration_since(since));
            return Some(Verdict::Served { nodes, took });
        }
        let is_awaited = |(address, peer): &(&IpAddr, &mut Peer)| !peer.is_silent || self.refused.contains(*address);
        if !is_over && (now < self.began + GRACE || missing.iter().any(is_awaited)) {
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
            if !peer.is_silent && peer.heard.is_none_or(|heard| heard < self.began) {
                peer.is_silent = true;
                let port = super::PORT;
                tracing::warn!(
                    node = %peer.node, %address,
                    "a node does not answer whether it serves an object, and statuses no longer wait for it; let UDP port {port} in from other nodes"
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

// === impl Verdict ===

impl Verdict {
    fn is_last(&self) -> bool {
        matches!(self, Self::Served { .. })
    }
}
