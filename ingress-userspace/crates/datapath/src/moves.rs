//! Addresses that another node announced before this one: where the programs send packets of its connections.

use std::net::{IpAddr, Ipv6Addr};

use ingress_common::{Move, MoveKey, map::MOVES_MAX};

use super::{Datapath, error::Error, shared::octets, sys};

/// An address that moved to this node, and the node that announced it before, on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MovedAddress {
    pub address: IpAddr,
    /// Index of the interface of this node on the link.
    pub interface: u32,
    /// Ethernet address of the other node there.
    pub mac: [u8; 6],
    /// Time by [`monotonic_ns`] from which packets stay here.
    pub until_ns: u64,
}

/// Returns the time on `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    sys::now_ns()
}

impl Datapath {
    /// Sets the moved addresses to exactly these. They have an effect for held addresses that say so
    /// ([`HeldAddress::is_moved`](super::HeldAddress::is_moved)).
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`], or with [`Error::Kernel`], after which some of the changes may be made.
    pub fn set_moves(&self, moves: &[MovedAddress]) -> Result<(), Error> {
        if moves.len() > MOVES_MAX as usize {
            return Err(Error::TooMany { what: "moved addresses", count: moves.len(), max: MOVES_MAX });
        }
        let entry = |&MovedAddress { address, interface, mac, until_ns }: &MovedAddress| {
            let key = MoveKey { addr: octets(address), nic: interface, pad: 0 };
            (key, Move { mac, pad: [0; 2], until_ns })
        };
        self.shared.moves.replace(&moves.iter().map(entry).collect::<Vec<_>>())
    }

    /// Returns the moved addresses, in ascending order.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn moves(&self) -> Result<Vec<MovedAddress>, Error> {
        let moved = |(MoveKey { addr, nic, pad: _ }, Move { mac, pad: _, until_ns })| {
            let address = Ipv6Addr::from(addr).to_canonical();
            MovedAddress { address, interface: nic, mac, until_ns }
        };
        let mut moves: Vec<_> = self.shared.moves.entries()?.into_iter().map(moved).collect();
        moves.sort_unstable();
        Ok(moves)
    }
}
