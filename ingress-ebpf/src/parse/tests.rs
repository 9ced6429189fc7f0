//! Frames in, segments and verdicts out; the kernel tables of `crates/datapath/tests/kernel` repeat this under the
//! verifier.

use super::*;

impl Frame for &[u8] {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.get(offset..)?.first_chunk()
    }
}

#[track_caller]
fn check(what: &str, frame: &[u8], expected: Result<(&str, &str, u8), Total>) {
    let found = parse(&frame).map(|segment| {
        let FlowKey { remote_addr, local_addr, remote_port_be, local_port_be, proto: _, pad, pad_end } = segment.flow;
        assert_eq!((pad, pad_end), (0, 0), "{what}: padding is part of the key");
        let socket =
            |addr, port_be| std::net::SocketAddr::from((std::net::Ipv6Addr::from(addr), u16::from_be(port_be)));
        (
            socket(remote_addr, remote_port_be).to_string(),
            socket(local_addr, local_port_be).to_string(),
            segment.tcp_flags,
        )
    });
    let expected = expected.map(|(remote, local, flags)| (remote.to_owned(), local.to_owned(), flags));
    assert_eq!(found, expected, "{what}");
}

/// Asserts that the port of a frame between the usual addresses is hidden.
#[track_caller]
fn check_hidden(what: &str, frame: &[u8]) {
    let (remote_addr, local_addr) = if frame[14] >> 4 == 4 {
        (v4_mapped([192, 0, 2, 1]), v4_mapped([198, 51, 100, 7]))
    } else {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        (octets("2001:db8::1"), octets("2001:db8::7"))
    };
    check(what, frame, Err(Total::HiddenPort));
    assert_eq!(ends(&frame), Some(Ends { remote_addr, local_addr }), "{what}");
}

const V4: Result<(&str, &str, u8), Total> = Ok(("[::ffff:192.0.2.1]:40000", "[::ffff:198.51.100.7]:80", 0x02));
const V4_UDP: Result<(&str, &str, u8), Total> = Ok(("[::ffff:192.0.2.1]:40000", "[::ffff:198.51.100.7]:80", 0));
const V6: Result<(&str, &str, u8), Total> = Ok(("[2001:db8::1]:40000", "[2001:db8::7]:80", 0x02));

fn ethernet(tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 5]);
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

fn ipv4(options: usize, fragment: u16, proto: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options;
    let mut packet = vec![0x40 | u8::try_from(header / 4).unwrap(), 0];
    packet.extend(u16::try_from(header + payload.len()).unwrap().to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, proto, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
    packet.extend(vec![1; options]);
    packet.extend(payload);
    packet
}

/// Builds a packet. `extensions`: kind of each header, and the header without its first byte, which is set to the next
/// kind.
fn ipv6(extensions: &[(u8, Vec<u8>)], proto: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (index, (_, header)) in extensions.iter().enumerate() {
        body.push(extensions.get(index + 1).map_or(proto, |(kind, _)| *kind));
        body.extend(&header[1..]);
    }
    body.extend(payload);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    packet.extend([extensions.first().map_or(proto, |(kind, _)| *kind), 64]);
    packet.extend("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend("2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
    packet.extend(body);
    packet
}

fn tcp(offset: u8, options: usize) -> Vec<u8> {
    let mut header = Vec::from(40_000_u16.to_be_bytes());
    header.extend(80_u16.to_be_bytes());
    header.extend([0; 8]);
    header.extend([offset << 4, 0x02, 0, 0, 0, 0, 0, 0]);
    header.extend(vec![1; options]);
    header
}

fn udp() -> Vec<u8> {
    let mut header = Vec::from(40_000_u16.to_be_bytes());
    header.extend(80_u16.to_be_bytes());
    header.extend([0, 8, 0, 0]);
    header
}

fn v4(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], 0x0800, &ipv4(0, 0, 6, payload))
}

fn v6(extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
    ethernet(&[], 0x86dd, &ipv6(extensions, 6, &tcp(5, 0)))
}

fn options(length: u8) -> Vec<u8> {
    let mut header = vec![0, length];
    header.resize(8 + usize::from(length) * 8, 0);
    header
}

fn fragment(offset: u16) -> Vec<u8> {
    let [high, low] = (offset << 3 | 1).to_be_bytes();
    vec![0, 0, high, low, 0, 0, 0, 9]
}

fn authentication(length: u8) -> Vec<u8> {
    let mut header = vec![0, length];
    header.resize(8 + usize::from(length) * 4, 0);
    header
}

#[test]
fn both_families_name_their_flow() {
    check("ipv4", &v4(&tcp(5, 0)), V4);
    check("ipv4 udp", &ethernet(&[], 0x0800, &ipv4(0, 0, 17, &udp())), V4_UDP);
    check("ipv6", &v6(&[]), V6);
    check("tcp options", &v4(&tcp(15, 40)), V4);
}

#[test]
fn two_vlan_tags_are_skipped_but_not_three() {
    let packet = ipv4(0, 0, 6, &tcp(5, 0));
    check("802.1Q", &ethernet(&[0x8100], 0x0800, &packet), V4);
    check("802.1ad", &ethernet(&[0x88a8, 0x8100], 0x0800, &packet), V4);
    check("three", &ethernet(&[0x88a8, 0x8100, 0x8100], 0x0800, &packet), Err(Total::NotIp));
    check("v6", &ethernet(&[0x8100], 0x86dd, &ipv6(&[], 6, &tcp(5, 0))), V6);
}

#[test]
fn other_ethertypes_are_not_ip() {
    for ethertype in [0x0806, 0x8847, 0x88cc, 0x0026] {
        check("ethertype", &ethernet(&[], ethertype, &[0; 60]), Err(Total::NotIp));
    }
}

#[test]
fn ipv4_options_are_skipped() {
    for options in (0..=40).step_by(4) {
        check("options", &ethernet(&[], 0x0800, &ipv4(options, 0, 6, &tcp(5, 0))), V4);
    }
}

#[test]
fn first_fragment_names_its_flow_and_later_ones_do_not() {
    let frame = |fragment| ethernet(&[], 0x0800, &ipv4(0, fragment, 6, &tcp(5, 0)));
    check("do not fragment", &frame(0x4000), V4);
    check("first", &frame(0x2000), V4);
    check("middle", &frame(0x2001), Err(Total::Fragment));
    check("last", &frame(0x1fff), Err(Total::Fragment));
    check("v6 first", &v6(&[(44, fragment(0))]), V6);
    check("v6 later", &v6(&[(44, fragment(1))]), Err(Total::Fragment));
}

#[test]
fn six_extension_headers_are_skipped_in_any_order() {
    check("hop-by-hop", &v6(&[(0, options(0))]), V6);
    check("long routing", &v6(&[(43, options(20))]), V6);
    check("authentication", &v6(&[(51, authentication(4))]), V6);
    let all = [
        (0, options(0)),
        (60, options(1)),
        (43, options(2)),
        (44, fragment(0)),
        (51, authentication(4)),
        (60, options(0)),
    ];
    check("all six", &v6(&all), V6);
    let seven: Vec<_> = all.iter().cloned().chain([(60, options(0))]).collect();
    check_hidden("seven", &v6(&seven));
}

#[test]
fn other_protocols_are_named_as_such() {
    for proto in [1, 2, 47, 58, 132] {
        check("v4", &ethernet(&[], 0x0800, &ipv4(0, 0, proto, &[0; 40])), Err(Total::OtherProtocol));
    }
    for proto in [50, 58, 59, 135] {
        check("v6", &ethernet(&[], 0x86dd, &ipv6(&[], proto, &[0; 40])), Err(Total::OtherProtocol));
    }
}

#[test]
fn inconsistent_headers_are_malformed() {
    let change = |at: usize, byte: u8| {
        let mut frame = v4(&tcp(5, 0));
        frame[at] = byte;
        frame
    };
    check("version 6 under the EtherType of 4", &change(14, 0x65), Err(Total::Malformed));
    check("header of 16 bytes", &change(14, 0x44), Err(Total::Malformed));
    check("datagram shorter than its header", &change(17, 19), Err(Total::Malformed));
    check_hidden("datagram ends in the TCP header", &change(17, 39));
    check_hidden("TCP header of 16 bytes", &change(14 + 20 + 12, 0x40));
    check_hidden("TCP header beyond the datagram", &change(14 + 20 + 12, 0x60));
    let mut big = v4(&tcp(5, 0));
    big[16..18].fill(0);
    check("BIG TCP announces no length", &big, V4);
    let mut v6 = v6(&[(60, options(1))]);
    v6[19] = 8;
    check_hidden("payload shorter than its extensions", &v6);
}

#[test]
fn first_fragment_without_its_whole_header_hides_its_port() {
    for length in [8, 16] {
        let piece = &tcp(5, 0)[..length];
        check_hidden("v4", &ethernet(&[], 0x0800, &ipv4(0, 0x2000, 6, piece)));
        check_hidden("v6", &ethernet(&[], 0x86dd, &ipv6(&[(44, fragment(0))], 6, piece)));
        // The frame continues with bytes that look like the rest of the header, but the datagram does not include them.
        let mut padded = ethernet(&[], 0x0800, &ipv4(0, 0x2000, 6, piece));
        padded.extend(&tcp(5, 0)[length..]);
        check_hidden("v4, padded", &padded);
        let mut padded = ethernet(&[], 0x86dd, &ipv6(&[(44, fragment(0))], 6, piece));
        padded.extend(&tcp(5, 0)[length..]);
        check_hidden("v6, padded", &padded);
    }
    check_hidden("options in the next one", &ethernet(&[], 0x0800, &ipv4(0, 0x2000, 6, &tcp(10, 4))));
    check_hidden("headers in the next one", &ethernet(&[], 0x86dd, &ipv6(&[(44, fragment(0))], 60, &[])));
}

#[test]
fn frame_cut_anywhere_in_its_headers_is_malformed_or_hides_its_port() {
    let all = [(0, options(0)), (60, options(1)), (43, options(2)), (44, fragment(0)), (51, authentication(4))];
    for frame in [
        v4(&tcp(5, 0)),
        ethernet(&[0x88a8, 0x8100], 0x0800, &ipv4(40, 0, 6, &tcp(5, 0))),
        ethernet(&[], 0x0800, &ipv4(0, 0, 17, &udp())),
        v6(&[]),
        v6(&all),
    ] {
        assert!(parse(&&*frame).is_ok());
        // End of the part of the IP header with the addresses.
        let network = match frame[12..14] {
            [0x08, 0x00] => 34,
            [0x86, 0xdd] => 54,
            _ => 42,
        };
        for length in 0..frame.len() {
            let (what, cut) = (format!("cut at {length}"), &frame[..length]);
            if length < network {
                check(&what, cut, Err(Total::Malformed));
            } else {
                check(&what, cut, Err(Total::HiddenPort));
            }
        }
    }
}

#[test]
fn offsets_of_ports_and_checksum_are_correct() {
    let header = tcp(15, 40);
    let extensions = [(0, options(0)), (60, options(1)), (44, fragment(0))];
    for frame in [
        v4(&header),
        ethernet(&[0x88a8, 0x8100], 0x0800, &ipv4(12, 0, 6, &header)),
        ethernet(&[0x8100], 0x86dd, &ipv6(&extensions, 6, &header)),
    ] {
        let begins = frame.len() - header.len();
        let segment = parse(&&*frame).expect("a segment");
        assert_eq!(segment.source_port(), FieldOffsets { port: begins, checksum: begins + 16 });
        assert_eq!(segment.destination_port(), FieldOffsets { port: begins + 2, checksum: begins + 16 });
    }
}

/// Builds an ICMP error from its type and the packet that it quotes.
fn icmp(kind: u8, quote: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0xab, 0xcd, 0, 0, 0, 0][..], quote].concat()
}

/// Returns the result of `quoted`: the port, and the bytes at the offsets of port and checksum.
fn found(frame: &[u8]) -> Option<(u16, [u8; 4])> {
    let Quoted { sender, port_be, place: FieldOffsets { port, checksum } } = quoted(&frame)?;
    // The quoted packets are those of the other tests, sent by `192.0.2.1` and `2001:db8::1`.
    assert!(
        [v4_mapped([192, 0, 2, 1]), "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets()].contains(&sender)
    );
    Some((u16::from_be(port_be), [frame[port], frame[port + 1], frame[checksum], frame[checksum + 1]]))
}

/// The result for a segment from port 40000.
const FOUND: Option<(u16, [u8; 4])> = Some((40_000, [0x9c, 0x40, 0xab, 0xcd]));

#[test]
fn icmp_errors_about_segments_are_parsed() {
    let quote4 = ipv4(0, 0, 6, &tcp(5, 0));
    for kind in [3, 5, 11, 12] {
        let packet = ipv4(0, 0, 1, &icmp(kind, &quote4));
        assert_eq!(found(&ethernet(&[], 0x0800, &packet)), FOUND, "{kind}");
        assert_eq!(found(&ethernet(&[0x88a8, 0x8100], 0x0800, &packet)), FOUND, "{kind}");
    }
    // Options in both headers, and only the bytes of the segment that RFC 792 requires.
    let least = ipv4(8, 0, 1, &icmp(3, &ipv4(4, 0x4000, 6, &tcp(5, 0)[..8])));
    assert_eq!(found(&ethernet(&[0x8100], 0x0800, &least)), FOUND);
    let quote6 = ipv6(&[], 6, &tcp(5, 0));
    for kind in [1, 2, 3, 4] {
        let packet = ipv6(&[], 58, &icmp(kind, &quote6));
        assert_eq!(found(&ethernet(&[], 0x86dd, &packet)), FOUND, "{kind}");
        assert_eq!(found(&ethernet(&[0x8100], 0x86dd, &packet)), FOUND, "{kind}");
    }
}

#[test]
fn other_packets_are_not_icmp_errors_about_segments() {
    let (quote4, quote6) = (ipv4(0, 0, 6, &tcp(5, 0)), ipv6(&[], 6, &tcp(5, 0)));
    for (what, ethertype, packet) in [
        ("echo request", 0x0800, ipv4(0, 0, 1, &icmp(8, &quote4))),
        ("echo reply", 0x0800, ipv4(0, 0, 1, &icmp(0, &quote4))),
        ("about UDP", 0x0800, ipv4(0, 0, 1, &icmp(3, &ipv4(0, 0, 17, &udp())))),
        ("about a later fragment", 0x0800, ipv4(0, 0, 1, &icmp(3, &ipv4(0, 7, 6, &tcp(5, 0))))),
        ("itself a later fragment", 0x0800, ipv4(0, 7, 1, &icmp(3, &quote4))),
        ("ESP", 0x0800, ipv4(0, 0, 50, &icmp(3, &quote4))),
        ("v6 about v4", 0x86dd, ipv6(&[], 58, &icmp(1, &quote4))),
        ("v6 echo request", 0x86dd, ipv6(&[], 58, &icmp(128, &quote6))),
        ("v6 neighbour", 0x86dd, ipv6(&[], 58, &icmp(135, &quote6))),
        ("v6 about UDP", 0x86dd, ipv6(&[], 58, &icmp(1, &ipv6(&[], 17, &udp())))),
        ("ARP", 0x0806, ipv4(0, 0, 1, &icmp(3, &quote4))),
    ] {
        assert_eq!(found(&ethernet(&[], ethertype, &packet)), None, "{what}");
    }
    for whole in [
        ethernet(&[0x8100], 0x0800, &ipv4(0, 0, 1, &icmp(3, &ipv4(0, 0, 6, &tcp(5, 0)[..2])))),
        ethernet(&[0x8100], 0x86dd, &ipv6(&[], 58, &icmp(2, &ipv6(&[], 6, &tcp(5, 0)[..2])))),
    ] {
        assert_eq!(found(&whole), FOUND);
        for length in 0..whole.len() {
            assert_eq!(found(&whole[..length]), None, "cut at {length}");
        }
    }
}
