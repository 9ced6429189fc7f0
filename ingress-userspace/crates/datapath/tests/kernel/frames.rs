//! Frames through `ingress_xdp`, `ingress_xdp_linear` and `ingress_tc_in` by BPF_PROG_TEST_RUN: each adds to exactly
//! the counters that its case names.

use aya::maps::{Array, Map};
use ingress_common::{
    Alive, HostNet, RawHostId, Total, Traffic,
    flow::{PROTO_TCP, PROTO_UDP},
    map::{ALIVE, ALIVE_CURRENT},
    steer::PORT_COUNT_ONLY,
};
use ingress_datapath::{Claim, Datapath, Options, RunOptions, SteeredPort, TestProgram};

use crate::{
    packets::{ACK, FIN, Packet, RST, SYN, extension, fragment},
    sandbox::{Sandbox, sandboxed},
    verdicts::{TCX_NEXT, XDP_PASS},
};

/// Frame lengths that BPF_PROG_TEST_RUN accepts for tc programs: whole IP headers, and at most one page. The page also
/// limits XDP programs without `xdp.frags`.
const OF_TC: std::ops::RangeInclusive<usize> = 54..=3000;
pub(crate) const CLIENT4: &str = "192.0.2.1:40000";
pub(crate) const NODE4: &str = "198.51.100.7:80";
pub(crate) const CLIENT6: &str = "[2001:db8::1]:40000";
pub(crate) const NODE6: &str = "[2001:db8::7]:80";

/// A frame, and the counters besides `Accepted` and the host's that it adds one packet to.
struct Case {
    description: &'static str,
    frame: Vec<u8>,
    /// The host that the frame counts for; `None` if it is not accepted.
    host: Option<RawHostId>,
    counters: &'static [Total],
}

fn accepted(description: &'static str, packet: &Packet, counters: &'static [Total]) -> Case {
    Case { description, frame: packet.frame(), host: Some(0), counters }
}

fn left(description: &'static str, frame: Vec<u8>, counter: &'static [Total]) -> Case {
    Case { description, frame, host: None, counters: counter }
}

fn serving(sandbox: &Sandbox) -> Datapath {
    serving_with(&sandbox.options(&[]))
}

/// Opens a node with these ports and addresses, owned by the returned process.
pub(crate) fn serving_with(options: &Options) -> Datapath {
    let datapath = Datapath::open(options).expect("opens");
    let equip = || datapath.renew_programs(&options.interfaces).map(drop);
    datapath.take_over_with(Claim::Any, equip).expect("takes over");
    let port =
        |port, proto, workers, flags| SteeredPort { port, proto, first_slot: 0, workers, flags, rewritten: None };
    let ports = [
        port(80, PROTO_TCP, 2, 0),
        port(443, PROTO_UDP, 2, PORT_COUNT_ONLY),
        port(8443, PROTO_TCP, 2, PORT_COUNT_ONLY),
        port(8080, PROTO_TCP, 0, 0),
    ];
    datapath.set_ports(&ports).expect("ports");
    let addr = |text: &str| (text.parse().expect("an address"), 1);
    datapath.set_node_addrs(&[addr("198.51.100.7"), addr("2001:db8::7")]).expect("addresses");
    datapath
}

pub(crate) struct Counters {
    pub(crate) totals: Vec<(Total, Traffic)>,
    pub(crate) hosts: Vec<HostNet>,
}

pub(crate) fn counters(datapath: &Datapath) -> Counters {
    let totals = datapath.totals().expect("totals");
    Counters {
        totals: totals.iter().map(|(total, _, traffic)| (total, traffic)).collect(),
        hosts: datapath.host_net().expect("host_net"),
    }
}

/// Checks that all programs count a frame alike.
#[track_caller]
fn check(datapath: &Datapath, case: &Case) {
    check_by(datapath, case, TestProgram::Ingress, XDP_PASS);
    if case.frame.len() <= *OF_TC.end() {
        check_by(datapath, case, TestProgram::Linear, XDP_PASS);
    }
    if OF_TC.contains(&case.frame.len()) {
        check_by(datapath, case, TestProgram::Stack, TCX_NEXT);
    }
}

#[track_caller]
fn check_by(datapath: &Datapath, case: &Case, program: TestProgram, passed: u32) {
    let Case { description, frame, host, counters: expected } = case;
    let before = counters(datapath);
    let result = datapath.test_run(program, RunOptions { frame, repeat: 1, live: None }).expect("runs");
    let after = counters(datapath);

    assert_eq!(result.verdict, passed, "{description}: verdict of {program:?}");
    let bytes = frame.len() as u64;
    for ((total, before), (_, after)) in before.totals.iter().zip(&after.totals) {
        let packets = u64::from(expected.contains(total) || *total == Total::Accepted && host.is_some());
        let expected = Traffic { packets: before.packets + packets, bytes: before.bytes + packets * bytes };
        assert_eq!(*after, expected, "{description}: {total:?}");
    }
    for (id, (before, after)) in before.hosts.iter().zip(&after.hosts).enumerate() {
        let packets = u64::from(host.is_some_and(|host| host as usize == id));
        assert_eq!(after.rx_packets - before.rx_packets, packets, "{description}: packets of host {id}");
        assert_eq!(after.rx_bytes - before.rx_bytes, packets * bytes, "{description}: bytes of host {id}");
    }
    let verdicts: u64 = after.totals.iter().filter(|(total, _)| total.is_verdict()).map(|(_, t)| t.packets).sum();
    let verdicts_before: u64 = before.totals.iter().filter(|(t, _)| t.is_verdict()).map(|(_, t)| t.packets).sum();
    assert_eq!(verdicts - verdicts_before, 1, "{description}: exactly one verdict");
}

/// Checks Σ hosts = Σ interfaces = accepted, packets and bytes.
#[track_caller]
pub(crate) fn check_sum(datapath: &Datapath) {
    let Counters { totals, hosts } = counters(datapath);
    let nics = datapath.maps().nic_net().expect("nic_net");
    let by_nic = nics.values().fold(Traffic::default(), |sum, nic| Traffic {
        packets: sum.packets + nic.rx_packets,
        bytes: sum.bytes + nic.rx_bytes,
    });
    let sum = hosts.iter().fold(Traffic::default(), |sum, host| Traffic {
        packets: sum.packets + host.rx_packets,
        bytes: sum.bytes + host.rx_bytes,
    });
    let accepted = totals.iter().find(|(total, _)| *total == Total::Accepted).map(|(_, traffic)| *traffic);
    assert_eq!(Some(sum), accepted);
    assert_eq!(sum, by_nic);
}

fn check_all(cases: impl FnOnce() -> Vec<Case> + Send + 'static) {
    sandboxed(move |sandbox| {
        let datapath = serving(sandbox);
        for case in cases() {
            check(&datapath, &case);
        }
        check_sum(&datapath);
    });
}

fn syn4() -> Packet {
    Packet::tcp(CLIENT4, NODE4, SYN)
}

fn syn6() -> Packet {
    Packet::tcp(CLIENT6, NODE6, SYN)
}

#[test]
fn packet_for_a_steered_port_is_accepted_and_only_a_syn_is_steered() {
    check_all(|| {
        let flags = |packet: Packet, tcp_flags| Packet { tcp_flags, ..packet };
        vec![
            accepted("v4 SYN", &syn4(), &[Total::Decided]),
            accepted("v6 SYN", &syn6(), &[Total::Decided]),
            accepted("v4 SYN again", &syn4(), &[Total::Decided]),
            accepted("v4 SYN with ECN", &flags(syn4(), SYN | 0xc0), &[Total::Decided]),
            accepted("v4 ACK", &flags(syn4(), ACK), &[]),
            accepted("v6 ACK", &flags(syn6(), ACK), &[]),
            accepted("v4 SYN-ACK", &flags(syn4(), SYN | ACK), &[]),
            accepted("v4 SYN-FIN", &flags(syn4(), SYN | FIN), &[]),
            accepted("v4 RST", &flags(syn4(), RST), &[]),
            accepted("v4 data", &Packet { payload: 1000, ..flags(syn4(), ACK) }, &[]),
            accepted("frame in several buffers", &Packet { payload: 8000, ..flags(syn4(), ACK) }, &[]),
            accepted("UDP counted only", &Packet::udp(CLIENT4, "198.51.100.7:443"), &[]),
            accepted("v6 UDP counted only", &Packet::udp(CLIENT6, "[2001:db8::7]:443"), &[]),
            accepted("TCP counted only", &Packet::tcp(CLIENT4, "198.51.100.7:8443", SYN), &[]),
            accepted("port without workers", &Packet::tcp(CLIENT4, "198.51.100.7:8080", SYN), &[]),
        ]
    });
}

#[test]
fn optional_headers_do_not_affect_the_verdict() {
    check_all(|| {
        let six = vec![
            (0, extension(0)),
            (60, extension(1)),
            (43, extension(2)),
            (44, fragment(0)),
            (51, extension(1)),
            (60, extension(0)),
        ];
        // An authentication header counts its length in units of 4: one of 16 bytes.
        let six: Vec<_> = six
            .into_iter()
            .map(|(kind, rest)| if kind == 51 { (kind, [vec![2], vec![0; 14]].concat()) } else { (kind, rest) })
            .collect();
        let tags = |tags: &[u16], packet: Packet| Packet { tags: tags.to_vec(), ..packet };
        vec![
            accepted("one VLAN tag", &tags(&[0x8100], syn4()), &[Total::Decided]),
            accepted("two VLAN tags", &tags(&[0x88a8, 0x8100], syn4()), &[Total::Decided]),
            accepted("two VLAN tags, v6", &tags(&[0x88a8, 0x8100], syn6()), &[Total::Decided]),
            accepted("IPv4 options", &Packet { options: 4, ..syn4() }, &[Total::Decided]),
            accepted("most IPv4 options", &Packet { options: 40, ..syn4() }, &[Total::Decided]),
            accepted("first fragment", &Packet { fragment: 0x2000, ..syn4() }, &[Total::Decided]),
            accepted("hop-by-hop", &Packet { extensions: vec![(0, extension(0))], ..syn6() }, &[Total::Decided]),
            accepted("long routing", &Packet { extensions: vec![(43, extension(80))], ..syn6() }, &[Total::Decided]),
            accepted("v6 first fragment", &Packet { extensions: vec![(44, fragment(0))], ..syn6() }, &[Total::Decided]),
            accepted("six extensions", &Packet { extensions: six, ..syn6() }, &[Total::Decided]),
        ]
    });
}

#[test]
fn foreign_packets_pass_and_are_counted_by_reason() {
    check_all(|| {
        let mut arp = syn4().frame();
        arp[12..14].copy_from_slice(&0x0806_u16.to_be_bytes());
        let mut version = syn4().frame();
        version[14] = 0x65;
        let proto = |proto, packet: Packet| Packet { proto, ..packet }.frame();
        let seven = vec![(60, extension(0)); 7];
        vec![
            left("ARP", arp, &[Total::NotIp]),
            left("three VLAN tags", Packet { tags: vec![0x8100; 3], ..syn4() }.frame(), &[Total::NotIp]),
            left("version 6 in an IPv4 frame", version, &[Total::Malformed]),
            left("seven extensions", Packet { extensions: seven, ..syn6() }.frame(), &[Total::Malformed]),
            left("later fragment", Packet { fragment: 0x2001, ..syn4() }.frame(), &[Total::Fragment]),
            left("last fragment", Packet { fragment: 185, ..syn4() }.frame(), &[Total::Fragment]),
            left(
                "v6 later fragment",
                Packet { extensions: vec![(44, fragment(185))], ..syn6() }.frame(),
                &[Total::Fragment],
            ),
            left("ICMP", proto(1, syn4()), &[Total::OtherProtocol]),
            left("ICMPv6", proto(58, syn6()), &[Total::OtherProtocol]),
            left("ESP", proto(50, syn6()), &[Total::OtherProtocol]),
            left("port 81", Packet::tcp(CLIENT4, "198.51.100.7:81", SYN).frame(), &[Total::OtherPort]),
            left("v6 port 81", Packet::tcp(CLIENT6, "[2001:db8::7]:81", SYN).frame(), &[Total::OtherPort]),
            left("UDP on a TCP port", Packet::udp(CLIENT4, NODE4).frame(), &[Total::OtherPort]),
            left("a reply", Packet::tcp(NODE4, CLIENT4, SYN | ACK).frame(), &[Total::OtherPort]),
            left("transit", Packet::tcp(CLIENT4, "203.0.113.9:80", SYN).frame(), &[Total::Transit]),
            left("v6 transit", Packet::tcp(CLIENT6, "[2001:db8::8]:80", SYN).frame(), &[Total::Transit]),
        ]
    });
}

#[test]
fn frame_cut_at_any_byte_is_malformed() {
    // BPF_PROG_TEST_RUN takes no frame shorter than a link header; the unit tests of `ingress-ebpf` cover those.
    const LINK: usize = 14;
    check_all(|| {
        let whole = [
            syn4(),
            syn6(),
            Packet { tags: vec![0x88a8, 0x8100], options: 12, ..syn4() },
            Packet { extensions: vec![(0, extension(0)), (60, extension(1))], ..syn6() },
            Packet::udp(CLIENT4, "198.51.100.7:443"),
        ];
        let cut = whole.iter().flat_map(|packet| {
            let frame = packet.frame();
            (LINK..frame.len()).map(move |length| frame[..length].to_vec())
        });
        cut.map(|frame| left("cut", frame, &[Total::Malformed])).collect()
    });
}

#[test]
fn packets_count_for_the_host_of_their_flow() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let flows = datapath.flows();
        let address = |text: &str| text.parse().expect("an address");
        let case = |description, packet: Packet, host, counters| Case {
            description,
            frame: Packet { tcp_flags: ACK, payload: 100, ..packet }.frame(),
            host: Some(host),
            counters,
        };
        check(&datapath, &case("no flow", syn4(), 0, &[]));
        flows.insert(address(CLIENT4), address(NODE4), 5);
        flows.insert(address(CLIENT6), address(NODE6), 6);
        check(&datapath, &case("v4 flow", syn4(), 5, &[]));
        check(&datapath, &case("v6 flow", syn6(), 6, &[]));
        check(&datapath, &case("flow of another port", Packet::tcp("192.0.2.1:40001", NODE4, ACK), 0, &[]));
        flows.insert(address(CLIENT4), address(NODE4), 7);
        check(&datapath, &case("another host on the same connection", syn4(), 7, &[]));
        // A dual-stack socket shows IPv4 peers as v4-mapped.
        flows.insert(address("[::ffff:192.0.2.1]:40000"), address("[::ffff:198.51.100.7]:80"), 8);
        check(&datapath, &case("v4-mapped names the same flow", syn4(), 8, &[]));
        let beyond = datapath.report().host_capacity;
        flows.insert(address(CLIENT4), address(NODE4), beyond);
        check(&datapath, &case("host beyond the capacity", syn4(), 0, &[Total::HostOutOfRange]));
        flows.remove(address(CLIENT4), address(NODE4));
        check(&datapath, &case("flow removed", syn4(), 0, &[]));
        check_sum(&datapath);
    });
}

#[test]
fn stale_heartbeat_stops_steering_until_the_next_beat() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        check(&datapath, &accepted("fresh", &syn4(), &[Total::Decided]));
        let mut alive: Array<_, Alive> = Map::Array(sandbox.map(ALIVE)).try_into().expect("an array");
        let now = alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        alive.set(ALIVE_CURRENT, Alive { heartbeat_ns: 1, ..now }, 0).expect("aged");
        check(&datapath, &accepted("stale", &syn4(), &[Total::HeartbeatStale]));
        check(&datapath, &accepted("stale, no SYN", &Packet { tcp_flags: ACK, ..syn4() }, &[]));
        datapath.heartbeat().expect("beats");
        check(&datapath, &accepted("fresh again", &syn4(), &[Total::Decided]));
    });
}

#[test]
fn only_the_latest_ports_and_addresses_are_in_effect() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let port = SteeredPort { port: 81, proto: PROTO_TCP, first_slot: 4, workers: 1, flags: 0, rewritten: None };
        datapath.set_ports(&[port]).expect("ports");
        datapath.set_node_addrs(&[("203.0.113.9".parse().expect("an address"), 1)]).expect("addresses");
        check(&datapath, &left("old port", syn4().frame(), &[Total::OtherPort]));
        check(&datapath, &accepted("new", &Packet::tcp(CLIENT4, "203.0.113.9:81", SYN), &[Total::Decided]));
        let old = Packet::tcp(CLIENT4, "198.51.100.7:81", SYN);
        check(&datapath, &left("old address", old.frame(), &[Total::Transit]));
    });
}
