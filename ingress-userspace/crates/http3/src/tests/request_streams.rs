//! Frames of request streams.

use super::*;
use crate::frame::{
    CANCEL_PUSH, DATA, GOAWAY, HEADERS, IDLE_FRAMES_MAX, MAX_PUSH_ID, PRIORITY_UPDATE_PUSH, PRIORITY_UPDATE_REQUEST,
    PUSH_PROMISE, SETTINGS, SKIPPED_MAX,
};

/// Writes events on a line: `H` and `T` with the length of the section, `D` with the data.
fn line(events: &[Event]) -> String {
    let words = events.iter().map(|event| match event {
        Event::Headers(section) => format!("H{}", section.len()),
        Event::HeadersTooLarge => "H>".to_owned(),
        Event::Data(data) => format!("D{}", String::from_utf8_lossy(data)),
        Event::Trailers(section) => format!("T{}", section.len()),
        Event::TrailersTooLarge => "T>".to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Checks a finished stream, whole and byte by byte.
fn check(rule: &str, name: &str, bytes: &[u8], expect: (&str, Result<(), Failure>)) {
    for cuts in [Vec::new(), everywhere(bytes)] {
        let (events, end) = read_request(bytes, &cuts, true);
        assert_eq!((line(&events).as_str(), end), expect, "{rule}: {name}, in {} chunks", cuts.len() + 1);
    }
}

#[test]
fn frames_come_in_the_order_of_the_rfc() {
    let (headers, data) = (a_frame(HEADERS, b"abc"), a_frame(DATA, b"xy"));
    let (empty, grease) = (a_frame(DATA, b""), a_frame(0x21, b"grease"));
    let unexpected = Err(connection(Code::FrameUnexpected));
    for (rule, name, frames, expect) in [
        ("4.1", "a request without a body", vec![&headers], ("H3", Ok(()))),
        ("4.1", "a body of several frames", vec![&headers, &data, &data], ("H3 Dxyxy", Ok(()))),
        ("4.1", "a frame of data without data", vec![&headers, &empty, &data], ("H3 Dxy", Ok(()))),
        ("4.1", "trailers", vec![&headers, &data, &headers], ("H3 Dxy T3", Ok(()))),
        ("4.1", "trailers without a body", vec![&headers, &headers], ("H3 T3", Ok(()))),
        (
            "4.1",
            "unknown frames anywhere",
            vec![&grease, &headers, &grease, &data, &headers, &grease],
            ("H3 Dxy T3", Ok(())),
        ),
        ("4.1", "DATA before HEADERS", vec![&data], ("", unexpected)),
        ("4.1", "DATA without bytes before HEADERS", vec![&empty], ("", unexpected)),
        ("4.1", "HEADERS after trailers", vec![&headers, &headers, &headers], ("H3 T3", unexpected)),
        ("4.1", "DATA after trailers", vec![&headers, &headers, &data], ("H3 T3", unexpected)),
        ("4.1", "an empty stream", vec![], ("", Err(stream(Code::RequestIncomplete)))),
        ("4.1", "unknown frames alone", vec![&grease], ("", Err(stream(Code::RequestIncomplete)))),
    ] {
        let bytes: Vec<u8> = frames.into_iter().flatten().copied().collect();
        check(rule, name, &bytes, expect);
    }
}

#[test]
fn frames_of_other_streams_end_the_connection() {
    let unexpected = Err(connection(Code::FrameUnexpected));
    for (rule, kind) in [
        ("7.2.3", CANCEL_PUSH),
        ("7.2.4", SETTINGS),
        ("7.2.5", PUSH_PROMISE),
        ("7.2.6", GOAWAY),
        ("7.2.7", MAX_PUSH_ID),
        ("7.2.8", 0x2),
        ("7.2.8", 0x6),
        ("7.2.8", 0x8),
        ("7.2.8", 0x9),
        ("RFC 9218, 7.2", PRIORITY_UPDATE_REQUEST),
        ("RFC 9218, 7.2", PRIORITY_UPDATE_PUSH),
    ] {
        let name = format!("frame {kind:#x}");
        check(rule, &name, &a_frame(kind, b"\0"), ("", unexpected));
        let later = [a_frame(HEADERS, b"abc"), a_frame(DATA, b"x"), a_frame(kind, b"\0")].concat();
        check(rule, &name, &later, ("H3 Dx", unexpected));
    }
}

#[test]
fn truncated_frames_end_the_connection() {
    let whole =
        [a_frame(HEADERS, b"abc"), a_frame(DATA, b"xy"), a_frame(0x21, b"grease"), a_frame(HEADERS, b"t")].concat();
    // Frames may end behind HEADERS, DATA and the unknown frame.
    let whole_frames = [5, 9, 17, whole.len()];
    for end in 1..=whole.len() {
        let expect = if whole_frames.contains(&end) { Ok(()) } else { Err(connection(Code::FrameError)) };
        for cuts in [Vec::new(), everywhere(&whole)] {
            assert_eq!(read_request(&whole[..end], &cuts, true).1, expect, "7.1: {end} bytes");
        }
        assert_eq!(read_request(&whole[..end], &[], false).1, Ok(()), "a reset stream of {end} bytes");
    }
}

#[test]
fn large_sections_are_known_by_their_length() {
    let longest = a_frame(HEADERS, &[0; SECTION_MAX]);
    check("4.2.2", "as long as permitted", &longest, (&format!("H{SECTION_MAX}"), Ok(())));
    let longer = a_frame(HEADERS, &[0; SECTION_MAX + 1]);
    check("4.2.2", "longer", &longer, ("H>", Ok(())));
    check("4.2.2", "trailers", &[a_frame(HEADERS, b"abc"), longer].concat(), ("H3 T>", Ok(())));
    // The event comes before any byte of the section.
    let mut head = Vec::new();
    frame::write_head(HEADERS, varint::MAX, &mut head);
    assert_eq!(read_request(&head, &[], false), (vec![Event::HeadersTooLarge], Ok(())));
}

#[test]
fn frames_without_effect_are_bounded() {
    let excessive = Err(connection(Code::ExcessiveLoad));
    let headers = a_frame(HEADERS, b"abc");
    let max = IDLE_FRAMES_MAX as usize;
    for (name, one) in [("unknown", a_frame(0x21, b"")), ("DATA without bytes", a_frame(DATA, b""))] {
        let some = [&headers[..], &one.repeat(max)].concat();
        check("7.2.8", name, &some, ("H3", Ok(())));
        check("10.5", name, &[&some[..], &one].concat(), ("H3", excessive));
        // Data is worth another allowance.
        let more = [&some[..], &a_frame(DATA, b"x"), &one.repeat(max)].concat();
        check("7.2.8", name, &more, ("H3 Dx", Ok(())));
    }
    let large = usize::try_from(SKIPPED_MAX).expect("small");
    check("7.2.8", "a large one", &[&headers[..], &a_frame(0x21, &vec![0; large])].concat(), ("H3", Ok(())));
    check("10.5", "a larger one", &[&headers[..], &a_frame(0x21, &vec![0; large + 1])].concat(), ("H3", excessive));
}

#[test]
fn a_tunnel_has_data_alone() {
    let mut decoder = FrameDecoder::new(SECTION_MAX);
    let mut chunk = Bytes::from([a_frame(HEADERS, b"abc"), a_frame(DATA, b"x"), a_frame(HEADERS, b"t")].concat());
    assert!(matches!(decoder.decode(&mut chunk), Ok(Some(Event::Headers(_)))));
    decoder.tunnel();
    assert_eq!(decoder.decode(&mut chunk), Ok(Some(Event::Data(Bytes::from_static(b"x")))));
    assert_eq!(decoder.finish(), Ok(()));
    assert_eq!(decoder.decode(&mut chunk).map_err(failure), Err(connection(Code::FrameUnexpected)), "4.4");
}

#[test]
fn payloads_in_one_chunk_are_not_copied() {
    let bytes = Bytes::from([a_frame(HEADERS, b"abc"), a_frame(DATA, b"xy")].concat());
    let mut chunk = bytes.clone();
    let mut decoder = FrameDecoder::new(SECTION_MAX);
    let (Ok(Some(Event::Headers(section))), Ok(Some(Event::Data(data)))) =
        (decoder.decode(&mut chunk), decoder.decode(&mut chunk))
    else {
        panic!("two events")
    };
    assert_eq!((section.as_ptr(), data.as_ptr()), (bytes[2..].as_ptr(), bytes[7..].as_ptr()));
}

#[test]
fn integers_have_four_lengths() {
    // RFC 9000, A.1.
    for (bytes, value) in [
        (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
        (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
        (&[0x7b, 0xbd], 15_293),
        (&[0x25], 37),
    ] {
        assert_eq!(varint::read(bytes), Some((value, bytes.len())));
        assert_eq!(integer(value), bytes);
        assert_eq!(varint::read(&bytes[..bytes.len() - 1]), None);
    }
    assert_eq!(varint::read(&[0x40, 0x25]), Some((37, 2)), "longer than needed");
    assert_eq!(integer(varint::MAX), [0xff; 8]);
    assert_eq!(integer(u64::MAX), [0xff; 8]);
}
