//! The waiting room of first packets. A first packet costs far more than a packet of an open connection: keys, a token,
//! or a handshake. So packets of open connections pass by, and first packets have a bounded room and a bounded share of the
//! worker's time. A flood fills the room, and what does not fit is dropped before any cryptography. Pure.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{
    admit::network,
    ids::{Owner, destination},
    socket::Datagram,
};

/// Datagrams of each class that wait.
const ROOM: usize = 256;

/// Datagrams of one network in each class, once half of its room is taken.
const OF_NETWORK: usize = ROOM / 4;

/// Time for first packets in one turn of the driver. One of them is taken, however long that lasts.
pub(crate) const TURN: Duration = Duration::from_millis(1);

/// Time that first packets without a handshake may take at once.
const BURST: Duration = Duration::from_millis(5);
/// Time that gives a unit of [`BURST`] back. So first packets have a quarter of a busy worker's time.
const REFILL: u32 = 4;

/// The class of a datagram. Each class has its own room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A packet of a connection, or one that costs little.
    Open,
    /// An Initial packet to an ID that this node has issued: the answer to a Retry, or the rest of a handshake.
    Returning,
    /// A packet of another version.
    OtherVersion,
    /// A packet of another version whose source is its destination: the node asks its own port, also in a flood of the
    /// others. By IPv4, the kernel drops such packets that come from elsewhere. By IPv6 it does not, so a flood that forges
    /// this source fills the room, and the node may find its port silent.
    OfNode,
    /// Any other packet with a long header.
    Fresh,
}

/// The classes that wait, in the order of their turns.
const WAITING: [Class; 4] = [Class::Returning, Class::OtherVersion, Class::OfNode, Class::Fresh];

impl Class {
    /// Returns the class of a datagram whose destination is of `owner`; `is_of_node` tells that source and destination are
    /// one address. Clients can forge what this reads, except for the destination: they need a packet from this node to
    /// know one.
    pub(crate) fn of(datagram: &[u8], owner: Owner, is_of_node: bool) -> Self {
        const LONG: u8 = 0x80;
        /// The type of Handshake packets, in version 1.
        const HANDSHAKE: u8 = 0x20;
        /// Smaller datagrams begin nothing (RFC 9000, sections 5.2.2 and 14.1). The endpoint drops them before any
        /// cryptography.
        const INITIAL_MIN: usize = 1_200;
        let Some((first, rest)) = datagram.split_first() else { return Self::Open };
        match owner {
            _ if first & LONG == 0 => Self::Open,
            Owner::Unknown if datagram.len() < INITIAL_MIN => Self::Open,
            _ if !rest.starts_with(&[0, 0, 0, 1]) && is_of_node => Self::OfNode,
            _ if !rest.starts_with(&[0, 0, 0, 1]) => Self::OtherVersion,
            Owner::Unknown => Self::Fresh,
            _ if first & 0x30 == HANDSHAKE => Self::Open,
            _ => Self::Returning,
        }
    }
}

/// Returns the owner of a datagram's destination, as `owner` knows it.
pub(crate) fn owner_of(datagram: &[u8], owner: impl FnOnce(&[u8; crate::ID_LENGTH]) -> Owner) -> Owner {
    destination(datagram).map_or(Owner::Unknown, owner)
}

/// First packets that wait.
#[derive(Debug)]
pub(crate) struct Firsts {
    /// The rooms, in the order of `WAITING`.
    rooms: [Room; WAITING.len()],
    /// The room whose turn it is.
    next: usize,
    /// Time that was spent without a handshake as the result and is not given back, as of `counted`.
    spent: Duration,
    counted: Instant,
    is_resting: bool,
}

/// Datagrams of one class. Clients choose their addresses, so the hash is keyed.
#[derive(Debug, Default)]
struct Room {
    datagrams: VecDeque<Datagram>,
    of_network: HashMap<IpAddr, usize>,
}

impl Room {
    /// Returns whether there was room.
    fn push(&mut self, remote: IpAddr, make: impl FnOnce() -> Datagram) -> bool {
        if self.datagrams.len() >= ROOM {
            return false;
        }
        let count = self.of_network.entry(network(remote)).or_default();
        if *count >= OF_NETWORK && self.datagrams.len() >= ROOM / 2 {
            return false;
        }
        *count += 1;
        self.datagrams.push_back(make());
        true
    }

    fn pop(&mut self) -> Option<Datagram> {
        let datagram = self.datagrams.pop_front()?;
        if let Entry::Occupied(mut entry) = self.of_network.entry(network(datagram.remote.ip())) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
        Some(datagram)
    }
}

impl Firsts {
    pub(crate) fn new(now: Instant) -> Self {
        Self { rooms: Default::default(), next: 0, spent: Duration::ZERO, counted: now, is_resting: false }
    }

    /// Keeps a datagram of `remote` until its turn; `make` makes it. Returns whether there was room.
    pub(crate) fn push(&mut self, class: Class, remote: IpAddr, make: impl FnOnce() -> Datagram) -> bool {
        let mut rooms = self.rooms.iter_mut().zip(WAITING);
        rooms.find(|(_, waiting)| *waiting == class).is_some_and(|(room, _)| room.push(remote, make))
    }

    /// Returns the datagram whose turn it is, with its class: the classes take turns.
    pub(crate) fn pop(&mut self) -> Option<(Class, Datagram)> {
        for _ in WAITING {
            let (at, class) = (self.next, WAITING[self.next]);
            self.next = (at + 1) % WAITING.len();
            if let Some(datagram) = self.rooms[at].pop() {
                return Some((class, datagram));
            }
        }
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rooms.iter().all(|room| room.datagrams.is_empty())
    }

    /// Spends the time of a datagram that began no handshake and was of no connection.
    pub(crate) fn spend(&mut self, time: Duration) {
        // The time of a packet may be that of another process, so the debt is bounded.
        self.spent = (self.spent + time).min(BURST * 2);
        self.is_resting |= self.spent >= BURST;
    }

    /// Returns when the next datagram may be taken; `None` if none waits.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        // The driver may ask with the beginning of its turn. Time is given back once.
        let now = now.max(self.counted);
        self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.counted) / REFILL);
        self.counted = now;
        // A worker wakes for a whole turn of them, and not for each.
        let above = self.spent.saturating_sub(BURST - TURN);
        self.is_resting &= !above.is_zero();
        let rest = if self.is_resting { above * REFILL } else { Duration::ZERO };
        (!self.is_empty()).then(|| now + rest)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use bytes::BytesMut;

    use super::*;

    const LENGTH: usize = crate::ID_LENGTH;

    fn datagram(number: usize) -> Datagram {
        let address = Ipv4Addr::from_bits(0xcb00_7100 + u32::try_from(number).expect("small"));
        Datagram { remote: SocketAddr::from((address, 1)), local: None, ecn: None, data: BytesMut::new() }
    }

    fn push(firsts: &mut Firsts, class: Class, source: usize) -> bool {
        let datagram = datagram(source);
        firsts.push(class, datagram.remote.ip(), || datagram)
    }

    #[test]
    fn packets_of_open_connections_do_not_wait() {
        let long = |kind: u8, version: u32| {
            let length = u8::try_from(LENGTH).expect("small");
            let mut datagram = [&[0xc0 | kind][..], &version.to_be_bytes(), &[length], &[9; LENGTH]].concat();
            datagram.resize(1_200, 0);
            datagram
        };
        let short = [&[0x40][..], &[9; LENGTH]].concat();
        let (initial, zero_rtt, handshake) = (long(0, 1), long(0x10, 1), long(0x20, 1));
        for (datagram, owner, expected) in [
            (&short, Owner::Own, Class::Open),
            (&short, Owner::Unknown, Class::Open),
            (&handshake, Owner::Own, Class::Open),
            (&initial, Owner::Own, Class::Returning),
            (&initial, Owner::Gone, Class::Returning),
            (&zero_rtt, Owner::Own, Class::Returning),
            // Their types have other meanings.
            (&long(0x20, 2), Owner::Own, Class::OtherVersion),
            (&long(0, 0), Owner::Unknown, Class::OtherVersion),
            (&initial, Owner::Unknown, Class::Fresh),
            (&handshake, Owner::Unknown, Class::Fresh),
            (&initial[..1_199].to_vec(), Owner::Unknown, Class::Open),
            (&Vec::new(), Owner::Unknown, Class::Open),
        ] {
            assert_eq!(Class::of(datagram, owner, false), expected, "{datagram:?} {owner:?}");
            let expected = if expected == Class::OtherVersion { Class::OfNode } else { expected };
            assert_eq!(Class::of(datagram, owner, true), expected, "{datagram:?} {owner:?}");
            let found = owner_of(datagram, |_| owner);
            assert_eq!(found, if datagram.is_empty() { Owner::Unknown } else { owner });
        }
    }

    #[test]
    fn a_flood_leaves_room_to_other_networks_and_other_classes() {
        let mut firsts = Firsts::new(Instant::now());
        let taken = |firsts: &mut Firsts, class, sources: &mut dyn Iterator<Item = usize>| {
            sources.filter(|source| push(firsts, class, *source)).count()
        };
        assert_eq!(taken(&mut firsts, Class::Fresh, &mut std::iter::repeat_n(0, 1_000)), ROOM / 2);
        assert!(push(&mut firsts, Class::Fresh, 1));
        assert_eq!(taken(&mut firsts, Class::Fresh, &mut (0..1_000)), ROOM / 2 - 1);
        assert!(!push(&mut firsts, Class::Fresh, 2_000));
        let others = [Class::Returning, Class::OtherVersion, Class::OfNode];
        assert!(others.iter().all(|class| push(&mut firsts, *class, 2_000)));
        // The classes take turns.
        let first = [(); WAITING.len()].map(|()| firsts.pop().expect("a datagram").0);
        assert!(others.iter().all(|class| first.contains(class)), "{first:?}");
        let rest = std::iter::from_fn(|| firsts.pop()).count();
        assert_eq!(rest, ROOM - 1);
        assert!(firsts.rooms.iter().all(|room| room.of_network.is_empty()));
    }

    #[test]
    fn first_packets_without_handshakes_have_a_quarter_of_the_time() {
        let mut now = Instant::now();
        let begun = now;
        let mut firsts = Firsts::new(now);
        assert_eq!(firsts.due(now), None);
        let mut spent = Duration::ZERO;
        while now - begun < Duration::from_secs(1) {
            assert!(push(&mut firsts, Class::Fresh, 0));
            let turn = now;
            let due = firsts.due(now).expect("it waits");
            if due > now {
                now = due;
            }
            assert!(firsts.pop().is_some());
            let time = Duration::from_micros(100);
            firsts.spend(time);
            (now, spent) = (now + time, spent + time);
            // The driver asks again with the beginning of its turn.
            assert_eq!(firsts.due(turn), None);
        }
        let most = BURST + Duration::from_millis(250);
        assert!(spent <= most + TURN && spent >= most / 2, "{spent:?}");
    }
}
