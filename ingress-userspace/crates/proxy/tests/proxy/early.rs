//! Requests answered before their bodies have arrived, by pods and by the proxy: no client loses the answer, or its
//! next request on the same connection.

use std::{io, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use ingress_model::Forwarding;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, NONE, PING, POST, RST_STREAM, Raw, fields, frame};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table, wait_until};

pub(crate) const MIB: usize = 1024 * 1024;
const LENGTHS: [usize; 6] = [5, 1000, 64 * 1024, 100_000, MIB, 20 * MIB];

/// Time of a pod's answer, by the part of the body it has read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Before,
    Amid,
    After,
}

impl When {
    /// Returns how many bytes of a body of `length` are read first.
    pub(crate) fn of(self, length: usize) -> usize {
        match self {
            Self::Before => 0,
            Self::Amid => length / 2,
            Self::After => length,
        }
    }
}

/// Pieces in which a client sends a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pieces {
    One,
    /// The second 1 ms later.
    Two,
    Trickle,
}

pub(crate) fn length(head: &str) -> usize {
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    length.unwrap_or_default()
}

/// A pod that answers so early, keeps its connection and reads the rest.
pub(crate) fn keeping(when: When) -> Origin {
    pod(when, true)
}

/// A pod that answers when it has so much of a body, and then reads on or closes its connection.
pub(crate) fn pod(when: When, keeps: bool) -> Origin {
    Origin::start(move |peer| {
        while let Some(head) = peer.head() {
            let is_chunked = head.contains("transfer-encoding: chunked");
            let length = if is_chunked { 0 } else { length(&head) };
            match when {
                // Half of a chunked body is its first piece.
                When::Amid if is_chunked => drop(peer.received().is_empty() && peer.more()),
                When::After if is_chunked => {
                    let Some(_body) = peer.body(&head) else { return };
                }
                // What came with the head may be more than that.
                _ => {
                    let first = when.of(length);
                    while peer.received().len() < first && peer.more() {}
                }
            }
            if !keeps {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly");
                return peer.until_closed();
            }
            peer.answer("early");
            // No more than that: the head of the next request may be behind it.
            if !(is_chunked && matches!(when, When::After)) && peer.body(&head).is_none() {
                return;
            }
        }
    })
}

/// A body of so many bytes as a client sends it.
pub(crate) fn parts(length: usize, pieces: Pieces) -> Vec<Bytes> {
    let body = Bytes::from(vec![b'x'; length]);
    let size = match pieces {
        Pieces::One => length,
        Pieces::Two => length.div_ceil(2),
        Pieces::Trickle => length.div_ceil(8),
    };
    (0..length).step_by(size).map(|at| body.slice(at..length.min(at + size))).collect()
}

/// A pod that answers at once and reads no further.
fn closing() -> Origin {
    Origin::start(|peer| {
        if peer.head().is_some() {
            peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
            peer.until_closed();
        }
    })
}

pub(crate) fn table(origin: &Origin) -> Table {
    Table::default().host("a.test", &[origin.address])
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), length: usize, pieces: Pieces) {
    try_send(stream, false, length, pieces).await.expect("sent");
}

/// Sends a request, where the other side may have ended the connection.
pub(crate) async fn try_send(
    stream: &mut (impl AsyncWrite + Unpin),
    is_chunked: bool,
    length: usize,
    pieces: Pieces,
) -> io::Result<()> {
    let framing = if is_chunked { "Transfer-Encoding: chunked".into() } else { format!("Content-Length: {length}") };
    stream.write_all(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n").as_bytes()).await?;
    for (number, part) in parts(length, pieces).into_iter().enumerate() {
        if number > 0 {
            stream.flush().await?;
            sleep(Duration::from_millis(1)).await;
        }
        if is_chunked {
            stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
        }
        stream.write_all(&part).await?;
        if is_chunked {
            stream.write_all(b"\r\n").await?;
        }
    }
    if is_chunked {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.flush().await
}

/// Returns the status and head of the next response, after reading its body, too.
pub(crate) async fn response(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    try_response(stream).await.expect("a response")
}

/// The same, where there may be no response.
pub(crate) async fn try_response(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u16, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let mut body = vec![0; length(&head)];
    stream.read_exact(&mut body).await?;
    Ok((head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), head))
}

/// Sends requests of all lengths one after the other on the same connection.
async fn check(mut stream: impl AsyncRead + AsyncWrite + Unpin, status: u16, what: &str) {
    for pieces in [Pieces::Two, Pieces::One, Pieces::Trickle] {
        for length in LENGTHS {
            send(&mut stream, length, pieces).await;
            let answered = timeout(DEADLINE, response(&mut stream)).await;
            assert!(answered.is_ok(), "no answer: {what}, {pieces:?}, {length}");
            let (got, head) = answered.expect("an answer");
            assert_eq!(got, status, "{what}, {pieces:?}, {length}");
            assert!(!head.contains("connection: close"), "{what}, {pieces:?}, {length}: {head}");
        }
    }
}

pub(crate) async fn http(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.http).await.expect("connected");
    stream.set_nodelay(true).expect("set");
    stream
}

async fn check_all(proxy: &Proxy, status: u16, what: &str) {
    check(http(proxy).await, status, what).await;
    let tls = tls::connect(proxy, &tls::config(&["http/1.1"]), "a.test").await;
    check(tls, status, &format!("{what}, TLS")).await;
    let mut client = tls::http2(proxy).await;
    for length in LENGTHS {
        let request = Request::post("https://a.test/").body(Full::from(vec![b'x'; length])).expect("a request");
        let response: Response<Incoming> = client.send_request(request).await.expect("a response");
        assert_eq!(response.status(), status, "{what}, HTTP/2, {length}");
        response.into_body().collect().await.expect("a body");
    }
}

#[tokio::test]
async fn early_responses_of_pods_keep_client_connections() {
    for when in [When::Before, When::Amid, When::After] {
        let origin = keeping(when);
        let proxy = Proxy::start(&table(&origin));
        check_all(&proxy, 200, &format!("{when:?}")).await;
        assert!(origin.connections() <= 4, "{when:?}: {} connections to the pod", origin.connections());
    }
}

#[tokio::test]
async fn early_refusals_of_closing_pods_keep_client_connections() {
    let origin = closing();
    check_all(&Proxy::start(&table(&origin)), 413, "closing").await;
}

#[tokio::test]
async fn error_responses_of_the_proxy_keep_client_connections() {
    let origin = Origin::answering("never");
    let forwarding = Forwarding { body_max: Some(4), ..Forwarding::default() };
    check_all(&Proxy::start(&table(&origin).forwarding("a.test", forwarding)), 413, "too large").await;
    check_all(&Proxy::start(&Table::default().host("other.test", &[origin.address])), 404, "no rule").await;
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_late_half_of_a_body_keeps_the_connection() {
    let origin = keeping(When::Before);
    let proxy = Proxy::start(&table(&origin));
    for round in 0..20 {
        let mut stream = http(&proxy).await;
        for _ in 0..2 {
            send(&mut stream, 64 * 1024, Pieces::Two).await;
            assert_eq!(response(&mut stream).await.0, 200, "round {round}");
        }
    }
}

/// Announces a body of `length` bytes and sends none. Returns the head of the immediate answer, and the client.
fn announced(proxy: &Proxy, length: usize, more: &str) -> (String, Client) {
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{more}Content-Length: {length}\r\n\r\n"));
    let response = client.response();
    (response.head, client)
}

#[test]
fn a_too_long_unread_body_ends_with_connection_close() {
    let origin = closing();
    let none = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    let pod = Proxy::start(&table(&origin));
    for proxy in [&none, &pod] {
        let (head, mut client) = announced(proxy, 65 * MIB, "");
        assert!(head.contains("connection: close\r\n"), "{head}");
        assert!(client.is_closed());
    }
    assert_eq!(none.shared.stats().request_bodies_cut, 1);
    let (head, _client) = announced(&none, 63 * MIB, "");
    assert!(!head.contains("connection: close\r\n"), "{head}");
}

#[test]
fn a_refused_expectation_ends_with_connection_close() {
    let origin = Origin::answering("never");
    let proxy = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    let (head, mut client) = announced(&proxy, 1000, "Expect: 100-continue\r\n");
    assert!(head.starts_with("http/1.1 404") && head.contains("connection: close\r\n"), "{head}");
    assert!(client.is_closed());
}

#[test]
fn an_unfinished_body_times_out_after_the_response() {
    let origin = keeping(When::Before);
    let proxy = Proxy::start(&table(&origin));
    let (head, mut client) = announced(&proxy, 1000, "");
    assert!(!head.contains("connection: close\r\n"), "{head}");
    client.stream.set_read_timeout(Some(3 * DEADLINE)).expect("set");
    assert!(client.is_closed(), "after some seconds of silence");
    wait_until("it is over", || proxy.count(1).active == 0);
    assert_eq!(proxy.shared.stats().request_bodies_cut, 1);
}

#[tokio::test]
async fn a_refused_large_upload_gets_its_response_over_tls() {
    let origin = Origin::answering("never");
    let proxy = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    for _ in 0..3 {
        let mut stream = tls::connect(&proxy, &tls::config(&["http/1.1"]), "a.test").await;
        send(&mut stream, 80 * MIB, Pieces::One).await;
        let (status, head) = response(&mut stream).await;
        assert!(status == 404 && head.contains("connection: close\r\n"), "{head}");
    }
}

#[test]
fn a_stream_is_not_reset_while_its_client_sends() {
    let origin = keeping(When::Before);
    let none = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    let pod = Proxy::start(&table(&origin));
    for (proxy, who) in [(&none, "we"), (&pod, "the pod")] {
        let mut client = Raw::begun(proxy, &[]);
        for stream in [1, 3, 5] {
            client.send(&frame(HEADERS, END_HEADERS, stream, &fields(POST)));
            while !ends(&client.next().expect("a frame"), stream) {}
            for (flags, text) in [(NONE, "a="), (END_STREAM, "b")] {
                client.send(&frame(DATA, flags, stream, text.as_bytes()));
                client.send(&frame(PING, NONE, 0, &[7; 8]));
                loop {
                    let frame = client.next().expect("a frame");
                    assert!(frame.kind != RST_STREAM, "{who} answered: {frame:?}");
                    if frame.kind == PING && frame.flags == 1 {
                        break;
                    }
                }
            }
        }
    }
}

/// Returns whether `frame` is the last of the response on `stream`.
fn ends(frame: &Frame, stream: u32) -> bool {
    assert!(frame.kind != RST_STREAM, "{frame:?}");
    frame.stream == stream && matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0
}

#[tokio::test]
async fn a_pod_that_stops_reading_delays_no_client() {
    // The pod keeps its connection, silently, and never reads on.
    let origin = Origin::start(|peer| {
        if peer.head().is_some() {
            peer.answer("early");
            thread::sleep(DEADLINE);
        }
    });
    let proxy = Arc::new(Proxy::start(&table(&origin)));
    let mut stream = http(&proxy).await;
    for _ in 0..2 {
        send(&mut stream, 20 * MIB, Pieces::One).await;
        assert_eq!(response(&mut stream).await.0, 200);
    }
}
