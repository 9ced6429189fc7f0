//! Requests that are answered before their bodies have come, by pods and by us: no client loses the answer, nor its next
//! request on the same connection.

use std::{sync::Arc, thread, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress_userspace::model::Forwarding;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, NONE, PING, POST, RST_STREAM, Raw, fields, frame},
    support::{Client, DEADLINE, Origin, Proxy, Table, wait_until},
    tls,
};

const MIB: usize = 1024 * 1024;
const LENGTHS: [usize; 6] = [5, 1000, 64 * 1024, 100_000, MIB, 20 * MIB];

/// When a pod answers, by how much of the body it has read.
#[derive(Clone, Copy, Debug)]
enum When {
    Before,
    Amid,
    After,
}

/// How a client sends a body.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    One,
    /// The second 1 ms later.
    Two,
    Trickle,
}

fn length(head: &str) -> usize {
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    length.unwrap_or_default()
}

/// A pod that answers so early, keeps its connection and reads the rest.
fn keeping(when: When) -> Origin {
    Origin::start(move |peer| {
        while let Some(head) = peer.head() {
            let length = length(&head);
            let first = match when {
                When::Before => 0,
                When::Amid => length / 2,
                When::After => length,
            };
            // What came with the head may be more than that.
            while peer.received().len() < first && peer.more() {}
            peer.answer("early");
            // No more than that: the head of the next request may be behind it.
            if peer.body(&head).is_none() {
                return;
            }
        }
    })
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

fn table(origin: &Origin) -> Table {
    Table::default().host("a.test", &[origin.address])
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), length: usize, pieces: Pieces) {
    let head = format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n");
    let body = vec![b'x'; length];
    stream.write_all(head.as_bytes()).await.expect("sent");
    let parts: Vec<&[u8]> = match pieces {
        Pieces::One => vec![&body],
        Pieces::Two => vec![&body[..length / 2], &body[length / 2..]],
        Pieces::Trickle => body.chunks(length.div_ceil(8)).collect(),
    };
    for (number, part) in parts.into_iter().enumerate() {
        if number > 0 {
            stream.flush().await.expect("sent");
            sleep(Duration::from_millis(1)).await;
        }
        stream.write_all(part).await.expect("sent");
    }
    stream.flush().await.expect("sent");
}

/// The status and head of the next response, whose body it reads, too.
async fn response(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a response"));
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let mut body = vec![0; length(&head)];
    stream.read_exact(&mut body).await.expect("a body");
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), head)
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

async fn http(proxy: &Proxy) -> TcpStream {
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
async fn a_pod_that_answers_early_costs_no_client_its_connection() {
    for when in [When::Before, When::Amid, When::After] {
        let origin = keeping(when);
        let proxy = Proxy::start(&table(&origin));
        check_all(&proxy, 200, &format!("{when:?}")).await;
        assert!(origin.connections() <= 4, "{when:?}: {} connections to the pod", origin.connections());
    }
}

#[tokio::test]
async fn a_pod_that_refuses_and_closes_costs_no_client_its_connection() {
    let origin = closing();
    check_all(&Proxy::start(&table(&origin)), 413, "closing").await;
}

#[tokio::test]
async fn an_answer_of_our_own_costs_no_client_its_connection() {
    let origin = Origin::answering("never");
    let forwarding = Forwarding { body_max: Some(4), ..Forwarding::default() };
    check_all(&Proxy::start(&table(&origin).forwarding("a.test", forwarding)), 413, "too large").await;
    check_all(&Proxy::start(&Table::default().host("other.test", &[origin.address])), 404, "no rule").await;
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn half_a_body_a_millisecond_later_is_no_loss_twenty_times_of_twenty() {
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

/// What follows when a client that is answered at once has announced `length` bytes, and sends none.
fn announced(proxy: &Proxy, length: usize, more: &str) -> (String, Client) {
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{more}Content-Length: {length}\r\n\r\n"));
    let response = client.response();
    (response.head, client)
}

#[test]
fn a_body_that_is_too_long_to_wait_for_ends_its_connection_and_says_so() {
    let origin = closing();
    let none = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    let pod = Proxy::start(&table(&origin));
    for proxy in [&none, &pod] {
        let (head, mut client) = announced(proxy, 65 * MIB, "");
        assert!(head.contains("connection: close\r\n"), "{head}");
        assert!(client.is_closed());
    }
    let (head, _client) = announced(&none, 63 * MIB, "");
    assert!(!head.contains("connection: close\r\n"), "{head}");
}

#[test]
fn a_refused_client_that_waits_for_100_is_told_that_its_connection_ends() {
    let origin = Origin::answering("never");
    let proxy = Proxy::start(&Table::default().host("other.test", &[origin.address]));
    let (head, mut client) = announced(&proxy, 1000, "Expect: 100-continue\r\n");
    assert!(head.starts_with("http/1.1 404") && head.contains("connection: close\r\n"), "{head}");
    assert!(client.is_closed());
}

#[test]
fn a_client_that_never_sends_the_rest_is_let_go() {
    let origin = keeping(When::Before);
    let proxy = Proxy::start(&table(&origin));
    let (head, mut client) = announced(&proxy, 1000, "");
    assert!(!head.contains("connection: close\r\n"), "{head}");
    client.stream.set_read_timeout(Some(3 * DEADLINE)).expect("set");
    assert!(client.is_closed(), "after some seconds of silence");
    wait_until("it is over", || proxy.count(1).active == 0);
}

#[tokio::test]
async fn a_refused_upload_beyond_the_bound_reads_its_answer_over_tls() {
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

/// Whether `frame` is the last of the response on `stream`.
fn ends(frame: &Frame, stream: u32) -> bool {
    assert!(frame.kind != RST_STREAM, "{frame:?}");
    frame.stream == stream && matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0
}

#[tokio::test]
async fn a_pod_that_takes_nothing_more_holds_up_no_client() {
    // It keeps its connection, silently, and never reads on.
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

#[tokio::test]
async fn cleartext_http2_keeps_its_connection_as_well() {
    let origin = keeping(When::Before);
    let proxy = Proxy::start(&table(&origin));
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut client, connection) = builder.handshake(TokioIo::new(http(&proxy).await)).await.expect("a handshake");
    tokio::spawn(async move { drop(connection.await) });
    for length in LENGTHS {
        let body = Full::new(Bytes::from(vec![b'x'; length]));
        let request = Request::post("http://a.test/").body(body).expect("a request");
        let response = client.send_request(request).await.expect("a response");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "early", "{length}");
    }
}
