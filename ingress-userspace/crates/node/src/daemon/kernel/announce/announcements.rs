//! The addresses that this node announces, and those of which its neighbours are yet to be told. Pure; the time and the
//! other nodes are arguments.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use tokio::time::Instant;

use super::{
    choice::{NodeId, announcer},
    peers::SILENCE,
};

/// Ticks of `HELLO` after which neighbours are told of a new address. Linux ignores an ARP reply within a second of the
/// one before (`LOCKTIME`).
const TOLD_AT: [u8; 5] = [0, 1, 2, 6, 12];

/// Which of the held addresses this node announces.
#[derive(Debug)]
pub(super) struct Announcements {
    /// Addresses that the programs know as held.
    held: BTreeSet<IpAddr>,
    announced: BTreeSet<IpAddr>,
    /// Announced addresses that neighbours are yet to be told of, with the ticks since they were chosen.
    untold: BTreeMap<IpAddr, u8>,
    /// This node and the others, at the latest choice since `held` changed.
    chosen_among: Option<(NodeId, BTreeSet<NodeId>)>,
    /// The other nodes at the latest choice.
    others: BTreeSet<NodeId>,
    /// Addresses that this node announces since the latest choice, with the nodes before it, as far as they take part.
    moved: Vec<(IpAddr, Option<NodeId>)>,
    /// Until then, announcements stay as they were found.
    listens_until: Instant,
    /// Time of the latest tick.
    ticked: Instant,
}

// === impl Announcements ===

impl Announcements {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            held: BTreeSet::new(),
            announced: BTreeSet::new(),
            untold: BTreeMap::new(),
            chosen_among: None,
            others: BTreeSet::new(),
            moved: Vec::new(),
            listens_until: now + SILENCE,
            ticked: now,
        }
    }

    /// Returns the addresses that the programs know as held.
    pub(super) const fn held(&self) -> &BTreeSet<IpAddr> {
        &self.held
    }

    /// Returns whether this node announces an address.
    pub(super) fn announces(&self) -> bool {
        !self.announced.is_empty()
    }

    pub(super) fn is_announced(&self, address: &IpAddr) -> bool {
        self.announced.contains(address)
    }

    /// Starts with what a living predecessor announces.
    pub(super) fn find(&mut self, announced: BTreeSet<IpAddr>) {
        self.announced = announced;
        self.untold.clear();
        self.chosen_among = None;
    }

    /// Sets the addresses that the programs know as held; only these are announced. Returns whether there are others
    /// than before.
    pub(super) fn hold(&mut self, held: BTreeSet<IpAddr>) -> bool {
        self.announced.retain(|address| held.contains(address));
        self.untold.retain(|address, _| held.contains(address));
        let is_other = self.held != held;
        if is_other {
            self.held = held;
            self.chosen_among = None;
        }
        is_other
    }

    /// Leaves all announcements to other nodes.
    pub(super) fn leave(&mut self) {
        self.announced.clear();
        self.untold.clear();
        self.chosen_among = None;
    }

    /// Listens to other nodes before the next choice.
    pub(super) fn listen(&mut self, now: Instant) {
        self.listens_until = now + SILENCE;
    }

    /// Takes note of a tick. A node that stood still has heard no other, and would take all addresses: it listens first.
    /// With a datagram lost before, half of the silence is enough for that. Others may have announced its addresses
    /// meanwhile, so that its neighbours are told anew.
    pub(super) fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.ticked) > SILENCE / 2 {
            self.listen(now);
            self.others.clear();
            self.chosen_among = None;
        }
        self.ticked = now;
    }

    /// Chooses the addresses to announce, as the node `own` beside these `others`. Returns whether there are others than
    /// before. Costs a comparison if neither nodes nor addresses have changed.
    pub(super) fn choose(&mut self, own: NodeId, others: BTreeSet<NodeId>, now: Instant) -> bool {
        if now < self.listens_until {
            return false;
        }
        if self.chosen_among.as_ref().is_some_and(|(node, nodes)| *node == own && *nodes == others) {
            return false;
        }
        let nodes = || others.iter().copied().chain([own]);
        let announced = self.held.iter().filter(|address| announcer(address, nodes()) == Some(own));
        let announced: BTreeSet<_> = announced.copied().collect();
        let is_other = announced != self.announced;
        self.untold.retain(|address, _| announced.contains(address));
        // A node that appears may have announced the same addresses until now, and neighbours believe it.
        let is_told_anew = others.difference(&self.others).next().is_some();
        let told = announced.iter().filter(|address| is_told_anew || !self.announced.contains(address));
        let moved = announced.difference(&self.announced);
        self.moved.extend(moved.map(|address| (*address, previous(address, own, &self.others, &others))));
        // Otherwise datagrams of strangers could have neighbours told with each tick.
        for address in told {
            self.untold.entry(*address).or_insert(0);
        }
        if is_other || others != self.others {
            let (others, addresses) = (others.len(), announced.len());
            tracing::info!(others, addresses, of = self.held.len(), "chose the addresses that this node announces");
        }
        self.announced = announced;
        self.others.clone_from(&others);
        self.chosen_among = Some((own, others));
        is_other
    }

    /// Takes the addresses that this node announces since the latest call, with the nodes that announced them before:
    /// `None` if no other node takes part.
    pub(super) fn take_moved(&mut self) -> Vec<(IpAddr, Option<NodeId>)> {
        std::mem::take(&mut self.moved)
    }

    /// Returns the addresses of which neighbours are to be told now.
    pub(super) fn due(&mut self) -> Vec<IpAddr> {
        let due =
            self.untold.iter().filter(|(_, ticks)| TOLD_AT.contains(ticks)).map(|(address, _)| *address).collect();
        self.untold.values_mut().for_each(|ticks| *ticks += 1);
        self.untold.retain(|_, ticks| TOLD_AT.iter().any(|at| *at >= *ticks));
        due
    }
}

/// Returns the other node that announced an address before `own`; `others` and `now` are the other nodes at the choice
/// before and at this one. A node that had not chosen yet left the choice to the others.
fn previous(address: &IpAddr, own: NodeId, others: &BTreeSet<NodeId>, now: &BTreeSet<NodeId>) -> Option<NodeId> {
    let before = if others.is_empty() {
        announcer(address, now.iter().copied())
    } else {
        announcer(address, others.iter().copied().chain([own]))
    };
    before.filter(|node| *node != own)
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;
    use crate::daemon::kernel::announce::peers::HELLO;

    const OWN: NodeId = [2, 0, 0, 0, 0, 1];
    const OTHER: NodeId = [2, 0, 0, 0, 0, 2];

    fn addresses(count: u8) -> BTreeSet<IpAddr> {
        (1..=count).map(|last| Ipv4Addr::new(192, 0, 2, last).into()).collect()
    }

    /// Returns a node that announces its share of 20 addresses beside another one, and the time. Neighbours are told.
    fn beside_another() -> (Announcements, Instant) {
        let start = Instant::now();
        let mut announcements = Announcements::new(start);
        assert!(announcements.hold(addresses(20)));
        let now = start + SILENCE;
        (1..=5).for_each(|tick| announcements.tick(start + HELLO * tick));
        assert!(announcements.choose(OWN, [OTHER].into(), now));
        assert!((1..20).contains(&announcements.announced.len()));
        (0..=12).for_each(|_| drop(announcements.due()));
        assert!(announcements.due().is_empty());
        (announcements, now)
    }

    #[test]
    fn only_addresses_that_the_programs_know_are_announced() {
        let start = Instant::now();
        let mut announcements = Announcements::new(start);
        announcements.find(addresses(9));
        announcements.hold(addresses(5));
        assert_eq!(announcements.announced, addresses(5), "those of the predecessor that fit");
        assert!(!announcements.choose(OWN, BTreeSet::new(), start), "it listens");
        assert!(!announcements.choose(OWN, BTreeSet::new(), start + SILENCE), "the same");
        announcements.hold(addresses(7));
        assert!(announcements.choose(OWN, BTreeSet::new(), start + SILENCE));
        assert_eq!(announcements.announced, addresses(7));
        assert!(!announcements.hold(addresses(7)) && announcements.hold(addresses(3)));
        assert_eq!(announcements.announced, addresses(3));
    }

    #[test]
    fn a_node_that_stood_still_listens_before_it_chooses() {
        for stood_still in [SILENCE + Duration::from_millis(1), SILENCE - HELLO / 2] {
            listens_before_it_chooses(stood_still);
        }
    }

    fn listens_before_it_chooses(stood_still: Duration) {
        let (mut announcements, start) = beside_another();
        let before = announcements.announced.clone();
        // All others count as silent, of which the last datagrams were heard before.
        let woke = start + stood_still;
        announcements.tick(woke);
        assert!(!announcements.choose(OWN, BTreeSet::new(), woke));
        assert_eq!(announcements.announced, before);
        let mut now = woke;
        let mut wait = |announcements: &mut Announcements| {
            for _ in 0..5 {
                now += HELLO;
                announcements.tick(now);
            }
            now
        };
        // The other one is heard again. It announced everything meanwhile, and neighbours believe it.
        let now = wait(&mut announcements);
        assert!(!announcements.choose(OWN, [OTHER].into(), now), "the same as before");
        assert_eq!(BTreeSet::from_iter(announcements.due()), before);
        // It is really gone.
        let now = wait(&mut announcements);
        assert!(announcements.choose(OWN, BTreeSet::new(), now));
        assert_eq!(announcements.announced, addresses(20));
    }

    #[test]
    fn neighbours_are_told_anew_when_a_node_appears() {
        let (mut announcements, now) = beside_another();
        assert!(announcements.choose(OWN, BTreeSet::new(), now), "a split");
        (0..=12).for_each(|_| drop(announcements.due()));
        assert!(announcements.choose(OWN, [OTHER].into(), now), "and its end");
        assert_eq!(BTreeSet::from_iter(announcements.due()), announcements.announced);
    }

    #[test]
    fn a_node_that_comes_and_goes_does_not_repeat_what_neighbours_are_told() {
        const STRANGER: NodeId = [2, 0, 0, 0, 0, 9];
        let (mut announcements, now) = beside_another();
        let stays = |address: &&IpAddr| announcer(address, [OWN, OTHER, STRANGER]) == Some(OWN);
        let address = *announcements.announced.iter().find(stays).expect("some");
        let mut told = 0;
        for tick in 0..130 {
            let stranger = (tick % 2 == 0).then_some(STRANGER);
            announcements.choose(OWN, stranger.into_iter().chain([OTHER]).collect(), now);
            told += usize::from(announcements.due().contains(&address));
        }
        assert!((1..=50).contains(&told), "five times within thirteen ticks: {told}");
    }

    #[test]
    fn the_node_before_is_the_one_that_others_chose() {
        const THIRD: NodeId = [2, 0, 0, 0, 0, 3];
        // A node that starts takes its share from the only other one, and tells of each address once.
        let (mut announcements, now) = beside_another();
        let share = announcements.announced.clone();
        assert!(!share.is_empty());
        assert_eq!(announcements.take_moved(), Vec::from_iter(share.into_iter().map(|address| (address, Some(OTHER)))));
        assert_eq!(announcements.take_moved(), []);
        // A third one takes some, which nothing moves to this node for.
        announcements.choose(OWN, [OTHER, THIRD].into(), now);
        assert_eq!(announcements.take_moved(), []);
        // They come from the node that leaves, whichever it was.
        let before = announcements.announced.clone();
        announcements.choose(OWN, [OTHER].into(), now);
        let moved = announcements.take_moved();
        assert!(!moved.is_empty() && moved.iter().all(|(_, node)| *node == Some(THIRD)), "{moved:?}");
        let addresses: BTreeSet<_> = moved.into_iter().map(|(address, _)| address).collect();
        assert_eq!(addresses, announcements.announced.difference(&before).copied().collect());
        // One that is alone from the start knows no node before.
        let mut alone = Announcements::new(now);
        alone.hold(addresses);
        alone.choose(OWN, BTreeSet::new(), now + SILENCE);
        let moved = alone.take_moved();
        assert!(!moved.is_empty() && moved.iter().all(|(_, node)| node.is_none()), "{moved:?}");
    }

    #[test]
    fn the_choice_is_made_only_after_a_change() {
        let (mut announcements, now) = beside_another();
        // Would come back with a choice.
        announcements.announced.clear();
        assert!(!announcements.choose(OWN, [OTHER].into(), now));
        announcements.hold(addresses(19));
        assert!(announcements.choose(OWN, [OTHER].into(), now), "other addresses");
        announcements.announced.clear();
        assert!(announcements.choose(OTHER, [OWN].into(), now), "another name of this node");
        announcements.leave();
        assert!(announcements.choose(OTHER, [OWN].into(), now), "after it left");
    }

    #[test]
    fn neighbours_are_told_five_times_within_three_seconds() {
        let start = Instant::now();
        let mut announcements = Announcements::new(start);
        announcements.hold(addresses(1));
        announcements.choose(OWN, BTreeSet::new(), start + SILENCE);
        let told: Vec<_> = (0..20).filter(|_| !announcements.due().is_empty()).collect();
        assert_eq!(told, [0, 1, 2, 6, 12]);
    }
}
