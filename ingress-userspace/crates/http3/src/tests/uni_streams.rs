//! Control streams, QPACK streams, and settings.

use super::*;
use crate::{
    control::{CONTROL, PAYLOAD_MAX, PUSH, QPACK_DECODER, QPACK_ENCODER, write_goaway},
    frame::{
        CANCEL_PUSH, DATA, GOAWAY, HEADERS, IDLE_FRAMES_MAX, MAX_PUSH_ID, PRIORITY_UPDATE_PUSH,
        PRIORITY_UPDATE_REQUEST, PUSH_PROMISE, SETTINGS,
    },
    settings::{Local, Settings},
};

/// A stream of type `kind` that carries `frames`.
fn a_stream(kind: u64, frames: &[Vec<u8>]) -> Vec<u8> {
    [integer(kind), frames.concat()].concat()
}

/// A control stream with SETTINGS and further frames.
fn control(frames: &[Vec<u8>]) -> Vec<u8> {
    [a_stream(CONTROL, &[a_frame(SETTINGS, b"")]), frames.concat()].concat()
}

/// A frame whose payload is an identifier.
fn of_id(kind: u64, id: u64) -> Vec<u8> {
    a_frame(kind, &integer(id))
}

/// Writes events on a line.
fn line(events: &[UniEvent]) -> String {
    let words = events.iter().map(|event| match event {
        UniEvent::Settings(_) => "settings".to_owned(),
        UniEvent::GoAway(id) => format!("goaway:{id}"),
        UniEvent::PriorityUpdate { stream, value } => format!("priority:{stream}:{}", String::from_utf8_lossy(value)),
        UniEvent::Ignored(kind) => format!("ignored:{kind:#x}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Checks the streams of one connection, whole and byte by byte.
fn check(rule: &str, name: &str, streams: &[Vec<u8>], expect: (&str, Result<(), Failure>)) {
    let longest = streams.iter().map(Vec::len).max().unwrap_or_default();
    for cuts in [Vec::new(), (0..longest).collect()] {
        let (events, end) = read_streams(streams, &cuts);
        assert_eq!((line(&events).as_str(), end), expect, "{rule}: {name}, in {} chunks", cuts.len() + 1);
    }
}

#[test]
fn streams_have_types() {
    let creation = Err(connection(Code::StreamCreationError));
    let empty = |kind| a_stream(kind, &[]);
    for (rule, name, streams, expect) in [
        ("6.2.1", "a control stream", vec![control(&[])], ("settings", Ok(()))),
        ("6.2.1", "two control streams", vec![control(&[]), empty(CONTROL)], ("settings", creation)),
        ("6.2.2", "a push stream", vec![empty(PUSH)], ("", creation)),
        (
            "6.2.3",
            "reserved types",
            vec![a_stream(0x21, &[b"abc".to_vec()]), control(&[])],
            ("ignored:0x21 settings", Ok(())),
        ),
        ("6.2", "an unknown type", vec![a_stream(0x54, &[b"abc".to_vec()])], ("ignored:0x54", Ok(()))),
        ("6.2", "a stream without a type", vec![vec![]], ("", Ok(()))),
        ("RFC 9204, 4.2", "both QPACK streams", vec![empty(QPACK_ENCODER), empty(QPACK_DECODER)], ("", Ok(()))),
        ("RFC 9204, 4.2", "two encoder streams", vec![empty(QPACK_ENCODER), empty(QPACK_ENCODER)], ("", creation)),
        ("RFC 9204, 4.2", "two decoder streams", vec![empty(QPACK_DECODER), empty(QPACK_DECODER)], ("", creation)),
    ] {
        check(rule, name, &streams, expect);
    }
}

#[test]
fn critical_streams_stay_open() {
    for (kind, expect) in [
        (CONTROL, Err(connection(Code::ClosedCriticalStream))),
        (QPACK_ENCODER, Err(connection(Code::ClosedCriticalStream))),
        (QPACK_DECODER, Err(connection(Code::ClosedCriticalStream))),
        (0x21, Ok(())),
    ] {
        let (mut peer, mut stream) = (PeerStreams::default(), UniStream::default());
        assert_eq!(stream.finish(), Ok(()), "6.2: before the type");
        stream.decode(&mut peer, &mut integer(kind).into()).expect("valid");
        assert_eq!(stream.finish().map_err(failure), expect, "6.2.1: {kind:#x}");
    }
}

#[test]
fn control_streams_obey_the_rfc() {
    let unexpected = Err(connection(Code::FrameUnexpected));
    let wrong_id = Err(connection(Code::IdError));
    let layout = Err(connection(Code::FrameError));
    let excessive = Err(connection(Code::ExcessiveLoad));
    let update = |kind, id, value: &[u8]| a_frame(kind, &[&integer(id)[..], value].concat());
    let idle = a_frame(0x21, b"");
    for (rule, name, frames, expect) in [
        ("6.2.1", "unknown frames", vec![a_frame(0x21, b"grease")], ("settings", Ok(()))),
        ("7.2.4", "SETTINGS twice", vec![a_frame(SETTINGS, b"")], ("settings", unexpected)),
        ("7.2.1", "DATA", vec![a_frame(DATA, b"x")], ("settings", unexpected)),
        ("7.2.2", "HEADERS", vec![a_frame(HEADERS, b"x")], ("settings", unexpected)),
        ("7.2.5", "PUSH_PROMISE", vec![a_frame(PUSH_PROMISE, b"x")], ("settings", unexpected)),
        ("7.2.8", "PRIORITY of HTTP/2", vec![a_frame(0x2, b"x")], ("settings", unexpected)),
        ("7.2.8", "PING of HTTP/2", vec![a_frame(0x6, b"x")], ("settings", unexpected)),
        ("7.2.8", "WINDOW_UPDATE of HTTP/2", vec![a_frame(0x8, b"x")], ("settings", unexpected)),
        ("7.2.8", "CONTINUATION of HTTP/2", vec![a_frame(0x9, b"x")], ("settings", unexpected)),
        ("7.2.3", "CANCEL_PUSH without a promise", vec![of_id(CANCEL_PUSH, 0)], ("settings", wrong_id)),
        ("5.2", "GOAWAY", vec![of_id(GOAWAY, 9)], ("settings goaway:9", Ok(()))),
        (
            "5.2",
            "GOAWAY that decreases",
            vec![of_id(GOAWAY, 9), of_id(GOAWAY, 9), of_id(GOAWAY, 8)],
            ("settings goaway:9 goaway:9 goaway:8", Ok(())),
        ),
        ("5.2", "GOAWAY that increases", vec![of_id(GOAWAY, 9), of_id(GOAWAY, 10)], ("settings goaway:9", wrong_id)),
        ("7.2.6", "GOAWAY without an id", vec![a_frame(GOAWAY, b"")], ("settings", layout)),
        ("7.1", "GOAWAY with half an id", vec![a_frame(GOAWAY, b"\x40")], ("settings", layout)),
        ("7.1", "GOAWAY with more than an id", vec![a_frame(GOAWAY, b"\x00\x00")], ("settings", layout)),
        ("7.1", "GOAWAY longer than any id", vec![a_frame(GOAWAY, &[0xff; 9])], ("settings", layout)),
        (
            "7.2.7",
            "MAX_PUSH_ID",
            vec![of_id(MAX_PUSH_ID, 5), of_id(MAX_PUSH_ID, 5), of_id(MAX_PUSH_ID, 6)],
            ("settings", Ok(())),
        ),
        (
            "7.2.7",
            "MAX_PUSH_ID that decreases",
            vec![of_id(MAX_PUSH_ID, 5), of_id(MAX_PUSH_ID, 4)],
            ("settings", wrong_id),
        ),
        ("7.1", "MAX_PUSH_ID without an id", vec![a_frame(MAX_PUSH_ID, b"")], ("settings", layout)),
        (
            "RFC 9218, 7.1",
            "PRIORITY_UPDATE",
            vec![update(PRIORITY_UPDATE_REQUEST, 8, b"u=1")],
            ("settings priority:8:u=1", Ok(())),
        ),
        (
            "RFC 9218, 7.1",
            "PRIORITY_UPDATE without a value",
            vec![update(PRIORITY_UPDATE_REQUEST, 0, b"")],
            ("settings priority:0:", Ok(())),
        ),
        (
            "RFC 9218, 7.2",
            "PRIORITY_UPDATE of a server's stream",
            vec![update(PRIORITY_UPDATE_REQUEST, 1, b"u=1")],
            ("settings", wrong_id),
        ),
        (
            "RFC 9218, 7.2",
            "PRIORITY_UPDATE of a stream in one direction",
            vec![update(PRIORITY_UPDATE_REQUEST, 2, b"u=1")],
            ("settings", wrong_id),
        ),
        (
            "RFC 9218, 7.2",
            "PRIORITY_UPDATE of a push",
            vec![update(PRIORITY_UPDATE_PUSH, 0, b"u=1")],
            ("settings", wrong_id),
        ),
        ("7.1", "PRIORITY_UPDATE without an id", vec![a_frame(PRIORITY_UPDATE_REQUEST, b"")], ("settings", layout)),
        (
            "10.5",
            "PRIORITY_UPDATE that is too long",
            vec![a_frame(PRIORITY_UPDATE_REQUEST, &vec![0; PAYLOAD_MAX as usize + 1])],
            ("settings", excessive),
        ),
        ("10.5", "many unknown frames", vec![idle.repeat(IDLE_FRAMES_MAX as usize)], ("settings", Ok(()))),
        ("10.5", "too many unknown frames", vec![idle.repeat(IDLE_FRAMES_MAX as usize + 1)], ("settings", excessive)),
        (
            "10.5",
            "MAX_PUSH_ID too often",
            vec![of_id(MAX_PUSH_ID, 5).repeat(IDLE_FRAMES_MAX as usize + 1)],
            ("settings", excessive),
        ),
        ("10.5", "an unknown frame that is too long", vec![a_frame(0x21, &[0; 65_537])], ("settings", excessive)),
    ] {
        check(rule, name, &[control(&frames)], expect);
    }
}

#[test]
fn goaway_is_bounded() {
    let max = IDLE_FRAMES_MAX as usize;
    let (some, line) = (of_id(GOAWAY, 9).repeat(max), format!("settings{}", " goaway:9".repeat(max)));
    check("10.5", "GOAWAY often", &[control(std::slice::from_ref(&some))], (&line, Ok(())));
    let excessive = Err(connection(Code::ExcessiveLoad));
    check("10.5", "GOAWAY too often", &[control(&[some, of_id(GOAWAY, 8)])], (&line, excessive));
}

#[test]
fn control_streams_begin_with_settings() {
    let missing = ("", Err(connection(Code::MissingSettings)));
    for (name, first) in [
        ("GOAWAY", of_id(GOAWAY, 0)),
        ("MAX_PUSH_ID", of_id(MAX_PUSH_ID, 0)),
        ("DATA", a_frame(DATA, b"x")),
        ("HEADERS", a_frame(HEADERS, b"x")),
        ("an unknown frame", a_frame(0x21, b"")),
        ("a frame of HTTP/2", a_frame(0x6, b"")),
    ] {
        check("6.2.1", name, &[a_stream(CONTROL, &[first])], missing);
    }
}

#[test]
fn instructions_need_no_dynamic_table() {
    let encoder = Err(connection(Code::QpackEncoderStreamError));
    let decoder = Err(connection(Code::QpackDecoderStreamError));
    for (rule, name, kind, bytes, expect) in [
        ("4.3.1", "a capacity of 0", QPACK_ENCODER, &[0x20, 0x20][..], Ok(())),
        ("4.3.1", "a capacity of 1", QPACK_ENCODER, &[0x21], encoder),
        ("4.3.1", "a capacity of 220", QPACK_ENCODER, &[0x3f, 0xbd, 0x01], encoder),
        ("4.3.2", "an insertion with a name of the table", QPACK_ENCODER, &[0xc0, 0x01, b'a'], encoder),
        ("4.3.3", "an insertion with a name", QPACK_ENCODER, &[0x41, b'a', 0x01, b'b'], encoder),
        ("4.3.4", "a duplicate", QPACK_ENCODER, &[0x02], encoder),
        ("4.4.1", "an acknowledgement", QPACK_DECODER, &[0x84], decoder),
        ("4.4.2", "a cancelled stream", QPACK_DECODER, &[0x48], Ok(())),
        ("4.4.2", "cancelled streams with long ids", QPACK_DECODER, &[0x7f, 0xff, 0x01, 0x48, 0x7f, 0x00], Ok(())),
        (
            "4.4.2",
            "the largest id",
            QPACK_DECODER,
            &[0x7f, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
            Ok(()),
        ),
        (
            "4.1.1",
            "an id above 62 bits",
            QPACK_DECODER,
            &[0x7f, 0xc1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
            decoder,
        ),
        (
            "4.1.1",
            "an id without end",
            QPACK_DECODER,
            &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
            decoder,
        ),
        ("4.4.3", "an increment", QPACK_DECODER, &[0x01], decoder),
        ("4.4.3", "an increment of 0", QPACK_DECODER, &[0x00], decoder),
        ("4.4.3", "an increment behind a cancelled stream", QPACK_DECODER, &[0x48, 0x01], decoder),
    ] {
        check(&format!("RFC 9204, {rule}"), name, &[a_stream(kind, &[bytes.to_vec()])], ("", expect));
    }
}

#[test]
fn settings_are_read_or_refused() {
    let settings = |pairs: &[(u64, u64)]| {
        pairs.iter().flat_map(|(id, value)| [integer(*id), integer(*value)].concat()).collect::<Vec<_>>()
    };
    let all = Settings {
        max_field_section_size: Some(65_536),
        qpack_max_table_capacity: 4096,
        qpack_blocked_streams: 100,
        enable_connect_protocol: true,
        datagrams: true,
    };
    let wrong = Err(connection(Code::SettingsError));
    let many = |count: u64| settings(&(0..count).map(|n| (0x21 + 0x1f * n, 0)).collect::<Vec<_>>());
    for (rule, name, payload, expect) in [
        ("7.2.4.1", "none", vec![], Ok(Settings::default())),
        ("7.2.4.1", "all that are known", settings(&[(1, 4096), (6, 65_536), (7, 100), (8, 1), (0x33, 1)]), Ok(all)),
        (
            "7.2.4.1",
            "reserved and unknown ones",
            settings(&[(0x21, 7), (0x40, 7), (0x2b60_3742, 1)]),
            Ok(Settings::default()),
        ),
        ("7.2.4", "one twice", settings(&[(6, 1), (6, 1)]), wrong),
        ("7.2.4", "an unknown one twice", settings(&[(0x21, 1), (6, 1), (0x21, 2)]), wrong),
        ("7.2.4.1", "ENABLE_PUSH of HTTP/2", settings(&[(2, 0)]), wrong),
        ("7.2.4.1", "MAX_CONCURRENT_STREAMS of HTTP/2", settings(&[(3, 1)]), wrong),
        ("7.2.4.1", "INITIAL_WINDOW_SIZE of HTTP/2", settings(&[(4, 1)]), wrong),
        ("7.2.4.1", "MAX_FRAME_SIZE of HTTP/2", settings(&[(5, 1)]), wrong),
        ("11.2.2", "0", settings(&[(0, 1)]), wrong),
        ("RFC 8441, 3", "extended CONNECT of 2", settings(&[(8, 2)]), wrong),
        ("RFC 9297, 2.1.1", "datagrams of 2", settings(&[(0x33, 2)]), wrong),
        ("7.1", "an id without a value", vec![6], Err(connection(Code::FrameError))),
        ("7.1", "half an id", vec![0x40], Err(connection(Code::FrameError))),
        ("7.1", "half a value", vec![6, 0x80, 0], Err(connection(Code::FrameError))),
        ("10.5", "many", many(64), Ok(Settings::default())),
        ("10.5", "too many", many(65), Err(connection(Code::ExcessiveLoad))),
    ] {
        assert_eq!(Settings::parse(&payload).map_err(failure), expect, "{rule}: {name}");
        let (events, end) = read_streams(&[a_stream(CONTROL, &[a_frame(SETTINGS, &payload)])], &[]);
        let events = end.map(|()| events);
        assert_eq!(events, expect.map(|settings| vec![UniEvent::Settings(settings)]), "{rule}: {name}");
    }
    let long = a_stream(CONTROL, &[a_frame(SETTINGS, &vec![0; PAYLOAD_MAX as usize + 1])]);
    check("10.5", "SETTINGS that is too long", &[long], ("", Err(connection(Code::ExcessiveLoad))));
}

#[test]
fn our_control_stream_is_valid() {
    for (connect_protocol, grease) in [(true, 0), (false, u64::MAX), (true, 0x1234_5678_9abc_def0)] {
        let ours = Local { max_field_section_size: 65_536, connect_protocol }.control_stream(grease);
        let mut stream = BytesMut::from(&ours[..]);
        write_goaway(64, &mut stream);
        let (events, end) = read_streams(&[stream.to_vec()], &[]);
        let settings = Settings {
            max_field_section_size: Some(65_536),
            enable_connect_protocol: connect_protocol,
            ..Settings::default()
        };
        assert_eq!((events, end), (vec![UniEvent::Settings(settings), UniEvent::GoAway(64)], Ok(())));
    }
}
