use super::*;
use crate::parse::parse;

struct Bytes<'b>(&'b [u8]);

impl Frame for Bytes<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.0.get(offset..)?.first_chunk()
    }
}

impl Frame for Vec<u8> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.get(offset..)?.first_chunk()
    }
}

impl FrameMut for Vec<u8> {
    fn write<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        let place = self.get_mut(offset..offset + N);
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }
}

const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 7];
const ADDRESS: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const SENDER: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn ethernet(tags: usize, ethertype: u16) -> Vec<u8> {
    let mut frame = [[0xff; 6], ASKER].concat();
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn who_has(tags: usize, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = ethernet(tags, ARP_TYPE);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(ASKER);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

fn asked_by_ndp(tags: usize, sender: [u8; 16], options: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(tags, IPV6);
    frame.extend([0x60, 0, 0, 0, 0, u8::try_from(24 + options.len()).expect("short"), ICMPV6, 255]);
    frame.extend(sender);
    frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9]);
    frame.extend([SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(ADDRESS);
    frame.extend(options);
    frame
}

/// Returns the question in a frame, as the programs look for it: with the parser's verdict.
fn asked(frame: &[u8]) -> Option<Question> {
    question(&Bytes(frame), parse(&Bytes(frame)).err()?)
}

/// The option with the asker's address.
fn source() -> Vec<u8> {
    [&[1, 1][..], &ASKER].concat()
}

#[test]
fn other_frames_are_told_from_questions_by_their_beginning() {
    let v6 = |protocol: u8| {
        let mut frame = asked_by_ndp(1, SENDER, &[]);
        frame[18 + 6] = protocol;
        frame
    };
    let check = |what, frame: Vec<u8>, verdict, expect| {
        assert_eq!(may_be_question(&frame[..].to_vec(), verdict), expect, "{what}");
    };
    check("ARP", who_has(2, [0; 4], [1; 4])[..24].to_vec(), Total::NotIp, true);
    check("LLDP", ethernet(0, 0x88cc), Total::NotIp, false);
    check("ICMPv6", v6(ICMPV6)[..26].to_vec(), Total::OtherProtocol, true);
    check("GRE in IPv6", v6(47), Total::OtherProtocol, false);
    check("ICMP in IPv4", ethernet(0, 0x0800), Total::OtherProtocol, false);
    check("UDP", v6(17), Total::Malformed, false);
    check("nothing", Vec::new(), Total::NotIp, false);
}

#[test]
fn questions_are_found_behind_tags_and_others_are_none() {
    let changed = |mut frame: Vec<u8>, at: usize, to: u8| {
        frame[at] = to;
        frame
    };
    let arp = |tags| who_has(tags, [192, 0, 2, 1], [192, 0, 2, 9]);
    let v4 = v4_mapped([192, 0, 2, 9]);
    let ndp = |tags| asked_by_ndp(tags, SENDER, &source());
    let plain = Kind::Ndp { has_option: false };
    let with_option = Kind::Ndp { has_option: true };
    let cases = [
        ("ARP", arp(0), Some((v4, Kind::Arp, 14))),
        ("ARP with a tag", arp(1), Some((v4, Kind::Arp, 18))),
        ("ARP with two tags", arp(2), Some((v4, Kind::Arp, 22))),
        ("ARP with three tags", arp(3), None),
        ("ARP probe", who_has(0, [0; 4], [192, 0, 2, 9]), Some((v4, Kind::Arp, 14))),
        ("ARP announcement", who_has(0, [192, 0, 2, 9], [192, 0, 2, 9]), None),
        ("ARP reply", changed(arp(0), 21, 2), None),
        ("ARP of other hardware", changed(arp(0), 15, 6), None),
        ("ARP with long addresses", changed(arp(0), 18, 8), None),
        ("ARP without its last byte", arp(0)[..41].to_vec(), None),
        ("NDP", ndp(0), Some((ADDRESS, with_option, 14))),
        ("NDP with a tag", ndp(1), Some((ADDRESS, with_option, 18))),
        ("NDP without option", asked_by_ndp(0, SENDER, &[]), Some((ADDRESS, plain, 14))),
        ("NDP whose option is cut", ndp(0)[..85].to_vec(), Some((ADDRESS, plain, 14))),
        ("NDP with padding", [asked_by_ndp(0, SENDER, &[]), vec![0; 8]].concat(), Some((ADDRESS, plain, 14))),
        ("NDP through a router", changed(ndp(0), 21, 254), None),
        ("NDP advertisement", changed(ndp(0), 54, 136), None),
        ("NDP of another code", changed(ndp(0), 55, 1), None),
        ("other ICMPv6", changed(ndp(0), 54, 128), None),
        ("TCP", changed(ndp(0), 20, 6), None),
        ("NDP without its last byte", asked_by_ndp(0, SENDER, &[])[..77].to_vec(), None),
        ("IPv4", ethernet(0, 0x0800), None),
        ("nothing", Vec::new(), None),
    ];
    for (name, frame, expect) in cases {
        let found = asked(&frame).map(|Question { target, kind, offset }| (target, kind, offset));
        assert_eq!(found, expect, "{name}");
    }
}

/// Returns the answer to the question in `frame`.
fn answered(mut frame: Vec<u8>) -> Vec<u8> {
    let question = asked(&frame).expect("a question");
    let length = frame.len();
    assert!(answer(&mut frame, &question, &OURS), "{question:?}");
    assert_eq!(frame.len(), length);
    frame
}

#[test]
fn an_arp_answer_names_our_address_and_goes_to_the_sender() {
    for tags in 0..=2 {
        let asked = who_has(tags, [192, 0, 2, 1], [192, 0, 2, 9]);
        let tagged = &asked[12..14 + tags * 4];
        let body = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &OURS, &[192, 0, 2, 9], &ASKER, &[192, 0, 2, 1]].concat();
        let expect = [&ASKER[..], &OURS, tagged, &body].concat();
        assert_eq!(answered(asked.clone()), expect, "{tags} tags");
    }
}

/// Returns the sum of RFC 1071 over the message in an IPv6 packet and its pseudo header; 0xffff if the checksum is right.
fn total(packet: &[u8]) -> u32 {
    let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let pseudo = [&packet[8..40], &[0, 0, packet[4], packet[5], 0, 0, 0, packet[6]], &packet[40..40 + length]].concat();
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn an_advertisement_has_the_right_checksum_receiver_and_flags() {
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    let two_options = [source(), nonce.to_vec()].concat();
    for sender in [SENDER, [0; 16], [0xff; 16]] {
        for (options, length) in [(source(), 32), (Vec::new(), 24), (nonce.to_vec(), 32), (two_options.clone(), 32)] {
            for tags in 0..=2 {
                let frame = answered(asked_by_ndp(tags, sender, &options));
                let packet = &frame[14 + tags * 4..];
                assert_eq!(total(packet), 0xffff, "{sender:?} {options:?}");
                assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, length, 58, 255]);
                assert_eq!(packet[8..24], ADDRESS);
                assert_eq!((packet[40], packet[41], &packet[48..64]), (136, 0, &ADDRESS[..]));
                let (mac, receiver, flags) = match sender {
                    [0, ..] => ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES, 0x20),
                    _ => (ASKER, sender, 0x60),
                };
                assert_eq!((&frame[..6], &frame[6..12], packet[44]), (&mac[..], &OURS[..], flags));
                assert_eq!(packet[24..40], receiver);
                if length == 32 {
                    assert_eq!(packet[64..72], [2, 1, 2, 0, 0, 0, 0, 7]);
                }
            }
        }
    }
}
