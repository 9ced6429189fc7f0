//! Addresses that moved to this node while the node before serves on: where packets of its connections go. Pure; the time is
//! an argument.
//!
//! ```text
//! choice ── address, node before ──> Moves ── entries ──> moves, node_addrs ──> programs forward
//! other nodes ── "serves" ─────────────┘
//! ```
//!
//! An entry ends when the other node is silent for a second, because it has drained or died, when this node no longer
//! announces the address, and after [`FORWARDED_FOR`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ingress_datapath::MovedAddress;
use tokio::time::Instant;

use super::{
    choice::NodeId,
    peers::{Members, SILENCE},
};
use crate::node::Mac;

/// Time for which packets are forwarded to a node that serves on. Each costs both nodes work.
pub(super) const FORWARDED_FOR: Duration = Duration::from_hours(1);

/// An interface of this node, and the Ethernet address of another node there.
type Link = (u32, Mac);

/// The nodes that serve, and the addresses that moved here from them.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// With the node, unless an earlier process of this node knew it, and the time of its latest message.
    heard: BTreeMap<Link, (Option<NodeId>, Instant)>,
    moved: BTreeMap<IpAddr, Moved>,
}

/// An address that moved here.
#[derive(Debug)]
struct Moved {
    links: BTreeSet<Link>,
    until_ns: u64,
}

// === impl Moves ===

impl Moves {
    /// Takes note of a message. Those of more nodes than can take part are ignored.
    pub(super) fn hear(&mut self, node: NodeId, link: Link, now: Instant) {
        if self.heard.len() >= Members::MAX && !self.heard.contains_key(&link) {
            self.forget_silent(now);
        }
        if self.heard.len() < Members::MAX || self.heard.contains_key(&link) {
            self.heard.insert(link, (Some(node), now));
        }
    }

    /// Starts with what a living predecessor on this node forwards.
    pub(super) fn find(&mut self, found: Vec<MovedAddress>, now: Instant) {
        for MovedAddress { address, interface, mac, until_ns } in found {
            self.heard.entry((interface, mac)).or_insert((None, now));
            let moved = self.moved.entry(address).or_insert_with(|| Moved { links: BTreeSet::new(), until_ns });
            moved.links.insert((interface, mac));
        }
    }

    /// Takes note that this node announces an address from now on, in place of a node.
    pub(super) fn begin(&mut self, address: IpAddr, before: NodeId, now_ns: u64) {
        let links: BTreeSet<_> =
            self.heard.iter().filter(|(_, (node, _))| *node == Some(before)).map(|(link, _)| *link).collect();
        if links.is_empty() {
            self.moved.remove(&address);
            return;
        }
        let duration = u64::try_from(FORWARDED_FOR.as_nanos()).unwrap_or(u64::MAX);
        self.moved.insert(address, Moved { links, until_ns: now_ns.saturating_add(duration) });
    }

    /// Ends what is over. Returns whether an entry has ended.
    pub(super) fn tick(&mut self, is_announced: impl Fn(&IpAddr) -> bool, now: Instant, now_ns: u64) -> bool {
        self.forget_silent(now);
        let Self { heard, moved } = self;
        let entries = |moved: &BTreeMap<IpAddr, Moved>| moved.values().map(|moved| moved.links.len()).sum::<usize>();
        let before = entries(moved);
        moved.retain(|address, Moved { links, until_ns }| {
            links.retain(|link| heard.contains_key(link));
            is_announced(address) && now_ns < *until_ns && !links.is_empty()
        });
        entries(moved) != before
    }

    pub(super) fn is_moved(&self, address: &IpAddr) -> bool {
        self.moved.contains_key(address)
    }

    /// Returns what the programs are to know, in ascending order.
    pub(super) fn entries(&self) -> Vec<MovedAddress> {
        let entries = |(address, Moved { links, until_ns }): (&IpAddr, &Moved)| {
            let (address, until_ns) = (*address, *until_ns);
            // An interface has one entry for an address.
            let by_interface: BTreeMap<_, _> = links.iter().copied().collect();
            let entry = move |(interface, mac)| MovedAddress { address, interface, mac, until_ns };
            by_interface.into_iter().map(entry)
        };
        self.moved.iter().flat_map(entries).collect()
    }

    fn forget_silent(&mut self, now: Instant) {
        self.heard.retain(|_, (_, last)| now.saturating_duration_since(*last) < SILENCE);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::daemon::kernel::announce::peers::HELLO;

    const BEFORE: NodeId = [2, 0, 0, 0, 0, 2];
    const STRANGER: NodeId = [2, 0, 0, 0, 0, 3];
    const LINK: Link = (4, [2, 0, 0, 0, 0, 9]);
    const START_NS: u64 = 1_000;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn last_bytes(moves: &Moves) -> Vec<u8> {
        let last = |entry: &MovedAddress| match entry.address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        moves.entries().iter().map(last).collect()
    }

    /// Two addresses that moved here from a node that serves.
    fn moved() -> (Moves, Instant) {
        let (mut moves, start) = (Moves::default(), Instant::now());
        moves.hear(BEFORE, LINK, start);
        (1..=2).for_each(|last| moves.begin(address(last), BEFORE, START_NS));
        (moves, start)
    }

    #[test]
    fn addresses_move_only_from_nodes_that_say_that_they_serve() {
        let (mut moves, _) = moved();
        moves.begin(address(3), STRANGER, START_NS);
        let (interface, mac) = LINK;
        let until_ns = START_NS + 3_600_000_000_000;
        let entry = |last| MovedAddress { address: address(last), interface, mac, until_ns };
        assert_eq!(moves.entries(), [entry(1), entry(2)]);
        assert!(moves.is_moved(&address(1)) && !moves.is_moved(&address(3)));
        moves.begin(address(2), STRANGER, START_NS);
        assert_eq!(last_bytes(&moves), [1], "it moved again, from a node that does not");
    }

    #[test]
    fn a_move_ends_with_the_other_node_the_announcement_or_the_hour() {
        let (mut moves, start) = moved();
        assert!(!moves.tick(|_| true, start + HELLO, START_NS));
        assert!(moves.tick(|moved| *moved == address(1), start + HELLO, START_NS), "not announced");
        assert_eq!(last_bytes(&moves), [1]);
        moves.hear(BEFORE, LINK, start + HELLO);
        assert!(!moves.tick(|_| true, start + SILENCE, START_NS), "it was heard again");
        assert!(moves.tick(|_| true, start + SILENCE + HELLO, START_NS), "silence");
        assert_eq!(last_bytes(&moves), [0; 0]);

        let (mut moves, start) = moved();
        let end_ns = moves.entries()[0].until_ns;
        assert!(!moves.tick(|_| true, start, end_ns - 1));
        assert!(moves.tick(|_| true, start, end_ns));
        assert_eq!(last_bytes(&moves), [0; 0]);
    }

    #[test]
    fn a_new_process_goes_on_with_the_moves_of_the_one_before() {
        let (before, start) = moved();
        let mut moves = Moves::default();
        moves.find(before.entries(), start);
        assert_eq!(moves.entries(), before.entries());
        assert!(!moves.tick(|_| true, start + HELLO, START_NS));
        moves.hear(BEFORE, LINK, start + HELLO);
        assert!(!moves.tick(|_| true, start + SILENCE, START_NS));
        assert!(moves.tick(|_| true, start + SILENCE + HELLO, START_NS));
    }

    #[test]
    fn strangers_beyond_the_limit_are_ignored() {
        let (mut moves, start) = moved();
        for number in 0..2 * Members::MAX {
            let [.., high, low] = number.to_be_bytes();
            moves.hear(STRANGER, (5, [2, 1, 0, 0, high, low]), start);
        }
        assert_eq!(moves.heard.len(), Members::MAX);
        moves.hear(BEFORE, LINK, start + HELLO);
        assert!(!moves.tick(|_| true, start + SILENCE, START_NS), "a known one");
    }
}
