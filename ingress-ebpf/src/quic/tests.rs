use std::collections::HashMap;

use ingress_common::{DenyRule, PortKey, WorkerLoad, steer::PORT_COUNT_ONLY};

use super::*;

const KEYS: [SealKey; quic::KEYS] = [[1, 2], [3, 4], [0, 0], [0, 0]];
const NOW: u64 = 100_000_000_000;
/// Three workers of the process with epoch 13, which owns the port.
const RULE: PortRule =
    PortRule { first_slot: 0, workers: 3, flags: PORT_COUNT_ONLY | PORT_QUIC, rewrite_be: 0, first_worker: 5 * 64 };

/// A node with the processes 13 and 12, at [`NOW`], on CPU 4.
#[derive(Default)]
struct Here {
    notes: HashMap<[u8; 16], Handoff>,
    open: [u64; 3],
}

impl Node for Here {
    fn rule(&self, _: &PortKey) -> Option<PortRule> {
        Some(RULE)
    }
    fn address_flags(&self, _: &[u8; 16]) -> Option<u32> {
        unreachable!("a choice is not about addresses")
    }
    fn deny_entry(&self, _: &[u8; 16]) -> Option<DenyRule> {
        unreachable!("a choice is not about senders")
    }
    fn worker(&self, index: u32) -> Option<WorkerLoad> {
        let open = *self.open.get(index.checked_sub(RULE.first_worker)? as usize)?;
        Some(WorkerLoad { open, ..WorkerLoad::default() })
    }
    fn heartbeat_ns(&self) -> u64 {
        unreachable!("a hung owner keeps its sockets")
    }
    fn now_ns(&self) -> u64 {
        NOW
    }
    fn cpu(&self) -> u32 {
        4
    }
}

impl QuicNode for Here {
    fn key(&self, number: usize) -> SealKey {
        KEYS[number]
    }
    fn epoch(&self, group: usize) -> u32 {
        [0, 0, 0, 0, 12, 13, 0, 0][group]
    }
    fn has_all_keys(&self) -> bool {
        unreachable!("a choice drops no packet")
    }
    fn note(&self, first: &FlowKey) -> Handoff {
        assert_eq!((first.proto, first.local_addr, first.remote_port_be), (PROTO_UDP, [0; 16], 0));
        self.notes.get(&first.remote_addr).copied().unwrap_or_default()
    }
}

fn id(number: u8, epoch: u32, worker: u8) -> ConnectionId {
    quic::issue(number, &KEYS[usize::from(number)], [9, 8, 7, 6, 5, 4, 3], Issuer::new(epoch, worker))
}

/// The head of a short header with this ID.
fn short(id: ConnectionId) -> [u8; HEAD_LENGTH] {
    let mut head = [0xaa; HEAD_LENGTH];
    head[0] = 0x40;
    head[1..17].copy_from_slice(&id);
    head
}

/// The head of a long header with this first byte, version and ID. What follows the ID is `0xbb`.
fn long(first: u8, version: u32, id: &[u8]) -> [u8; HEAD_LENGTH] {
    let mut packet = [0xbb; 64];
    packet[0] = first;
    packet[1..5].copy_from_slice(&version.to_be_bytes());
    packet[5] = u8::try_from(id.len()).expect("short");
    packet[6..][..id.len()].copy_from_slice(id);
    *packet.first_chunk().expect("longer")
}

fn of(here: &Here, head: [u8; HEAD_LENGTH]) -> Destination {
    destination(here, here, &head)
}

#[test]
fn both_headers_lead_to_the_issuer_of_the_id() {
    let here = Here::default();
    for (number, epoch, worker, socket) in [(0, 13, 2, 322), (1, 12, 40, 296), (0, 12, 0, 256)] {
        let id = id(number, epoch, worker);
        assert_eq!(of(&here, short(id)), Destination::Issued(socket));
        // An Initial, a 0-RTT packet and a Handshake packet of version 1, and one of a version of the future.
        for (first, version) in [(0xc0, 1), (0xd0, 1), (0xe0, 1), (0xc0, 0x6b33_43cf), (0x80, 0xdead_beef)] {
            assert_eq!(of(&here, long(first, version, &id)), Destination::Issued(socket), "{first:#x} {version:#x}");
        }
    }
}

#[test]
fn ids_of_processes_without_sockets_are_gone() {
    let here = Here::default();
    for epoch in [5, 14, 13 + 512, 12 + 8, 0] {
        assert_eq!(of(&here, short(id(0, epoch, 1))), Destination::Gone, "{epoch}");
    }
    // The ID has ten bits of the epoch.
    assert_eq!(of(&here, short(id(0, 13 + 1024, 1))), Destination::Issued(321));
}

#[test]
fn ids_that_do_not_open_are_unknown() {
    let here = Here::default();
    let mut broken = id(0, 13, 1);
    broken[15] ^= 1;
    // Sealed by the key that an empty entry would be.
    let unkeyed = quic::issue(2, &[0, 0], [0; 7], Issuer::new(13, 1));
    for id in [broken, unkeyed, [0; 16], [0xff; 16]] {
        assert_eq!(of(&here, short(id)), Destination::Other);
        // A Handshake packet, and an Initial of a version that this node does not know.
        assert_eq!(of(&here, long(0xe0, 1, &id)), Destination::Other);
        assert_eq!(of(&here, long(0xc0, 0, &id)), Destination::Other);
    }
    assert_eq!(of(&here, [0; HEAD_LENGTH]), Destination::Other);
}

#[test]
fn first_packets_are_known_by_the_ids_that_clients_choose() {
    let here = Here::default();
    for length in 0..=40 {
        let id: Vec<u8> = (1..=length).collect();
        let initial = of(&here, long(0xc3, 1, &id));
        if !(8..=20).contains(&length) {
            assert_eq!(initial, Destination::Other, "{length}");
            continue;
        }
        let mut expected = [0; 16];
        let known = usize::from(length.min(16));
        expected[..known].copy_from_slice(&id[..known]);
        assert_eq!(initial, Destination::First, "{length}");
        assert_eq!(first_key(&long(0xc3, 1, &id)).remote_addr, expected);
        // 0-RTT, and both types of version 2.
        for (kind, version) in [(0xd0, 1), (0xd0, 0x6b33_43cf), (0xe0, 0x6b33_43cf)] {
            assert_eq!(of(&here, long(kind, version, &id)), initial);
        }
        // Handshake and Retry of version 1; Retry and Handshake of version 2.
        for (kind, version) in [(0xe0, 1), (0xf0, 1), (0xc0, 0x6b33_43cf), (0xf0, 0x6b33_43cf)] {
            assert_eq!(of(&here, long(kind, version, &id)), Destination::Other);
        }
    }
}

#[test]
fn notes_hold_for_three_seconds_also_for_another_process() {
    let mut here = Here::default();
    let initial = long(0xc0, 1, &[7; 8]);
    assert_eq!(of(&here, initial), Destination::First);
    let fresh = Handoff { slot: 260, chosen_by: CHOSEN_FOR_QUIC, time_ns: NOW - HANDOFF_FRESH_NS };
    let stale = Handoff { time_ns: fresh.time_ns - 1, ..fresh };
    let other = Handoff { chosen_by: 0, ..fresh };
    for (note, expected) in [(fresh, Destination::Noted(260)), (stale, Destination::First), (other, Destination::First)]
    {
        here.notes.insert(first_key(&initial).remote_addr, note);
        assert_eq!(of(&here, initial), expected);
    }
}

#[test]
fn connections_begin_at_the_owners_workers() {
    let here = Here { open: [9, 9, 0], ..Here::default() };
    let choice = begin(&here, &RULE).expect("an owner");
    assert_eq!(choice.worker, 322, "the idle one");
    assert_eq!(choice.handoff, Handoff { slot: 322, chosen_by: CHOSEN_FOR_QUIC, time_ns: NOW });
    assert_eq!(preferred(&here, &RULE), Some(321));
    for rule in [PortRule { workers: 0, ..RULE }, PortRule { flags: PORT_COUNT_ONLY, ..RULE }] {
        assert_eq!((begin(&here, &rule), preferred(&here, &rule)), (None, None));
    }
}
