//! Requirements of RFC 9113 (and of RFC 7541 below it) on an endpoint, frame by frame. Each case names its section,
//! sends bytes on a connection of its own, and lists the right answers.
//!
//! To add a case, add a line to a table of `connection` or `message`. Two laws hold for each: no malformed request
//! reaches a pod, and a request that does is one that all readers read alike (the pod is the one of `framing`).
//!
//! Where h2 does not comply and no layer above it can, the case says so, and why that is harmless ([`Deviation`]). It
//! then expects the actual behaviour, so that a version that does better is noticed.

mod connection;
mod message;

use std::collections::HashSet;

use crate::{
    frames::{
        DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, NONE, PING, PREFACE, RST_STREAM, Raw, SETTINGS, frame,
    },
    framing::recorder::Recorder,
};
use ingress_proxy_testing::{Proxy, Table};

/// Minimum number of cases of the project's own.
const ENOUGH: usize = 120;

/// Error codes (RFC 9113, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Code {
    Protocol = 1,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    Compression = 9,
}

use Code::{Compression, FlowControl, FrameSize, Protocol, StreamClosed};

/// The right reaction to a case. Its requests are on stream 1 unless it says otherwise.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// A connection error of one of these codes (5.4.1).
    Ends(&'static [Code]),
    /// A stream error of one of these codes (5.4.2); the connection goes on.
    Resets(&'static [Code]),
    /// Either, where the RFC leaves it open, or allows treating one as the other.
    Errs(&'static [Code]),
    /// The request is malformed (8.1.1). The reaction is a stream error, which may become a connection error (5.4.1),
    /// or a response that refuses it; no pod sees the request.
    Malformed,
    /// The case is valid: the request is answered, and the pod sees the text, if one is given.
    Served(&'static str),
    /// The case is valid and has no request; the connection goes on.
    Ignored,
}

use Expect::{Ends, Errs, Ignored, Malformed, Resets, Served};

struct Case {
    section: &'static str,
    name: &'static str,
    /// Everything after the preface and an empty SETTINGS frame.
    bytes: Vec<u8>,
    expect: Expect,
    deviation: Option<Deviation>,
}

/// The actual behaviour in place of the required one.
#[derive(Clone, Copy, Debug)]
struct Deviation {
    actual: Expect,
    #[expect(dead_code, reason = "it is for those who read the table")]
    harmless_as: &'static str,
}

/// Number of cases that deviate. A smaller number means that a deviation can be removed from its table.
const DEVIATIONS: usize = 22;

fn case(section: &'static str, name: &'static str, bytes: Vec<u8>, expect: Expect) -> Case {
    Case { section, name, bytes, expect, deviation: None }
}

impl Case {
    fn but(self, actual: Expect, harmless_as: &'static str) -> Self {
        Self { deviation: Some(Deviation { actual, harmless_as }), ..self }
    }

    /// Returns the reaction that the test demands.
    fn actual(&self) -> Expect {
        self.deviation.map_or(self.expect, |deviation| deviation.actual)
    }
}

// === requests ===

/// A field section (RFC 7541, 6.2.2) of literals without indexing or compression.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

pub(crate) fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0], &*string(name), &*string(value)].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&*integer(text.len(), 7), text].concat()
}

/// An integer of RFC 7541, 5.1, with zeroes in the bits before its prefix.
fn integer(mut value: usize, prefix: u32) -> Vec<u8> {
    let max = (1_usize << prefix) - 1;
    if value < max {
        return vec![value as u8];
    }
    let mut out = vec![max as u8];
    value -= max;
    while value >= 128 {
        out.push((value % 128) as u8 | 128);
        value /= 128;
    }
    out.push(value as u8);
    out
}

const REQUEST: &[(&str, &str)] = &[(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/x")];

/// The fields of a request, and more.
fn request(more: &[(&str, &str)]) -> Vec<u8> {
    section(&[REQUEST, more].concat())
}

/// A complete request on `stream`.
fn whole(stream: u32, fields: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)
}

/// A request on `stream` without the end of its body.
fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request(&[]))
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

// === answers ===

const PROBE: u32 = 0x7fff_ff01;
const PROBE_SEEN: &str = "GET /probe a.test none";

/// Returns the status in a field section of the proxy, if it is one of HPACK's static table.
fn status(frame: &Frame) -> Option<u16> {
    let payload = match frame.payload.as_slice() {
        // The table is made smaller, as the client has asked (RFC 7541, 6.3).
        [0x20, rest @ ..] => rest,
        payload => payload,
    };
    match *payload.first()? {
        0x88 => Some(200),
        0x8c => Some(400),
        0x8d => Some(404),
        0x8e => Some(500),
        // A literal in Huffman code, behind the name from the table.
        0x48 if payload.starts_with(&[0x48, 0x82, 0x6c, 0x01]) => Some(501),
        _ => None,
    }
}

struct Seen {
    frames: Vec<Frame>,
    /// The connection was ended before the probe was answered.
    ended: bool,
}

impl Seen {
    fn goaway(&self) -> Option<u32> {
        let frame = self.frames.iter().find(|frame| frame.kind == GOAWAY)?;
        Some(u32::from_be_bytes(frame.payload.get(4..8)?.try_into().ok()?))
    }

    fn reset(&self) -> Option<u32> {
        let frame = self.frames.iter().find(|frame| frame.kind == RST_STREAM && frame.stream != PROBE)?;
        Some(u32::from_be_bytes(frame.payload.get(..4)?.try_into().ok()?))
    }

    fn status(&self) -> Option<u16> {
        self.frames.iter().find(|frame| frame.kind == HEADERS && frame.stream != PROBE).and_then(status)
    }
}

struct Bench {
    pod: Recorder,
    proxy: Proxy,
}

impl Bench {
    fn new() -> Self {
        let pod = Recorder::start();
        let proxy = Proxy::start(&Table::default().host("a.test", &[pod.address]));
        Self { pod, proxy }
    }

    /// Runs a case and describes any deviation.
    fn run(&self, case: &Case) -> Result<(), String> {
        let expect = case.actual();
        let seen = self.send(case, expect);
        let pod = self.pod.take();
        if !pod.faults.is_empty() {
            return Err(format!("the pod got {:?}", pod.faults));
        }
        let forwarded: Vec<_> = pod.seen.iter().filter(|seen| *seen != PROBE_SEEN).collect();
        let is = |code: Option<u32>, codes: &[Code]| code.is_some_and(|code| codes.iter().any(|c| *c as u32 == code));
        let is_right = match expect {
            Ends(codes) => seen.ended && is(seen.goaway(), codes),
            Resets(codes) => !seen.ended && is(seen.reset(), codes),
            Errs(codes) => is(seen.goaway(), codes) && seen.ended || is(seen.reset(), codes),
            Malformed => {
                let refused = matches!(seen.status(), Some(400 | 501)) || is(seen.reset(), &[Protocol]);
                (refused || seen.ended && is(seen.goaway(), &[Protocol])) && forwarded.is_empty()
            }
            Served(text) => {
                let is_known = text.is_empty() || forwarded.iter().any(|forwarded| *forwarded == text);
                !seen.ended && seen.status() == Some(200) && is_known && forwarded.len() == 1
            }
            Ignored => !seen.ended && seen.reset().is_none() && forwarded.is_empty(),
        };
        if is_right {
            return Ok(());
        }
        let frames: Vec<_> = seen.frames.iter().filter(|frame| !matches!(frame.kind, SETTINGS)).collect();
        Err(format!("ended: {}, the pod saw {forwarded:?}; {frames:?}", seen.ended))
    }

    /// Sends a case and a valid request, and reads until the result of both is known.
    fn send(&self, case: &Case, expect: Expect) -> Seen {
        let mut client = Raw::connect(&self.proxy);
        let probe = section(&[(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/probe")]);
        let begin = [PREFACE, &frame(SETTINGS, NONE, 0, &[])].concat();
        client.send(&[begin, case.bytes.clone(), whole(PROBE, &probe)].concat());
        let waits = matches!(expect, Resets(_) | Malformed | Served(_));
        let (mut frames, mut probed, mut answered) = (Vec::new(), false, !waits);
        while !(probed && answered) {
            let Some(frame) = client.next() else { return Seen { frames, ended: true } };
            probed |= frame.stream == PROBE && frame.kind == HEADERS;
            let is_reset = frame.kind == RST_STREAM && !matches!(expect, Served(_));
            answered |= frame.stream != PROBE && (frame.kind == HEADERS || is_reset);
            frames.push(frame);
        }
        Seen { frames, ended: false }
    }
}

fn cases() -> Vec<Case> {
    [connection::cases(), message::cases()].into_iter().flatten().collect()
}

#[test]
fn every_must_of_rfc_9113_is_satisfied() {
    let mut bench = Bench::new();
    let cases = cases();
    let wrong: Vec<_> = cases
        .iter()
        .filter_map(|case| {
            let why = bench.run(case).err();
            if !matches!(case.actual(), Malformed | Served(_) | Ignored) {
                // The proxy may have forwarded the request before it saw the error. The pod would get it during the next
                // case.
                bench = Bench::new();
            }
            let why = why?;
            let Case { section, name, expect, deviation, .. } = case;
            Some(format!("{section} {name}: expected {expect:?} {deviation:?}; {why}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let names: HashSet<_> = cases.iter().map(|case| (case.section, case.name)).collect();
    assert!(cases.len() >= ENOUGH && names.len() == cases.len(), "{} cases, {} names", cases.len(), names.len());
    assert_eq!(cases.iter().filter(|case| case.deviation.is_some()).count(), DEVIATIONS);
}

/// RFC 9113, 3.4, 6.5.3 and 6.7.
#[test]
fn settings_and_pings_are_acknowledged() {
    let bench = Bench::new();
    let mut client = Raw::begun(&bench.proxy, &[]);
    let first = client.next().expect("a frame");
    assert_eq!((first.kind, first.flags, first.stream), (SETTINGS, NONE, 0), "the server's preface is its settings");
    client.send(&[frame(PING, NONE, 0, b"12345678"), frame(SETTINGS, NONE, 0, &setting(3, 5))].concat());
    client.send(&[frame(PING, 1, 0, b"noanswer"), frame(PING, NONE, 0, b"87654321")].concat());
    let (mut settings, mut pings) = (0, Vec::new());
    while pings.len() < 2 {
        let Frame { kind, flags, payload, stream } = client.next().expect("a frame");
        match (kind, flags) {
            (SETTINGS, 1) => {
                assert_eq!((stream, payload.len()), (0, 0));
                settings += 1;
            }
            (PING, 1) => pings.push(payload),
            (SETTINGS | PING, _) => panic!("a {kind} that is no answer"),
            _ => {}
        }
    }
    assert_eq!((settings, pings), (2, vec![b"12345678".to_vec(), b"87654321".to_vec()]));
}

/// RFC 9113, 6.9: the windows of the stream and of the connection limit the data sent.
#[test]
fn windows_are_never_exceeded() {
    const SIZE: usize = 200_000;
    let origin = ingress_proxy_testing::Origin::start(|peer| {
        while peer.head().is_some() {
            peer.answer(&"x".repeat(SIZE));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let get = section(&[(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")]);
    let update = |stream, by: u32| frame(crate::frames::WINDOW_UPDATE, NONE, stream, &by.to_be_bytes());
    // SETTINGS_INITIAL_WINDOW_SIZE, updates of the stream and of the connection; expected bytes.
    for (initial, stream, connection, expect) in [
        (0, None, None, 0),
        (1, None, None, 1),
        (10, Some(5), None, 15),
        (65_535, None, None, 65_535),
        (1_000_000, None, None, 65_535),
        (1_000_000, None, Some(10_000), 75_535),
        (65_535, Some(1_000_000), None, 65_535),
    ] {
        let mut client = Raw::begun(&proxy, &setting(4, initial));
        client.send(&whole(1, &get));
        stream.into_iter().for_each(|by| client.send(&update(1, by)));
        connection.into_iter().for_each(|by| client.send(&update(0, by)));
        let mut received = 0;
        let mut take = |until: &dyn Fn(&Frame, usize) -> bool| {
            loop {
                let frame = client.next().expect("a frame");
                received += if frame.kind == DATA { frame.payload.len() } else { 0 };
                if until(&frame, received) {
                    break received;
                }
            }
        };
        let is_head =
            |frame: &Frame, received| frame.kind == HEADERS && expect == 0 || expect > 0 && received >= expect;
        assert_eq!(take(&is_head), expect, "{initial} {stream:?} {connection:?}");
        // No more data arrives before this is answered, nor after it.
        client.0.set_read_timeout(Some(std::time::Duration::from_millis(100))).expect("set");
        assert!(std::iter::from_fn(|| client.next()).all(|frame| frame.kind != DATA), "{initial}");
    }
}
