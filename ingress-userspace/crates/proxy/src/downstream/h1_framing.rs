//! Follows the framing of an HTTP/1 request stream beside hyper and refuses framing that two parsers could read
//! differently. Pure: bytes in, verdict out. It copies nothing except a line that is split between two reads.
//!
//! hyper is lenient where RFC 9112 allows it: it accepts a bare LF as a line end (2.2), prefers `Transfer-Encoding` to
//! `Content-Length` (6.3) and cuts a fragment off the target. Each is the first half of a known smuggling attack, and
//! by the time a service sees the request the evidence is gone. The scanner therefore checks the bytes before hyper
//! gets them.

use memchr::{memchr, memchr2};

use crate::upstream::head::trim;

/// Longest line of chunk framing: a size and extensions, which are unused in practice.
const CHUNK_LINE_MAX: usize = 1024;
/// Most bytes of trailer fields.
const TRAILERS_MAX: usize = 16 * 1024;

/// Parser state between two reads.
#[derive(Debug)]
pub(crate) struct Scanner {
    state: ScannerState,
    /// The beginning of a line whose end has not arrived yet.
    line: Vec<u8>,
    /// Longest line of a head kept here. It exceeds hyper's own limit, so that hyper answers 431 first.
    line_max: usize,
    framing: HeadFraming,
    trailers: usize,
    /// The first byte of the connection.
    first: Option<u8>,
    /// Heads completed since the last [`Scanner::take_heads`].
    heads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScannerState {
    RequestLine,
    Field,
    /// Bytes left of a body with `Content-Length`.
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// After the head of a WebSocket handshake. The bytes that follow have no framing known here, unless the handshake
    /// is declined.
    Held,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeadFraming {
    length: Option<u64>,
    chunked: bool,
    /// The request is a WebSocket handshake.
    upgrade: bool,
}

/// The scanner's position in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanPosition {
    /// After a request and before the first byte of the next.
    Between,
    Head,
    Body,
}

/// The stream violates the framing rules and must not be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramingViolation {
    /// Number of leading bytes that are in order.
    pub(crate) good: usize,
}

impl Scanner {
    pub(crate) fn new(head_max: usize) -> Self {
        Self {
            state: ScannerState::RequestLine,
            line: Vec::new(),
            line_max: head_max.saturating_mul(4),
            framing: HeadFraming::default(),
            trailers: 0,
            first: None,
            heads: 0,
        }
    }

    /// Returns whether the stream begins like HTTP. Browsers can be made to send TLS (`https://host:80/`) and STUN
    /// (`turn:host:443?transport=tcp`) to any server. Neither begins with a letter of a method.
    pub(crate) fn is_http(&self) -> bool {
        self.first.is_none_or(|first| first.is_ascii_graphic() || matches!(first, b'\r' | b'\n'))
    }

    pub(crate) fn place(&self) -> ScanPosition {
        match self.state {
            ScannerState::RequestLine if self.line.is_empty() => ScanPosition::Between,
            ScannerState::Held => ScanPosition::Between,
            ScannerState::RequestLine | ScannerState::Field => ScanPosition::Head,
            ScannerState::Sized(_)
            | ScannerState::ChunkSize
            | ScannerState::Chunk(_)
            | ScannerState::ChunkEnd
            | ScannerState::Trailer => ScanPosition::Body,
        }
    }

    /// Returns the number of heads completed since the previous call.
    pub(crate) fn take_heads(&mut self) -> u32 {
        std::mem::take(&mut self.heads)
    }

    /// Returns the bytes left of a body with a declared length; 0 anywhere else.
    pub(crate) fn left(&self) -> u64 {
        if let ScannerState::Sized(left) = self.state { left } else { 0 }
    }

    /// Returns whether further bytes wait for [`Scanner::release`].
    pub(crate) fn is_held(&self) -> bool {
        self.state == ScannerState::Held
    }

    /// Continues after a declined handshake: another request may follow.
    pub(crate) fn release(&mut self) {
        if self.is_held() {
            self.state = ScannerState::RequestLine;
        }
    }

    /// Follows `bytes`, which come right after those of the previous call. Returns the number of bytes followed: all,
    /// except after the head of a WebSocket handshake.
    ///
    /// # Errors
    /// Fails at the first line that is out of order. The final line end of its head is then not among the good bytes.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Result<usize, FramingViolation> {
        let mut at = 0;
        if self.first.is_none() {
            self.first = bytes.first().copied();
        }
        while at < bytes.len() {
            let rest = &bytes[at..];
            at += match self.state {
                ScannerState::Held => return Ok(at),
                ScannerState::Sized(left) => {
                    self.skip(left, rest.len(), ScannerState::Sized, ScannerState::RequestLine)
                }
                ScannerState::Chunk(left) => self.skip(left, rest.len(), ScannerState::Chunk, ScannerState::ChunkEnd),
                _ => self.follow(rest).ok_or(FramingViolation { good: at })?,
            };
        }
        Ok(at)
    }

    /// Follows one line, or the part of it in `rest`, and returns its length; `None` if it is out of order.
    fn follow(&mut self, rest: &[u8]) -> Option<usize> {
        if !self.line.is_empty() {
            return self.follow_split(rest);
        }
        let Some(end) = memchr2(b'\r', b'\n', rest) else { return self.keep(rest) };
        // The only CR is the one before the LF: neither bare LF nor bare CR is allowed (RFC 9112, 2.2).
        match &rest[end..] {
            [b'\r', b'\n', ..] => self.line(&rest[..end]).map(|()| end + 2),
            [b'\r'] => self.keep(rest),
            _ => None,
        }
    }

    /// Follows a line that an earlier read has begun.
    fn follow_split(&mut self, rest: &[u8]) -> Option<usize> {
        let Some(end) = memchr(b'\n', rest) else { return self.keep(rest) };
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(&rest[..end]);
        let line = line.strip_suffix(b"\r").filter(|line| memchr(b'\r', line).is_none())?;
        self.line(line).map(|()| end + 1)
    }

    fn skip(&mut self, left: u64, available: usize, state: fn(u64) -> ScannerState, next: ScannerState) -> usize {
        let available = available as u64;
        self.state = if left > available { state(left - available) } else { next };
        // The result is at most `available`, which came from a length.
        left.min(available) as usize
    }

    fn keep(&mut self, part: &[u8]) -> Option<usize> {
        self.line.extend_from_slice(part);
        (self.line.len() <= self.max()).then_some(part.len())
    }

    /// Returns the longest line allowed at this position, with its CR, however it is split.
    fn max(&self) -> usize {
        match self.state {
            ScannerState::RequestLine | ScannerState::Field => self.line_max,
            _ => CHUNK_LINE_MAX,
        }
    }

    /// Handles a complete line, without its line end; `None` if it is out of order.
    fn line(&mut self, line: &[u8]) -> Option<()> {
        if line.len() >= self.max() {
            return None;
        }
        self.state = match self.state {
            // An empty line before the request line is skipped (RFC 9112, 2.2).
            ScannerState::RequestLine if line.is_empty() => ScannerState::RequestLine,
            ScannerState::RequestLine => {
                self.framing = HeadFraming::default();
                memchr(b'#', line).is_none().then_some(ScannerState::Field)?
            }
            ScannerState::Field if line.is_empty() => {
                self.heads += 1;
                self.framing.body()?
            }
            ScannerState::Field => {
                self.framing.field(line)?;
                ScannerState::Field
            }
            ScannerState::ChunkSize => match chunk_size(line)? {
                0 => {
                    self.trailers = 0;
                    ScannerState::Trailer
                }
                size => ScannerState::Chunk(size),
            },
            ScannerState::ChunkEnd => line.is_empty().then_some(ScannerState::ChunkSize)?,
            ScannerState::Trailer if line.is_empty() => ScannerState::RequestLine,
            ScannerState::Trailer => {
                self.trailers += line.len();
                (self.trailers <= TRAILERS_MAX && !is_folded(line)).then_some(ScannerState::Trailer)?
            }
            ScannerState::Sized(_) | ScannerState::Chunk(_) | ScannerState::Held => return None,
        };
        Some(())
    }
}

// === impl HeadFraming ===

impl HeadFraming {
    /// Handles a header field. hyper refuses names with white space before the colon, so the name ends at the first
    /// colon.
    fn field(&mut self, line: &[u8]) -> Option<()> {
        if is_folded(line) {
            return None;
        }
        if let Some(value) = value_of(line, b"content-length") {
            let length = decimal(value)?;
            if self.length.is_some_and(|known| known != length) {
                return None;
            }
            self.length = Some(length);
        } else if let Some(value) = value_of(line, b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return None;
            }
            self.chunked = true;
        } else if let Some(value) = value_of(line, b"upgrade") {
            self.upgrade |= value.eq_ignore_ascii_case(b"websocket");
        }
        Some(())
    }

    /// Returns the state after the head.
    fn body(self) -> Option<ScannerState> {
        match self {
            Self { length: Some(_), chunked: true, .. } => None,
            Self { length: None, chunked: true, .. } => Some(ScannerState::ChunkSize),
            Self { length: None | Some(0), chunked: false, upgrade: false } => Some(ScannerState::RequestLine),
            Self { length: None | Some(0), chunked: false, upgrade: true } => Some(ScannerState::Held),
            Self { length: Some(length), chunked: false, .. } => Some(ScannerState::Sized(length)),
        }
    }
}

/// Returns whether the line continues the one before (obs-fold, RFC 9112, 5.2).
fn is_folded(line: &[u8]) -> bool {
    matches!(line.first(), Some(b' ' | b'\t'))
}

fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    if line.get(name.len()) != Some(&b':') || !line[..name.len()].eq_ignore_ascii_case(name) {
        return None;
    }
    Some(trim(&line[name.len() + 1..]))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| countable(digits.parse().ok()?))?
}

/// Returns `length` if pods can represent it: many have signed integers (RFC 9110, 8.6, warns of that).
fn countable(length: u64) -> Option<u64> {
    i64::try_from(length).is_ok().then_some(length)
}

/// Parses `1*HEXDIG [ chunk-ext ]` (RFC 9112, 7.1).
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    if !matches!(extension.first(), None | Some(b';')) || extension.iter().any(|&b| b.is_ascii_control() && b != b'\t')
    {
        return None;
    }
    countable(u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scans `stream` whole and cut at every byte; `expect` is the final place, or `None` for a violation.
    fn check(stream: &str, expect: Option<ScanPosition>) {
        let scan = |parts: &[&[u8]]| {
            let mut scanner = Scanner::new(1024);
            parts.iter().try_for_each(|part| scanner.scan(part).map(drop)).ok().map(|()| scanner.place())
        };
        let bytes = stream.as_bytes();
        assert_eq!(scan(&[bytes]), expect, "{stream:?}");
        for cut in 0..bytes.len() {
            assert_eq!(scan(&[&bytes[..cut], &bytes[cut..]]), expect, "{stream:?} cut at {cut}");
        }
    }

    #[test]
    fn unambiguous_streams_pass() {
        use ScanPosition::{Between, Body, Head};
        for (stream, place) in [
            ("", Between),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Between),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", Between),
            ("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", Between),
            ("GET / HT", Head),
            ("GET / HTTP/1.1\r\nHost: a\r\n", Head),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", Between),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\na\nc", Between),
            ("POST / HTTP/1.1\r\ncontent-length:0\r\n\r\n", Between),
            ("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc", Body),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n", Body),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nc\r\nA;x=y\r\n0123456789\r\n0\r\nx: y\r\n\r\n",
                Between,
            ),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", Between),
            ("POST / HTTP/1.1\r\nX-Transfer-Encoding: gzip\r\n\r\n", Between),
        ] {
            check(stream, Some(place));
        }
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for fields in [
            "Host: a\n",
            "Host: a\rb\r\n",
            " folded: a\r\n",
            "Content-Length: 3\r\nContent-Length: 4\r\n",
            "Content-Length: 3, 3\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: 0x3\r\n",
            "Content-Length:\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 9223372036854775808\r\n",
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: ,chunked\r\n",
            "Transfer-Encoding: chunked;x\r\n",
            "Transfer-Encoding: \u{b}chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding:\r\n",
        ] {
            check(&format!("POST / HTTP/1.1\r\n{fields}\r\n"), None);
        }
        check("GET / HTTP/1.1\n\r\n", None);
        check("GET / HTTP/1.1\r\nHost: a\r\n\n", None);
        check("GET /#fragment HTTP/1.1\r\n", None);
        check("GET / HTTP/1.1\r\nHost: a\r\r\n", None);
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", None);
    }

    #[test]
    fn other_protocols_are_distinguished_from_malformed_http() {
        // A ClientHello, and a STUN Allocate request (RFC 8489, 5), with line ends in them.
        for (stream, expect) in [
            (&b"\x16\x03\x01\x02\x00\x01\n"[..], false),
            (b"\x00\x03\x00\x08\x21\x12\xa4\x42\r\nContent-Length: x\r\n", false),
            (b"GET / HTTP/1.1\nHost: a.test\n\n", true),
            (b"\r\nGET / HTTP/1.1\r\nContent-Length: x\r\n", true),
        ] {
            for length in [1, stream.len()] {
                let mut scanner = Scanner::new(1024);
                let refused = stream.chunks(length).try_for_each(|piece| scanner.scan(piece).map(drop));
                assert!(refused.is_err(), "{stream:?}");
                assert_eq!(scanner.is_http(), expect, "{stream:?}");
            }
        }
    }

    #[test]
    fn bytes_after_a_websocket_handshake_are_not_scanned() {
        let head = b"GET / HTTP/1.1\r\nUPGRADE:  WebSocket \r\n\r\n";
        let mut scanner = Scanner::new(1024);
        let stream = [&head[..], b"\x81\n\r\n"].concat();
        assert_eq!(scanner.scan(&stream), Ok(head.len()));
        assert!(scanner.is_held() && scanner.place() == ScanPosition::Between);
        assert_eq!(scanner.scan(b"\n"), Ok(0));
        scanner.release();
        assert_eq!(scanner.scan(b"GET / HTTP/1.1\r\n\r\n"), Ok(18));
        assert!(!scanner.is_held());
        for other in ["Upgrade: h2c\r\n", "Upgrade: websocket\r\nContent-Length: 1\r\n", "X-Upgrade: websocket\r\n"] {
            let mut scanner = Scanner::new(1024);
            let stream = format!("GET / HTTP/1.1\r\n{other}\r\n");
            assert_eq!(scanner.scan(stream.as_bytes()), Ok(stream.len()));
            assert!(!scanner.is_held(), "{other}");
        }
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        for chunks in [
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3 \r\nabc\r\n",
            " 3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "-3\r\nabc\r\n",
            "\r\n",
            ";x\r\n",
            "3;x\ny\r\nabc\r\n",
            "10000000000000000\r\n",
            "8000000000000000\r\n",
            "0\r\n folded\r\n\r\n",
            "0\r\nx: y\n\r\n",
        ] {
            check(&format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), None);
        }
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut scanner = Scanner::new(16);
        assert_eq!(scanner.scan(&[b'a'; 64]), Ok(64));
        assert_eq!(scanner.scan(b"a"), Err(FramingViolation { good: 0 }));
    }

    #[test]
    fn the_length_of_lines_is_limited_for_any_split() {
        let chunked =
            |line: String| format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{line}\r\nabc\r\n0\r\n\r\n");
        let extended = |length: usize| chunked(format!("3;{}", "x".repeat(length - 2)));
        check(&extended(CHUNK_LINE_MAX - 1), Some(ScanPosition::Between));
        check(&extended(CHUNK_LINE_MAX), None);
        check(&chunked(format!("{}3", "0".repeat(CHUNK_LINE_MAX))), None);
    }

    #[test]
    fn the_valid_part_never_completes_an_ambiguous_head() {
        let stream = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
        let FramingViolation { good } = Scanner::new(1024).scan(stream).expect_err("ambiguous");
        assert_eq!(good, stream.len() - 2);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6)) {
            let mut scanner = Scanner::new(64);
            let _verdict: Result<(), FramingViolation> = parts.iter().try_for_each(|part| scanner.scan(part).map(drop));
        }
    }
}
