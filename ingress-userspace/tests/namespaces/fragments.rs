//! Packets that hide their port on real links: a SYN in fragments of 8 bytes, and one behind seven extension headers,
//! for HTTP and for a TCP service. The stack of the node reassembles them and answers; a denied client gets no answer
//! to them, either, and no client gets one while clients are limited.

use std::{
    io::{ErrorKind, Read as _},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use ingress_common::Total;
use ingress_lab::{
    Process,
    topology::{CLIENT_V4, CLIENT_V6, Family, node_addr},
    until,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    deny::{BLOCKED_V4, BLOCKED_V6, CLIENTS, denied, get, serving_more, wait_for_drop},
    net::Net,
    tcp_services,
};

const BLOCK: &str = "block-cidrs: \"192.0.2.3, 2001:db8:1::3\"";
/// Far more than this test sends, so that only what hides its port is dropped.
const LIMIT: &str = "client-syns-per-second: \"1000\"";
/// The ports of HTTP and of a TCP service.
const PORTS: [u16; 2] = [80, 5432];
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Ones' complement sum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// The segment of a SYN.
fn syn(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut header = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    header.extend([0, 0, 0, 7, 0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [octets(from.ip()), octets(to.ip()), vec![0, TCP, 0, 20], header.clone()].concat();
    header[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    header
}

/// The packets that carry it, without link headers.
fn packets(from: SocketAddr, to: SocketAddr) -> Vec<Vec<u8>> {
    let (syn, to) = (syn(from, to), to.ip());
    match to {
        IpAddr::V4(_) => [(&syn[..8], 0x2000_u16), (&syn[8..16], 0x2001), (&syn[16..], 2)]
            .map(|(piece, fragment)| {
                let mut packet = vec![0x45, 0, 0, u8::try_from(20 + piece.len()).expect("short")];
                packet.extend(from.port().to_be_bytes());
                packet.extend(fragment.to_be_bytes());
                packet.extend([64, TCP, 0, 0]);
                packet.extend([octets(from.ip()), octets(to), piece.to_vec()].concat());
                packet
            })
            .into(),
        IpAddr::V6(_) => {
            const DESTINATION: u8 = 60;
            let extensions: Vec<u8> =
                (0..7).flat_map(|number| [if number == 6 { TCP } else { DESTINATION }, 0, 1, 4, 0, 0, 0, 0]).collect();
            let length = u8::try_from(extensions.len() + syn.len()).expect("short");
            let head = vec![0x60, 0, 0, 0, 0, length, DESTINATION, 64];
            vec![[head, octets(from.ip()), octets(to), extensions, syn].concat()]
        }
    }
}

/// Opens a raw socket of the client for sending whole packets, and one that receives the TCP packets for `from`.
fn sockets(net: &Net, from: IpAddr) -> (Socket, Socket) {
    const RAW: i32 = 255;
    let domain = Domain::for_address(SocketAddr::new(from, 0));
    let open = || -> anyhow::Result<_> {
        let sender = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
        let receiver = Socket::new(domain, Type::RAW, Some(Protocol::TCP))?;
        receiver.bind(&SocketAddr::new(from, 0).into())?;
        receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok((sender, receiver))
    };
    net.topology.client.run(open).expect("raw sockets of the client")
}

/// Returns whether a SYN-ACK for the port arrives within the time.
fn is_answered(mut receiver: &Socket, port: u16, within: Duration) -> bool {
    let began = Instant::now();
    while began.elapsed() < within {
        let mut bytes = [0_u8; 256];
        let length = match receiver.read(&mut bytes) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => panic!("{error}"),
        };
        let mut reader = &bytes[..length];
        // Raw sockets of IPv4 show the IP header, those of IPv6 do not.
        if reader[0] >> 4 == 4 && receiver.domain().expect("a domain") == Domain::IPV4 {
            reader = &reader[20..];
        }
        if reader[2..4] == port.to_be_bytes() && reader[13] & (SYN | ACK) == SYN | ACK {
            return true;
        }
    }
    false
}

fn send(sender: &Socket, from: SocketAddr, to: SocketAddr) {
    for packet in packets(from, to) {
        sender.send_to(&packet, &SocketAddr::new(to.ip(), 0).into()).expect("sent");
    }
}

/// Starts a proxy with these settings, for HTTP and a TCP service.
fn serving(name: &str, rows: &[&str]) -> Option<(Net, Process)> {
    let write = |net: &Net| {
        tcp_services::mirror(&net.topology.pods[0].namespace);
        tcp_services::manifests(net, &[(PORTS[1], "default/db:5432")]);
    };
    serving_more(name, rows, write, &["--tcp-services-configmap", "default/tcp"])
}

#[test]
fn a_syn_that_hides_its_port_from_the_deny_list_is_not_answered() {
    let Some((net, mut process)) = serving("fragments", &[BLOCK]) else { return };
    process.wait_for_log("the node's deny list changed", 1).expect("it changes");
    let families = [
        (Family::V4, IpAddr::V4(CLIENT_V4), IpAddr::V4(BLOCKED_V4)),
        (Family::V6, IpAddr::V6(CLIENT_V6), IpAddr::V6(BLOCKED_V6)),
    ];
    for ((family, client, blocked), port) in families.into_iter().flat_map(|family| PORTS.map(|port| (family, port))) {
        let to = SocketAddr::new(node_addr(family), port);
        // The stack understands these packets: without the list it would answer the blocked client, too.
        let (sender, receiver) = sockets(&net, client);
        let mut source = 40_000;
        until("an answer", || {
            source += 1;
            send(&sender, SocketAddr::new(client, source), to);
            is_answered(&receiver, source, Duration::from_secs(1)).then_some(())
        })
        .unwrap_or_else(|error| panic!("{to}: {error:#}"));

        let (sender, receiver) = sockets(&net, blocked);
        let lookups = || {
            let counts = net.maps().read().expect("maps");
            [Total::LookupDecided, Total::LookupDefault, Total::Undecided].map(|event| counts.total(event).packets)
        };
        let (before, looked_up) = (denied(&net), lookups());
        send(&sender, SocketAddr::new(blocked, 41_000), to);
        wait_for_drop(&net, before);
        assert!(!is_answered(&receiver, 41_000, Duration::from_secs(2)), "{to}");
        assert_eq!(denied(&net), before + 1, "{to}: the packet that begins it, and nothing else");
        assert_eq!(lookups(), looked_up, "{to}");
    }
}

#[test]
fn a_syn_that_hides_its_port_from_the_limits_is_not_answered() {
    let Some((net, mut process)) = serving("frag-limits", &[LIMIT]) else { return };
    process.wait_for_log("the node's limits of clients", 1).expect("they change");
    let total = |total: Total| net.maps().read().expect("maps").total(total).packets;
    for ((family, client, _), port) in CLIENTS.into_iter().flat_map(|client| PORTS.map(|port| (client, port))) {
        let to = SocketAddr::new(node_addr(family), port);
        let (sender, receiver) = sockets(&net, client);
        let before = total(Total::HiddenPort);
        send(&sender, SocketAddr::new(client, 42_000), to);
        until("the kernel drops it", || (total(Total::HiddenPort) > before).then_some(())).expect("a drop");
        assert!(!is_answered(&receiver, 42_000, Duration::from_secs(2)), "{to}");
        assert_eq!(total(Total::HiddenPort), before + 1, "{to}: the packet that begins it, and nothing else");
    }
    for (family, client, _) in CLIENTS {
        assert_eq!(get(&net, client, family, "").expect("an answer"), 200, "who hides nothing is served");
    }
    assert_eq!(total(Total::LimitedSyn), 0);
}
