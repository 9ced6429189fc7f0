//! Frames, field sections, streams and connections: RFC 9113, 3 to 6, and RFC 7541.

use super::{
    Case, Compression, Ends, Errs, Expect, FlowControl, FrameSize, Ignored, Protocol, REQUEST, Resets, Served,
    StreamClosed, case, integer, literal, open, request, section, setting, whole,
};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, NONE, PING, PRIORITY, PUSH_PROMISE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, frame,
};

const PADDED: u8 = 8;
const PRIORITISED: u8 = 0x20;
const UNKNOWN: u8 = 0xfa;

pub(super) fn cases() -> Vec<Case> {
    [frames(), compression(), states(), data_and_headers(), settings(), control(), windows(), continuations()]
        .into_iter()
        .flatten()
        .collect()
}

fn get(stream: u32) -> Vec<u8> {
    whole(stream, &request(&[]))
}

/// Concatenates `frames`.
fn all(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

const SEEN: &str = "POST /x a.test length:";
const SEEN_ABC: &str = "POST /x a.test chunked:abc";

fn end(stream: u32) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, b"abc")
}

#[rustfmt::skip]
fn frames() -> Vec<Case> {
    let huge = vec![0; 16_385];
    let full = vec![b'x'; 16_384];
    vec![
        case("4.1", "an unknown frame is ignored", frame(UNKNOWN, 0xff, 0, b"12345678"), Ignored),
        case("4.1", "an unknown frame on an idle stream is ignored", frame(UNKNOWN, 0, 5, b"12345678"), Ignored),
        case("4.1", "an unknown frame within a body is ignored", all(&[open(1), frame(UNKNOWN, 0, 1, b"1"), end(1)]), Served(SEEN_ABC)),
        case("4.1", "an unknown frame on a stream that is half closed", all(&[get(1), frame(UNKNOWN, 0, 1, b"1")]), Served(SEEN)),
        case("4.1", "flags without a meaning on PING", frame(PING, 0xfe, 0, b"12345678"), Ignored),
        case("4.1", "flags without a meaning on SETTINGS", frame(SETTINGS, 0xfe, 0, &[]), Ignored),
        case("4.1", "flags without a meaning on DATA", all(&[open(1), frame(DATA, END_STREAM | 0xf6, 1, b"abc")]), Served(SEEN_ABC)),
        case("4.1", "flags without a meaning on HEADERS", frame(HEADERS, END_HEADERS | END_STREAM | 0xd2, 1, &request(&[])), Served(SEEN)),
        case("4.1", "the reserved bit of a stream", get(0x8000_0001), Served(SEEN)),
        case("4.1", "the reserved bit on PING", frame(PING, NONE, 0x8000_0000, b"12345678"), Ignored),
        case("4.2", "DATA of the largest size", all(&[open(1), frame(DATA, END_STREAM, 1, &full)]), Served("")),
        case("4.2", "DATA that is too large", all(&[open(1), frame(DATA, END_STREAM, 1, &huge)]), Errs(&[FrameSize])),
        case("4.2", "HEADERS that are too large", frame(HEADERS, END_HEADERS | END_STREAM, 1, &huge), Ends(&[FrameSize])),
        case("4.2", "SETTINGS that are too large", frame(SETTINGS, NONE, 0, &[0; 16_386]), Ends(&[FrameSize])),
        case("4.2", "PING that is too large", frame(PING, NONE, 0, &huge), Ends(&[FrameSize])),
        case("4.2", "an unknown frame that is too large", frame(UNKNOWN, NONE, 0, &huge), Ends(&[FrameSize])),
        case("4.2", "CONTINUATION that is too large", all(&[frame(HEADERS, END_STREAM, 1, &request(&[])), frame(CONTINUATION, END_HEADERS, 1, &huge)]), Ends(&[FrameSize])),
        case("5.5", "an unknown setting is ignored", frame(SETTINGS, NONE, 0, &setting(0xfafa, 1)), Ignored),
    ]
}

/// h2 has one code for everything it cannot read.
const CODE: Expect = Ends(&[Protocol]);
const CODE_REASON: &str = "the connection ends all the same, and a client only logs the code";

#[rustfmt::skip]
fn compression() -> Vec<Case> {
    let with = |bytes: &[u8]| whole(1, &[&request(&[]), bytes].concat());
    let indexed = |name: &[u8], value: &[u8]| {
        let mut field = literal(name, value);
        field[0] = 0x40;
        field
    };
    vec![
        case("RFC 7541, 2.3.3", "index 0", with(&[0x80]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 2.3.3", "an index of no entry", with(&[0xbe]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 2.3.3", "a name of no entry", with(&[&[0x7e][..], b"\x01y"].concat()), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 2.3.2", "an entry of the dynamic table", with(&[indexed(b"x-a", b"b"), vec![0xbe]].concat()), Served(SEEN)),
        case("RFC 7541, 4.2", "a table smaller than it may be", whole(1, &[vec![0x20], request(&[])].concat()), Served(SEEN)),
        case("RFC 7541, 4.2", "a table larger than it may be", whole(1, &[[&[0x3f][..], &[0xe2, 0x1f]].concat(), request(&[])].concat()), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 4.2", "a change of the table behind a field", with(&[0x20]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 4.4", "an entry larger than the table", with(&indexed(b"x-a", &[b'b'; 5000])), Served(SEEN)),
        case("RFC 7541, 5.1", "an integer without an end", with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.1", "an integer that is cut off", with(&[0xff]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "a name that is cut off", with(&[0, 5, b'x']), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "a value that is cut off", with(&[0, 1, b'x', 5, b'y']), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "a value that is missing", with(&[0, 1, b'x']), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "Huffman padding of more than seven bits", with(&[0, 1, b'x', 0x82, 0x1f, 0xff]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "Huffman padding of zeros", with(&[0, 1, b'x', 0x81, 0x18]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "Huffman with its end of string", with(&[0, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xfc]), Ends(&[Compression])).but(CODE, CODE_REASON),
        case("RFC 7541, 5.2", "a value in Huffman", with(&[0, 1, b'x', 0x81, 0x1f]), Served(SEEN)),
        case("RFC 7541, 6.2.3", "a field that is never indexed", with(&[0x10, 1, b'x', 1, b'y']), Served(SEEN)),
        case(
            "4.3",
            "a section of a malformed request changes the table",
            // The first request is malformed, but its additions to the table hold for the second.
            all(&[
                whole(1, &[section(&REQUEST[..3]), indexed(b":path", b"/x"), section(&[("connection", "y")])].concat()),
                whole(3, &[section(&REQUEST[..3]), vec![0xbe]].concat()),
            ]),
            Served(SEEN),
        ),
        case("4.3", "an empty section", whole(1, &[]), super::Malformed),
        case("4.3", "a section in the midst of a field", all(&[frame(HEADERS, END_STREAM, 1, &request(&[])[..10]), frame(CONTINUATION, END_HEADERS, 1, &request(&[])[10..])]), Served(SEEN)),
    ]
}

#[rustfmt::skip]
fn states() -> Vec<Case> {
    let reset = |stream| frame(RST_STREAM, NONE, stream, &[0, 0, 0, 8]);
    vec![
        case("5.1", "DATA on an idle stream", frame(DATA, END_STREAM, 1, b"abc"), Ends(&[Protocol])),
        case("5.1", "RST_STREAM on an idle stream", reset(1), Ends(&[Protocol])),
        case("5.1", "WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, NONE, 1, &[0, 0, 0, 1]), Ends(&[Protocol])),
        case("5.1", "CONTINUATION on an idle stream", frame(CONTINUATION, END_HEADERS, 1, &request(&[])), Ends(&[Protocol])),
        case("5.1", "PRIORITY on an idle stream", frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 16]), Ignored),
        case("5.1", "DATA on a stream that is half closed", all(&[get(1), frame(DATA, END_STREAM, 1, b"abc")]), Errs(&[StreamClosed])).but(CODE, CODE_REASON),
        case("5.1", "HEADERS on a stream that is half closed", all(&[get(1), get(1)]), Errs(&[StreamClosed])).but(CODE, CODE_REASON),
        case("5.1", "CONTINUATION on a stream that is half closed", all(&[get(1), frame(CONTINUATION, END_HEADERS, 1, &[])]), Ends(&[Protocol, StreamClosed])),
        case("5.1", "WINDOW_UPDATE on a stream that is half closed", all(&[get(1), frame(WINDOW_UPDATE, NONE, 1, &[0, 0, 0, 1])]), Served(SEEN)),
        case("5.1", "PRIORITY on a stream that is half closed", all(&[get(1), frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 16])]), Served(SEEN)),
        case("5.1", "PRIORITY on a stream that is closed", all(&[open(1), reset(1), frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 16])]), Ignored),
        case("5.1", "DATA on a stream that the client has reset", all(&[open(1), reset(1), frame(DATA, END_STREAM, 1, b"abc")]), Errs(&[StreamClosed])),
        case("5.1", "HEADERS on a stream that the client has reset", all(&[open(1), reset(1), get(1)]), Errs(&[StreamClosed, Protocol])),
        case("5.1", "RST_STREAM twice", all(&[open(1), reset(1), reset(1)]), Ignored),
        case("5.1", "WINDOW_UPDATE on a stream that the client has reset", all(&[open(1), reset(1), frame(WINDOW_UPDATE, NONE, 1, &[0, 0, 0, 1])]), Ignored),
        case("5.1.1", "HEADERS on stream 0", get(0), Ends(&[Protocol])),
        case("5.1.1", "HEADERS on a stream of the server", get(2), Ends(&[Protocol])),
        case("5.1.1", "a stream lower than one before", all(&[open(5), get(3)]), Ends(&[Protocol, StreamClosed])),
        case("5.1.1", "streams may be left out", get(101), Served(SEEN)),
        case("5.1.1", "DATA on a stream that was left out", all(&[open(5), frame(DATA, END_STREAM, 3, b"abc")]), Errs(&[Protocol, StreamClosed])),
        case("5.3", "HEADERS with a priority", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITISED, 1, &[&[0, 0, 0, 0, 16][..], &request(&[])].concat()), Served(SEEN)),
        case("5.3", "HEADERS with an exclusive priority below an idle stream", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITISED, 1, &[&[0x80, 0, 0, 7, 16][..], &request(&[])].concat()), Served(SEEN)),
        // RFC 7540, 5.3.1: below itself; RFC 9113 has no priorities and allows both.
        case("5.3", "PRIORITY below itself", all(&[open(1), frame(PRIORITY, NONE, 1, &[0, 0, 0, 1, 16])]), Errs(&[Protocol])),
        case("5.3", "HEADERS with a priority below itself", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITISED, 1, &[&[0, 0, 0, 1, 16][..], &request(&[])].concat()), Errs(&[Protocol])),
    ]
}

#[rustfmt::skip]
fn data_and_headers() -> Vec<Case> {
    let padded = |kind, flags, pad: u8, payload: &[u8], padding: usize| {
        frame(kind, flags | PADDED, 1, &[&[pad][..], payload, &vec![0; padding]].concat())
    };
    vec![
        case("6.1", "DATA on stream 0", frame(DATA, NONE, 0, b"abc"), Ends(&[Protocol])),
        case("6.1", "DATA with padding", all(&[open(1), padded(DATA, END_STREAM, 5, b"abc", 5)]), Served(SEEN_ABC)),
        case("6.1", "DATA with a padding of none", all(&[open(1), padded(DATA, END_STREAM, 0, b"abc", 0)]), Served(SEEN_ABC)),
        case("6.1", "DATA of padding alone", all(&[open(1), padded(DATA, NONE, 9, b"", 9), end(1)]), Served(SEEN_ABC)),
        case("6.1", "DATA with padding that is not zero", all(&[open(1), frame(DATA, END_STREAM | PADDED, 1, b"\x02abcxx")]), Served(SEEN_ABC)),
        case("6.1", "DATA with a padding of all and one", all(&[open(1), padded(DATA, END_STREAM, 4, b"abc", 0)]), Ends(&[Protocol])),
        case("6.1", "DATA with a padding of far more", all(&[open(1), padded(DATA, END_STREAM, 255, b"abc", 0)]), Ends(&[Protocol])),
        case("6.1", "DATA without its length of padding", all(&[open(1), frame(DATA, END_STREAM | PADDED, 1, b"")]), Ends(&[FrameSize, Protocol])),
        case("6.1", "empty DATA", all(&[open(1), frame(DATA, NONE, 1, b""), frame(DATA, NONE, 1, b""), end(1)]), Served(SEEN_ABC)),
        case("6.1", "empty DATA at the end", all(&[open(1), frame(DATA, NONE, 1, b"abc"), frame(DATA, END_STREAM, 1, b"")]), Served(SEEN_ABC)),
        case("6.2", "HEADERS with padding", padded(HEADERS, END_HEADERS | END_STREAM, 5, &request(&[]), 5), Served(SEEN)),
        case("6.2", "HEADERS with padding and priority", frame(HEADERS, END_HEADERS | END_STREAM | PADDED | PRIORITISED, 1, &[&[3, 0, 0, 0, 0, 16][..], &request(&[]), &[0; 3]].concat()), Served(SEEN)),
        case("6.2", "HEADERS with a padding of more than all", padded(HEADERS, END_HEADERS | END_STREAM, 255, &request(&[]), 0), Ends(&[Protocol])),
        case("6.2", "HEADERS with a padding of all and one", padded(HEADERS, END_HEADERS | END_STREAM, 4, b"abc", 0), Ends(&[Protocol])),
        case("6.2", "HEADERS without their length of padding", frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, b""), Ends(&[FrameSize, Protocol])),
        case("6.2", "HEADERS too short for their priority", frame(HEADERS, END_HEADERS | END_STREAM | PRIORITISED, 1, &[0, 0, 0]), Ends(&[FrameSize, Protocol])),
        case("6.2", "END_HEADERS by two frames", all(&[frame(HEADERS, END_STREAM, 1, &request(&[])), frame(CONTINUATION, END_HEADERS, 1, b"")]), Served(SEEN)),
        case("6.3", "PRIORITY on stream 0", frame(PRIORITY, NONE, 0, &[0, 0, 0, 0, 16]), Ends(&[Protocol])),
        case("6.3", "PRIORITY that is too short", all(&[open(1), frame(PRIORITY, NONE, 1, &[0; 4])]), Errs(&[FrameSize])),
        case("6.3", "PRIORITY that is too long", all(&[open(1), frame(PRIORITY, NONE, 1, &[0; 6])]), Errs(&[FrameSize])),
        case("6.4", "RST_STREAM on stream 0", frame(RST_STREAM, NONE, 0, &[0; 4]), Ends(&[Protocol])),
        case("6.4", "RST_STREAM that is too short", all(&[open(1), frame(RST_STREAM, NONE, 1, &[0; 3])]), Ends(&[FrameSize])),
        case("6.4", "RST_STREAM that is too long", all(&[open(1), frame(RST_STREAM, NONE, 1, &[0; 5])]), Ends(&[FrameSize])),
        case("7", "RST_STREAM with an unknown code", all(&[open(1), frame(RST_STREAM, NONE, 1, &[0xff; 4])]), Ignored),
    ]
}

#[rustfmt::skip]
fn settings() -> Vec<Case> {
    let one = |id, value| frame(SETTINGS, NONE, 0, &setting(id, value));
    vec![
        case("6.5", "SETTINGS on a stream", all(&[open(1), frame(SETTINGS, NONE, 1, &[])]), Ends(&[Protocol])),
        case("6.5", "SETTINGS on an idle stream", frame(SETTINGS, NONE, 1, &[]), Ends(&[Protocol])),
        case("6.5", "SETTINGS of half a setting", frame(SETTINGS, NONE, 0, &[0; 3]), Ends(&[FrameSize])),
        case("6.5", "SETTINGS of a setting and a half", frame(SETTINGS, NONE, 0, &[0; 9]), Ends(&[FrameSize])),
        case("6.5", "an acknowledgement with settings", frame(SETTINGS, 1, 0, &setting(3, 1)), Ends(&[FrameSize])),
        case("6.5", "the same setting twice", frame(SETTINGS, NONE, 0, &[setting(4, 0), setting(4, 65_535)].concat()), Ignored),
        case("6.5.2", "ENABLE_PUSH of 0", one(2, 0), Ignored),
        case("6.5.2", "ENABLE_PUSH of 1", one(2, 1), Ignored),
        case("6.5.2", "ENABLE_PUSH of 2", one(2, 2), Ends(&[Protocol])),
        case("6.5.2", "INITIAL_WINDOW_SIZE of all there is", one(4, 0x7fff_ffff), Ignored),
        case("6.5.2", "INITIAL_WINDOW_SIZE of one more", one(4, 0x8000_0000), Ends(&[FlowControl])).but(CODE, CODE_REASON),
        case("6.5.2", "MAX_FRAME_SIZE of the least", one(5, 16_384), Ignored),
        case("6.5.2", "MAX_FRAME_SIZE of less", one(5, 16_383), Ends(&[Protocol])),
        case("6.5.2", "MAX_FRAME_SIZE of the most", one(5, 0xff_ffff), Ignored),
        case("6.5.2", "MAX_FRAME_SIZE of more", one(5, 0x100_0000), Ends(&[Protocol])),
        case("6.5.2", "HEADER_TABLE_SIZE of 0", all(&[one(1, 0), get(1)]), Served(SEEN)),
        case("6.5.2", "MAX_HEADER_LIST_SIZE", all(&[one(6, 0x7fff_ffff), get(1)]), Served(SEEN)),
        case("6.5.2", "MAX_CONCURRENT_STREAMS of 0 is about pushes", all(&[one(3, 0), get(1)]), Served(SEEN)),
        case("RFC 8441, 3", "ENABLE_CONNECT_PROTOCOL of 2", one(8, 2), Ends(&[Protocol])),
    ]
}

#[rustfmt::skip]
fn control() -> Vec<Case> {
    vec![
        case("6.6", "PUSH_PROMISE of a client", all(&[open(1), frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &request(&[])].concat())]), Ends(&[Protocol])),
        case("6.6", "PUSH_PROMISE of a client on stream 0", frame(PUSH_PROMISE, END_HEADERS, 0, &[&[0, 0, 0, 2][..], &request(&[])].concat()), Ends(&[Protocol])),
        case("6.7", "PING on a stream", all(&[open(1), frame(PING, NONE, 1, &[0; 8])]), Ends(&[Protocol])),
        case("6.7", "PING that is empty", frame(PING, NONE, 0, &[]), Ends(&[FrameSize])),
        case("6.7", "PING that is too short", frame(PING, NONE, 0, &[0; 7]), Ends(&[FrameSize])),
        case("6.7", "PING that is too long", frame(PING, NONE, 0, &[0; 9]), Ends(&[FrameSize])),
        case("6.7", "an acknowledgement of no PING", frame(PING, 1, 0, &[0; 8]), Ignored),
        case("6.8", "GOAWAY on a stream", all(&[open(1), frame(GOAWAY, NONE, 1, &[0; 8])]), Ends(&[Protocol])),
        case("6.8", "GOAWAY that is too short", frame(GOAWAY, NONE, 0, &[0; 7]), Ends(&[FrameSize])),
    ]
}

#[rustfmt::skip]
fn windows() -> Vec<Case> {
    let update = |stream, by: u32| frame(WINDOW_UPDATE, NONE, stream, &by.to_be_bytes());
    vec![
        case("6.9", "an update of the connection by nothing", update(0, 0), Ends(&[Protocol])),
        case("6.9", "an update of a stream by nothing", all(&[open(1), update(1, 0)]), Errs(&[Protocol])),
        case("6.9", "an update by nothing but the reserved bit", update(0, 0x8000_0000), Ends(&[Protocol])),
        case("6.9", "an update with the reserved bit", update(0, 0x8000_0001), Ignored),
        case("6.9", "an update that is too short", frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 1]), Ends(&[FrameSize])),
        case("6.9", "an update that is too long", frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 0, 1, 0]), Ends(&[FrameSize])),
        case("6.9.1", "the window of the connection, to the brim", update(0, 0x7fff_0000), Ignored),
        case("6.9.1", "the window of the connection, over the brim", update(0, 0x7fff_0001), Ends(&[FlowControl])),
        case("6.9.1", "the window of the connection, over the brim by two", all(&[update(0, 0x7fff_0000), update(0, 1)]), Ends(&[FlowControl])),
        case("6.9.1", "the window of a stream, over the brim", all(&[open(1), update(1, 0x7fff_ffff)]), Resets(&[FlowControl])),
        case("6.9.2", "the window of a stream, over the brim by SETTINGS", all(&[open(1), update(1, 0x7fff_0000), frame(SETTINGS, NONE, 0, &setting(4, 65_536))]), Ends(&[FlowControl])),
        case("6.9.2", "a window below zero", all(&[frame(SETTINGS, NONE, 0, &setting(4, 100)), open(1), frame(SETTINGS, NONE, 0, &setting(4, 0)), end(1)]), Served(SEEN_ABC)),
    ]
}

#[rustfmt::skip]
fn continuations() -> Vec<Case> {
    let begun = || frame(HEADERS, END_STREAM, 1, &request(&[]));
    let more = || frame(CONTINUATION, END_HEADERS, 1, &section(&[("x-a", "b")]));
    let between = |frame: Vec<u8>| all(&[begun(), frame, more()]);
    vec![
        case("6.10", "a field section in many frames", all(&[frame(HEADERS, END_STREAM, 1, &[]), frame(CONTINUATION, NONE, 1, &request(&[])), frame(CONTINUATION, NONE, 1, &[]), more()]), Served(SEEN)),
        case("6.10", "CONTINUATION on stream 0", frame(CONTINUATION, END_HEADERS, 0, &request(&[])), Ends(&[Protocol])),
        case("6.10", "CONTINUATION behind a section that has ended", all(&[open(1), more()]), Ends(&[Protocol])),
        case("6.10", "CONTINUATION behind DATA", all(&[open(1), frame(DATA, NONE, 1, b"abc"), more()]), Ends(&[Protocol])),
        case("6.10", "CONTINUATION of another stream", all(&[begun(), frame(CONTINUATION, END_HEADERS, 3, &[])]), Ends(&[Protocol])),
        case("6.10", "HEADERS within a section", between(get(3)), Ends(&[Protocol])),
        case("6.10", "HEADERS of the same stream within a section", between(get(1)), Ends(&[Protocol])),
        case("6.10", "DATA within a section", between(frame(DATA, NONE, 1, b"abc")), Ends(&[Protocol])),
        case("6.10", "PING within a section", between(frame(PING, NONE, 0, &[0; 8])), Ends(&[Protocol])),
        case("6.10", "SETTINGS within a section", between(frame(SETTINGS, NONE, 0, &[])), Ends(&[Protocol])),
        case("6.10", "PRIORITY within a section", between(frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 16])), Ends(&[Protocol])),
        case("6.10", "RST_STREAM within a section", between(frame(RST_STREAM, NONE, 1, &[0; 4])), Ends(&[Protocol])),
        case("6.10", "WINDOW_UPDATE within a section", between(frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 0, 1])), Ends(&[Protocol])),
        case("6.10", "GOAWAY within a section", between(frame(GOAWAY, NONE, 0, &[0; 8])), Ends(&[Protocol])),
        case("5.5", "an unknown frame within a section", between(frame(UNKNOWN, NONE, 1, b"abc")), Ends(&[Protocol])),
    ]
}

#[test]
fn integers_are_those_of_rfc_7541() {
    // The RFC's examples: C.1.1 to C.1.3.
    assert_eq!((integer(10, 5), integer(1337, 5), integer(42, 8)), (vec![10], vec![31, 154, 10], vec![42]));
}
