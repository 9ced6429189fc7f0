//! Clients that violate HTTP/3, by raw streams of quinn: each violation has its code, and ends a stream or the
//! connection.

use ingress_quic::Limits;
use quinn::{Connection, ConnectionError, ReadError, VarInt};

use crate::support::{connect, connect_raw, get, pattern, run, start};

const NO_ERROR: u32 = 0x100;
const STREAM_CREATION: u32 = 0x103;
const CLOSED_CRITICAL: u32 = 0x104;
const FRAME_UNEXPECTED: u32 = 0x105;
const FRAME: u32 = 0x106;
const EXCESSIVE_LOAD: u32 = 0x107;
const ID: u32 = 0x108;
const SETTINGS: u32 = 0x109;
const MISSING_SETTINGS: u32 = 0x10a;
const REJECTED: u32 = 0x10b;
const INCOMPLETE: u32 = 0x10d;
const MESSAGE: u32 = 0x10e;
const DECOMPRESSION: u32 = 0x200;
const ENCODER_STREAM: u32 = 0x201;
const DECODER_STREAM: u32 = 0x202;

/// HEADERS with literal lines.
pub(crate) fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    fn integer(bits: u32, first: u8, value: usize, out: &mut Vec<u8>) {
        let max = (1 << bits) - 1;
        if value < max {
            return out.push(first | value as u8);
        }
        out.push(first | max as u8);
        let mut rest = value - max;
        while rest >= 128 {
            out.push(128 | (rest % 128) as u8);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    let mut section = vec![0, 0];
    for (name, value) in lines {
        integer(3, 0x20, name.len(), &mut section);
        section.extend_from_slice(name.as_bytes());
        integer(7, 0, value.len(), &mut section);
        section.extend_from_slice(value.as_bytes());
    }
    frame(1, &section)
}

/// A frame whose length takes four bytes.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length") | 0x8000_0000;
    [&[kind][..], &length.to_be_bytes(), payload].concat()
}

pub(crate) fn good(path: &str) -> Vec<(&str, &str)> {
    vec![(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
}

fn with(more: &[(&'static str, &'static str)]) -> Vec<u8> {
    headers(&[&good("/echo/")[..], more].concat())
}

/// How a stream or connection ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The response ended.
    Answered(Vec<u8>),
    Reset(u32),
    Closed(u32),
}

fn closed(error: &ConnectionError) -> End {
    match error {
        ConnectionError::ApplicationClosed(close) => End::Closed(code(close.error_code)),
        other => panic!("{other}"),
    }
}

fn code(code: VarInt) -> u32 {
    u32::try_from(code.into_inner()).expect("a code")
}

/// Sends `bytes` on a request stream, ends it, and returns the end.
async fn ask(quic: &Connection, bytes: &[u8]) -> End {
    let (mut sender, mut receiver) = quic.open_bi().await.expect("a stream");
    // The server may stop it.
    let _stopped = sender.write_all(bytes).await;
    let _stopped = sender.finish();
    answer(&mut receiver).await
}

async fn answer(receiver: &mut quinn::RecvStream) -> End {
    let mut answer = Vec::new();
    loop {
        match receiver.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => answer.extend_from_slice(&chunk.bytes),
            Ok(None) => return End::Answered(answer),
            Err(ReadError::Reset(reset)) => return End::Reset(code(reset)),
            Err(ReadError::ConnectionLost(error)) => return closed(&error),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn malformed_requests_end_their_stream_alone() {
    let body = |lines: &[u8], body: &[u8]| [lines, &frame(0, body)].concat();
    let without = |name: &str| {
        let lines: Vec<_> = good("/echo/").into_iter().filter(|line| line.0 != name).collect();
        headers(&lines)
    };
    let cases = [
        ("no method", without(":method"), MESSAGE),
        ("no path", without(":path"), MESSAGE),
        ("no authority", without(":authority"), MESSAGE),
        ("two paths", with(&[(":path", "/other")]), MESSAGE),
        ("two authorities", with(&[(":authority", "other")]), MESSAGE),
        ("a status", with(&[(":status", "200")]), MESSAGE),
        ("a pseudo-field behind fields", headers(&[&[("x", "y")][..], &good("/echo/")].concat()), MESSAGE),
        ("upper case", with(&[("X-Name", "y")]), MESSAGE),
        ("a field of connections", with(&[("connection", "close")]), MESSAGE),
        ("a transfer coding", with(&[("transfer-encoding", "chunked")]), MESSAGE),
        ("another host", with(&[("host", "other")]), MESSAGE),
        ("a body that is too short", body(&with(&[("content-length", "3")]), b"12"), MESSAGE),
        ("a body that is too long", body(&with(&[("content-length", "3")]), b"1234"), MESSAGE),
        ("no body where one is announced", with(&[("content-length", "3")]), MESSAGE),
        ("a length that is no number", with(&[("content-length", "+3")]), MESSAGE),
        ("pseudo-fields in trailers", [with(&[]), headers(&[(":path", "/")])].concat(), MESSAGE),
        ("nothing", Vec::new(), INCOMPLETE),
    ];
    run(async {
        let server = start(Limits::default());
        let (_endpoint, quic) = connect_raw(&server).await;
        for (name, bytes, expected) in cases {
            assert_eq!(ask(&quic, &bytes).await, End::Reset(expected), "{name}");
        }
        let End::Answered(_) = ask(&quic, &body(&with(&[("content-length", "3")]), b"123")).await else {
            panic!("the connection goes on")
        };
    });
}

#[test]
fn frames_that_are_not_permitted_end_the_connection() {
    let cases = [
        ("DATA before HEADERS", frame(0, b"data"), FRAME_UNEXPECTED),
        ("SETTINGS on a request", frame(4, b""), FRAME_UNEXPECTED),
        ("CANCEL_PUSH on a request", frame(3, b"\0"), FRAME_UNEXPECTED),
        ("GOAWAY on a request", frame(7, b"\0"), FRAME_UNEXPECTED),
        ("PUSH_PROMISE", frame(5, b"\0"), FRAME_UNEXPECTED),
        ("a frame of HTTP/2", frame(2, b""), FRAME_UNEXPECTED),
        (
            "HEADERS after trailers",
            [with(&[]), headers(&[("a", "b")]), headers(&[("a", "b")])].concat(),
            FRAME_UNEXPECTED,
        ),
        ("an end within a frame", with(&[])[..9].to_vec(), FRAME),
        ("a dynamic table", frame(1, &[0, 0, 0x80]), DECOMPRESSION),
        ("a static line that does not exist", frame(1, &[0, 0, 0xff, 0x7f]), DECOMPRESSION),
    ];
    run(async {
        let server = start(Limits::default());
        for (name, bytes, expected) in cases {
            let (_endpoint, quic) = connect_raw(&server).await;
            // A request to `/echo/` has its answer before a later frame comes; the connection is closed nevertheless.
            let _end = ask(&quic, &bytes).await;
            assert_eq!(closed(&quic.closed().await), End::Closed(expected), "{name}");
        }
        let client = connect(&server).await;
        assert_eq!(get(&client, "/size/3").await.expect("a response").body, pattern(3), "the worker goes on");
    });
}

#[test]
fn control_streams_have_their_rules() {
    let control = |frames: &[u8]| [&[0][..], frames].concat();
    let settings = frame(4, b"");
    let update = |id: [u8; 4]| [&[0x80, 0x0f, 0x07, 0x00, 5][..], &id, b"u"].concat();
    let cases = [
        ("no SETTINGS", vec![control(&frame(7, b"\0"))], MISSING_SETTINGS),
        ("DATA before SETTINGS", vec![control(&[&frame(0, b"")[..], &settings].concat())], MISSING_SETTINGS),
        ("two SETTINGS", vec![control(&[&settings[..], &settings].concat())], FRAME_UNEXPECTED),
        ("a setting of HTTP/2", vec![control(&frame(4, &[2, 0]))], SETTINGS),
        ("a setting twice", vec![control(&frame(4, &[6, 1, 6, 1]))], SETTINGS),
        ("DATA", vec![control(&[&settings[..], &frame(0, b"x")].concat())], FRAME_UNEXPECTED),
        ("HEADERS", vec![control(&[&settings[..], &frame(1, b"x")].concat())], FRAME_UNEXPECTED),
        ("a second control stream", vec![control(&settings), control(&settings)], STREAM_CREATION),
        ("a push stream", vec![vec![1, 0]], STREAM_CREATION),
        ("a second encoder stream", vec![vec![2], vec![2]], STREAM_CREATION),
        ("a table above the limit", vec![vec![2, 0x3f, 0x45]], ENCODER_STREAM),
        ("a count of insertions without any", vec![vec![3, 0]], DECODER_STREAM),
        ("a priority beyond the limit", vec![control(&[&settings[..], &update([0x90, 0, 0, 0])].concat())], ID),
    ];
    run(async {
        let server = start(Limits::default());
        for (name, streams, expected) in cases {
            let (_endpoint, quic) = connect_raw(&server).await;
            let mut open = Vec::new();
            for bytes in streams {
                let mut stream = quic.open_uni().await.expect("a stream");
                // The connection may be closed already.
                let _closed = stream.write_all(&bytes).await;
                open.push(stream);
            }
            assert_eq!(closed(&quic.closed().await), End::Closed(expected), "{name}");
        }
        // A critical stream that ends or is reset.
        for (ends, kind) in [(true, 0), (false, 0), (true, 2), (true, 3)] {
            let (_endpoint, quic) = connect_raw(&server).await;
            let mut stream = quic.open_uni().await.expect("a stream");
            let bytes = if kind == 0 { control(&settings) } else { vec![kind] };
            stream.write_all(&bytes).await.expect("written");
            // Its type has to arrive before a reset.
            assert!(matches!(ask(&quic, &with(&[])).await, End::Answered(_)));
            if ends {
                stream.finish().expect("finished")
            } else {
                stream.reset(VarInt::from_u32(0)).expect("reset")
            }
            assert_eq!(closed(&quic.closed().await), End::Closed(CLOSED_CRITICAL), "{ends} {kind}");
        }
    });
}

#[test]
fn unknown_streams_and_frames_are_skipped() {
    run(async {
        let server = start(Limits::default());
        let (_endpoint, quic) = connect_raw(&server).await;
        let mut unknown = quic.open_uni().await.expect("a stream");
        unknown.write_all(&[0x21, 1, 2, 3]).await.expect("written");
        let stopped = unknown.stopped().await.expect("the connection lives").map(code);
        assert_eq!(stopped, Some(STREAM_CREATION));
        let bytes =
            [frame(0x21, b"grease"), with(&[]), frame(0x21, b""), frame(0, b"body"), frame(0x40 - 1, b"")].concat();
        let End::Answered(answer) = ask(&quic, &bytes).await else { panic!("an answer") };
        assert!(answer.windows(4).any(|window| window == b"body"), "{answer:?}");
    });
}

#[test]
fn large_heads_are_answered_with_431() {
    run(async {
        let server = start(Limits::default());
        let (_endpoint, quic) = connect_raw(&server).await;
        let long = "x".repeat(16 * 1024);
        let many: Vec<_> = std::iter::repeat_n(("a", "b"), 600).collect();
        for more in [vec![("x", &*long)], many] {
            let bytes = headers(&[&good("/echo/")[..], &more].concat());
            let End::Answered(answer) = ask(&quic, &bytes).await else { panic!("an answer") };
            assert!(answer.windows(3).any(|window| window == b"431"), "{answer:?}");
        }
        assert_eq!(server.handle.counters().requests.get(), 0);
        let End::Answered(_) = ask(&quic, &with(&[])).await else { panic!("the connection goes on") };
    });
}

#[test]
fn heads_that_come_in_part_take_bounded_memory() {
    run(async {
        let server = start(Limits::default());
        let (_endpoint, quic) = connect_raw(&server).await;
        let long = "x".repeat(12 * 1024);
        let head = headers(&[&good("/echo/")[..], &[("x", &*long)]].concat());
        let (first, rest) = head.split_at(head.len() - 10);
        let mut streams = Vec::new();
        // Those of 12 streams are more than eight of the largest heads, 16 KiB each.
        for _ in 0..12 {
            let (mut sender, receiver) = quic.open_bi().await.expect("a stream");
            sender.write_all(first).await.expect("written");
            streams.push((sender, receiver));
        }
        assert_eq!(answer(&mut streams[0].1).await, End::Reset(REJECTED), "the oldest");
        for (mut sender, mut receiver) in streams.drain(2..) {
            sender.write_all(rest).await.expect("written");
            sender.finish().expect("finished");
            assert!(matches!(answer(&mut receiver).await, End::Answered(_)));
        }
        let End::Answered(_) = ask(&quic, &head).await else { panic!("the connection goes on") };
    });
}

#[test]
fn too_many_cancelled_requests_end_the_connection() {
    run(async {
        let server = start(Limits::default());
        let (_endpoint, quic) = connect_raw(&server).await;
        let mut opened = 0;
        while let Ok((mut sender, _receiver)) = quic.open_bi().await {
            opened += 1;
            let _closed = sender.write_all(&headers(&good("/hang/"))).await;
            let _closed = sender.reset(VarInt::from_u32(0x10c));
            assert!(opened < 100_000);
        }
        assert_eq!(closed(&quic.closed().await), End::Closed(EXCESSIVE_LOAD));
        assert!(opened >= 1_000, "{opened}");
        crate::support::until(|| server.seen.begun.get() == server.seen.ended.get()).await;
    });
}

#[test]
fn heads_that_do_not_come_end_their_stream() {
    run(async {
        let server = start(Limits { head_timeout: std::time::Duration::from_millis(30), ..Limits::default() });
        let (_endpoint, quic) = connect_raw(&server).await;
        let (mut sender, mut receiver) = quic.open_bi().await.expect("a stream");
        sender.write_all(&with(&[])[..10]).await.expect("written");
        assert_eq!(answer(&mut receiver).await, End::Reset(INCOMPLETE));
        assert_eq!(sender.stopped().await.expect("the connection lives").map(code), Some(INCOMPLETE));
        // A body may take longer.
        let (mut sender, mut receiver) = quic.open_bi().await.expect("a stream");
        sender.write_all(&with(&[])).await.expect("written");
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        sender.write_all(&frame(0, b"body")).await.expect("written");
        sender.finish().expect("finished");
        let End::Answered(_) = answer(&mut receiver).await else { panic!("an answer") };
        quic.close(VarInt::from_u32(NO_ERROR), b"");
    });
}
