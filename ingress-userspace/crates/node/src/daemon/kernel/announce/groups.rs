//! Joins the solicited-node groups of held IPv6 addresses. An interface would otherwise not receive the questions for
//! them, or a switch not forward them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv6Addr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tracing::debug;

/// Memberships of one socket: the kernel limits their memory by socket (`net.core.optmem_max`, 20 KiB in old kernels).
const PER_SOCKET: usize = 256;

/// A group and the index of an interface.
type Membership = (Ipv6Addr, u32);

/// The memberships, which end with the process.
#[derive(Debug, Default)]
pub(super) struct Groups {
    sockets: Vec<Socket>,
    /// With the index of its socket.
    joined: BTreeMap<Membership, usize>,
}

// === impl Groups ===

impl Groups {
    /// Joins exactly the groups of these addresses, on these interfaces.
    ///
    /// # Errors
    /// Fails if no socket can be opened, as on a node without IPv6.
    pub(super) fn replace<'a>(
        &mut self,
        addresses: impl Iterator<Item = &'a IpAddr>,
        interfaces: &BTreeSet<u32>,
    ) -> io::Result<()> {
        let groups: BTreeSet<_> = addresses.filter_map(solicited).collect();
        let wanted: BTreeSet<Membership> =
            groups.iter().flat_map(|group| interfaces.iter().map(|interface| (*group, *interface))).collect();
        self.joined.retain(|membership, socket| {
            let (group, interface) = membership;
            let stays = wanted.contains(membership);
            if !stays && let Some(socket) = self.sockets.get(*socket) {
                // The kernel has left the groups of an interface that is gone.
                let _gone = socket.leave_multicast_v6(group, *interface).is_err();
            }
            stays
        });
        for membership in wanted {
            if self.joined.contains_key(&membership) {
                continue;
            }
            let (group, interface) = membership;
            let index = self.with_room()?;
            match self.sockets[index].join_multicast_v6(&group, interface) {
                Ok(()) => {
                    self.joined.insert(membership, index);
                }
                // An interface may be without IPv6, as the ports of a bond are.
                Err(error) => debug!(%group, interface, %error, "cannot join the group of an address"),
            }
        }
        Ok(())
    }

    /// Returns `true` if no group is joined.
    pub(super) fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }

    /// Returns the index of a socket with room for a membership.
    fn with_room(&mut self) -> io::Result<usize> {
        let last = self.sockets.len().wrapping_sub(1);
        let taken = self.joined.values().filter(|socket| **socket == last).count();
        if self.sockets.is_empty() || taken >= PER_SOCKET {
            self.sockets.push(Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?);
        }
        Ok(self.sockets.len() - 1)
    }
}

/// Returns the group to which neighbours send questions for an address (RFC 4291, 2.7.1).
fn solicited(address: &IpAddr) -> Option<Ipv6Addr> {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(Ipv6Addr::from_bits(PREFIX | address.to_bits() & 0x00ff_ffff)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_go_to_the_group_of_the_last_24_bits() {
        let group = |address: &str| solicited(&address.parse().expect("an address")).map(|group| group.to_string());
        assert_eq!(group("2001:db8::1:2345:6789").as_deref(), Some("ff02::1:ff45:6789"));
        assert_eq!(group("192.0.2.1"), None);
    }

    #[test]
    fn more_groups_than_one_socket_has_room_for_are_joined_and_left() {
        const LOOPBACK: u32 = 1;
        let addresses: Vec<IpAddr> =
            (1..=600_u128).map(|n| Ipv6Addr::from_bits(0x2001_0db8 << 96 | n).into()).collect();
        let mut groups = Groups::default();
        groups.replace(addresses.iter(), &[LOOPBACK].into()).expect("a socket");
        assert_eq!((groups.joined.len(), groups.sockets.len()), (600, 3));
        groups.replace(addresses[..5].iter(), &[LOOPBACK].into()).expect("a socket");
        assert_eq!(groups.joined.len(), 5);
        groups.replace([].iter(), &[LOOPBACK].into()).expect("a socket");
        assert!(groups.joined.is_empty());
    }
}
