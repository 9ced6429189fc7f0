//! Addresses that moved to this node while the node before serves on: where packets of its connections go. Pure; the time is
//! an argument.
//!
//! ```text
//! choice ── address, node before ──> Moves ── entries ──> moves, node_addrs ──> programs forward
//! other nodes ── "serves" ─────────────┘
//! ```
//!
//! Without a key, the messages are not authenticated. A node believes the first one of several that contradict each other.
//!
//! An entry ends when the other node is silent for a second, because it has drained or died, when this node no longer
//! announces the address, and after [`MOVE_NS`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ingress_common::{map::MOVES_MAX, steer::MOVE_NS};
use ingress_datapath::MovedAddress;
use tokio::time::Instant;

use super::{
    choice::NodeId,
    peers::{has_room, is_silent},
};
use crate::node::Mac;

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
    /// Takes note of a message. Ignored are those of more nodes than can take part, those with the address of a group
    /// or none, and those that contradict a node that is not silent on the same interface: the first one counts.
    pub(super) fn hear(&mut self, node: NodeId, link: Link, now: Instant) {
        let (interface, mac) = link;
        if is_group(mac) || mac == Mac::default() {
            return;
        }
        let mut others = self.heard.range((interface, Mac::default())..=(interface, [u8::MAX; 6]));
        let contradicts = |(&(_, other_mac), &(other, last)): (&Link, &(Option<NodeId>, Instant))| {
            let is_other =
                if other_mac == mac { other.is_some_and(|other| other != node) } else { other == Some(node) };
            is_other && !is_silent(last, now)
        };
        if others.any(contradicts) {
            return;
        }
        if has_room(&mut self.heard, &link, |(_, last)| is_silent(*last, now)) {
            self.heard.insert(link, (Some(node), now));
        }
    }

    /// Goes on with what another process of this node forwards.
    pub(super) fn find(&mut self, found: Vec<MovedAddress>, now: Instant) {
        self.moved.clear();
        for MovedAddress { address, interface, mac, until_ns } in found {
            self.heard.entry((interface, mac)).or_insert((None, now));
            let moved = self.moved.entry(address).or_insert_with(|| Moved { links: BTreeSet::new(), until_ns });
            moved.links.insert((interface, mac));
        }
    }

    /// Returns the nodes that serve.
    pub(super) fn serving(&self, now: Instant) -> impl Iterator<Item = NodeId> {
        let lately = self.heard.values().filter(move |(_, last)| !is_silent(*last, now));
        lately.filter_map(|(node, _)| *node)
    }

    /// Takes note that this node announces an address from now on, in place of a node.
    pub(super) fn begin(&mut self, address: IpAddr, before: NodeId, now_ns: u64) {
        let links: BTreeSet<_> =
            self.heard.iter().filter(|(_, (node, _))| *node == Some(before)).map(|(link, _)| *link).collect();
        if links.is_empty() {
            self.moved.remove(&address);
            return;
        }
        self.moved.insert(address, Moved { links, until_ns: now_ns.saturating_add(MOVE_NS) });
    }

    /// Ends what is over. Returns whether an entry has ended.
    pub(super) fn tick(&mut self, is_announced: impl Fn(&IpAddr) -> bool, now: Instant, now_ns: u64) -> bool {
        let Self { heard, moved } = self;
        heard.retain(|_, (_, last)| !is_silent(*last, now));
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

    /// Returns what the programs are to know, in ascending order, as far as they have room.
    pub(super) fn entries(&self) -> Vec<MovedAddress> {
        let entries = |(address, Moved { links, until_ns }): (&IpAddr, &Moved)| {
            let (address, until_ns) = (*address, *until_ns);
            // An interface has one entry for an address.
            let by_interface: BTreeMap<_, _> = links.iter().copied().collect();
            let entry = move |(interface, mac)| MovedAddress { address, interface, mac, until_ns };
            by_interface.into_iter().map(entry)
        };
        self.moved.iter().flat_map(entries).take(MOVES_MAX as usize).collect()
    }
}

/// Returns `true` for the Ethernet address of a group, also for that of all machines (IEEE 802, I/G bit).
const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::daemon::kernel::announce::peers::{HELLO, Members, SILENCE};

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
    fn packets_go_to_no_group() {
        let (mut moves, start) = (Moves::default(), Instant::now());
        for mac in [[0xff; 6], [0; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [3, 0, 0, 0, 0, 9]] {
            moves.hear(BEFORE, (4, mac), start);
            moves.begin(address(1), BEFORE, START_NS);
            assert_eq!(last_bytes(&moves), [0; 0], "{mac:?}");
        }
        assert_eq!(moves.heard.len(), 0);
    }

    #[test]
    fn the_first_of_two_contradicting_messages_counts() {
        let (interface, mac) = LINK;
        let elsewhere = [2, 0, 0, 0, 0, 0xff];
        let links = |moves: &Moves| moves.heard.iter().map(|(link, (node, _))| (*link, *node)).collect::<Vec<_>>();
        let (mut moves, start) = moved();
        let before = links(&moves);
        moves.hear(BEFORE, (interface, elsewhere), start + HELLO);
        moves.hear(STRANGER, LINK, start + HELLO);
        assert_eq!(links(&moves), before, "the node elsewhere, and another node there");
        assert!(moves.tick(|_| true, start + SILENCE, START_NS), "they do not renew it, either");
        // The node may have another interface now, and speaks on others.
        let (mut moves, start) = moved();
        moves.hear(BEFORE, (interface, elsewhere), start + SILENCE);
        moves.hear(BEFORE, (interface + 1, mac), start);
        moves.tick(|_| true, start + SILENCE, START_NS);
        assert_eq!(links(&moves), [((interface, elsewhere), Some(BEFORE))]);
        moves.hear(STRANGER, LINK, start + SILENCE);
        assert_eq!(links(&moves).len(), 2, "its address is free");
    }

    #[test]
    fn nodes_serve_until_they_are_silent() {
        let (mut moves, start) = moved();
        moves.find(moves.entries(), start);
        moves.hear(STRANGER, (LINK.0, [2, 0, 0, 0, 0, 8]), start + HELLO);
        let serving = |now| moves.serving(now).collect::<BTreeSet<_>>();
        assert_eq!(serving(start + HELLO), [BEFORE, STRANGER].into());
        assert_eq!(serving(start + SILENCE), [STRANGER].into());
        assert_eq!(serving(start + SILENCE + HELLO), BTreeSet::new());
    }

    #[test]
    fn a_process_that_takes_the_node_back_forwards_what_the_one_between_did() {
        let (mut moves, start) = moved();
        let mut found = moves.entries();
        found.remove(0);
        moves.find(found, start);
        assert_eq!(last_bytes(&moves), [2]);
    }

    #[test]
    fn strangers_beyond_the_limit_are_ignored() {
        let (mut moves, start) = moved();
        for number in 0..2 * Members::MAX {
            let [.., high, low] = number.to_be_bytes();
            moves.hear([2, 2, 0, 0, high, low], (5, [2, 1, 0, 0, high, low]), start);
        }
        assert_eq!(moves.heard.len(), Members::MAX);
        moves.hear(BEFORE, LINK, start + HELLO);
        assert!(!moves.tick(|_| true, start + SILENCE, START_NS), "a known one");
    }
}
