//! Messages that we send, read as a client would.

use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::*;
use crate::{Priority, frame::HEADERS, qpack::Lines, response};

/// Reads one frame of HEADERS to lines, and checks that nothing follows.
fn read(mut bytes: &[u8]) -> String {
    let mut next = || {
        let (value, length) = varint::read(bytes).expect("an integer");
        bytes = &bytes[length..];
        value
    };
    assert_eq!((next(), next()), (HEADERS, bytes.len() as u64));
    let mut lines = Lines::new(Bytes::copy_from_slice(bytes), usize::MAX).expect("a prefix");
    let mut out = Vec::new();
    while let Some(line) = lines.next().expect("valid") {
        out.push(format!("{}: {}", line.name.escape_ascii(), line.value.escape_ascii()));
    }
    out.join(", ")
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| ((*name).parse().expect("a name"), HeaderValue::from_static(value))).collect()
}

fn check(rule: &str, status: u16, fields: &[(&'static str, &'static str)], expect: &str) {
    let (mut parts, ()) = Response::new(()).into_parts();
    (parts.status, parts.headers) = (StatusCode::from_u16(status).expect("a status"), headers(fields));
    let mut out = BytesMut::new();
    response::head(parts.status, &parts.headers, &mut out).expect("sendable");
    assert_eq!(read(&out), expect, "{rule}: {fields:?}");
}

#[test]
fn heads_have_no_fields_about_the_connection() {
    for (rule, status, fields, expect) in [
        ("4.3.2", 200, &[][..], ":status: 200"),
        ("4.3.2", 999, &[("x-a", "b")], ":status: 999, x-a: b"),
        ("4.1", 103, &[("link", "</a>")], ":status: 103, link: </a>"),
        ("4.2", 200, &[("connection", "close"), ("x-a", "b")], ":status: 200, x-a: b"),
        ("4.2", 200, &[("connection", "x-a, X-B"), ("x-a", "b"), ("x-b", "c"), ("x-c", "d")], ":status: 200, x-c: d"),
        ("4.2", 200, &[("keep-alive", "timeout=5"), ("proxy-connection", "close")], ":status: 200"),
        ("4.2", 200, &[("transfer-encoding", "chunked"), ("upgrade", "h2c")], ":status: 200"),
        ("4.2", 200, &[("te", "trailers"), ("trailer", "x-a")], ":status: 200, trailer: x-a"),
        ("4.2", 200, &[("set-cookie", "a=1"), ("set-cookie", "b=2")], ":status: 200, set-cookie: a=1, set-cookie: b=2"),
        ("4.2", 204, &[("content-length", "0")], ":status: 204, content-length: 0"),
    ] {
        check(rule, status, fields, expect);
    }
}

#[test]
fn protocols_are_not_switched() {
    let mut out = BytesMut::new();
    let got = response::head(StatusCode::SWITCHING_PROTOCOLS, &HeaderMap::new(), &mut out);
    assert_eq!(got.map_err(failure), Err(stream(Code::InternalError)), "4.5");
    assert!(out.is_empty());
}

#[test]
fn long_heads_are_framed() {
    for length in [0, 50, 100, 16_300, 16_383, 16_384, 70_000] {
        // A letter with eight bits of code, so that the length is nearly the same.
        let value = "X".repeat(length);
        let mut fields = HeaderMap::new();
        fields.insert("x-a", HeaderValue::from_str(&value).expect("valid"));
        let mut out = BytesMut::from(&b"before"[..]);
        response::head(StatusCode::OK, &fields, &mut out).expect("sendable");
        assert_eq!(read(&out[6..]), format!(":status: 200, x-a: {value}"));
    }
}

#[test]
fn trailers_end_a_response() {
    let mut out = BytesMut::new();
    response::trailers(&headers(&[("grpc-status", "0"), ("connection", "x-a"), ("x-a", "b")]), &mut out);
    assert_eq!(read(&out), "grpc-status: 0", "4.1");
    out.clear();
    response::trailers(&headers(&[("connection", "x-a"), ("x-a", "b")]), &mut out);
    response::trailers(&HeaderMap::new(), &mut out);
    assert!(out.is_empty(), "no frame without fields");
}

#[test]
fn data_has_a_head() {
    let mut out = Vec::new();
    response::data_head(5, &mut out);
    assert_eq!(out, [0, 5], "7.2.1");
}

#[test]
fn priorities_have_defaults() {
    for (value, urgency, incremental) in [
        ("", 3, false),
        ("u=0", 0, false),
        ("u=7, i", 7, true),
        ("i,u=5", 5, true),
        ("u=1,i=?0", 1, false),
        ("i=?1", 3, true),
        ("u=8", 3, false),
        ("u=-1", 3, false),
        ("u=1.0", 3, false),
        ("u=\"1\"", 3, false),
        ("u", 3, false),
        ("i=1", 3, false),
        ("x=1, u=2;y=3, z", 2, false),
        ("u=2, u=4", 4, false),
        ("  u=6  ", 6, false),
        (",,", 3, false),
    ] {
        assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, incremental }, "RFC 9218, 4: {value:?}");
    }
    let headers = headers(&[("priority", "u=1"), ("priority", "i")]);
    assert_eq!(Priority::of(&headers), Priority { urgency: 1, incremental: true });
}
