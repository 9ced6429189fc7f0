//! Tests of each framing rule: response bytes in, outcome and reuse of the connection out.

use super::*;

struct Case {
    method: Method,
    bytes: &'static [u8],
    /// The server closes the connection after sending.
    close: bool,
    expect: Result<(u16, &'static str), &'static str>,
    pooled: bool,
}

fn ok(bytes: &'static [u8], expect: (u16, &'static str), pooled: bool) -> Case {
    Case { method: Method::GET, bytes, close: false, expect: Ok(expect), pooled }
}

fn bad(bytes: &'static [u8], expect: &'static str) -> Case {
    Case { method: Method::GET, bytes, close: false, expect: Err(expect), pooled: false }
}

impl Case {
    fn to(self, method: Method) -> Self {
        Self { method, ..self }
    }

    fn then_close(self) -> Self {
        Self { close: true, ..self }
    }
}

fn whole() -> Vec<Case> {
    vec![
        ok(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, "hello"), true),
        ok(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, ""), true),
        ok(b"HTTP/1.1 404\r\ncontent-length:2\r\n\r\nno", (404, "no"), true),
        ok(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n", (200, "abc"), true),
        ok(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", (200, "x"), true),
        ok(b"HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 1\r\n\r\nx", (200, "x"), false),
        ok(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx", (200, "x"), false),
        ok(b"HTTP/1.1 200 OK\r\n\r\nto the end", (200, "to the end"), false).then_close(),
        ok(b"HTTP/1.0 200 OK\r\n\r\nto the end", (200, "to the end"), false).then_close(),
        ok(b"HTTP/1.1 204 No Content\r\n\r\n", (204, ""), true),
        ok(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", (204, ""), false),
        ok(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", (304, ""), true),
        ok(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", (200, ""), true).to(Method::HEAD),
        ok(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", (200, ""), true).to(Method::HEAD),
        ok(b"HTTP/1.1 200 OK\r\n\r\n", (200, ""), true).to(Method::HEAD),
        ok(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, ""), false).to(Method::HEAD),
        ok(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n", (200, "x"), false),
        ok(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\r\n", (200, ""), false),
        ok(
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
            (200, "x"),
            true,
        ),
    ]
}

fn broken() -> Vec<Case> {
    vec![
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "BothLengths"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "BothLengths"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nx", "ContentLength"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: ,chunked\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "TransferEncoding"),
        bad(b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n", "Header"),
        bad(b"HTTP/1.1 200 OK\r\na: b\0c\r\n\r\n", "Header"),
        bad(b"HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n", "Header"),
        bad(b"HTTP/1.1 200 OK\r\na : b\r\n\r\n", "Header"),
        bad(b"HTTP/1.1 200 OK\r\n: b\r\n\r\n", "Header"),
        bad(b"HTTP/1.1 200 OK\na: b\r\n\r\n", "LineEnd"),
        bad(b"HTTP/1.1 200 OK\r\na: b\nc: d\r\n\r\n", "LineEnd"),
        bad(b"HTTP/1.1 200 OK\r\na: b\r\n\n", "LineEnd"),
        bad(b"HTTP/1.1 200 OK\r\na: b\n\r\n", "LineEnd"),
        bad(b"HTTP/1.1 099 OK\r\n\r\n", "StatusLine"),
        bad(b"HTTP/2.0 200 OK\r\n\r\n", "StatusLine"),
        bad(b"\r\nHTTP/1.1 200 OK\r\n\r\n", "StatusLine"),
        bad(b"hello\r\n", "StatusLine"),
        bad(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n", "SwitchingProtocols"),
        bad(b"HTTP/1.1 200 OK\r\nContent-Le", "TruncatedHead").then_close(),
        bad(b"", "Closed").then_close(),
        bad(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "body Truncated").then_close(),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell", "body Truncated").then_close(),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", "body Truncated").then_close(),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello", "body ChunkSize"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nx", "body ChunkExtension"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy", "body ChunkEnd"),
        bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx\r\n\r\n", "body Trailer"),
    ]
}

fn check(case: Case, piece: usize) {
    let Case { method, bytes, close, expect, pooled } = case;
    run(async move {
        let origin = Origin::new(move |mut peer| async move {
            peer.request().await;
            for piece in bytes.chunks(piece) {
                peer.send(piece).await;
                // Makes the pieces arrive separately in most cases. The test without sockets shows that every split
                // gives the same result.
                tokio::task::yield_now().await;
            }
            if !close {
                peer.linger().await;
            }
        })
        .await;
        let pool = pool();
        let text = String::from_utf8_lossy(bytes);
        let expect = expect.map(|(status, body)| (status, body.to_owned())).map_err(str::to_owned);
        assert_eq!(outcome(&pool, &origin, method).await, expect, "{text:?} by {piece}");
        // Surplus bytes that arrive late are only found when the connection is to be reused.
        if piece >= bytes.len() {
            assert_eq!(pool.idle_total(), usize::from(pooled), "{text:?}");
        }
    });
}

#[test]
fn valid_responses_are_read_and_their_connections_kept() {
    whole().into_iter().for_each(|case| check(case, usize::MAX));
    whole().into_iter().for_each(|case| check(case, 1));
}

#[test]
fn invalid_responses_are_refused_and_their_connections_closed() {
    broken().into_iter().for_each(|case| check(case, usize::MAX));
    broken().into_iter().for_each(|case| check(case, 1));
}

/// Status, content and remaining bytes.
type Message = (u16, Vec<u8>, Vec<u8>);

/// Parses `pieces` without a socket.
fn read(method: &Method, pieces: &[&[u8]]) -> Result<Option<Message>, String> {
    let mut reader = head::HeadReader::new(method, ExchangeLimits::default());
    let (mut buffer, mut begun) = (bytes::BytesMut::new(), None);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if begun.is_none() {
            let head = reader.read(&mut buffer).map_err(|error| format!("{error:?}"))?;
            begun = head
                .map(|head| (head.status.as_u16(), Vec::new(), super::super::framing::Decoder::new(head.framing, 100)));
        }
        let Some((_, content, decoder)) = &mut begun else { continue };
        while let super::super::framing::Decoded::Data(data) =
            decoder.decode(&mut buffer).map_err(|error| format!("{error:?}"))?
        {
            content.extend_from_slice(&data);
        }
    }
    Ok(begun.map(|(status, content, _)| (status, content, buffer.to_vec())))
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    for Case { method, bytes, .. } in whole().into_iter().chain(broken()) {
        let expect = read(&method, &[bytes]);
        for at in 0..bytes.len() {
            let (front, back) = bytes.split_at(at);
            assert_eq!(read(&method, &[front, back]), expect, "{:?} at {at}", String::from_utf8_lossy(bytes));
        }
    }
}

#[test]
fn copied_fields_do_not_retain_the_buffer() {
    const SIZE: usize = 16 * 1024;
    for copies_fields in [false, true] {
        let mut buffer = bytes::BytesMut::with_capacity(SIZE);
        buffer.extend_from_slice(b"HTTP/1.1 200 OK\r\nserver: pod\r\ncontent-length: 0\r\n\r\n");
        let mut reader =
            head::HeadReader::new(&Method::GET, ExchangeLimits { copies_fields, ..ExchangeLimits::default() });
        let head = reader.read(&mut buffer).expect("a sound head").expect("a whole one");
        assert_eq!(head.headers["server"], "pod");
        assert_eq!(buffer.try_reclaim(SIZE), copies_fields);
    }
    let mut buffer = bytes::BytesMut::with_capacity(SIZE);
    buffer.extend_from_slice(b"0\r\nchecksum: abc\r\n\r\n");
    let mut decoder = super::super::framing::Decoder::new(super::super::framing::Framing::Chunked, 100);
    let trailers = decoder.decode(&mut buffer).expect("a sound end");
    assert!(matches!(&trailers, super::super::framing::Decoded::Trailers(fields) if fields["checksum"] == "abc"));
    assert!(buffer.try_reclaim(SIZE));
    drop(trailers);
}

#[test]
fn limits_of_the_head_are_enforced() {
    let many = |count| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes();
    let long = |length: usize| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(length)).into_bytes();
    let endless = vec![b'H'; 64 * 1024 + 1];
    let interim = |count| format!("{}HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 100 \r\n\r\n".repeat(count)).into_bytes();
    for (bytes, expect) in [
        (many(100), Ok(())),
        (many(101), Err("HeadTooLarge")),
        (long(60 * 1024), Ok(())),
        (long(64 * 1024), Err("HeadTooLarge")),
        (endless, Err("HeadTooLarge")),
        (interim(8), Ok(())),
        (interim(9), Err("Malformed(TooManyInterim)")),
    ] {
        let read = read(&Method::GET, &[&bytes]).map(drop);
        assert_eq!(read, expect.map_err(str::to_owned), "{} bytes", bytes.len());
    }
}

#[test]
fn hop_by_hop_fields_are_removed() {
    run(async {
        let origin = Origin::answering(
            b"HTTP/1.1 200 OK\r\nConnection: x-private, content-length, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
              Upgrade: h2c\r\nProxy-Authenticate: Basic\r\nProxy-Connection: close\r\nX-Public: 2\r\nSet-Cookie: a\r\n\
              Set-Cookie: b\r\nTrailer: t\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        let pool = pool();
        let response = get(&pool, &origin).await.expect("response");
        let mut names: Vec<_> =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        names.sort_unstable();
        let expect: [(&str, &[u8]); 5] = [
            ("content-length", b"0"),
            ("set-cookie", b"a"),
            ("set-cookie", b"b"),
            ("trailer", b"t"),
            ("x-public", b"2"),
        ];
        assert_eq!(names, expect);
        assert_eq!(pool.idle_total(), 1);
    });
}
