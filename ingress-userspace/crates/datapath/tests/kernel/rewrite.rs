//! Port rewriting on the way in and back: the bytes after `ingress_xdp`, `ingress_tc_in` and `ingress_tc_out`, with
//! checksums computed in full.

use aya::maps::{HashMap, Map};
use ingress_common::{
    Nic, PortKey, PortRule, Total,
    flow::{PROTO_TCP, PROTO_UDP},
    map::{NICS, PORTS, PORTS_MAX},
    steer::{NIC_NATIVE, NIC_TRANSMITS, PORT_COUNT_ONLY, PORT_REWRITTEN},
};
use ingress_datapath::{Datapath, RunOptions, SteeredPort, TestProgram, TransmitOptions};
use ingress_lab::packet;

use crate::{
    frames::{CLIENT4, CLIENT6, NODE4, NODE6, check_sum, counters, serving_with},
    packets::{ACK, Packet, RST, SYN, extension},
    sandbox::{Sandbox, ip, sandboxed},
    verdicts::{TCX_DROP, TCX_NEXT, XDP_DROP, XDP_PASS},
};

/// Longest frame that BPF_PROG_TEST_RUN takes for tc programs: all in one page.
const OF_TC: usize = 3000;
/// The receiving interface of test runs.
const LOOPBACK: u32 = 1;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;

const PUBLIC: u16 = 80;
const REWRITTEN: u16 = 10_080;

/// A frame with a right checksum.
#[derive(Clone)]
struct Built {
    bytes: Vec<u8>,
    /// Offset of its IP header.
    ip: usize,
    /// Offset of its transport header.
    transport: usize,
    proto: u8,
}

impl Built {
    fn segment(packet: &Packet) -> Self {
        let bytes = packet.frame();
        let transport = bytes.len() - 20 - packet.payload;
        Self { ip: 14 + 4 * packet.tags.len(), transport, proto: TCP, bytes }.sealed()
    }

    /// An ICMP error from `router` about a packet of another sender, with these EtherTypes of VLAN tags.
    fn error(kind: u8, tags: &[u16], (router, node): (&str, &str), quote: &[u8]) -> Self {
        let packet = Packet { tags: tags.to_vec(), ..Packet::udp(router, node) };
        let proto = if packet.local.is_ipv4() { ICMP } else { ICMPV6 };
        let mut bytes = Packet { proto, ..packet }.frame();
        // The length that `Packet` gives to unknown protocols.
        let (ip, transport) = (14 + 4 * tags.len(), bytes.len() - 8);
        bytes.truncate(transport);
        // A "packet too big" error, for a link of 1400 bytes.
        bytes.extend([kind, 4, 0, 0, 0, 0, 5, 0x78]);
        bytes.extend(quote);
        let (at, length) = if proto == ICMP { (ip + 2, bytes.len() - ip) } else { (ip + 4, bytes.len() - ip - 40) };
        bytes[at..at + 2].copy_from_slice(&u16::try_from(length).expect("short").to_be_bytes());
        Self { bytes, ip, transport, proto }.sealed()
    }

    /// Returns a copy with another port at this offset in the transport header.
    fn with_port(&self, offset: usize, port: u16) -> Self {
        let mut changed = self.clone();
        let at = self.transport + offset;
        changed.bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
        changed.sealed()
    }

    /// Fills in the checksum of its bytes (RFC 1071).
    fn sealed(mut self) -> Self {
        let Self { bytes, ip, transport, proto } = &mut self;
        let at = *transport + if *proto == TCP { 16 } else { 2 };
        bytes[at..at + 2].fill(0);
        let mut covered = Vec::new();
        if *proto != ICMP {
            let addresses = if bytes[*ip] >> 4 == 4 { *ip + 12..*ip + 20 } else { *ip + 8..*ip + 40 };
            covered.extend_from_slice(&bytes[addresses]);
            covered.extend([0, *proto]);
            covered.extend(u16::try_from(bytes.len() - *transport).expect("short").to_be_bytes());
        }
        covered.extend_from_slice(&bytes[*transport..]);
        covered.resize(covered.len().next_multiple_of(2), 0);
        bytes[at..at + 2].copy_from_slice(&packet::checksum(&[covered.as_slice()]));
        self
    }
}

/// A node that rewrites port 80 in packets received on loopback, if loopback's transmit side is seen, too.
fn rewriting(sandbox: &Sandbox, flags: u32) -> Datapath {
    let datapath = serving_with(&sandbox.options(&[]));
    let port = |port, proto, flags| {
        let rewritten = (port == PUBLIC).then_some(REWRITTEN);
        SteeredPort { port, proto, first_slot: 0, workers: 2, flags, rewritten }
    };
    let ports = [port(PUBLIC, PROTO_TCP, 0), port(443, PROTO_UDP, PORT_COUNT_ONLY), port(8443, PROTO_TCP, 0)];
    datapath.set_ports(&ports).expect("ports");
    let mut nics: HashMap<_, u32, Nic> = Map::HashMap(sandbox.map(NICS)).try_into().expect("a hash");
    nics.insert(LOOPBACK, Nic { mode: NIC_NATIVE, flags }, 0).expect("loopback has the programs, as it seems");
    datapath
}

/// Checks that each program turns `frame` into `left`, counts it for `verdict`, and drops it only for a rewritten port.
#[track_caller]
fn check(datapath: &Datapath, description: &str, frame: &Built, left: &Built, verdict: Total) {
    let count = || {
        let totals = counters(datapath).totals;
        totals.iter().find(|(total, _)| *total == verdict).map_or(0, |(_, traffic)| traffic.packets)
    };
    let is_dropped = verdict == Total::RewrittenPort;
    for (program, fate) in [
        (TestProgram::Ingress, if is_dropped { XDP_DROP } else { XDP_PASS }),
        (TestProgram::Stack, if is_dropped { TCX_DROP } else { TCX_NEXT }),
    ] {
        if program == TestProgram::Stack && frame.bytes.len() > OF_TC {
            continue;
        }
        let before = count();
        let options = RunOptions { frame: &frame.bytes, repeat: 1, live: None };
        let result = datapath.test_run(program, options).expect("runs");
        assert_eq!(result.verdict, fate, "{description}: verdict of {program:?}");
        assert_eq!(result.frame, left.bytes, "{description}: bytes after {program:?}");
        assert_eq!(count(), before + 1, "{description}: {verdict:?} of {program:?}");
    }
}

#[track_caller]
fn untouched(datapath: &Datapath, description: &str, frame: &Built, verdict: Total) {
    check(datapath, description, frame, frame, verdict);
}

/// Segments for port 80 of the node, with various headers before their ports.
fn segments() -> Vec<(&'static str, Packet)> {
    let (syn4, syn6) = (Packet::tcp(CLIENT4, NODE4, SYN), Packet::tcp(CLIENT6, NODE6, SYN));
    let (ack4, ack6) = (Packet { tcp_flags: ACK, ..syn4.clone() }, Packet { tcp_flags: ACK, ..syn6.clone() });
    let tags = |tags: &[u16], packet: &Packet| Packet { tags: tags.to_vec(), ..packet.clone() };
    vec![
        ("v4 SYN", syn4.clone()),
        ("v6 SYN", syn6.clone()),
        ("v4 RST", Packet { tcp_flags: RST, ..syn4.clone() }),
        ("v4 data", Packet { payload: 1000, ..ack4.clone() }),
        ("v6 data, an odd number of bytes", Packet { payload: 1001, ..ack6 }),
        ("frame in several buffers", Packet { payload: 8000, ..ack4 }),
        ("one VLAN tag", tags(&[0x8100], &syn4)),
        ("two VLAN tags, v6", tags(&[0x88a8, 0x8100], &syn6)),
        ("most IPv4 options", Packet { options: 40, ..syn4.clone() }),
        ("v6 extensions", Packet { extensions: vec![(0, extension(0)), (60, extension(3))], ..syn6 }),
        ("first fragment", Packet { fragment: 0x2000, ..syn4 }),
    ]
}

#[test]
fn segments_get_the_rewritten_port_and_a_valid_checksum() {
    sandboxed(|sandbox| {
        let datapath = rewriting(sandbox, NIC_TRANSMITS);
        for (description, packet) in segments() {
            let frame = Built::segment(&packet);
            check(&datapath, description, &frame, &frame.with_port(2, REWRITTEN), Total::Accepted);
        }
        // Each client changes the checksum.
        for port in (1..=u16::MAX).step_by(1009) {
            let frame = Built::segment(&Packet::tcp(&format!("192.0.2.1:{port}"), NODE4, ACK));
            check(&datapath, "from another port", &frame, &frame.with_port(2, REWRITTEN), Total::Accepted);
        }
        check_sum(&datapath);
    });
}

#[test]
fn packets_for_other_ports_are_not_rewritten() {
    sandboxed(|sandbox| {
        let datapath = rewriting(sandbox, NIC_TRANSMITS);
        for (description, remote, local, verdict) in [
            ("transit", CLIENT4, "203.0.113.9:80", Total::Transit),
            ("v6 transit", CLIENT6, "[2001:db8::8]:80", Total::Transit),
            ("another port of ours", CLIENT4, "198.51.100.7:8443", Total::Accepted),
            ("nobody's port", CLIENT4, "198.51.100.7:81", Total::OtherPort),
            ("an answer", NODE4, CLIENT4, Total::OtherPort),
            ("transit to the other port", CLIENT4, "203.0.113.9:10080", Total::Transit),
        ] {
            untouched(&datapath, description, &Built::segment(&Packet::tcp(remote, local, SYN)), verdict);
        }
        let frame = |packet: Packet| Built { ip: 14, transport: 34, proto: TCP, bytes: packet.frame() };
        untouched(&datapath, "UDP", &frame(Packet { payload: 12, ..Packet::udp(CLIENT4, NODE4) }), Total::OtherPort);
        let later = Packet { fragment: 185, ..Packet::tcp(CLIENT4, NODE4, ACK) };
        untouched(&datapath, "later fragment", &frame(later), Total::Fragment);
    });
}

#[test]
fn packets_are_not_rewritten_without_an_egress_program() {
    sandboxed(|sandbox| {
        let datapath = rewriting(sandbox, 0);
        for (description, packet) in segments() {
            untouched(&datapath, description, &Built::segment(&packet), Total::Accepted);
        }
        let quote = Packet::tcp(NODE4, CLIENT4, ACK).frame();
        let error = Built::error(3, &[], ("192.0.2.254:0", "198.51.100.7:0"), &quote[14..]);
        untouched(&datapath, "error", &error, Total::OtherProtocol);
    });
}

#[test]
fn new_connections_to_the_rewritten_port_are_dropped() {
    sandboxed(|sandbox| {
        for flags in [NIC_TRANSMITS, 0] {
            let datapath = rewriting(sandbox, flags);
            for (remote, local) in [(CLIENT4, "198.51.100.7:10080"), (CLIENT6, "[2001:db8::7]:10080")] {
                let segment = |tcp_flags| Built::segment(&Packet::tcp(remote, local, tcp_flags));
                untouched(&datapath, "request", &segment(SYN), Total::RewrittenPort);
                untouched(&datapath, "anything else", &segment(ACK), Total::Accepted);
                untouched(&datapath, "an answer", &segment(SYN | ACK), Total::Accepted);
            }
            check_sum(&datapath);
        }
    });
}

#[test]
fn icmp_errors_are_rewritten_to_the_port_of_the_stack() {
    const ROUTER4: (&str, &str) = ("192.0.2.254:0", "198.51.100.7:0");
    const ROUTER6: (&str, &str) = ("[2001:db8::fe]:0", "[2001:db8::7]:0");
    sandboxed(|sandbox| {
        let datapath = rewriting(sandbox, NIC_TRANSMITS);
        let sent4 = Packet { payload: 1000, ..Packet::tcp(NODE4, CLIENT4, ACK) };
        let sent6 = Packet { payload: 1000, ..Packet::tcp(NODE6, CLIENT6, ACK) };
        let (quote4, quote6) = (&sent4.frame()[14..], &sent6.frame()[14..]);
        for kind in [3, 11, 12] {
            // The quoted lengths that RFC 792 and RFC 1812, 4.3.2.3, ask for.
            for (tags, length) in [(&[][..], 28), (&[], 576 - 28), (&[0x8100], 28), (&[0x88a8, 0x8100], 101)] {
                let error = Built::error(kind, tags, ROUTER4, &quote4[..length]);
                check(&datapath, "v4", &error, &error.with_port(28, REWRITTEN), Total::OtherProtocol);
            }
        }
        let with_options = Packet { options: 8, ..sent4.clone() };
        let error = Built::error(3, &[], ROUTER4, &with_options.frame()[14..14 + 36]);
        check(&datapath, "v4 with options", &error, &error.with_port(36, REWRITTEN), Total::OtherProtocol);
        for kind in [1, 2, 3, 4] {
            for (tags, length) in [(&[][..], 48), (&[], 1000), (&[0x8100], 777)] {
                let error = Built::error(kind, tags, ROUTER6, &quote6[..length]);
                check(&datapath, "v6", &error, &error.with_port(48, REWRITTEN), Total::OtherProtocol);
            }
        }
        let of = |packet: &Packet| packet.frame()[14..].to_vec();
        for (description, kind, router, quote) in [
            ("echo request", 8, ROUTER4, quote4.to_vec()),
            ("v6 echo request", 128, ROUTER6, quote6.to_vec()),
            ("about another port", 3, ROUTER4, of(&Packet::tcp("198.51.100.7:8443", CLIENT4, ACK))),
            ("about somebody else's", 3, ROUTER4, of(&Packet::tcp("203.0.113.9:80", CLIENT4, ACK))),
            ("v6 about somebody else's", 2, ROUTER6, of(&Packet::tcp("[2001:db8::8]:80", CLIENT6, ACK))),
            ("about UDP", 3, ROUTER4, of(&Packet { payload: 12, ..Packet::udp(NODE4, CLIENT4) })),
            ("about a later fragment", 3, ROUTER4, of(&Packet { fragment: 185, ..sent4 })),
            ("about what was not rewritten", 3, ROUTER4, of(&Packet::tcp("198.51.100.7:10080", CLIENT4, ACK))),
        ] {
            let error = Built::error(kind, &[], router, &quote);
            untouched(&datapath, description, &error, Total::OtherProtocol);
        }
    });
}

#[test]
fn outgoing_segments_get_the_public_port() {
    sandboxed(|sandbox| {
        ip("link add xk-a type veth peer name xk-b");
        let datapath = serving_with(&sandbox.options(&["xk-a"]));
        let interface = datapath.report().interfaces[0].index;
        let port = SteeredPort {
            port: PUBLIC,
            proto: PROTO_TCP,
            first_slot: 0,
            workers: 2,
            flags: 0,
            rewritten: Some(REWRITTEN),
        };
        datapath.set_ports(&[port]).expect("ports");
        // The proxy enters flows by the port that the client knows.
        datapath.flows().insert(CLIENT4.parse().expect("an address"), NODE4.parse().expect("an address"), 5);
        let run = |frame: &Built| {
            let options = TransmitOptions { frame: &frame.bytes, repeat: 1, interface, segments: 0, wire_bytes: 0 };
            let result = datapath.test_transmit(options).expect("runs");
            assert_eq!(result.verdict, TCX_NEXT);
            result.frame
        };
        let of_host = |host: usize| counters(&datapath).hosts[host].tx_packets;
        let at_client = |packet: Packet| Packet { remote: packet.local, local: packet.remote, ..packet };
        for (description, packet) in segments().into_iter().filter(|(_, packet)| packet.payload <= OF_TC - 100) {
            let (before, is_v4) = (of_host(5), packet.local.is_ipv4());
            let mut from = at_client(packet);
            let public = Built::segment(&from);
            from.remote.set_port(REWRITTEN);
            assert_eq!(run(&Built::segment(&from)), public.bytes, "{description}");
            assert_eq!(run(&public), public.bytes, "{description}, node-local");
            assert_eq!(of_host(5) - before, if is_v4 { 2 } else { 0 }, "{description}: under one name");
        }
        for from in ["203.0.113.9:10080", "198.51.100.7:10081"] {
            let frame = Built::segment(&Packet::tcp(from, CLIENT4, ACK));
            assert_eq!(run(&frame), frame.bytes, "{from}");
        }
        let sum: u64 = counters(&datapath).hosts.iter().map(|host| host.tx_packets).sum();
        assert_eq!(datapath.totals().expect("totals").get(Total::Transmitted).packets, sum);
    });
}

#[test]
fn a_rewritten_port_has_two_rules_and_nics_flag_the_egress_program() {
    sandboxed(|sandbox| {
        ip("link add xk-a type veth peer name xk-b");
        let datapath = serving_with(&sandbox.options(&["xk-a"]));
        let nics = datapath.maps().nics().expect("nics");
        assert_eq!(nics.iter().map(|(_, nic)| nic.flags).collect::<Vec<_>>(), [NIC_TRANSMITS]);

        let port =
            |rewritten| SteeredPort { port: PUBLIC, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0, rewritten };
        let rules = |rewritten| {
            datapath.set_ports(&[port(rewritten)]).expect("ports");
            let mut rules: Vec<_> = datapath.maps().ports().expect("ports");
            rules.sort_by_key(|(key, _)| u16::from_be(key.port_be));
            let rule = |(PortKey { port_be, .. }, PortRule { flags, rewrite_be, .. })| {
                (u16::from_be(port_be), flags, u16::from_be(rewrite_be))
            };
            rules.into_iter().map(rule).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(rules(Some(REWRITTEN)), [(PUBLIC, 0, REWRITTEN), (REWRITTEN, PORT_REWRITTEN, PUBLIC)]);
            assert_eq!(rules(None), [(PUBLIC, 0, 0)]);
        }
    });
}

#[test]
fn a_full_set_of_ports_can_be_replaced() {
    sandboxed(|sandbox| {
        let datapath = serving_with(&sandbox.options(&[]));
        for offset in [10_000, 20_000] {
            let port = |port: u16| {
                let rewritten = Some(port + offset);
                SteeredPort { port, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0, rewritten }
            };
            let ports: Vec<_> = (1_000..1_032).map(port).collect();
            datapath.set_ports(&ports).expect("as many as fit");
            let pinned: HashMap<_, PortKey, PortRule> = Map::HashMap(sandbox.map(PORTS)).try_into().expect("a hash");
            let numbers: Vec<_> = pinned.keys().map(|key| u16::from_be(key.expect("read").port_be)).collect();
            assert_eq!(numbers.len(), PORTS_MAX as usize);
            assert!((1_000..1_032).all(|port| numbers.contains(&port) && numbers.contains(&(port + offset))));
        }
    });
}
