//! Counters of `ingress_tc_out`: packets by BPF_PROG_TEST_RUN, and datagrams that really leave, by both possible hooks.

use std::{fs, net::UdpSocket};

use aya::programs::{SchedClassifier, TcAttachType};
use ingress_common::{
    HostNet, NicNet, RawHostId, Total, Traffic,
    map::{NIC_GONE, NIC_OTHER},
};
use ingress_datapath::{
    Attachment, Datapath, Options, Pinned, TcHook, TransmitOptions, TransmitState, XdpMode, unload,
};
use ingress_lab::until;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use crate::{
    frames::{CLIENT4, CLIENT6, Counters, NODE4, NODE6, counters, serving_with},
    packets::{ACK, Packet, RST, SYN, extension, fragment},
    sandbox::{Sandbox, ip, sandboxed},
    verdicts::TCX_NEXT,
};

const NIC: &str = "xk-a";
/// Ethernet, IPv4 and UDP.
const HEADERS: u64 = 14 + 20 + 8;

/// A packet that an interface is to send.
struct Case {
    description: &'static str,
    frame: Vec<u8>,
    /// Number of segments it will be cut into, and the bytes of all of them; zeroes for a single packet.
    segments: (u32, u32),
    /// The host it counts for; `None` if it does not count.
    host: Option<RawHostId>,
    /// Counters besides `Transmitted`.
    events: &'static [Total],
}

fn counted(description: &'static str, packet: &Packet) -> Case {
    Case { description, frame: packet.frame(), segments: (0, 0), host: Some(0), events: &[] }
}

fn left(description: &'static str, packet: &Packet) -> Case {
    Case { host: None, ..counted(description, packet) }
}

#[track_caller]
fn check(datapath: &Datapath, interface: u32, case: &Case) {
    let Case { description, frame, segments: (segments, wire_bytes), host, events } = case;
    let nics = || datapath.maps().nic_net().expect("nic_net");
    let (before, nics_before) = (counters(datapath), nics());
    let options = TransmitOptions { frame, repeat: 1, interface, segments: *segments, wire_bytes: *wire_bytes };
    let result = datapath.test_transmit(options).expect("runs");
    let (after, nics_after) = (counters(datapath), nics());

    assert_eq!(result.verdict, TCX_NEXT, "{description}: whatever comes next has its turn");
    let bytes = if *wire_bytes == 0 { frame.len() as u64 } else { u64::from(*wire_bytes) };
    let once = Traffic { packets: u64::from(*segments.max(&1)), bytes };
    let plus = |base: Traffic, if_so: bool| {
        let Traffic { packets, bytes } = if if_so { once } else { Traffic::default() };
        Traffic { packets: base.packets + packets, bytes: base.bytes + bytes }
    };
    for ((total, before), (_, after)) in before.totals.iter().zip(&after.totals) {
        let is_counted = host.is_some() && (*total == Total::Transmitted || events.contains(total));
        assert_eq!(*after, plus(*before, is_counted), "{description}: {total:?}");
    }
    for (id, (before, after)) in before.hosts.iter().zip(&after.hosts).enumerate() {
        let is_counted = host.is_some_and(|host| host as usize == id);
        let sent = |host: &HostNet| Traffic { packets: host.tx_packets, bytes: host.tx_bytes };
        assert_eq!(sent(after), plus(sent(before), is_counted), "{description}: host {id}");
        assert_eq!(
            (after.rx_packets, after.rx_bytes),
            (before.rx_packets, before.rx_bytes),
            "{description}: host {id}"
        );
    }
    for (index, before) in nics_before {
        // `interface` 0 stands for loopback, which has no entry.
        let sent = |nic: &NicNet| Traffic { packets: nic.tx_packets, bytes: nic.tx_bytes };
        let is_counted = host.is_some() && index == interface;
        assert_eq!(sent(&nics_after[&index]), plus(sent(&before), is_counted), "{description}: interface {index}");
    }
}

/// Checks Σ hosts = Σ interfaces = transmitted, packets and bytes.
#[track_caller]
fn check_sum(datapath: &Datapath) -> Traffic {
    let Counters { totals, hosts } = counters(datapath);
    let by_host = sum(hosts.iter().map(|host| (host.tx_packets, host.tx_bytes)));
    let nics = datapath.maps().nic_net().expect("nic_net");
    let by_nic = sum(nics.values().map(|nic| (nic.tx_packets, nic.tx_bytes)));
    let total = totals.iter().find(|(total, _)| *total == Total::Transmitted).map(|(_, traffic)| *traffic);
    assert_eq!(Some(by_host), total);
    assert_eq!(by_host, by_nic);
    by_host
}

fn sum(values: impl Iterator<Item = (u64, u64)>) -> Traffic {
    values.fold(Traffic::default(), |sum, (packets, bytes)| Traffic {
        packets: sum.packets + packets,
        bytes: sum.bytes + bytes,
    })
}

fn veth() {
    ip("link add xk-a type veth peer name xk-b");
}

fn attached(datapath: &Datapath) -> Option<(TcHook, Attachment)> {
    match &datapath.report().interfaces[0].transmit {
        TransmitState::Attached { hook, attachment } => Some((*hook, *attachment)),
        TransmitState::Off => None,
        TransmitState::Failed(error) => panic!("{error:?}"),
    }
}

#[test]
fn only_packets_from_steered_ports_are_counted_as_sent() {
    sandboxed(|sandbox| {
        veth();
        let datapath = serving_with(&sandbox.options(&[NIC]));
        let nic = datapath.report().interfaces[0].index;
        let (answer4, answer6) = (Packet::tcp(NODE4, CLIENT4, ACK), Packet::tcp(NODE6, CLIENT6, ACK));
        let tags = |tags: &[u16], packet: &Packet| Packet { tags: tags.to_vec(), ..packet.clone() };
        let extended = Packet { extensions: vec![(0, extension(0)), (60, extension(1))], ..answer6.clone() };
        let cut = Packet { payload: 3000, ..answer4.clone() };
        let cut6 = Packet { payload: 3000, ..answer6.clone() };
        let cases = [
            counted("v4", &answer4),
            counted("v6", &answer6),
            counted("v4 SYN-ACK", &Packet { tcp_flags: SYN | ACK, ..answer4.clone() }),
            counted("v6 RST", &Packet { tcp_flags: RST, ..answer6.clone() }),
            counted("v4 data", &Packet { payload: 1000, ..answer4.clone() }),
            counted("v6 behind extensions", &extended),
            counted("v4 with options", &Packet { options: 40, ..answer4.clone() }),
            counted("one VLAN tag", &tags(&[0x8100], &answer4)),
            counted("two VLAN tags, v6", &tags(&[0x88a8, 0x8100], &answer6)),
            counted("UDP of a service", &Packet::udp("198.51.100.7:443", CLIENT4)),
            counted("v6 UDP of a service", &Packet::udp("[2001:db8::7]:443", CLIENT6)),
            counted("port without workers", &Packet::tcp("198.51.100.7:8080", CLIENT4, ACK)),
            counted("first fragment", &Packet { fragment: 0x2000, ..answer4.clone() }),
            Case { segments: (3, 54 * 3 + 3000), ..counted("v4, to be cut into three", &cut) },
            Case { segments: (4, 74 * 4 + 3000), ..counted("v6, to be cut into four", &cut6) },
            left("a request", &Packet::tcp(CLIENT4, NODE4, SYN)),
            left("v6 request", &Packet::tcp(CLIENT6, NODE6, SYN)),
            left("another port", &Packet::tcp("198.51.100.7:22", CLIENT4, ACK)),
            left("UDP from a TCP port", &Packet::udp(NODE4, CLIENT4)),
            left("somebody else's address", &Packet::tcp("203.0.113.9:80", CLIENT4, ACK)),
            left("v6, somebody else's address", &Packet::tcp("[2001:db8::8]:80", CLIENT6, ACK)),
            left("later fragment", &Packet { fragment: 185, ..answer4.clone() }),
            left("v6 later fragment", &Packet { extensions: vec![(44, fragment(185))], ..answer6.clone() }),
            left("ICMP", &Packet { proto: 1, ..answer4.clone() }),
            left("three VLAN tags", &tags(&[0x8100; 3], &answer4)),
        ];
        for case in &cases {
            check(&datapath, nic, case);
        }
        // Truncated headers, which make the program fetch the rest of them.
        let whole = answer4.frame();
        for length in 35..whole.len() {
            let frame = whole[..length].to_vec();
            check(&datapath, nic, &Case { frame, ..left("cut short", &answer4) });
        }
        check_sum(&datapath);
    });
}

#[test]
fn sent_packets_count_for_the_host_of_their_connection() {
    sandboxed(|sandbox| {
        veth();
        let datapath = serving_with(&sandbox.options(&[NIC]));
        let nic = datapath.report().interfaces[0].index;
        let flows = datapath.flows();
        let address = |text: &str| text.parse().expect("an address");
        // The proxy enters flows with the client first.
        flows.insert(address(CLIENT4), address(NODE4), 5);
        flows.insert(address(CLIENT6), address(NODE6), 6);
        let of = |host, description, packet: &Packet| Case { host: Some(host), ..counted(description, packet) };
        let (answer4, answer6) = (Packet::tcp(NODE4, CLIENT4, ACK), Packet::tcp(NODE6, CLIENT6, ACK));
        check(&datapath, nic, &of(5, "v4 flow", &answer4));
        check(&datapath, nic, &of(6, "v6 flow", &answer6));
        let cut = Packet { payload: 2000, ..answer4.clone() };
        check(&datapath, nic, &Case { segments: (2, 54 * 2 + 2000), ..of(5, "v4 flow, to be cut", &cut) });
        check(&datapath, nic, &of(0, "another port of the client", &Packet::tcp(NODE4, "192.0.2.1:40001", ACK)));
        flows.insert(address(CLIENT4), address(NODE4), 7);
        check(&datapath, nic, &of(7, "another host on the same connection", &answer4));
        let beyond = datapath.report().host_capacity;
        flows.insert(address(CLIENT4), address(NODE4), beyond);
        let out_of_range = Case { events: &[Total::HostOutOfRange], ..of(0, "host beyond the capacity", &answer4) };
        check(&datapath, nic, &out_of_range);
        flows.remove(address(CLIENT4), address(NODE4));
        check(&datapath, nic, &of(0, "flow removed", &answer4));
        check_sum(&datapath);
    });
}

#[test]
fn an_interface_without_an_entry_is_counted_as_other() {
    sandboxed(|sandbox| {
        let datapath = serving_with(&sandbox.options(&[]));
        check(&datapath, NIC_OTHER, &counted("loopback", &Packet::tcp(NODE4, CLIENT4, ACK)));
        check_sum(&datapath);
    });
}

#[test]
fn counters_outlast_their_interface() {
    sandboxed(|sandbox| {
        veth();
        let options = sandbox.options(&[NIC]);
        let first = serving_with(&options);
        let old = first.report().interfaces[0].index;
        check(&first, old, &counted("v4", &Packet::tcp(NODE4, CLIENT4, ACK)));
        drop(first);
        ip("link del xk-a");
        veth();
        let second = serving_with(&options);
        let new = second.report().interfaces[0].index;
        let nics = second.maps().nic_net().expect("nic_net");
        assert_eq!(nics.keys().copied().collect::<Vec<_>>(), [NIC_OTHER, new, NIC_GONE]);
        assert_eq!((nics[&NIC_GONE].tx_packets, nics[&new]), (1, NicNet::default()));
        assert_eq!(attached(&second), Some((TcHook::Tcx, Attachment::Created)));
        check_sum(&second);
    });
}

/// Sends datagrams from port 443 of the node's address on the interface, one of them a large one that is segmented on
/// its way out. Returns their packets and bytes on the wire.
fn send(socket: &UdpSocket) -> Traffic {
    const SEGMENT: i32 = 500;
    for length in [1, 100, 1000] {
        socket.send(&vec![b'x'; length]).expect("sent");
    }
    setsockopt(socket, UdpGsoSegment, &SEGMENT).expect("the kernel cuts datagrams (Linux 4.18)");
    socket.send(&[b'x'; 1900]).expect("sent");
    setsockopt(socket, UdpGsoSegment, &0).expect("and no longer does");
    Traffic { packets: 3 + 4, bytes: 1 + 100 + 1000 + 1900 + 7 * HEADERS }
}

/// A socket of the node behind an interface that is up, towards a neighbour that accepts everything.
fn socket() -> UdpSocket {
    for command in [
        "addr add 198.51.100.7/24 dev xk-a",
        "link set xk-a up",
        "link set xk-b up",
        "neigh add 198.51.100.8 lladdr 02:00:00:00:00:08 dev xk-a",
    ] {
        ip(command);
    }
    let socket = UdpSocket::bind("198.51.100.7:443").expect("bound");
    socket.connect("198.51.100.8:40000").expect("connected");
    socket
}

fn is_counted_exactly(sandbox: &Sandbox, hook: TcHook) {
    veth();
    let options = Options { tc_hook: Some(hook), ..sandbox.options(&[NIC]) };
    let first = serving_with(&options);
    assert_eq!(attached(&first), Some((hook, Attachment::Created)));
    let socket = socket();
    let once = send(&socket);
    assert_eq!(check_sum(&first), once);

    let second = serving_with(&options);
    assert_eq!(attached(&second), Some((hook, Attachment::Adopted)));
    drop(first);
    send(&socket);
    let twice = Traffic { packets: once.packets * 2, bytes: once.bytes * 2 };
    assert_eq!(check_sum(&second), twice, "by one program at a time, and by that of the second process");

    let off = serving_with(&Options { xdp_mode: XdpMode::Off, ..options.clone() });
    assert_eq!(attached(&off), None);
    send(&socket);
    assert_eq!(check_sum(&off), twice, "an interface without XDP has not this program either");

    let again = serving_with(&options);
    assert_eq!(attached(&again), Some((hook, Attachment::Created)));
    send(&socket);
    assert_eq!(check_sum(&again).packets, once.packets * 3);
    drop((second, off));

    let other = match hook {
        TcHook::Tcx => TcHook::Clsact,
        TcHook::Clsact => TcHook::Tcx,
    };
    let changed = serving_with(&Options { tc_hook: Some(other), ..options.clone() });
    assert_eq!(attached(&changed), Some((other, Attachment::Created)));
    send(&socket);
    assert_eq!(check_sum(&changed).packets, once.packets * 4, "never by both");

    let pinned = Pinned::open(&options.bpffs).expect("pins");
    unload(&options.bpffs).expect("unloads");
    drop((again, changed));
    send(&socket);
    let left: u64 = pinned.maps().nic_net().expect("nic_net").values().map(|nic| nic.tx_packets).sum();
    assert_eq!(left, once.packets * 4, "nothing is left that counts");
}

#[test]
fn datagrams_and_their_segments_are_counted_by_tcx() {
    sandboxed(|sandbox| is_counted_exactly(sandbox, TcHook::Tcx));
}

#[test]
fn datagrams_and_their_segments_are_counted_by_clsact() {
    sandboxed(|sandbox| is_counted_exactly(sandbox, TcHook::Clsact));
}

#[test]
fn a_removed_link_is_recreated() {
    sandboxed(|sandbox| {
        veth();
        let options = sandbox.options(&[NIC]);
        let first = serving_with(&options);
        fs::remove_file(sandbox.bpffs().join("v1/links/tc-out-xk-a")).expect("removed");
        // The kernel detaches the program asynchronously.
        let programs =
            || SchedClassifier::query_tcx(NIC, TcAttachType::Egress).ok().map(|(_, programs)| programs.len());
        until("the program is gone", || (programs() == Some(0)).then_some(())).expect("it goes");
        let second = serving_with(&options);
        assert_eq!(attached(&second), Some((TcHook::Tcx, Attachment::Created)));
        let once = send(&socket());
        assert_eq!(check_sum(&second), once);
        drop(first);
    });
}

#[test]
fn a_failed_attachment_does_not_affect_other_programs() {
    sandboxed(|sandbox| {
        veth();
        // The link cannot be pinned because a directory has that path.
        fs::create_dir_all(sandbox.bpffs().join("v1/links/tc-out-xk-a")).expect("a directory in its way");
        let datapath = serving_with(&sandbox.options(&[NIC]));
        let report = &datapath.report().interfaces[0];
        assert!(matches!(report.transmit, TransmitState::Failed(_)), "{report:?}");
        assert!(report.state.is_attached() && datapath.report().lookup.is_some(), "{report:?}");
    });
}
