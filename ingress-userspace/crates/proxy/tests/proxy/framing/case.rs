//! The corpus as data: one case is one line of a file. It sends nothing.
//!
//! ```text
//! # a remark
//! @ POST / HTTP/1.1\r\nHost: a.test\r\n{}\r\n\r\n          frame of the cases below; `{}` is where their bytes go
//! 400 | differing lengths | Content-Length: 3\r\nContent-Length: 4
//! 200 | a length | Content-Length: 3 | POST / a.test length:abc
//! ```
//!
//! The expectation lists the statuses of the responses in order, and then one of
//! - nothing: the connection goes on after 200, and is closed after anything else;
//! - `+`: it goes on; `-`: it is closed;
//! - `*`: it is closed, and the pod may have seen the beginning of the request, but never its end;
//! - `?`, behind a status: the response may or may not be sent before the connection is closed;
//! - `.`: the client ends its side after the bytes; there may be a response, but the pod sees no complete request
//!   except those before.
//!
//! The fourth column, if there is one, is the request as the pod sees it. (For pods' responses: the connection is the
//! pod's, `*` is a truncated response, `.` is one after which the pod closes, and the fourth column is the body that
//! the client gets.) Escapes: `\r \n \t \0 \\ \|`, `\xNN`, and `\*NNN(text)`, which repeats `text` NNN times.

/// State of the connection after the last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    /// The connection goes on.
    Open,
    Closed,
    /// The connection is closed, and the beginning of a request may have reached the pod.
    Begun,
    /// The client ends the connection.
    Cut,
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) statuses: Vec<u16>,
    /// Status of one more response, which may be missing.
    pub(super) perhaps: Option<u16>,
    pub(super) then: Then,
    /// The requests as the pod sees them, one after the other.
    pub(super) seen: Option<Vec<u8>>,
}

impl Case {
    pub(super) fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>, expect: &str) -> Self {
        let (expect, perhaps) = match expect.strip_suffix('?').and_then(|expect| expect.rsplit_once(' ')) {
            Some((expect, perhaps)) => (format!("{expect}-"), Some(perhaps.parse().expect("a status"))),
            None => (expect.to_owned(), None),
        };
        let (statuses, then) = expectation(&expect);
        Self { name: name.into(), bytes: bytes.into(), statuses, perhaps, then, seen: None }
    }

    pub(super) fn seen(self, seen: impl Into<Vec<u8>>) -> Self {
        Self { seen: Some(seen.into()), ..self }
    }
}

fn expectation(text: &str) -> (Vec<u16>, Then) {
    let (statuses, then) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((statuses, "+")) => (statuses, Some(Then::Open)),
        Some((statuses, "-")) => (statuses, Some(Then::Closed)),
        Some((statuses, "*")) => (statuses, Some(Then::Begun)),
        Some((statuses, ".")) => (statuses, Some(Then::Cut)),
        _ => (text, None),
    };
    let statuses: Vec<u16> = statuses.split_whitespace().map(|status| status.parse().expect("a status")).collect();
    let then = then.unwrap_or(if statuses.last() == Some(&200) { Then::Open } else { Then::Closed });
    (statuses, then)
}

/// Parses the cases of a file.
pub(super) fn parse(topic: &str, text: &str) -> Vec<Case> {
    let mut frame = b"{}".to_vec();
    let mut cases = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(line) = line.strip_prefix("@ ") {
            frame = unescape(line.trim());
            continue;
        }
        // The last column may be empty.
        let line = format!("{line} ");
        let columns: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [expect, name, bytes, seen @ ..] = columns.as_slice() else { unreachable!("{topic}: no case: {line}") };
        let mut case = Case::new(format!("{topic}: {name}"), framed(&frame, &unescape(bytes)), expect);
        case.seen = seen.first().map(|seen| unescape(seen));
        cases.push(case);
    }
    cases
}

/// Inserts `bytes` at the `{}` of `frame`.
pub(super) fn framed(frame: &[u8], bytes: &[u8]) -> Vec<u8> {
    let at = frame.windows(2).position(|window| window == b"{}").expect("a place for the bytes");
    [&frame[..at], bytes, &frame[at + 2..]].concat()
}

pub(super) fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let (escape, tail) = after.split_at(1);
        rest = tail;
        match escape {
            "r" => out.push(b'\r'),
            "n" => out.push(b'\n'),
            "t" => out.push(b'\t'),
            "0" => out.push(0),
            "\\" => out.push(b'\\'),
            "|" => out.push(b'|'),
            "x" => {
                let (digits, tail) = rest.split_at(2);
                out.push(u8::from_str_radix(digits, 16).expect("two digits"));
                rest = tail;
            }
            "*" => {
                let (count, tail) = rest.split_once('(').expect("a number of times");
                let (repeated, tail) = tail.split_once(')').expect("an end of what is repeated");
                let count = count.parse().expect("a number");
                out.extend(unescape(repeated).repeat(count));
                rest = tail;
            }
            other => unreachable!("no escape: \\{other} in {text}"),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
