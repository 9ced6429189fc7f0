//! Sections of requests. The cases are those of RFC 9113 in the tests of the proxy, and those of HTTP/3 alone.

use http::{HeaderMap, Method, Version};

use super::*;
use crate::{Refusal, section};

/// The pseudo-header fields of a request.
const REQUEST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x")];
/// The line of that request.
const SEEN: &str = "POST https://a.test/x";

/// Decodes a request, and writes it on a line: method, URI, protocol, fields other than `host`.
fn read(section: Bytes) -> Result<String, Refusal> {
    let section::Request { parts, protocol, .. } = section::request(section, 4096, true)?;
    assert_eq!(parts.version, Version::HTTP_3);
    let mut line = format!("{} {}", parts.method, parts.uri);
    line.extend(protocol.iter().map(|protocol| format!(" [{}]", protocol.to_str().expect("a token"))));
    for (name, value) in &parts.headers {
        line += &format!(" {name}={}", value.as_bytes().escape_ascii());
    }
    Ok(line)
}

fn check(rule: &str, name: &str, section: Bytes, expect: Option<&str>) {
    let malformed = Refusal::Error(Error::malformed(""));
    let got = read(section).map_err(|refusal| match refusal {
        Refusal::Error(error) => Refusal::Error(Error { reason: "", ..error }),
        Refusal::TooLarge => refusal,
    });
    assert_eq!(got.as_deref(), expect.ok_or(&malformed), "{rule}: {name}");
}

/// The request with more lines.
fn plus(lines: &[(&str, &str)]) -> Bytes {
    section(&[REQUEST, lines].concat())
}

fn plus_raw(name: &[u8], value: &[u8]) -> Bytes {
    let request = REQUEST.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    raw_section(&request.chain([(name, value)]).collect::<Vec<_>>())
}

/// The request with another value of `name`, or without it.
fn with(name: &str, value: Option<&str>) -> Bytes {
    let lines = REQUEST.iter().filter_map(|line| if line.0 == name { Some((line.0, value?)) } else { Some(*line) });
    section(&lines.collect::<Vec<_>>())
}

#[test]
#[rustfmt::skip]
fn pseudo_fields_are_those_of_requests() {
    let behind = |line| section(&[&REQUEST[..3], &[line, REQUEST[3]]].concat());
    for (rule, name, section, expect) in [
        ("4.3.1", "a request", plus(&[]), Some(SEEN)),
        ("4.3", "in another order", section(&[REQUEST[3], REQUEST[1], REQUEST[0], REQUEST[2]]), Some(SEEN)),
        ("4.3", "an unknown one", plus(&[(":x", "y")]), None),
        ("4.3", "one of responses", plus(&[(":status", "200")]), None),
        ("4.3", "a colon alone", plus(&[(":", "x")]), None),
        ("4.3", "in upper case", plus(&[(":Path", "/y")]), None),
        ("4.3", "one behind a field", behind(("x-a", "b")), None),
        ("4.3", "one behind a cookie", behind(("cookie", "a=b")), None),
        ("4.3.1", "a method twice", plus(&[(":method", "POST")]), None),
        ("4.3.1", "a path twice", plus(&[(":path", "/y")]), None),
        ("4.3.1", "a scheme twice", plus(&[(":scheme", "https")]), None),
        ("4.3.1", "an authority twice", plus(&[(":authority", "b.test")]), None),
        ("4.3.1", "no method", with(":method", None), None),
        ("4.3.1", "an empty method", with(":method", Some("")), None),
        ("4.3.1", "a method that is no token", with(":method", Some("GE T")), None),
        ("4.3.1", "a method with CR LF", with(":method", Some("GET / HTTP/1.1\r\nhost: b\r\n\r\nGET")), None),
        ("4.3.1", "no scheme", with(":scheme", None), None),
        ("4.3.1", "an empty scheme", with(":scheme", Some("")), None),
        ("4.3.1", "a scheme with a colon", with(":scheme", Some("https:")), None),
        ("4.3.1", "an empty section", section(&[]), None),
        ("4.3.1", "fields alone", section(&[("host", "a.test")]), None),
    ] {
        check(rule, name, section, expect);
    }
}

#[test]
#[rustfmt::skip]
fn paths_begin_with_a_slash() {
    let options = |path| section(&[(":method", "OPTIONS"), REQUEST[1], REQUEST[2], (":path", path)]);
    for (name, section, expect) in [
        ("none", with(":path", None), None),
        ("an empty one", with(":path", Some("")), None),
        ("without a slash", with(":path", Some("x")), None),
        ("an absolute form", with(":path", Some("http://b.test/")), None),
        ("an authority", with(":path", Some("b.test:80")), None),
        ("a query alone", with(":path", Some("?a")), None),
        ("an asterisk", with(":path", Some("*")), None),
        ("an asterisk of OPTIONS", options("*"), Some("OPTIONS https://a.test*")),
        ("an asterisk and a path, of OPTIONS", options("*/"), None),
        ("a space", with(":path", Some("/a b")), None),
        ("a tab", with(":path", Some("/a\tb")), None),
        ("NUL", with(":path", Some("/\0")), None),
        ("DEL", with(":path", Some("/\x7f")), None),
        ("CR LF", with(":path", Some("/x HTTP/1.1\r\nhost: b\r\n\r\n")), None),
        ("a fragment", with(":path", Some("/a#b")), None),
        ("a fragment behind a query", with(":path", Some("/?a#b")), None),
        ("less than", with(":path", Some("/<a")), None),
        ("two slashes", with(":path", Some("//b.test/x")), Some("POST https://a.test//b.test/x")),
        ("a query", with(":path", Some("/?a=b&c")), Some("POST https://a.test/?a=b&c")),
        ("no UTF-8", raw_section(&[(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/\xff")]), None),
    ] {
        check("4.3.1", name, section, expect);
    }
}

#[test]
#[rustfmt::skip]
fn the_host_is_named_once() {
    let host_alone = |host| section(&[REQUEST[0], REQUEST[1], REQUEST[3], ("host", host)]);
    for (name, section, expect) in [
        ("user information", with(":authority", Some("user@a.test")), None),
        ("user information that is empty", with(":authority", Some("@a.test")), None),
        ("an authority with a path", with(":authority", Some("a.test/b")), None),
        ("an authority with a fragment", with(":authority", Some("a.test#b")), None),
        ("an authority with a space", with(":authority", Some("a.test b")), None),
        ("an authority with CR LF", with(":authority", Some("a.test\r\nx: y")), None),
        ("an empty authority", with(":authority", Some("")), None),
        ("neither authority nor Host", with(":authority", None), None),
        ("Host alone", host_alone("a.test"), Some("POST /x host=a.test")),
        ("an empty Host alone", host_alone(""), None),
        ("the same Host", plus(&[("host", "a.test")]), Some("POST https://a.test/x host=a.test")),
        ("the same Host in upper case", plus(&[("host", "A.Test")]), Some("POST https://a.test/x host=A.Test")),
        ("another Host", plus(&[("host", "b.test")]), None),
        ("Host with another port", plus(&[("host", "a.test:8443")]), None),
        ("an empty Host beside an authority", plus(&[("host", "")]), None),
        ("Host twice", plus(&[("host", "a.test"), ("host", "a.test")]), None),
    ] {
        check("4.3.1", name, section, expect);
    }
}

#[test]
#[rustfmt::skip]
fn fields_have_lower_case_names_and_clean_values() {
    let seen = |rest: &str| Some(format!("{SEEN} {rest}"));
    for (rule, name, section, expect) in [
        ("4.2", "lower case", plus_raw(b"x-a", b"b"), seen("x-a=b")),
        ("4.2", "upper case", plus_raw(b"X-a", b"b"), None),
        ("4.2", "upper case at the end", plus_raw(b"x-A", b"b"), None),
        ("10.3", "an empty name", plus_raw(b"", b"b"), None),
        ("10.3", "a name with a space", plus_raw(b"x a", b"b"), None),
        ("10.3", "a name with a space at its end", plus_raw(b"x-a ", b"b"), None),
        ("10.3", "a name with a colon", plus_raw(b"x:a", b"b"), None),
        ("10.3", "a name with a colon at its end", plus_raw(b"content-length:", b"b"), None),
        ("10.3", "a name with NUL", plus_raw(b"x\0a", b"b"), None),
        ("10.3", "a name with CR LF", plus_raw(b"x\r\na", b"b"), None),
        ("10.3", "a name with a whole field", plus_raw(b"x: y\r\nhost", b"b.test"), None),
        ("10.3", "a name with a tab", plus_raw(b"x\ta", b"b"), None),
        ("10.3", "a name with DEL", plus_raw(b"x\x7f", b"b"), None),
        ("10.3", "a name in Latin-1", plus_raw(b"x\xe9", b"b"), None),
        ("10.3", "a name with a slash", plus_raw(b"x/a", b"b"), None),
        ("10.3", "a name in quotes", plus_raw(b"\"x\"", b"b"), None),
        ("10.3", "an empty value", plus_raw(b"x-a", b""), seen("x-a=")),
        ("10.3", "a value in Latin-1", plus_raw(b"x-a", b"\xe9"), seen("x-a=\\xe9")),
        ("10.3", "a value with a space within", plus_raw(b"x-a", b"b c"), seen("x-a=b c")),
        ("10.3", "a value with NUL", plus_raw(b"x-a", b"b\0"), None),
        ("10.3", "a value with CR", plus_raw(b"x-a", b"b\rc"), None),
        ("10.3", "a value with LF", plus_raw(b"x-a", b"b\nc"), None),
        ("10.3", "a value with a whole field", plus_raw(b"x-a", b"b\r\ncontent-length: 9"), None),
        ("RFC 9110, 5.5", "a value with a space before it", plus_raw(b"x-a", b" b"), None),
        ("RFC 9110, 5.5", "a value with a space behind it", plus_raw(b"x-a", b"b "), None),
        ("RFC 9110, 5.5", "a value with a tab before it", plus_raw(b"x-a", b"\tb"), None),
        ("RFC 9110, 5.5", "a value with a tab behind it", plus_raw(b"x-a", b"b\t"), None),
        ("RFC 9110, 5.5", "a value that is a space", plus_raw(b"x-a", b" "), None),
        ("4.2.1", "a cookie", plus(&[("cookie", "a=1")]), seen("cookie=a=1")),
        ("4.2.1", "cookies in crumbs", plus(&[("cookie", "a=1"), ("x-a", "b"), ("cookie", "b=2"), ("cookie", "c=3")]), seen("x-a=b cookie=a=1; b=2; c=3")),
        ("4.2.1", "an empty crumb first", plus(&[("cookie", ""), ("cookie", "b=2")]), seen("cookie=b=2")),
        ("4.2.1", "an empty crumb last", plus(&[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "")]), seen("cookie=a=1; b=2")),
        ("4.2.1", "empty crumbs alone", plus(&[("cookie", ""), ("cookie", "")]), seen("cookie=")),
        ("4.2", "Connection", plus(&[("connection", "close")]), None),
        ("4.2", "Keep-Alive", plus(&[("keep-alive", "timeout=5")]), None),
        ("4.2", "Proxy-Connection", plus(&[("proxy-connection", "close")]), None),
        ("4.2", "Transfer-Encoding", plus(&[("transfer-encoding", "chunked")]), None),
        ("4.2", "Transfer-Encoding of identity", plus(&[("transfer-encoding", "identity")]), None),
        ("4.2", "Upgrade", plus(&[("upgrade", "websocket")]), None),
        ("4.2", "HTTP2-Settings", plus(&[("http2-settings", "AAMAAABkAAQAAP__")]), None),
        ("4.2", "TE of trailers", plus(&[("te", "trailers")]), seen("te=trailers")),
        ("4.2", "TE of anything else", plus(&[("te", "gzip")]), None),
        ("4.2", "TE of trailers and something else", plus(&[("te", "trailers, gzip")]), None),
    ] {
        check(rule, name, section, expect.as_deref());
    }
}

#[test]
fn lengths_are_numbers_and_true() {
    let malformed = Err(stream(Code::MessageError));
    for (values, body, expect) in [
        (&[][..], &[1, 2][..], Ok(())),
        (&["3"], &[1, 2], Ok(())),
        (&["3"], &[2, 2], malformed),
        (&["3"], &[2], malformed),
        (&["3"], &[], malformed),
        (&["0"], &[], Ok(())),
        (&["0"], &[1], malformed),
        (&["003"], &[3], Ok(())),
        (&["3", "3"], &[3], malformed),
        (&["3", "4"], &[3], malformed),
        (&["3, 3"], &[3], malformed),
        (&["three"], &[3], malformed),
        (&["+3"], &[3], malformed),
        (&["-3"], &[3], malformed),
        (&["0x3"], &[3], malformed),
        (&[""], &[], malformed),
        (&["18446744073709551619"], &[3], malformed),
    ] {
        let lines: Vec<_> = values.iter().map(|value| ("content-length", *value)).collect();
        let read = || {
            let mut length = section::request(plus(&lines), 4096, true)?.length;
            body.iter().try_for_each(|count| length.data(*count))?;
            Ok(length.finish()?)
        };
        let got = read().map_err(|refusal| match refusal {
            Refusal::Error(error) => failure(error),
            Refusal::TooLarge => panic!("too large"),
        });
        assert_eq!(got, expect, "4.1.2: {values:?} {body:?}");
    }
}

#[test]
#[rustfmt::skip]
fn connect_has_its_own_pseudo_fields() {
    let connect = |lines: &[(&str, &str)]| section(&[&[(":method", "CONNECT")], lines].concat());
    let (scheme, authority, path, websocket) = (REQUEST[1], REQUEST[2], REQUEST[3], (":protocol", "websocket"));
    for (rule, name, section, expect) in [
        ("4.4", "CONNECT", connect(&[(":authority", "a.test:80")]), Some("CONNECT a.test:80")),
        ("4.4", "CONNECT with a scheme", connect(&[authority, scheme]), None),
        ("4.4", "CONNECT with a path", connect(&[authority, path]), None),
        ("4.4", "CONNECT without an authority", connect(&[]), None),
        ("4.4", "CONNECT with Host alone", connect(&[("host", "a.test")]), None),
        ("RFC 9220, 3", "a protocol", connect(&[websocket, scheme, authority, path]), Some("CONNECT https://a.test/x [websocket]")),
        ("RFC 8441, 4", "a protocol without a path", connect(&[websocket, scheme, authority]), None),
        ("RFC 8441, 4", "a protocol without a scheme", connect(&[websocket, authority, path]), None),
        ("RFC 8441, 4", "a protocol without an authority", connect(&[websocket, scheme, path]), None),
        ("RFC 8441, 4", "a protocol and another method", plus(&[websocket]), None),
        ("RFC 8441, 4", "an empty protocol", connect(&[(":protocol", ""), scheme, authority, path]), None),
        ("RFC 8441, 4", "a protocol that is no token", connect(&[(":protocol", "web socket"), scheme, authority, path]), None),
        ("RFC 8441, 4", "a protocol twice", connect(&[websocket, websocket, scheme, authority, path]), None),
        ("RFC 9110, 9.3.6", "a length", connect(&[websocket, scheme, authority, path, ("content-length", "3")]), None),
    ] {
        check(rule, name, section, expect);
    }
    let disabled = section::request(connect(&[websocket, scheme, authority, path]), 4096, false);
    assert!(matches!(disabled, Err(Refusal::Error(error)) if failure(error) == stream(Code::MessageError)), "RFC 9220, 3");
}

#[test]
fn sections_have_a_size() {
    // Four lines of a request: names, values, and 32 bytes for each.
    let request = 4 * 32 + ":method:scheme:authority:path".len() + "POSThttpsa.test/x".len();
    for (lines, size) in [
        (&[][..], request),
        (&[("x-a", "bcd")], request + 32 + 6),
        (&[("accept-encoding", "gzip, deflate, br")], request + 32 + 15 + 17),
        (&[("x-a", ""), ("x-a", "")], request + 64 + 6),
    ] {
        assert!(section::request(plus(lines), size, true).is_ok(), "4.2.2: {lines:?} in {size}");
        for smaller in 0..size {
            let got = section::request(plus(lines), smaller, true);
            assert_eq!(got.err(), Some(Refusal::TooLarge), "4.2.2: {lines:?} in {smaller}");
        }
    }
    let mut headers = HeaderMap::new();
    headers.insert("x-a", "bcd".parse().expect("valid"));
    assert_eq!(section::size(&headers), 38);
}

#[test]
fn trailers_have_no_pseudo_fields() {
    let malformed = Some(Refusal::Error(Error::malformed("")));
    for (name, lines, expect) in [
        ("none", &[][..], None),
        ("two", &[("x-a", "b"), ("grpc-status", "0")], None),
        ("a pseudo-header field", &[(":method", "GET")], malformed),
        ("one behind a field", &[("x-a", "b"), (":path", "/")], malformed),
        ("a name in upper case", &[("X-A", "b")], malformed),
        ("a field about the connection", &[("connection", "x")], malformed),
        ("a field that frames", &[("transfer-encoding", "chunked")], malformed),
        ("a value with LF", &[("x-a", "b\nc")], malformed),
        ("more than permitted", &[("x-a", "b"); 10], Some(Refusal::TooLarge)),
    ] {
        let got = section::trailers(section(lines), 100);
        let refusal = got.as_ref().err().map(|refusal| match refusal {
            Refusal::Error(error) => Refusal::Error(Error { reason: "", ..*error }),
            Refusal::TooLarge => Refusal::TooLarge,
        });
        assert_eq!(refusal, expect, "4.1: {name}");
        assert!(got.is_err() || got.is_ok_and(|headers| headers.len() == lines.len()), "4.1: {name}");
    }
}

#[test]
fn lines_for_no_table_stay_so() {
    let mut section = BytesMut::from(&plus(&[])[..]);
    write_line("authorization", b"secret", true, &mut section);
    write_line("cookie", b"a=1", false, &mut section);
    write_line("cookie", b"b=2", true, &mut section);
    let request = section::request(section.freeze(), 4096, true).expect("valid");
    assert_eq!(request.parts.method, Method::POST);
    for name in ["authorization", "cookie"] {
        assert!(request.parts.headers[name].is_sensitive(), "RFC 9204, 7.1.3: {name}");
    }
}
