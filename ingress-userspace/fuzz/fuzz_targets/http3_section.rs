//! Requests of HTTP/3 from lines, mostly those that matter, and from hostile bytes. The target checks that a request that
//! is accepted can be understood in one way alone.
#![no_main]

use arbitrary::Arbitrary;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use ingress_http3::{
    Request,
    qpack::{begin, write_line},
    section,
};
use libfuzzer_sys::fuzz_target;

#[rustfmt::skip]
const NAMES: &[&str] = &[
    ":method", ":scheme", ":authority", ":path", ":protocol", ":status", ":x", ":", "host", "cookie", "content-length",
    "te", "transfer-encoding", "connection", "upgrade", "keep-alive", "proxy-connection", "x-a", "X-A", "",
];
#[rustfmt::skip]
const VALUES: &[&str] = &[
    "GET", "POST", "CONNECT", "OPTIONS", "https", "http", "a.test", "A.test", "b.test", "/", "/a?b", "*", "websocket",
    "trailers", "0", "3", "a=1", "",
];

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Lines { connects: bool, begins: bool, lines: Vec<(Text<'a>, Text<'a>)> },
    Bytes { connects: bool, section: &'a [u8] },
}

/// A text of a table, or any text.
#[derive(Arbitrary, Debug)]
enum Text<'a> {
    Known(u8),
    Any(&'a str),
}

impl<'a> Text<'a> {
    fn of(&self, table: &[&'a str]) -> &'a str {
        match self {
            Self::Known(at) => table[usize::from(*at) % table.len()],
            Self::Any(text) => text,
        }
    }
}

fn check_fields(headers: &HeaderMap) {
    for (name, value) in headers {
        let (name, value) = (name.as_str(), value.as_bytes());
        assert!(!name.is_empty() && !name.contains(':') && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
        assert!(!value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')), "{value:?}");
        assert_eq!(value.trim_ascii(), value);
        let of_connection = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
        assert!(!of_connection.contains(&name), "{name}");
        assert!(name != "te" || value == b"trailers");
    }
    for name in [header::HOST, header::COOKIE, header::CONTENT_LENGTH] {
        assert!(headers.get_all(&name).iter().count() <= 1, "{name}");
    }
}

fn check(request: &Request, connects: bool) {
    let Request { parts, protocol, length } = request;
    check_fields(&parts.headers);
    let is_plain_connect = parts.method == Method::CONNECT && protocol.is_none();
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let is_path = path.starts_with('/') || path == "*" && parts.method == Method::OPTIONS;
    assert!(is_path != is_plain_connect, "{:?}", parts.uri);
    assert!(!path.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'#'), "{path:?}");
    assert!(protocol.is_none() || connects && parts.method == Method::CONNECT);
    let host = parts.headers.get(header::HOST).map(|host| host.as_bytes());
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    match (authority, host) {
        (Some(authority), Some(host)) => assert!(authority.eq_ignore_ascii_case(host)),
        (Some(text), None) | (None, Some(text)) => assert!(!text.is_empty()),
        (None, None) => panic!("no host"),
    }
    let announced = parts.headers.get(header::CONTENT_LENGTH).map(|value| value.to_str().expect("digits"));
    assert_eq!(length.left(), announced.map(|text| text.parse().expect("a number")));
}

fuzz_target!(|input: Input<'_>| {
    let (connects, bytes) = match input {
        Input::Bytes { connects, section } => (connects, Bytes::copy_from_slice(section)),
        Input::Lines { connects, begins, lines } => {
            let mut out = BytesMut::new();
            begin(&mut out);
            if begins {
                for (name, value) in [(":method", "GET"), (":scheme", "https"), (":path", "/")] {
                    write_line(name, value.as_bytes(), false, &mut out);
                }
            }
            for (name, value) in lines.iter().take(32) {
                write_line(name.of(NAMES), value.of(VALUES).as_bytes(), false, &mut out);
            }
            (connects, out.freeze())
        }
    };
    if let Ok(request) = section::request(bytes.clone(), 16 * 1024, connects) {
        check(&request, connects);
    }
    if let Ok(trailers) = section::trailers(bytes, 16 * 1024) {
        for name in trailers.keys() {
            assert!(!name.as_str().starts_with(':'));
        }
    }
});
