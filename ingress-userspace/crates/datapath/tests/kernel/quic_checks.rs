//! Packets for a port of QUIC through `ingress_xdp`, `ingress_xdp_cookies` and `ingress_tc_in`: which are dropped for their
//! content, while processes follow each other and clients are limited; and the time that it takes.

use aya::maps::{Array, Map};
use ingress_common::{
    Alive, QuicState, Total,
    flow::PROTO_UDP,
    map::{ALIVE, ALIVE_CURRENT, QUIC, QUIC_ONLY},
    quic::{ConnectionId, Issuer, KEY_LOST},
    steer::{PORT_COUNT_ONLY, PORT_QUIC, PORT_QUIC_CHECKS},
};
use ingress_datapath::{Datapath, Options, QuicKey, RunOptions, SteeredPort, SynCookieOptions, TestProgram};

use ingress_lab::packet;

use crate::{
    deny::deny,
    drops::interface,
    figures::print_rounds,
    frames::check_sum,
    limits::bursts,
    measure::{REPEAT, ROUNDS},
    packets::{ACK, Packet},
    quic::{PORT, Process, long, short},
    sandbox::{Sandbox, ip, sandboxed},
    syn_cookies::per_second,
    verdicts::{TCX_DROP, TCX_NEXT, XDP_DROP, XDP_PASS},
};

const CHECKS: u16 = PORT_COUNT_ONLY | PORT_QUIC | PORT_QUIC_CHECKS;
const PROGRAMS: [(TestProgram, u32, u32); 2] =
    [(TestProgram::Ingress, XDP_PASS, XDP_DROP), (TestProgram::Stack, TCX_NEXT, TCX_DROP)];
const FOREIGN: [u8; 16] = [6; 16];

/// Returns frames of both families, and one with a tag and options, that carry `payload` to a port of the node.
fn frames(payload: &[u8], port: u16) -> Vec<Vec<u8>> {
    let v4 = Packet::udp("192.0.2.1:40000", &format!("198.51.100.7:{port}"));
    let v6 = Packet::udp("[2001:db8::1]:40000", &format!("[2001:db8::7]:{port}"));
    let tagged = Packet { tags: vec![0x8100], options: 12, ..v4.clone() };
    let frames = [v4, v6, tagged].map(|packet| {
        let mut frame = Packet { payload: payload.len(), ..packet }.frame();
        let at = frame.len() - payload.len();
        frame[at..].copy_from_slice(payload);
        let length = u16::try_from(8 + payload.len()).expect("short");
        frame[at - 4..at - 2].copy_from_slice(&length.to_be_bytes());
        frame
    });
    frames.into()
}

fn small_initial() -> Vec<u8> {
    let mut packet = long(0xc0, &FOREIGN[..8]);
    packet.truncate(1199);
    packet
}

/// Returns a datagram of this version and length, with the ID of a client.
fn of_version(version: u8, length: usize) -> Vec<u8> {
    let mut packet = long(0xc0, &FOREIGN[..8]);
    packet[1..5].fill(version);
    packet.truncate(length);
    packet
}

fn with_addresses(datapath: &Datapath) {
    let addr = |text: &str| (text.parse().expect("an address"), 1);
    datapath.set_node_addrs(&[addr("198.51.100.7"), addr("2001:db8::7")]).expect("addresses");
    datapath.heartbeat().expect("beats");
}

/// Starts a process that owns a port with checks.
fn checking(sandbox: &Sandbox) -> Process {
    let process = Process::start(sandbox, 2);
    process.own_with(CHECKS);
    with_addresses(&process.datapath);
    process
}

/// Checks the only verdict of all programs on a payload, in both families.
#[track_caller]
fn check(datapath: &Datapath, description: &str, payload: &[u8], expect: Total) {
    let verdicts = || {
        let totals = datapath.totals().expect("totals");
        let verdicts = totals.iter().filter(|(total, ..)| total.is_verdict());
        verdicts.map(|(total, _, traffic)| (total, traffic.packets)).collect::<Vec<_>>()
    };
    for frame in &frames(payload, PORT) {
        for (program, pass, drop) in PROGRAMS {
            let before = verdicts();
            let ran = datapath.test_run(program, RunOptions { frame, repeat: 1, live: None }).expect("runs");
            let counted: Vec<_> = before
                .into_iter()
                .zip(verdicts())
                .filter_map(|((total, before), (_, after))| (after > before).then_some((total, after - before)))
                .collect();
            assert_eq!(counted, [(expect, 1)], "{description} by {program:?}");
            let verdict = if matches!(expect, Total::Accepted | Total::OtherPort) { pass } else { drop };
            assert_eq!(ran.verdict, verdict, "{description} by {program:?}");
        }
    }
}

/// Checks that packets that no process has asked for have these two verdicts, and that others pass.
#[track_caller]
fn check_all(datapath: &Datapath, own: ConnectionId, unknown: Total, small: Total) {
    let mut broken = own;
    broken[10] ^= 0x40;
    let cases = [
        ("an ID of this node", short(own), Total::Accepted),
        ("an ID with a broken seal", short(broken), unknown),
        ("a foreign ID", short(FOREIGN), unknown),
        ("a few bytes", vec![0x40; 9], unknown),
        ("Initial", long(0xc0, &FOREIGN[..8]), Total::Accepted),
        ("small Initial", small_initial(), small),
        ("small Initial with an ID of this node", long(0xc0, &own)[..100].to_vec(), Total::Accepted),
        ("Handshake", long(0xe0, &FOREIGN)[..100].to_vec(), unknown),
        ("Handshake with an ID of this node", long(0xe0, &own)[..100].to_vec(), Total::Accepted),
        ("early data", long(0xd0, &FOREIGN[..8])[..100].to_vec(), Total::Accepted),
        ("another version", of_version(9, 1200), Total::Accepted),
        ("a small datagram of another version", of_version(9, 1199), small),
        ("version negotiation", of_version(0, 1200), unknown),
    ];
    for (description, payload, expect) in cases {
        check(datapath, description, &payload, expect);
    }
}

#[test]
fn packets_that_no_process_has_asked_for_are_dropped() {
    sandboxed(|sandbox| {
        let process = checking(sandbox);
        let own = process.id(1, 5);
        check_all(&process.datapath, own, Total::QuicUnknown, Total::QuicShort);
        process.own();
        process.datapath.heartbeat().expect("beats");
        check_all(&process.datapath, own, Total::Accepted, Total::Accepted);
        process.own_with(CHECKS);
        let mut alive: Array<_, Alive> = Map::Array(sandbox.map(ALIVE)).try_into().expect("an array");
        let now = alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        alive.set(ALIVE_CURRENT, Alive { heartbeat_ns: 1, ..now }, 0).expect("aged");
        check_all(&process.datapath, own, Total::Accepted, Total::Accepted);
        check_sum(&process.datapath);
    });
}

#[test]
fn packets_of_living_connections_pass_in_updates_roll_backs_and_crashes() {
    sandboxed(|sandbox| {
        let old = checking(sandbox);
        let before = old.id(0, 1);
        let new = Process::start(sandbox, 2);
        let after = new.id(0, 2);
        for owner in [&old, &new, &old, &new] {
            owner.own_with(CHECKS);
            for id in [before, after] {
                check_all(&owner.datapath, id, Total::QuicUnknown, Total::QuicShort);
            }
        }
        // A successor without HTTP/3 has no rule for the port.
        let without = Datapath::open(&sandbox.options(&[])).expect("opens");
        without.take_over_with(ingress_datapath::Claim::Any, || without.set_ports(&[])).expect("owns");
        check(&without, "no rule", &short(before), Total::OtherPort);
        check(&without, "no rule", &short(FOREIGN), Total::OtherPort);
        new.own_with(CHECKS);
        new.datapath.heartbeat().expect("beats");
        // A crash takes nothing back. The owner's workers reset the connections.
        let Process { quic, sockets, datapath } = old;
        drop((sockets, datapath));
        check_all(&new.datapath, before, Total::QuicUnknown, Total::QuicShort);
        drop(quic);
        new.quic.sweep().expect("sweeps");
        check_all(&new.datapath, before, Total::QuicUnknown, Total::QuicShort);
    });
}

#[test]
fn ids_by_a_key_that_made_room_pass_while_their_process_lives() {
    sandboxed(|sandbox| {
        let old = checking(sandbox);
        let before = old.id(0, 1);
        let new = Process::start(sandbox, 2);
        for key in [[1, 2], [3, 4], [5, 6]] {
            new.quic.use_key(QuicKey::Derived(key)).expect("used");
        }
        check_all(&old.datapath, before, Total::QuicUnknown, Total::QuicShort);
        let is_lost = || -> bool {
            let map: Array<_, QuicState> = Map::Array(sandbox.map(QUIC)).try_into().expect("an array");
            map.get(&QUIC_ONLY, 0).expect("the state").flags & KEY_LOST != 0
        };
        assert!(!is_lost());
        // A fourth one takes the place of the first.
        let newest = Process::start(sandbox, 2);
        newest.quic.use_key(QuicKey::Derived([7, 8])).expect("used");
        assert!(is_lost());
        old.datapath.heartbeat().expect("beats");
        check_all(&old.datapath, newest.id(0, 3), Total::Accepted, Total::QuicShort);
        check(&old.datapath, "an ID by the first key", &short(before), Total::Accepted);
        drop((newest, new));
        old.quic.sweep().expect("sweeps");
        assert!(is_lost(), "the process that is left has lost its key");
        check(&old.datapath, "an ID by the first key", &short(before), Total::Accepted);
        let last = Process::start(sandbox, 2);
        last.own_with(CHECKS);
        last.datapath.heartbeat().expect("beats");
        check_all(&last.datapath, last.id(0, 3), Total::Accepted, Total::QuicShort);
        drop(old);
        last.quic.sweep().expect("sweeps");
        assert!(!is_lost());
        check_all(&last.datapath, last.id(0, 3), Total::QuicUnknown, Total::QuicShort);
    });
}

#[test]
fn the_deny_list_comes_first_and_unknown_packets_take_no_tokens() {
    sandboxed(|sandbox| {
        let process = checking(sandbox);
        let Process { datapath, .. } = &process;
        let own = process.id(0, 1);
        let passing = |payload: &[u8], count: usize| {
            datapath.heartbeat().expect("beats");
            let frame = &frames(payload, PORT)[0];
            let run =
                || datapath.test_run(TestProgram::Ingress, RunOptions { frame, repeat: 1, live: None }).expect("runs");
            (0..count).filter(|_| run().verdict == XDP_PASS).count()
        };
        datapath.client_limits().set(bursts(0, 4)).expect("limits");
        assert_eq!(passing(&short(FOREIGN), 10), 0);
        assert_eq!(passing(&small_initial(), 10), 0);
        assert_eq!(passing(&short(own), 10), 4, "unknown packets took no tokens");
        datapath.client_limits().set(bursts(0, 0)).expect("no limits");
        deny(datapath, "192.0.2.0/24 2001:db8::/64", "");
        for payload in [short(own), short(FOREIGN), long(0xc0, &FOREIGN[..8]), small_initial()] {
            check(datapath, "denied", &payload, Total::Denied);
        }
        check_sum(datapath);
    });
}

#[test]
fn packets_from_the_address_and_port_of_a_connection_are_not_checked() {
    sandboxed(|sandbox| {
        let process = checking(sandbox);
        let Process { datapath, .. } = &process;
        let packet = |remote: &str, local: &str| Packet::udp(remote, &format!("{local}:{PORT}"));
        let packets = [packet("192.0.2.1:40000", "198.51.100.7"), packet("[2001:db8::1]:40000", "[2001:db8::7]")];
        for limits in [bursts(0, 0), bursts(0, 1000)] {
            datapath.client_limits().set(limits).expect("limits");
            for packet in &packets {
                datapath.flows().insert(packet.remote, packet.local, 5);
            }
            check(datapath, "TCP is another connection", &short(FOREIGN), Total::QuicUnknown);
            for packet in &packets {
                datapath.flows().over_udp().insert(packet.remote, packet.local, 5);
            }
            check(datapath, "of a connection", &short(FOREIGN), Total::Accepted);
            for packet in &packets {
                datapath.flows().over_udp().remove(packet.remote, packet.local);
            }
            check(datapath, "after its end", &short(FOREIGN), Total::QuicUnknown);
        }
        check_sum(datapath);
    });
}

#[test]
fn the_program_with_syn_cookies_checks_alike() {
    sandboxed(|sandbox| {
        let cookies = SynCookieOptions { threshold: per_second(1000), is_dry_run: false };
        let options = Options { syn_cookies: Some(cookies), ..sandbox.options(&[]) };
        let process = Process::start_with(&options, 2);
        process.own_with(CHECKS);
        with_addresses(&process.datapath);
        check_all(&process.datapath, process.id(1, 5), Total::QuicUnknown, Total::QuicShort);
    });
}

#[test]
fn frames_of_one_buffer_are_not_checked_on_old_kernels() {
    sandboxed(|sandbox| {
        let process = checking(sandbox);
        for frame in &frames(&short(FOREIGN), PORT) {
            let options = RunOptions { frame, repeat: 1, live: None };
            let ran = process.datapath.test_run(TestProgram::Linear, options).expect("runs");
            assert_eq!(ran.verdict, XDP_PASS);
        }
    });
}

#[test]
fn the_cost_of_the_checks_is_printed() {
    sandboxed(|sandbox| {
        let datapath = Datapath::open(&Options { measure: true, ..sandbox.options(&[]) }).expect("opens");
        datapath.take_over().expect("takes over");
        let quic = datapath.quic().expect("the kernel takes the program");
        quic.use_key(QuicKey::Derived([1, 2])).expect("a key");
        let port =
            |port, flags| SteeredPort { port, proto: PROTO_UDP, first_slot: 0, workers: 2, flags, rewritten: None };
        let tcp = SteeredPort { port: 80, proto: ingress_common::flow::PROTO_TCP, ..port(80, 0) };
        datapath
            .set_ports(&[
                tcp,
                port(1, PORT_COUNT_ONLY),
                port(2, CHECKS & !PORT_QUIC_CHECKS),
                port(3, CHECKS),
                port(4, CHECKS),
            ])
            .expect("ports");
        with_addresses(&datapath);
        let connected = Packet::udp("192.0.2.1:40000", "198.51.100.7:4");
        datapath.flows().over_udp().insert(connected.remote, connected.local, 1);
        let own = short(quic.cell().issue([3; 7], Issuer::new(datapath.report().epoch, 1)));
        let packet = |payload: &[u8], port: u16, family: usize| frames(payload, port).swap_remove(family);
        let bare = (TestProgram::Bare, packet(&own, 1, 0));
        let ingress = |frame| (TestProgram::Ingress, frame);
        let ways = [
            ("quic, bare pass", bare),
            ("quic, v4 TCP", ingress(Packet::tcp("192.0.2.1:40000", "198.51.100.7:80", ACK).frame())),
            ("quic, v4 counted only", ingress(packet(&own, 1, 0))),
            ("quic, v6 counted only", ingress(packet(&own, 1, 1))),
            ("quic, v4 without checks", ingress(packet(&own, 2, 0))),
            ("quic, v6 without checks", ingress(packet(&own, 2, 1))),
            ("quic, v4 with an ID", ingress(packet(&own, 3, 0))),
            ("quic, v6 with an ID", ingress(packet(&own, 3, 1))),
            ("quic, v4 of a connection", ingress(packet(&own, 4, 0))),
            ("quic, v4 Initial", ingress(packet(&long(0xc0, &FOREIGN[..8]), 3, 0))),
            ("quic, v4 unknown, dropped", ingress(packet(&short(FOREIGN), 3, 0))),
            ("quic, v4 unknown by a key, dropped", ingress(packet(&short([0x0f; 16]), 3, 0))),
        ];
        print_rounds(ROUNDS, &ways, |(program, frame)| {
            datapath.heartbeat().expect("beats");
            datapath.test_run(*program, RunOptions { frame, repeat: REPEAT, live: None }).expect("runs").each
        });
    });
}

/// Frames run live, as in `drops.rs`: the time of one that passes is that of the stack, up to the queue of a socket that
/// is full, so that it contains no process.
#[test]
fn the_cost_of_an_unknown_packet_is_printed() {
    sandboxed(|sandbox| {
        let process = checking(sandbox);
        let nic = interface("quic0");
        ip("addr add 198.51.100.7/24 dev quic0");
        ip("route add default dev quic0");
        let mut frame = frames(&short(FOREIGN), PORT).swap_remove(0);
        let checksum = packet::checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&checksum);
        let ways =
            [("quic, unknown, dropped by XDP", CHECKS), ("quic, unknown, to a socket", CHECKS & !PORT_QUIC_CHECKS)];
        print_rounds(ROUNDS, &ways, |flags| {
            process.own_with(*flags);
            process.datapath.heartbeat().expect("beats");
            let options = RunOptions { frame: &frame, repeat: REPEAT, live: Some(nic) };
            process.datapath.test_run(TestProgram::Ingress, options).expect("runs").each
        });
        let all = ROUNDS as u64 * u64::from(REPEAT);
        for total in [Total::QuicUnknown, Total::QuicOther] {
            let counted = process.datapath.totals().expect("totals").get(total).packets;
            assert_eq!(counted, all, "{total:?}");
        }
    });
}
