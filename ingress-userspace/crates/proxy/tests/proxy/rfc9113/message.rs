//! Requests: RFC 9113, 8, and the additions of RFC 8441.

use super::{Case, Errs, Malformed, Protocol, REQUEST, Resets, Served, case, literal, open, request, section, whole};
use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, NONE, frame};

const SEEN: &str = "POST /x a.test length:";

pub(super) fn cases() -> Vec<Case> {
    [framing(), lengths(), fields(), connection_specific(), pseudo_fields(), connect()].into_iter().flatten().collect()
}

/// The request with one pseudo-header field changed, or removed if there is no value.
fn with(name: &str, value: Option<&str>) -> Vec<u8> {
    let fields: Vec<_> = REQUEST
        .iter()
        .filter_map(|&(known, old)| if known == name { value.map(|value| (known, value)) } else { Some((known, old)) })
        .collect();
    whole(1, &section(&fields))
}

fn plus(fields: &[(&str, &str)]) -> Vec<u8> {
    whole(1, &request(fields))
}

#[rustfmt::skip]
fn framing() -> Vec<Case> {
    let trailers = |flags, fields: &[(&str, &str)]| {
        [open(1), frame(DATA, NONE, 1, b"abc"), frame(HEADERS, END_HEADERS | flags, 1, &section(fields))].concat()
    };
    vec![
        case("8.1", "trailers", trailers(END_STREAM, &[("x-a", "b")]), Served("POST /x a.test chunked:abc")),
        case("8.1", "trailers without a body", [open(1), frame(HEADERS, END_HEADERS | END_STREAM, 1, &section(&[("x-a", "b")]))].concat(), Served("POST /x a.test chunked:")),
        case("8.1", "a second section that does not end the stream", trailers(NONE, &[("x-a", "b")]), Resets(&[Protocol])),
        case("8.1", "trailers with a pseudo field", trailers(END_STREAM, &[(":method", "GET")]), Malformed)
            .but(Served("POST /x a.test chunked:abc"), "h2 drops it, and no pod hears of it"),
        case("8.1", "trailers with a name in upper case", trailers(END_STREAM, &[("X-A", "b")]), Errs(&[Protocol])),
        case("8.1", "trailers with a connection field", trailers(END_STREAM, &[("connection", "x")]), Resets(&[Protocol])),
        case("8.1", "trailers that frame stay behind", trailers(END_STREAM, &[("content-length", "9")]), Served("POST /x a.test chunked:abc")),
        case("8.2.1", "trailers with a name in quotes", trailers(END_STREAM, &[("\"x\"", "b")]), Malformed)
            .but(Served("POST /x a.test chunked:abc"), "the request is under way, and the pod does not get such trailers"),
        case("8.2.1", "trailers with a space before a value", trailers(END_STREAM, &[("x-a", " b")]), Malformed)
            .but(Served("POST /x a.test chunked:abc"), "the request is under way, and the pod does not get such trailers"),
        case("8.2.1", "trailers with a tab behind a value", trailers(END_STREAM, &[("x-a", "b\t")]), Malformed)
            .but(Served("POST /x a.test chunked:abc"), "the request is under way, and the pod does not get such trailers"),
    ]
}

#[rustfmt::skip]
fn lengths() -> Vec<Case> {
    let sent = |fields: &[(&str, &str)], body: &[u8]| {
        [frame(HEADERS, END_HEADERS, 1, &request(fields)), frame(DATA, END_STREAM, 1, body)].concat()
    };
    vec![
        case("8.1.1", "a length that is right", sent(&[("content-length", "3")], b"abc"), Served("POST /x a.test length:abc")),
        case("8.1.1", "a length of none that is right", plus(&[("content-length", "0")]), Served("POST /x a.test length:")),
        case("8.1.1", "a length that is too large", sent(&[("content-length", "4")], b"abc"), Resets(&[Protocol])),
        case("8.1.1", "a length that is too small", sent(&[("content-length", "2")], b"abc"), Resets(&[Protocol])),
        case("8.1.1", "a length of none, and a body", sent(&[("content-length", "0")], b"abc"), Resets(&[Protocol])),
        case("8.1.1", "a length, and no body", plus(&[("content-length", "3")]), Malformed),
        case("8.1.1", "two lengths", sent(&[("content-length", "3"), ("content-length", "4")], b"abc"), Malformed),
        case("8.1.1", "a length in a list", sent(&[("content-length", "3, 3")], b"abc"), Malformed),
        case("8.1.1", "a length in letters", sent(&[("content-length", "three")], b"abc"), Malformed),
        case("8.1.1", "a length with a sign", sent(&[("content-length", "+3")], b"abc"), Malformed),
        case("8.1.1", "a negative length", sent(&[("content-length", "-3")], b"abc"), Malformed),
        case("8.1.1", "a length that overflows", sent(&[("content-length", "18446744073709551619")], b"abc"), Malformed),
        case("8.1.1", "an empty length", sent(&[("content-length", "")], b"abc"), Malformed),
    ]
}

#[rustfmt::skip]
fn fields() -> Vec<Case> {
    let raw = |name: &[u8], value: &[u8]| whole(1, &[request(&[]), literal(name, value)].concat());
    vec![
        case("8.2", "a name in lower case", raw(b"x-a", b"b"), Served(SEEN)),
        case("8.2.1", "a name in upper case", raw(b"X-a", b"b"), Malformed),
        case("8.2.1", "a name with an upper-case letter at its end", raw(b"x-A", b"b"), Malformed),
        case("8.2.1", "an empty name", raw(b"", b"b"), Malformed),
        case("8.2.1", "a name with a space", raw(b"x a", b"b"), Malformed),
        case("8.2.1", "a name with a space at its end", raw(b"x-a ", b"b"), Malformed),
        case("8.2.1", "a name with a colon", raw(b"x:a", b"b"), Malformed),
        case("8.2.1", "a name with a colon at its end", raw(b"content-length:", b"b"), Malformed),
        case("8.2.1", "a name with NUL", raw(b"x\0a", b"b"), Malformed),
        case("8.2.1", "a name with CR LF", raw(b"x\r\na", b"b"), Malformed),
        case("8.2.1", "a name with a whole field", raw(b"x: y\r\nhost", b"b.test"), Malformed),
        case("8.2.1", "a name with a tab", raw(b"x\ta", b"b"), Malformed),
        case("8.2.1", "a name with DEL", raw(b"x\x7f", b"b"), Malformed),
        case("8.2.1", "a name in Latin-1", raw(b"x\xe9", b"b"), Malformed),
        case("8.2.1", "a name with a slash", raw(b"x/a", b"b"), Malformed),
        case("8.2.1", "a name in quotes", raw(b"\"x\"", b"b"), Malformed),
        case("8.2.1", "an empty value", raw(b"x-a", b""), Served(SEEN)),
        case("8.2.1", "a value in Latin-1", raw(b"x-a", b"\xe9"), Served(SEEN)),
        case("8.2.1", "a value with a space within", raw(b"x-a", b"b c"), Served(SEEN)),
        case("8.2.1", "a value with NUL", raw(b"x-a", b"b\0"), Malformed),
        case("8.2.1", "a value with CR", raw(b"x-a", b"b\rc"), Malformed),
        case("8.2.1", "a value with LF", raw(b"x-a", b"b\nc"), Malformed),
        case("8.2.1", "a value with a whole field", raw(b"x-a", b"b\r\ncontent-length: 9"), Malformed),
        case("8.2.1", "a value with a whole request", raw(b"x-a", b"b\r\n\r\nGET /inner HTTP/1.1\r\nhost: b\r\n\r\n"), Malformed),
        case("8.2.1", "a value with a space before it", raw(b"x-a", b" b"), Malformed),
        case("8.2.1", "a value with a space behind it", raw(b"x-a", b"b "), Malformed),
        case("8.2.1", "a value with a tab before it", raw(b"x-a", b"\tb"), Malformed),
        case("8.2.1", "a value with a tab behind it", raw(b"x-a", b"b\t"), Malformed),
        case("8.2.1", "a value that is a space", raw(b"x-a", b" "), Malformed),
        case("8.2.1", "a path with CR LF", with(":path", Some("/x HTTP/1.1\r\nhost: b\r\n\r\n")), Malformed),
        case("8.2.1", "a method with CR LF", with(":method", Some("GET / HTTP/1.1\r\nhost: b\r\n\r\nGET")), Malformed),
        case("8.2.1", "an authority with CR LF", with(":authority", Some("a.test\r\nx: y")), Malformed),
        case("8.2.3", "cookies in crumbs", plus(&[("cookie", "a=1"), ("cookie", "b=2")]), Served(SEEN)),
    ]
}

#[rustfmt::skip]
fn connection_specific() -> Vec<Case> {
    vec![
        case("8.2.2", "Connection", plus(&[("connection", "close")]), Malformed),
        case("8.2.2", "Connection of another field", plus(&[("connection", "x-a"), ("x-a", "b")]), Malformed),
        case("8.2.2", "Keep-Alive", plus(&[("keep-alive", "timeout=5")]), Malformed),
        case("8.2.2", "Proxy-Connection", plus(&[("proxy-connection", "close")]), Malformed),
        case("8.2.2", "Transfer-Encoding", plus(&[("transfer-encoding", "chunked")]), Malformed),
        case("8.2.2", "Transfer-Encoding of identity", plus(&[("transfer-encoding", "identity")]), Malformed),
        case("8.2.2", "Upgrade", plus(&[("upgrade", "websocket")]), Malformed),
        case("8.2.2", "TE of trailers", plus(&[("te", "trailers")]), Served(SEEN)),
        case("8.2.2", "TE of anything else", plus(&[("te", "gzip")]), Malformed),
        case("8.2.2", "TE of trailers and something else", plus(&[("te", "trailers, gzip")]), Malformed),
    ]
}

#[rustfmt::skip]
fn pseudo_fields() -> Vec<Case> {
    let behind = |field: (&str, &str)| {
        let (last, first) = REQUEST.split_last().expect("fields");
        whole(1, &section(&[first, &[field, *last][..]].concat()))
    };
    vec![
        case("8.3", "an unknown one", plus(&[(":x", "y")]), Malformed),
        case("8.3", "one of responses", plus(&[(":status", "200")]), Malformed),
        case("8.3", "one behind a field", behind(("x-a", "b")), Malformed),
        case("8.3", "a method twice", plus(&[(":method", "POST")]), Malformed),
        case("8.3", "a path twice", plus(&[(":path", "/y")]), Malformed),
        case("8.3", "a scheme twice", plus(&[(":scheme", "http")]), Malformed),
        case("8.3", "an authority twice", plus(&[(":authority", "b.test")]), Malformed),
        case("8.3", "a colon alone", plus(&[(":", "x")]), Malformed),
        case("8.3.1", "no method", with(":method", None), Malformed),
        case("8.3.1", "an empty method", with(":method", Some("")), Malformed),
        case("8.3.1", "a method that is no token", with(":method", Some("GE T")), Malformed),
        case("8.3.1", "no scheme", with(":scheme", None), Malformed),
        case("8.3.1", "an empty scheme", with(":scheme", Some("")), Malformed)
            .but(Served(SEEN), "nothing is made of the scheme: pods are told whether the connection is encrypted"),
        case("8.3.1", "no path", with(":path", None), Malformed),
        case("8.3.1", "an empty path", with(":path", Some("")), Malformed),
        case("8.3.1", "a path without a slash", with(":path", Some("x")), Malformed),
        case("8.3.1", "an absolute form for a path", with(":path", Some("http://b.test/")), Malformed),
        case("8.3.1", "an authority for a path", with(":path", Some("b.test:80")), Malformed),
        case("8.3.1", "an asterisk for a path", with(":path", Some("*")), Malformed),
        case("8.3.1", "a path with a space", with(":path", Some("/a b")), Malformed),
        case("8.3.1", "a path with a fragment", with(":path", Some("/a#b")), Malformed)
            .but(Served("POST /a a.test length:"), "the fragment is cut off before anything looks at the path, and pods get none"),
        case("8.3.1", "a path that begins with two slashes", with(":path", Some("//b.test/x")), Served("POST /b.test/x a.test length:")),
        case("8.3.1", "an authority with user information", with(":authority", Some("user@a.test")), Malformed),
        case("8.3.1", "an authority with a path", with(":authority", Some("a.test/b")), Malformed),
        case("8.3.1", "an empty authority", with(":authority", Some("")), Malformed),
        case("8.3.1", "no authority and no Host", with(":authority", None), Malformed),
        case("8.3.1", "Host in place of an authority", whole(1, &section(&[(":method", "POST"), (":scheme", "http"), (":path", "/x"), ("host", "a.test")])), Served(SEEN)),
        case("8.3.1", "Host beside the same authority", plus(&[("host", "a.test")]), Served(SEEN)),
        case("8.3.1", "Host beside another authority", plus(&[("host", "b.test")]), Malformed),
        case("8.3.1", "an empty Host beside an authority", plus(&[("host", "")]), Malformed),
        case("8.3.1", "Host twice", plus(&[("host", "a.test"), ("host", "a.test")]), Malformed),
    ]
}

#[rustfmt::skip]
fn connect() -> Vec<Case> {
    let connect = |fields: &[(&str, &str)]| {
        frame(HEADERS, END_HEADERS, 1, &section(&[&[(":method", "CONNECT")][..], fields].concat()))
    };
    vec![
        case("8.5", "CONNECT, which a reverse proxy refuses", connect(&[(":authority", "a.test:80")]), Malformed),
        case("8.5", "CONNECT with a scheme", connect(&[(":authority", "a.test:80"), (":scheme", "http")]), Malformed),
        case("8.5", "CONNECT with a path", connect(&[(":authority", "a.test:80"), (":path", "/")]), Malformed),
        case("8.5", "CONNECT without an authority", connect(&[]), Malformed),
        case("RFC 8441, 4", "a protocol without a path", connect(&[(":protocol", "websocket"), (":scheme", "http"), (":authority", "a.test")]), Malformed),
        case("RFC 8441, 4", "a protocol without a scheme", connect(&[(":protocol", "websocket"), (":path", "/x"), (":authority", "a.test")]), Malformed),
        case("RFC 8441, 4", "a protocol and another method", plus(&[(":protocol", "websocket")]), Malformed),
        case("RFC 8441, 4", "an empty protocol", connect(&[(":protocol", ""), (":scheme", "http"), (":path", "/x"), (":authority", "a.test")]), Malformed),
    ]
}
