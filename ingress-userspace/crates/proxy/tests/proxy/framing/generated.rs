//! Cases generated from tables: each spelling in each place. A value added to a table is a case for each of its places.

use super::case::{Case, framed, unescape};

pub(super) fn all() -> Vec<Case> {
    [lengths(), codings(), sizes(), chunk_ends(), head_ends(), controls(), separators(), pairs()].concat()
}

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a.test\r\n{}\r\n\r\n";

#[rustfmt::skip]
pub(super) const GOOD_LENGTHS: &[&str] = &["3", "3 ", "\\t3", "  3\\t ", "03", "0000000000000000000000000003"];

#[rustfmt::skip]
pub(super) const BAD_LENGTHS: &[&str] = &[
    "", "+3", "-3", "-0", "0x3", "0b11", "0o3", "3.0", "3e0", "3;", "3;x", "3 3", "\"3\"", "'3'", "(3)", "3_0", "three", "nan",
    "\\x0b3", "3\\x0b", "3\\x0c", "\\xa03", "3\\xa0", "3\\0", "\\03", "\\xd9\\xa3", "\\xef\\xbc\\x93", "\\xc2\\xb3",
    "18446744073709551616", "18446744073709551619", "340282366920938463463374607431768211459",
    "9223372036854775809", "99999999999999999999999999999999999999999999999999", "4294967299x", "3\\x7f", "3%", "%33", "3#", "3\\\\",
];

/// Valid and invalid spellings of a length (RFC 9110, 8.6: `1*DIGIT`).
fn lengths() -> Vec<Case> {
    let places = [("alone", "Content-Length:{}"), ("after one", "Content-Length: 3\r\nContent-Length:{}")];
    let mut cases = Vec::new();
    for (place, frame) in places {
        let head = |value: &str| [framed(HEAD, &framed(frame.as_bytes(), &unescape(value))), b"abc".to_vec()].concat();
        let name = |value| format!("length, {place}: `{value}`");
        cases.extend(GOOD_LENGTHS.iter().map(|v| Case::new(name(v), head(v), "200").seen("POST / a.test length:abc")));
        cases.extend(BAD_LENGTHS.iter().map(|v| Case::new(name(v), head(v), "400")));
    }
    cases
}

#[rustfmt::skip]
pub(super) const GOOD_CODINGS: &[&str] = &["chunked", " Chunked", "\\tCHUNKED", "chunKed \\t"];

#[rustfmt::skip]
pub(super) const BAD_CODINGS: &[&str] = &[
    "", "xchunked", "chunkedx", "chunke", "hunked", "chunked;", "chunked;q=1", "chunked; x", "chunked,", ",chunked", ", chunked",
    "chunked, ", "chunked, identity", "identity, chunked", "identity", "gzip", "gzip, chunked", "chunked, gzip", "deflate",
    "compress", "chunked, chunked", "chunked chunked", "\"chunked\"", "'chunked'", "chun ked", "chunked\\x0b", "\\x0bchunked",
    "chunked\\x0c", "\\x0cchunked", "chunked\\0", "\\0chunked", "chunked\\x01", "\\xa0chunked", "chunked\\xa0", "chunked\\x7f",
    "chun\\xe2\\x84\\xaaed", "ch%75nked", "chunked#", "chunked/1.1", "(chunked)", "{chunked}", "[chunked]", "chunked:", ":chunked",
    "=chunked", "chunked=", "trailers", "x\\tchunked", "cow",
];

/// Valid and invalid spellings of the only coding. Any other coding leaves the end of the body unknown (RFC 9112, 6.3).
fn codings() -> Vec<Case> {
    let places = [
        ("alone", "Transfer-Encoding:{}"),
        ("before a length", "Transfer-Encoding:{}\r\nContent-Length: 5"),
        ("behind a length", "Content-Length: 5\r\nTransfer-Encoding:{}"),
        ("behind chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding:{}"),
    ];
    let mut cases = Vec::new();
    for (place, frame) in places {
        let request =
            |value: &str| [framed(HEAD, &framed(frame.as_bytes(), &unescape(value))), b"0\r\n\r\n".to_vec()].concat();
        let name = |value| format!("coding, {place}: `{value}`");
        cases.extend(GOOD_CODINGS.iter().map(|value| match place {
            "alone" => Case::new(name(value), request(value), "200").seen("POST / a.test chunked:"),
            _ => Case::new(name(value), request(value), "400"),
        }));
        cases.extend(BAD_CODINGS.iter().map(|value| Case::new(name(value), request(value), "400")));
    }
    cases
}

const CHUNKED: &[u8] = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";

#[rustfmt::skip]
pub(super) const GOOD_SIZES: &[&str] = &["3", "03", "0000000000000003", "3;", "3;x", "3;x=y", "3;x=\"y;z\"", "3; x = y", "3;x;y;z", "3;\\t", "3;\\xe9"];

/// The subset of [`BAD_SIZES`] that is valid syntax, for more bytes than ever come.
#[rustfmt::skip]
pub(super) const HUGE_SIZES: &[&str] = &["7fffffffffffffff", "100000003"];

#[rustfmt::skip]
pub(super) const BAD_SIZES: &[&str] = &[
    "", " 3", "\\t3", "3\\t", "3 ;x", "+3", "-3", "0x3", "0X3", "3h", "3g", "x", "3x", "3.0", "3,", "3:", "3=", "\\03",
    "3\\x0b", "3\\x0c", "3\\x7f", "3\\xa0", "\\xef\\xbc\\x93", "3;\\0", "3;x\\x7f", "3;\\x01", "3;\\x0b", "10000000000000000", "10000000000000003",
    "fffffffffffffffff", "ffffffffffffffff", "fffffffffffffffd", "8000000000000000", "7fffffffffffffff", "100000003", "\\r3", "3\\r\\r", "{3}",
];

/// Lines before a chunk of three bytes (RFC 9112, 7.1). White space before an extension, which a reader may skip, is
/// refused.
fn sizes() -> Vec<Case> {
    let request = |value: &str| [CHUNKED, &unescape(value), b"\r\nabc\r\n0\r\n\r\n"].concat();
    let good = GOOD_SIZES
        .iter()
        .map(|value| Case::new(format!("size: `{value}`"), request(value), "200").seen("POST / a.test chunked:abc"));
    let bad = BAD_SIZES.iter().map(|value| {
        let expect = if HUGE_SIZES.contains(value) { "." } else { "400*" };
        Case::new(format!("size: `{value}`"), request(value), expect)
    });
    good.chain(bad).collect()
}

/// Bytes that resemble a line end but are none.
pub(super) const ENDS: &[(&str, &str)] = &[
    ("LF", "\n"),
    ("CR", "\r"),
    ("LF CR", "\n\r"),
    ("CR CR LF", "\r\r\n"),
    ("CR LF LF", "\r\n\n"),
    ("a space and CR LF", " \r\n"),
    ("NUL and CR LF", "\0\r\n"),
    ("CR NUL LF", "\r\0\n"),
    ("CR space LF", "\r \n"),
    ("NEL", "\u{85}"),
    ("a line separator", "\u{2028}"),
];

fn chunk_ends() -> Vec<Case> {
    let parts = ["3", "abc", "0", ""];
    let mut cases = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        for (name, end) in ENDS {
            let lines =
                parts.iter().enumerate().map(|(line, part)| format!("{part}{}", if line == at { end } else { "\r\n" }));
            let request = [CHUNKED, lines.collect::<String>().as_bytes()].concat();
            // A line end too many behind the last belongs to the next request.
            let expect = if part.is_empty() && *name == "CR LF LF" { "200 400" } else { "400*" };
            cases.push(Case::new(format!("end of `{part}` in chunks: {name}"), request, expect));
        }
    }
    cases
}

fn head_ends() -> Vec<Case> {
    let lines = ["POST / HTTP/1.1", "Host: a.test", "Content-Length: 3", ""];
    let mut cases = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        for (name, end) in ENDS {
            // White space behind a value is not part of it, and a line end too many behind the head is in the body.
            if end.starts_with(' ') && (1..=2).contains(&at) || line.is_empty() && *name == "CR LF LF" {
                continue;
            }
            let head = lines
                .iter()
                .enumerate()
                .map(|(number, line)| format!("{line}{}", if number == at { end } else { "\r\n" }));
            let request = [head.collect::<String>().as_bytes(), b"abc"].concat();
            cases.push(Case::new(format!("end of `{line}` in a head: {name}"), request, "400"));
        }
    }
    cases
}

/// Control bytes in each place of a head.
fn controls() -> Vec<Case> {
    const PLACES: &[(&str, &str)] = &[
        ("before the method", "{}GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("in the method", "G{}ET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("behind the method", "GET{} / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("before the target", "GET {}/ HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("in the target", "GET /{}a HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("in the query", "GET /?{}a HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("before the version", "GET / {}HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("behind the version", "GET / HTTP/1.1{}\r\nHost: a.test\r\nX: y\r\n\r\n"),
        ("before a name", "GET / HTTP/1.1\r\nHost: a.test\r\n{}X: y\r\n\r\n"),
        ("in a name", "GET / HTTP/1.1\r\nHost: a.test\r\nX{}X: y\r\n\r\n"),
        ("before the colon", "GET / HTTP/1.1\r\nHost: a.test\r\nX{}: y\r\n\r\n"),
        ("behind the colon", "GET / HTTP/1.1\r\nHost: a.test\r\nX:{}y\r\n\r\n"),
        ("in a value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: y{}y\r\n\r\n"),
        ("behind a value", "GET / HTTP/1.1\r\nHost: a.test\r\nX: y{}\r\n\r\n"),
        ("in a host", "GET / HTTP/1.1\r\nHost: a{}.test\r\nX: y\r\n\r\n"),
    ];
    const BYTES: &[&str] = &["\0", "\u{1}", "\u{8}", "\n", "\u{b}", "\u{c}", "\r", "\u{1b}", "\u{1f}", "\u{7f}"];
    let mut cases = Vec::new();
    for (place, frame) in PLACES {
        for byte in BYTES {
            let request = framed(frame.as_bytes(), byte.as_bytes());
            cases.push(Case::new(format!("{:?} {place}", byte), request, "400"));
        }
    }
    cases
}

/// ASCII characters that are not allowed in a token (RFC 9110, 5.6.2), nor in a host.
fn separators() -> Vec<Case> {
    let mut cases = Vec::new();
    for byte in " \"(),/:;<=>?@[\\]{}".bytes() {
        let shown = byte.escape_ascii();
        let with = |frame: &str| framed(frame.as_bytes(), &[byte]);
        cases.push(Case::new(format!("`{shown}` in a method"), with("P{}T / HTTP/1.1\r\nHost: a.test\r\n\r\n"), "400"));
        // A colon there is the end of the name.
        if byte != b':' {
            let frame = "GET / HTTP/1.1\r\nHost: a.test\r\nX{}Y: z\r\n\r\n";
            cases.push(Case::new(format!("`{shown}` in a name"), with(frame), "400"));
        }
    }
    for byte in " !\"#$%&'()*+,/;<=>?@[\\]^`{|}~".bytes() {
        let request = framed(b"GET / HTTP/1.1\r\nHost: a{}b.test\r\n\r\n", &[byte]);
        cases.push(Case::new(format!("`{}` in a host", byte.escape_ascii()), request, "400"));
    }
    cases
}

/// Each valid request before each other, and before the invalid ones.
fn pairs() -> Vec<Case> {
    const GOOD: &[(&str, &str, &str)] = &[
        ("GET", "GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /{} a.test none"),
        ("GET of another host", "GET /{} HTTP/1.1\r\nHost: b.test\r\n\r\n", "GET /{} b.test none"),
        (
            "POST with a length",
            "POST /{} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
            "POST /{} a.test length:\r\n\r\n",
        ),
        ("POST without a body", "POST /{} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", ""),
        (
            "POST in chunks",
            "POST /{} HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n0\r\n\r\n\r\n0\r\n\r\n",
            "POST /{} a.test chunked:0\r\n\r\n",
        ),
        ("HEAD", "HEAD /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "HEAD /{} a.test none"),
        ("OPTIONS", "OPTIONS /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS /{} a.test none"),
    ];
    const BAD: &[(&str, &str)] = &[
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
        ("two hosts", "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"),
        ("a bare LF", "GET / HTTP/1.1\nHost: a.test\n\n"),
        ("a folded line", "GET / HTTP/1.1\r\nHost: a.test\r\n X: y\r\n\r\n"),
        (
            "two framings",
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "differing lengths",
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        ),
        ("NUL", "GET / HTTP/1.1\r\nHost: a.test\r\nX: \0\r\n\r\n"),
        ("garbage", "0\r\n\r\n"),
    ];
    let mut cases = Vec::new();
    for (first, bytes, seen) in GOOD {
        let [bytes, seen] = [bytes, seen].map(|text| text.replace("{}", "1"));
        for (second, more, more_seen) in GOOD {
            let [more, more_seen] = [more, more_seen].map(|text| text.replace("{}", "2"));
            let case = Case::new(format!("{first}, then {second}"), format!("{bytes}{more}"), "200 200");
            let is_known = !seen.is_empty() && !more_seen.is_empty();
            cases.push(if is_known { case.seen(format!("{seen} + {more_seen}")) } else { case });
        }
        for (second, more) in BAD {
            cases.push(Case::new(format!("{first}, then {second}"), format!("{bytes}{more}"), "200 400"));
        }
    }
    cases
}
