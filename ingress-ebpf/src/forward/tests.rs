//! Every reason for which a packet stays, and the order of the questions.

use std::cell::Cell;

use ingress_common::{
    DenyRule, PortKey, PortRule, WorkerLoad,
    flow::{PROTO_UDP, v4_mapped},
    steer::ADDR_HELD,
};

use super::*;
use crate::parse::{ACK, SYN};

const NOW: u64 = 100_000_000_000;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];
const PREVIOUS: [u8; 6] = [2, 0, 0, 0, 0, 8];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ALL: u32 = ADDR_HELD | ADDR_ANNOUNCED | ADDR_MOVED;

/// A packet that is forwarded, unless a test changes something.
#[derive(Clone)]
struct Case {
    proto: u8,
    tcp_flags: u8,
    flags: u32,
    entry: Option<Move>,
    heartbeat_ns: u64,
    own: Option<[u8; 6]>,
    ethernet: Option<[[u8; 6]; 2]>,
    is_known: bool,
    /// Whether a socket in the state TIME_WAIT has the tuple.
    is_ended: bool,
    /// Number of lookups of a socket.
    lookups: Cell<u32>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            proto: PROTO_TCP,
            tcp_flags: ACK,
            flags: ALL,
            entry: Some(Move { mac: PREVIOUS, pad: [0; 2], until_ns: NOW + 1 }),
            heartbeat_ns: NOW,
            own: Some(OWN),
            ethernet: Some([OWN, ROUTER]),
            is_known: false,
            is_ended: false,
            lookups: Cell::new(0),
        }
    }
}

impl Node for Case {
    fn rule(&self, _: &PortKey) -> Option<PortRule> {
        unreachable!("the rule is known")
    }
    fn address_flags(&self, _: &[u8; 16]) -> Option<u32> {
        unreachable!("the flags are known")
    }
    fn deny_entry(&self, _: &[u8; 16]) -> Option<DenyRule> {
        unreachable!("the other node denies")
    }
    fn worker(&self, _: u32) -> Option<WorkerLoad> {
        unreachable!("no worker is chosen")
    }
    fn heartbeat_ns(&self) -> u64 {
        self.heartbeat_ns
    }
    fn now_ns(&self) -> u64 {
        NOW
    }
    fn cpu(&self) -> u32 {
        0
    }
}

impl Forwarder for Case {
    fn moved(&self, addr: &[u8; 16]) -> Option<Move> {
        assert_eq!(*addr, v4_mapped([192, 0, 2, 80]));
        self.entry
    }
    fn own_mac(&self) -> Option<[u8; 6]> {
        self.own
    }
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        let [to, from] = self.ethernet?;
        [to, from].concat().try_into().ok()
    }
    fn is_known(&self, _: &FlowKey, counts_ended: bool) -> bool {
        self.lookups.set(self.lookups.get() + 1);
        self.is_known || self.is_ended && counts_ended
    }
}

impl Case {
    fn forwarded(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        let flow = FlowKey {
            remote_addr: v4_mapped([198, 51, 100, 9]),
            local_addr: v4_mapped([192, 0, 2, 80]),
            remote_port_be: 40000_u16.to_be(),
            local_port_be: 80_u16.to_be(),
            proto: self.proto,
            pad: 0,
            pad_end: 0,
        };
        forwarded(self, self, self.flags, &Segment { flow, tcp_flags: self.tcp_flags, offset: 34 })
    }
}

#[test]
fn segments_of_unknown_connections_go_to_the_previous_holder() {
    let addresses = [PREVIOUS, OWN].concat();
    for tcp_flags in [ACK, RST, ACK | RST, SYN | ACK, 0] {
        let case = Case { tcp_flags, ..Case::default() };
        assert_eq!(case.forwarded().map(Vec::from), Some(addresses.clone()), "{tcp_flags:#x}");
    }
}

#[test]
fn connections_that_ended_before_the_move_are_not_known() {
    for (after, stays) in [(0, false), (OLD_TIME_WAIT_NS - 1, false), (OLD_TIME_WAIT_NS, true), (MOVE_NS - 1, true)] {
        let entry = Some(Move { mac: PREVIOUS, pad: [0; 2], until_ns: NOW + MOVE_NS - after });
        assert_eq!(Case { entry, is_ended: true, ..Case::default() }.forwarded().is_none(), stays, "{after} ns after");
        assert_eq!(Case { entry, is_known: true, ..Case::default() }.forwarded(), None, "{after} ns after, open");
        let reset = Case { entry, is_ended: true, tcp_flags: RST, ..Case::default() };
        assert_eq!(reset.forwarded(), None, "{after} ns after, a reset");
    }
}

#[test]
fn all_other_packets_stay() {
    let entry = |mac, until_ns| Some(Move { mac, pad: [0; 2], until_ns });
    let base = Case::default;
    let cases = [
        ("a request", Case { tcp_flags: SYN, ..base() }, 0),
        ("a datagram", Case { proto: PROTO_UDP, tcp_flags: 0, ..base() }, 0),
        ("an address that did not move", Case { flags: ADDR_HELD | ADDR_ANNOUNCED, ..base() }, 0),
        ("an address of another announcer", Case { flags: ADDR_HELD | ADDR_MOVED, ..base() }, 0),
        ("another interface", Case { entry: None, ..base() }, 0),
        ("the end of the entry", Case { entry: entry(PREVIOUS, NOW), ..base() }, 0),
        ("a process that hangs", Case { heartbeat_ns: NOW - HEARTBEAT_STALE_NS - 1, ..base() }, 0),
        ("a process that ended", Case { heartbeat_ns: 0, ..base() }, 0),
        ("an interface that is not Ethernet's", Case { own: None, ..base() }, 0),
        ("a frame without addresses", Case { ethernet: None, ..base() }, 0),
        ("a frame for another machine", Case { ethernet: Some([ROUTER, ROUTER]), ..base() }, 0),
        ("a flooded frame", Case { ethernet: Some([PREVIOUS, ROUTER]), ..base() }, 0),
        ("a frame from the previous holder", Case { ethernet: Some([OWN, PREVIOUS]), ..base() }, 0),
        ("an entry for this node", Case { entry: entry(OWN, NOW + 1), ..base() }, 0),
        ("a connection of this node", Case { is_known: true, ..base() }, 1),
    ];
    for (name, case, lookups) in cases {
        assert_eq!(case.forwarded(), None, "{name}");
        assert_eq!(case.lookups.get(), lookups, "{name}: lookups");
    }
}

/// A frame with a TCP segment, and the right checksum of IPv4.
fn frame(is_v4: bool, tags: usize, hops: u8) -> Vec<u8> {
    let mut frame = [OWN, ROUTER].concat();
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    if is_v4 {
        let mut header = [0x45, 0, 0, 40, 0, 1, 0, 0, hops, PROTO_TCP, 0, 0, 198, 51, 100, 9, 192, 0, 2, 80];
        let [a, b] = checksum(&header).to_be_bytes();
        (header[10], header[11]) = (a, b);
        frame.extend(IPV4.to_be_bytes());
        frame.extend(header);
    } else {
        frame.extend(IPV6.to_be_bytes());
        frame.extend([0x60, 0, 0, 0, 0, 20, PROTO_TCP, hops]);
        frame.extend([7; 32]);
    }
    frame.extend([0; 20]);
    frame
}

/// The checksum over a header, by RFC 1071; 0 for one with the right checksum.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

#[test]
fn a_frame_that_is_sent_on_has_one_hop_less_and_a_right_checksum() {
    let addresses = [PREVIOUS, OWN].concat().try_into().expect("twelve bytes");
    for (is_v4, tags, hops) in [true, false]
        .into_iter()
        .flat_map(|is_v4| (0..=2).flat_map(move |tags| (2..=u8::MAX).map(move |hops| (is_v4, tags, hops))))
    {
        let mut sent = frame(is_v4, tags, hops);
        assert!(send_on(&mut sent, &addresses), "{is_v4} {tags} {hops}");
        let mut expect = frame(is_v4, tags, hops - 1);
        expect[..ETHERNET_ADDRESSES].copy_from_slice(&addresses);
        assert_eq!(sent, expect, "{is_v4} {tags} {hops}");
        let header = 14 + 4 * tags;
        assert!(!is_v4 || checksum(&sent[header..header + 20]) == 0);
    }
}

#[test]
fn a_circle_of_nodes_ends_with_the_hops_of_the_packet() {
    let addresses = [PREVIOUS, OWN].concat().try_into().expect("twelve bytes");
    for is_v4 in [true, false] {
        let mut circling = frame(is_v4, 0, 64);
        let steps = (0..1000).take_while(|_| send_on(&mut circling, &addresses)).count();
        assert_eq!(steps, 63, "{is_v4}");
        for hops in [0, 1] {
            let mut last = frame(is_v4, 0, hops);
            assert!(!send_on(&mut last, &addresses));
            assert_eq!(last, frame(is_v4, 0, hops), "unchanged");
        }
    }
    for length in [0, 13, 20] {
        let short = frame(true, 0, 64)[..length].to_vec();
        assert!(!send_on(&mut short.clone(), &addresses), "{length} bytes");
    }
    let mut other = frame(true, 0, 64);
    other[12..14].copy_from_slice(&[8, 6]);
    assert!(!send_on(&mut other, &addresses), "no IP");
}
