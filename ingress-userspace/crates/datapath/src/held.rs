//! The addresses of the node, and those that it holds together with other nodes: only one of these answers questions for
//! the link-layer address.

use std::net::{IpAddr, Ipv6Addr};

use ingress_common::{
    NicMac, NodeAddr,
    map::{NIC_MACS_MAX, NODE_ADDRS_MAX},
    steer::{ADDR_ANNOUNCED, ADDR_HELD, ADDR_MOVED},
};

use super::{Datapath, Maps, RunOptions, TestProgram, error::Error, shared::octets};

/// Size of the smallest Ethernet frame, without its checksum.
const FRAME_MIN: usize = 60;

/// An address that no interface has. The node accepts its packets by a local route, which is the caller's matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldAddress {
    pub address: IpAddr,
    /// Whether the programs answer questions for its link-layer address. Otherwise they drop the questions, so that the
    /// stack does not answer.
    pub is_announced: bool,
    /// Whether another node announced it before and may have connections: their packets are sent there
    /// ([`Datapath::set_moves`]). Only for an announced address.
    pub is_moved: bool,
}

// === impl Datapath, Maps ===

impl Datapath {
    /// Same as [`Datapath::set_addresses`], with no held addresses.
    ///
    /// # Errors
    /// Fails like [`Datapath::set_addresses`].
    pub fn set_node_addrs(&self, addrs: &[(IpAddr, u32)]) -> Result<(), Error> {
        self.set_addresses(addrs, &[])
    }

    /// Sets the node's addresses, with the indices of their interfaces, and its held addresses, to exactly these.
    /// Addresses that stay are never absent meanwhile. An address of an interface is not held.
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`], or with [`Error::Kernel`], after which some of the changes may be made.
    pub fn set_addresses(&self, addrs: &[(IpAddr, u32)], held: &[HeldAddress]) -> Result<(), Error> {
        /// The kernel gives this number to the loopback interface, on which local routes are.
        const LOOPBACK: u32 = 1;
        let own = addrs.iter().map(|&(addr, ifindex)| (octets(addr), NodeAddr { ifindex, flags: 0 }));
        let is_own = |address: &IpAddr| addrs.iter().any(|(own, _)| own == address);
        let held = held.iter().filter(|held| !is_own(&held.address)).map(|held| {
            let announced = if held.is_announced { ADDR_ANNOUNCED } else { 0 };
            let moved = if held.is_announced && held.is_moved { ADDR_MOVED } else { 0 };
            let flags = ADDR_HELD | announced | moved;
            (octets(held.address), NodeAddr { ifindex: LOOPBACK, flags })
        });
        let wanted: Vec<_> = own.chain(held).collect();
        if wanted.len() > NODE_ADDRS_MAX as usize {
            return Err(Error::TooMany { what: "node addresses", count: wanted.len(), max: NODE_ADDRS_MAX });
        }
        self.shared.maps.node_addrs.replace(&wanted)
    }

    /// Sets the Ethernet addresses of interfaces, by index, to exactly these. Interfaces without one answer no
    /// questions.
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`], or with [`Error::Kernel`], after which some of the changes may be made.
    pub fn set_macs(&self, macs: &[(u32, [u8; 6])]) -> Result<(), Error> {
        if macs.len() > NIC_MACS_MAX as usize {
            return Err(Error::TooMany { what: "Ethernet addresses", count: macs.len(), max: NIC_MACS_MAX });
        }
        let wanted: Vec<_> = macs.iter().map(|&(index, mac)| (index, NicMac { mac, pad: [0; 2] })).collect();
        self.shared.nic_macs.replace(&wanted)
    }

    /// Tells all neighbours on an interface that this node has an announced address now: with an ARP reply to everybody,
    /// or an unsolicited neighbour advertisement. The program is run on a question whose answer is that frame, and the
    /// driver sends it. Counts as [`ingress_common::Total::Announced`].
    ///
    /// # Errors
    /// Fails if the driver cannot send frames of XDP, and before Linux 5.18.
    pub fn tell_neighbours(&self, address: IpAddr, interface: u32) -> Result<(), Error> {
        let frame = question_for_all(address);
        self.test_run(TestProgram::Ingress, RunOptions { frame: &frame, repeat: 1, live: Some(interface) }).map(drop)
    }
}

/// Returns the question that everybody would ask: its answer goes to all.
fn question_for_all(address: IpAddr) -> Vec<u8> {
    /// Broadcast, as the sender to whom the program answers.
    const ETHERNET: [u8; 12] = [0xff; 12];
    let mut frame = ETHERNET.to_vec();
    match address {
        IpAddr::V4(address) => {
            // RFC 826: a request by a sender without an IPv4 address.
            frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([0xff; 6]);
            frame.extend([0; 10]);
            frame.extend(address.octets());
            frame.resize(FRAME_MIN, 0);
        }
        IpAddr::V6(address) => {
            // RFC 4861, 4.3: a solicitation by a sender without an IPv6 address, with room for the option of the answer.
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
            frame.extend([0; 32]);
            frame.extend([135, 0, 0, 0, 0, 0, 0, 0]);
            frame.extend(address.octets());
            frame.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        }
    }
    frame
}

impl Maps {
    /// Returns the held addresses, in ascending order.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn held_addresses(&self) -> Result<Vec<HeldAddress>, Error> {
        let held = |(octets, NodeAddr { ifindex: _, flags }): ([u8; 16], NodeAddr)| {
            let address = Ipv6Addr::from(octets).to_canonical();
            let (is_announced, is_moved) = (flags & ADDR_ANNOUNCED != 0, flags & ADDR_MOVED != 0);
            (flags & ADDR_HELD != 0).then_some(HeldAddress { address, is_announced, is_moved })
        };
        let mut addresses: Vec<_> = self.node_addrs()?.into_iter().filter_map(held).collect();
        addresses.sort_unstable();
        Ok(addresses)
    }
}
