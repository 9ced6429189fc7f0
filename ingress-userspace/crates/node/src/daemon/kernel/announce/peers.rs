//! The nodes on the same links that announce addresses of the same pool, and the datagrams by which they hear of each
//! other.
//!
//! A node that serves says so every 200 ms, to a multicast group that no router forwards. Nodes that were silent for a
//! second are gone. The sockets receive only datagrams to the groups, so that senders beyond the link cannot take part.
//! Any program on the link can, without a privilege, unless the nodes share a key ([`super::auth`]) or a firewall lets the
//! port in from nodes only.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    task::Poll,
    time::Duration,
};

use nix::errno::Errno;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::{io::ReadBuf, net::UdpSocket, time::Instant};
use tracing::{debug, warn};

use ingress_control::NODES_PORT;

use super::{auth::LONGEST_SIGNED, choice::NodeId, messages::Hello};

/// Interval of the datagrams of a node.
pub(in crate::daemon::kernel) const HELLO: Duration = Duration::from_millis(200);
/// Silence after which a node is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// Groups of one link, both for experiments (RFC 3692-style numbers of IANA's registries).
const GROUP4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 254);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x114);

/// The nodes heard lately. Pure; the time is an argument.
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<NodeId, Instant>);

/// A node's interface, from which it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) index: u32,
    /// An IPv4 address of it.
    pub(super) v4: Option<Ipv4Addr>,
}

/// Sockets on the groups.
#[derive(Debug)]
pub(super) struct Sockets {
    v4: UdpSocket,
    /// Sockets by the index of the interface: Linux binds a socket to a group of the link only with an interface.
    v6: BTreeMap<u32, UdpSocket>,
    /// Places whose group is joined, by a family at least.
    places: BTreeSet<Place>,
    /// Places whose group could not be joined yet.
    missing: BTreeSet<Place>,
    /// Whether a warning about missing places was logged.
    is_warned: bool,
    /// Whether a warning about a family of a place was logged.
    is_half_warned: bool,
    /// The number of datagrams, so that a busy socket does not starve the others.
    turn: usize,
}

// === impl Members ===

impl Members {
    /// Maximum number of nodes that are heard: datagrams without a key could name ever more nodes.
    pub(super) const MAX: usize = 256;

    /// Takes note of a datagram. Returns `false` for one of a node beyond [`Members::MAX`], which is ignored.
    pub(super) fn hear(&mut self, hello: &Hello, now: Instant) -> bool {
        let Self(heard) = self;
        if hello.leaves {
            heard.remove(&hello.node);
            return true;
        }
        let has_room = has_room(heard, &hello.node, |last| is_silent(*last, now));
        if has_room {
            heard.insert(hello.node, now);
        }
        has_room
    }

    /// Forgets nodes that are silent, and returns the others.
    pub(super) fn present(&mut self, now: Instant) -> impl Iterator<Item = NodeId> {
        let Self(heard) = self;
        heard.retain(|_, last| !is_silent(*last, now));
        heard.keys().copied()
    }
}

/// Returns whether a node is gone that was heard `last` then.
pub(super) fn is_silent(last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) >= SILENCE
}

/// Returns whether there is room for `key` among those heard. Forgets those that are gone if there is none otherwise.
pub(super) fn has_room<K: Ord, V>(heard: &mut BTreeMap<K, V>, key: &K, is_gone: impl Fn(&V) -> bool) -> bool {
    if heard.len() >= Members::MAX && !heard.contains_key(key) {
        heard.retain(|_, value| !is_gone(value));
    }
    heard.len() < Members::MAX || heard.contains_key(key)
}

// === impl Sockets ===

impl Sockets {
    /// Opens the socket of IPv4. Those of IPv6 follow with the interfaces.
    ///
    /// # Errors
    /// Fails if another program uses the port.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            v4: open(SocketAddrV4::new(GROUP4, NODES_PORT).into())?,
            v6: BTreeMap::new(),
            places: BTreeSet::new(),
            missing: BTreeSet::new(),
            is_warned: false,
            is_half_warned: false,
            turn: 0,
        })
    }

    /// Listens on these interfaces, and speaks from them. [`Sockets::join`] tries those again that fail.
    pub(super) fn follow(&mut self, places: BTreeSet<Place>) {
        self.v6.retain(|index, _| places.iter().any(|place| place.index == *index));
        self.places.retain(|place| places.contains(place));
        self.missing = places.difference(&self.places).copied().collect();
        self.join();
    }

    /// Joins the groups of the nodes where they are missing.
    pub(super) fn join(&mut self) {
        for place in std::mem::take(&mut self.missing) {
            match self.joined(place.index) {
                Ok(()) => {
                    self.places.insert(place);
                }
                Err(error) => {
                    if !self.is_warned {
                        let Place { index, v4: _ } = place;
                        warn!(index, %error, "cannot hear other nodes on this interface, trying again");
                        self.is_warned = true;
                    }
                    self.missing.insert(place);
                }
            }
        }
        // IPv6 may come later.
        for Place { index, v4: _ } in self.places.clone() {
            let _joined = self.joined_v6(index).is_ok();
        }
    }

    /// Joins the groups on an interface. One family is enough.
    fn joined(&mut self, index: u32) -> io::Result<()> {
        let v6 = self.joined_v6(index);
        let interface = InterfaceIndexOrAddress::Index(index);
        match socket2::SockRef::from(&self.v4).join_multicast_v4_n(&GROUP4, &interface) {
            Ok(()) => Ok(()),
            // The kernel forgets a membership only with its interface.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
            Err(error) => {
                debug!(index, %error, "cannot join the group of nodes");
                v6.or(Err(error))
            }
        }
    }

    /// Opens the socket of an interface on the group of IPv6.
    fn joined_v6(&mut self, index: u32) -> io::Result<()> {
        if self.v6.contains_key(&index) {
            return Ok(());
        }
        let opened = open(SocketAddrV6::new(GROUP6, NODES_PORT, 0, index).into());
        match opened.and_then(|socket| socket.join_multicast_v6(&GROUP6, index).map(|()| socket)) {
            Ok(socket) => {
                self.v6.insert(index, socket);
                Ok(())
            }
            Err(error) => {
                if !self.is_half_warned && !is_without_v6(&error) {
                    warn!(
                        index,
                        %error,
                        port = NODES_PORT,
                        "cannot hear other nodes over IPv6 on this interface, trying again; end other programs that use \
                         this UDP port, and check the limit of open files"
                    );
                    self.is_half_warned = true;
                }
                Err(error)
            }
        }
    }

    /// Says on each interface what `message` returns for its index, once for each family. Failures are those of interfaces
    /// that come or go, and the next time is soon.
    pub(super) fn say(&self, mut message: impl FnMut(u32) -> Option<Vec<u8>>) {
        for Place { index, v4: address } in &self.places {
            if let Some(address) = address
                && let Some(bytes) = message(*index)
            {
                let to = SocketAddrV4::new(GROUP4, NODES_PORT).into();
                let sent = socket2::SockRef::from(&self.v4)
                    .set_multicast_if_v4(address)
                    .and_then(|()| self.v4.try_send_to(&bytes, to));
                if let Err(error) = sent {
                    debug!(index, %error, "cannot speak to the group of nodes");
                }
            }
            if let Some(socket) = self.v6.get(index)
                && let Some(bytes) = message(*index)
            {
                let to = SocketAddrV6::new(GROUP6, NODES_PORT, 0, *index).into();
                if let Err(error) = socket.try_send_to(&bytes, to) {
                    debug!(index, %error, "cannot speak to the group of nodes");
                }
            }
        }
    }

    /// Waits for the next datagram, and returns its length. Returns the index of the interface that received it, too.
    /// Cancel-safe. A longer datagram fills `bytes`, which have room for a byte more than those of this protocol.
    ///
    /// The index is missing with IPv4 on a node with several interfaces, which all have the same socket.
    pub(super) async fn hear(&mut self, bytes: &mut [u8; LONGEST_SIGNED + 1]) -> (Option<u32>, usize) {
        self.turn = self.turn.wrapping_add(1);
        let Self { v4, v6, turn, places, .. } = &*self;
        let only = if places.len() == 1 { places.first().map(|place| place.index) } else { None };
        let count = v6.len() + 1;
        let of_v6 = || v6.iter().map(|(index, socket)| (Some(*index), socket));
        let sockets = || of_v6().chain([(only, v4)]).cycle().skip(turn % count).take(count);
        std::future::poll_fn(|context| {
            for (index, socket) in sockets() {
                loop {
                    let mut buffer = ReadBuf::new(bytes);
                    match socket.poll_recv_from(context, &mut buffer) {
                        Poll::Pending => break,
                        Poll::Ready(Ok(_)) => return Poll::Ready((index, buffer.filled().len())),
                        // Of an earlier datagram, such as a refusal, or of an interface that goes.
                        Poll::Ready(Err(error)) => debug!(%error, "cannot hear the group of nodes"),
                    }
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns `true` for the error of a kernel or an interface without IPv6, or of an interface that is gone.
fn is_without_v6(error: &io::Error) -> bool {
    let codes = [Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::ENODEV];
    error.raw_os_error().is_some_and(|code| codes.contains(&Errno::from_raw(code)))
}

/// Opens a socket that receives what is sent to `group`, and nothing that is sent to an address of this node.
fn open(group: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP))?;
    // The processes of an update overlap.
    socket.set_reuse_address(true)?;
    match group {
        SocketAddr::V4(_) => {
            socket.set_multicast_loop_v4(false)?;
            // Otherwise datagrams of groups that other programs joined would arrive as well.
            socket.set_multicast_all_v4(false)?;
        }
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_multicast_loop_v6(false)?;
        }
    }
    socket.set_nonblocking(true)?;
    socket.bind(&group.into())?;
    UdpSocket::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Hello = Hello { pool: 7, node: [2, 0, 0, 0, 0, 1], leaves: false };

    #[test]
    fn silent_and_leaving_nodes_are_gone() {
        let (mut members, start) = (Members::default(), Instant::now());
        let other = Hello { node: [2, 0, 0, 0, 0, 2], ..HERE };
        members.hear(&HERE, start);
        members.hear(&other, start + HELLO);
        let present =
            |members: &mut Members, after| members.present(start + after).map(|node| node[5]).collect::<Vec<_>>();
        assert_eq!(present(&mut members, HELLO), [1, 2]);
        assert_eq!(present(&mut members, SILENCE), [2]);
        members.hear(&Hello { leaves: true, ..other }, start + SILENCE);
        assert_eq!(present(&mut members, SILENCE), [0; 0]);
    }

    #[test]
    fn nodes_beyond_the_limit_are_ignored_until_others_are_gone() {
        let (mut members, start) = (Members::default(), Instant::now());
        let of = |number: usize| {
            let [.., high, low] = number.to_be_bytes();
            Hello { node: [2, 0, 0, 0, high, low], ..HERE }
        };
        assert!((0..Members::MAX).all(|number| members.hear(&of(number), start)));
        assert!(!members.hear(&of(Members::MAX), start + HELLO));
        assert!(members.hear(&of(7), start + HELLO), "a known one");
        assert_eq!(members.present(start + HELLO).count(), Members::MAX);
        assert!(members.hear(&of(Members::MAX), start + SILENCE), "the others are silent");
        assert_eq!(members.present(start + SILENCE).count(), 2);
    }

    #[tokio::test]
    async fn places_are_tried_again_until_their_group_is_joined() {
        const LOOPBACK: Place = Place { index: 1, v4: Some(Ipv4Addr::LOCALHOST) };
        const GONE: Place = Place { index: u32::MAX >> 1, v4: None };
        let mut sockets = Sockets::open().expect("sockets");
        sockets.follow([LOOPBACK, GONE].into());
        let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
        assert_eq!(sockets.v6.contains_key(&LOOPBACK.index), has_v6, "IPv6 needs an interface to bind");
        assert_eq!((&sockets.places, &sockets.missing), (&[LOOPBACK].into(), &[GONE].into()));
        sockets.join();
        assert_eq!((&sockets.places, &sockets.missing), (&[LOOPBACK].into(), &[GONE].into()));
        // The group stays joined with another address of the interface.
        let other = Place { v4: None, ..LOOPBACK };
        sockets.follow([other].into());
        assert_eq!((&sockets.places, &sockets.missing), (&[other].into(), &[].into()));
        assert_eq!(sockets.v6.contains_key(&LOOPBACK.index), has_v6);
        sockets.follow(BTreeSet::new());
        assert!(sockets.v6.is_empty(), "interfaces that are gone have no socket");
    }
}
