//! Options of real and of malformed SYNs, and SYN-ACKs as frames.

use ingress_common::flow::v4_mapped;

use super::*;
use crate::parse::Frame;

const NONE: Offer = Offer::NONE;

/// A frame of the host's memory.
struct Bytes(Vec<u8>);

impl Frame for Bytes {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.0.get(offset..offset + N)?.try_into().ok()
    }
}

impl FrameMut for Bytes {
    fn write<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        let Some(place) = self.0.get_mut(offset..offset + N) else { return false };
        place.copy_from_slice(bytes);
        true
    }
}

fn offer(options: [u8; OPTIONS_ROOM], length: usize) -> Offer {
    Reading { options, length, place: 9, offer: Offer { mss: 1, ..NONE } }.offer()
}

fn read(bytes: &[u8]) -> Offer {
    let mut room = [0xaa; OPTIONS_ROOM];
    room[..bytes.len()].copy_from_slice(bytes);
    offer(room, bytes.len())
}

#[test]
fn options_of_a_syn_are_read_in_any_order() {
    let be = u32::from_be_bytes([1, 2, 3, 4]).to_be();
    let all = Offer { mss: 1460, window_scale: 7, has_sack: true, has_timestamp: true, timestamp_be: be };
    let cases: [(&str, &[u8], Offer); 11] = [
        ("none", &[], NONE),
        ("Linux", &[2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7], all),
        (
            "Windows",
            &[2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2],
            Offer { window_scale: 8, has_timestamp: false, timestamp_be: 0, ..all },
        ),
        ("macOS", &[2, 4, 5, 0xb4, 1, 3, 3, 7, 1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 4, 2, 0, 0], all),
        ("an unknown option between", &[2, 4, 5, 0xb4, 34, 4, 9, 9, 4, 2], Offer { mss: 1460, has_sack: true, ..NONE }),
        ("behind the end", &[4, 2, 0, 2, 4, 5, 0xb4], Offer { has_sack: true, ..NONE }),
        ("a scale too large", &[3, 3, 200, 0], Offer { window_scale: 14, ..NONE }),
        ("a length of zero", &[8, 0, 4, 2], NONE),
        ("a length beyond the end", &[4, 2, 2, 9, 5, 0xb4], Offer { has_sack: true, ..NONE }),
        ("a wrong length", &[2, 3, 5, 4, 2], Offer { has_sack: true, ..NONE }),
        ("a kind without length", &[4, 2, 2], Offer { has_sack: true, ..NONE }),
    ];
    for (name, bytes, expect) in cases {
        assert_eq!(read(bytes), expect, "{name}");
    }
}

#[test]
fn any_bytes_are_read_as_by_slices() {
    let mut state = 7_u32;
    for _ in 0..100_000 {
        let room = [(); OPTIONS_ROOM].map(|()| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Mostly kinds and lengths that exist.
            if state >> 31 == 0 { (state >> 24) as u8 & 0x0f } else { (state >> 16) as u8 }
        });
        let length = (state >> 8) as usize % 41;
        assert_eq!(offer(room, length), model(&room[..length]), "{:?}", &room[..length]);
    }
}

/// Reads options by slices. A reader that looks at a byte after the end returns something else.
fn model(mut rest: &[u8]) -> Offer {
    let mut offer = NONE;
    loop {
        let (option, after) = match rest {
            [NOP, after @ ..] => {
                rest = after;
                continue;
            }
            [] | [END, ..] | [_] => return offer,
            [_, size, ..] if *size < 2 || usize::from(*size) > rest.len() => return offer,
            [_, size, ..] => rest.split_at(usize::from(*size)),
        };
        match *option {
            [MSS, 4, high, low] => offer.mss = u16::from_be_bytes([high, low]),
            [SCALE, 3, scale] => offer.window_scale = scale.min(14),
            [SACK, 2] => offer.has_sack = true,
            [TIMESTAMPS, 10, a, b, c, d, ..] => {
                offer.has_timestamp = true;
                offer.timestamp_be = u32::from_ne_bytes([a, b, c, d]);
            }
            _ => {}
        }
        rest = after;
    }
}

#[test]
fn the_timestamp_holds_the_options_and_is_not_ahead_of_the_clock() {
    for now_ms in [64_u64, 65, 100, 127, 1_000_000, u64::from(u32::MAX) - 3] {
        for (window_scale, has_sack, bits) in [(7, true, 0x17), (7, false, 7), (NO_SCALE, true, 0x1f), (0, false, 0)] {
            let offer = Offer { window_scale, has_sack, has_timestamp: true, ..NONE };
            let stamp = timestamp(&offer, now_ms * 1_000_000);
            assert_eq!(stamp & 0x3f, bits, "{now_ms}");
            let age = (now_ms as u32).wrapping_sub(stamp);
            assert!(age < 64, "{now_ms}: {age}");
        }
    }
}

#[test]
fn only_options_that_come_back_are_accepted() {
    let all = Offer { mss: 1460, window_scale: 7, has_sack: true, has_timestamp: true, timestamp_be: 9 };
    let no_timestamp = Offer { has_timestamp: false, ..all };
    let mss = Offer { mss: 1460, ..NONE };
    for (offered, in_timestamps, expect) in
        [(all, true, all), (all, false, mss), (no_timestamp, true, mss), (NONE, true, NONE)]
    {
        assert_eq!(offered.kept(in_timestamps), expect);
    }
}

/// Returns the SYN, with the sequence number 0xfffffffe.
fn syn(is_v4: bool, tags: usize, options: &[u8], payload: usize) -> Bytes {
    let mut frame = vec![4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2];
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    let tcp = 20 + options.len() + payload;
    if is_v4 {
        let total = u16::try_from(20 + tcp).expect("short");
        frame.extend([8, 0, 0x45, 0x10]);
        frame.extend(total.to_be_bytes());
        frame.extend([1, 2, 0, 0, 9, 6, 0xde, 0xad, 192, 0, 2, 1, 198, 51, 100, 7]);
    } else {
        frame.extend([0x86, 0xdd, 0x61, 2, 3, 4]);
        frame.extend(u16::try_from(tcp).expect("short").to_be_bytes());
        frame.extend([6, 9]);
        frame.extend([0x20; 16]);
        frame.extend([0x30; 16]);
    }
    frame.extend([0x9c, 0x40, 0, 80, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0]);
    frame.extend([u8::try_from(5 + options.len() / 4).expect("short") << 4, 2, 1, 1, 0xbe, 0xef, 0, 0]);
    frame.extend(options);
    frame.resize(frame.len() + payload, b'x');
    Bytes(frame)
}

#[test]
fn a_syn_becomes_its_syn_ack() {
    const LINUX: &[u8] = &[2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
    for is_v4 in [true, false] {
        for tags in 0..=2 {
            for (options, in_timestamps, payload, expect) in [
                (LINUX, true, 0, &[2, 4, 5, 0xa0, 4, 2, 8, 10, 0, 0, 0, 0x57, 1, 2, 3, 4, 1, 3, 3, 9][..]),
                (LINUX, false, 700, &[2, 4, 5, 0xa0]),
                (&LINUX[..4], true, 0, &[2, 4, 5, 0xa0]),
                (&[], true, 0, &[]),
                (&[8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 1], true, 0, &[1, 1, 8, 10, 0, 0, 0, 0x4f, 1, 2, 3, 4]),
            ] {
                let mut frame = syn(is_v4, tags, options, payload);
                let at = plain(&frame).expect("a plain frame");
                assert_eq!(at, 14 + 4 * tags + if is_v4 { 20 } else { 40 });
                let offer = read(options).kept(in_timestamps);
                let answer = SynAck {
                    cookie: 0x0102_0304,
                    offer,
                    mss: 1440,
                    window_scale: 9,
                    timestamp: timestamp(&offer, 100_000_000),
                    port_be: 443_u16.to_be(),
                };
                let length = write(&mut frame, &answer).expect("written");
                let Bytes(mut frame) = frame;
                frame.truncate(length);
                let (tcp, body) = (&frame[at..at + 20], &frame[at + 20..]);
                assert_eq!(frame[..12], [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4]);
                assert_eq!(tcp[..4], [1, 0xbb, 0x9c, 0x40], "ports");
                assert_eq!(tcp[4..12], [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff], "cookie, and the next byte of the client");
                assert_eq!(tcp[12..14], [u8::try_from(5 + body.len() / 4).expect("short") << 4, 0x12]);
                assert_eq!(body, expect, "{options:?}");
                let ip = &frame[14 + 4 * tags..at];
                let addresses = if is_v4 { &ip[12..20] } else { &ip[8..40] };
                if is_v4 {
                    assert_eq!(*addresses, [198, 51, 100, 7, 192, 0, 2, 1]);
                    assert_eq!(checksum(ip), 0, "of the IPv4 header");
                    assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), length - 14 - 4 * tags);
                } else {
                    assert_eq!(*addresses, [[0x30; 16], [0x20; 16]].concat());
                    assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), length - at);
                }
                let segment = u8::try_from(length - at).expect("short");
                let covered = [addresses, &[0, 6, 0, segment], &frame[at..]].concat();
                assert_eq!(checksum(&covered), 0, "of the segment");
            }
        }
    }
}

#[test]
fn frames_with_more_headers_are_not_plain() {
    let mut with_options = syn(true, 0, &[], 0);
    with_options.0[14] = 0x46;
    let mut with_extension = syn(false, 0, &[], 0);
    with_extension.0[20] = 0;
    let mut other = syn(true, 0, &[], 0);
    other.0[12] = 9;
    for frame in [with_options, with_extension, other, Bytes(vec![0; 15])] {
        assert_eq!(plain(&frame), None);
    }
}

#[test]
fn frames_that_the_stack_would_drop_are_not_answered() {
    let v4 = |first| v4_mapped([first, 0, 2, 1]);
    for (destination, client, expect) in [
        (0xff, v4(192), true),
        (0x01, v4(192), true),
        (0x33, [0x20; 16], true),
        (0xfe, v4(192), false),
        (2, v4(0), true),
        (2, v4(1), false),
        (2, v4(126), false),
        (2, v4(127), true),
        (2, v4(128), false),
        (2, v4(223), false),
        (2, v4(224), true),
        (2, v4(239), true),
        (2, v4(240), false),
        (2, v4(255), false),
        (2, v4_mapped([255; 4]), true),
        (2, [0x20; 16], false),
        (2, [0xfe; 16], false),
        (2, [0xff; 16], true),
    ] {
        assert_eq!(is_unanswerable(destination, &client), expect, "to {destination:#x}, from {client:?}");
    }
}

/// Returns the checksum over all bytes, by RFC 1071; 0 for bytes with a right checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = bytes.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
