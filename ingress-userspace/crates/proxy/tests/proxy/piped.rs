//! Large bodies of responses, which reach their clients through pipes where possible. Every byte arrives, on either
//! path, and the messages read before and after them are unchanged.

use std::{
    fs,
    io::{Read as _, Write as _},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use http::Request;
use http_body_util::{BodyExt, Full};
use ingress_common::HostL7;
use ingress_model::{AccessLog, Forwarding, Settings};
use ingress_proxy::{Drained, Options};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::drain::{drain, refuses};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{Client, DEADLINE, Origin, Peer, Proxy, Table, wait_settled, wait_until};

const MIB: usize = 1024 * 1024;
/// More than the buffers of sockets hold.
const HUGE: usize = 32 * MIB;

/// The bytes of a body, which repeat with a period that no buffer on their way has.
fn bytes(length: usize) -> Vec<u8> {
    let once: Vec<u8> = (0..65_521_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect();
    let mut bytes = once.repeat(length.div_ceil(once.len()));
    bytes.truncate(length);
    bytes
}

/// Returns the length in the path of a request.
fn asked(head: &str) -> usize {
    head.split(['/', ' ']).nth(2).and_then(|length| length.parse().ok()).expect("a length")
}

fn head(length: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")
}

/// Answers a request with as many bytes as it asks for.
fn answer(peer: &mut Peer) -> Option<()> {
    let (request, _) = peer.request()?;
    let length = asked(&request);
    peer.send(head(length));
    peer.send(bytes(length));
    Some(())
}

fn origin() -> Origin {
    Origin::start(|peer| while answer(peer).is_some() {})
}

fn table(origin: &Origin) -> Table {
    Table::default().host("a.test", &[origin.address])
}

fn proxy(origin: &Origin) -> Proxy {
    Proxy::start(&table(origin))
}

fn request(length: usize) -> String {
    format!("GET /{length} HTTP/1.1\r\nHost: a.test\r\n\r\n")
}

/// Requests `length` bytes and compares the response.
#[track_caller]
fn check(client: &mut Client, length: usize) {
    let response = client.get("a.test", &format!("/{length}"));
    assert_eq!((response.status, response.body.len()), (200, length));
    assert!(response.body == bytes(length), "{length} bytes, and others than the pod's");
}

/// Returns the rest of a body until the connection ends, in order or not.
fn rest(client: &mut Client) -> Vec<u8> {
    let mut body = client.at_least(0);
    let _reset = client.stream.read_to_end(&mut body).is_err();
    body
}

#[test]
fn bodies_of_all_lengths_arrive_byte_for_byte_and_are_counted() {
    let lengths = [0, 1, 16_383, 16_384, 16_385, 32_767, 65_536, 65_537, 262_144, 262_145, 1_000_003, 10 * MIB];
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for length in lengths {
        check(&mut client, length);
        check(&mut client, 3);
    }
    assert_eq!((origin.connections(), proxy.shared.stats().accepted), (1, 1), "connections are kept, on either side");
    let requests = 2 * lengths.len() as u64;
    let bytes_out = lengths.iter().map(|length| (length + 3) as u64).sum();
    proxy.wait_count(1, HostL7 { requests: [requests, 0, 0, 0, 0].into(), bytes_out, ..HostL7::default() });
}

#[test]
fn pieces_of_bodies_are_forwarded_as_they_arrive() {
    const PIECES: [usize; 6] = [1, 20_000, 7, 100_000, 300_000, 1];
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.request();
        peer.send(head(PIECES.iter().sum()));
        let body = bytes(PIECES.iter().sum());
        let mut rest = &body[..];
        for piece in PIECES {
            let (next, later) = rest.split_at(piece);
            peer.send(next);
            rest = later;
            wait.lock().expect("unpoisoned").recv().expect("told to go on");
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    client.send(request(PIECES.iter().sum())).head();
    let mut body = Vec::new();
    for piece in PIECES {
        // The next is sent when this one has arrived.
        let next = client.at_least(piece);
        assert_eq!(next.len(), piece);
        body.extend(next);
        go.send(()).expect("sent");
    }
    assert!(body == bytes(body.len()));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    let lengths = [100_000, 5, 20_000, 3 * MIB, 16_400, 0, 70_000];
    client.send(lengths.map(request).concat());
    for length in lengths {
        let response = client.response();
        assert!(response.body == bytes(length), "{length}");
    }
    check(&mut client, MIB);
}

#[test]
fn no_pipelined_request_is_lost_after_a_spliced_response() {
    const REQUESTS: usize = 300;
    let origin = origin();
    let proxy = proxy(&origin);
    // Lengths from one turn to many turns, so that bodies end in every possible way.
    for length in [17_000, 40_000, 100_000, 300_000] {
        let mut client = proxy.client();
        client.send(request(length).repeat(REQUESTS));
        for number in 0..REQUESTS {
            let answered = client.try_response().map(|response| response.body.len());
            assert_eq!(answered, Some(length), "response {number}");
        }
    }
}

#[test]
fn a_slow_client_gets_the_whole_body_and_delays_no_other() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut slow = proxy.client();
    SockRef::from(&slow.stream).set_recv_buffer_size(16 * 1024).expect("set");
    slow.send(request(HUGE));
    wait_settled("sockets and pipe are full", || proxy.count(1).bytes_out);
    assert!(proxy.count(1).bytes_out < HUGE as u64, "more is read than the client takes");
    check(&mut proxy.client(), 10 * MIB);
    let response = slow.response();
    assert!(response.body == bytes(HUGE));
    check(&mut slow, MIB);
}

#[test]
fn a_disconnecting_client_ends_only_its_response() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    client.send(request(HUGE)).head();
    client.at_least(100_000);
    drop(client);
    wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
    check(&mut proxy.client(), MIB);
    assert_eq!(origin.connections(), 2, "what is left of a response serves nobody else");
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let origin = origin();
    let settings = Settings { stall_timeout: Duration::from_millis(500), ..Settings::default() };
    let proxy = Proxy::start(&table(&origin).settings(settings));
    let mut client = proxy.client();
    client.send(request(HUGE)).head();
    wait_until("the client is cut off", || proxy.shared.stats().timed_out == 1);
    wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
}

#[test]
fn a_pod_that_closes_early_aborts_the_response() {
    for sent in [100, 20_000, 500_000] {
        let origin = Origin::start(move |peer| {
            peer.request();
            peer.send(head(MIB));
            peer.send(&bytes(MIB)[..sent]);
        });
        let proxy = proxy(&origin);
        let mut client = proxy.client();
        client.send(request(MIB)).head();
        let body = rest(&mut client);
        assert!(body.len() <= sent && body == bytes(MIB)[..body.len()], "{} of {sent}", body.len());
        proxy.wait_count(1, HostL7 { requests: [0, 0, 0, 0, 1].into(), bytes_out: sent as u64, ..HostL7::default() });
    }
}

#[test]
fn a_stalled_pod_aborts_the_response() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send(head(MIB));
        peer.send(&bytes(MIB)[..500_000]);
        peer.until_closed();
    });
    let forwarding = Forwarding { read_timeout: Duration::from_millis(500), ..Forwarding::default() };
    let proxy = Proxy::start(&table(&origin).forwarding("a.test", forwarding));
    let mut client = proxy.client();
    client.send(request(MIB)).head();
    assert!(rest(&mut client) == bytes(MIB)[..500_000]);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn surplus_bytes_after_a_body_are_not_forwarded() {
    let origin = Origin::start(|peer| {
        let Some((head, _)) = peer.request() else { return };
        let length = asked(&head);
        peer.send([self::head(length).into_bytes(), bytes(length), b"HTTP/1.1 200 OK\r\n\r\nevil".to_vec()].concat());
        peer.until_closed();
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for _ in 0..3 {
        check(&mut client, 100_000);
    }
    assert_eq!(origin.connections(), 3, "a connection that says more than it should is not used again");
}

#[test]
fn empty_and_chunked_responses_are_forwarded_unchanged() {
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let length = asked(&head);
            match head.split(' ').next().expect("a method") {
                "head" => peer.send(self::head(length)),
                "put" => peer.send(format!("HTTP/1.1 304 Not Modified\r\nContent-Length: {length}\r\n\r\n")),
                "delete" => peer.send("HTTP/1.1 204 No Content\r\n\r\n"),
                _ => {
                    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                    for chunk in bytes(length).chunks(70_000) {
                        peer.send(format!("{:x}\r\n", chunk.len()));
                        peer.send(chunk);
                        peer.send("\r\n");
                    }
                    peer.send("0\r\n\r\n");
                }
            }
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for _ in 0..3 {
        let ask = |method: &str| format!("{method} /{MIB} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let head = client.send(ask("HEAD")).head().expect("a head");
        assert!(head.contains(&format!("content-length: {MIB}\r\n")), "{head}");
        let head = client.send(ask("PUT")).head().expect("a head");
        assert!(head.starts_with("http/1.1 304"), "{head}");
        assert_eq!(client.send(ask("DELETE")).response().status, 204);
        assert!(client.get("a.test", &format!("/{MIB}")).body == bytes(MIB));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_upload_continues_during_a_spliced_response() {
    const UPLOAD: usize = 3 * MIB;
    let origin = Origin::start(|peer| {
        let head = peer.head().expect("a request");
        // All of the answer except its last byte is sent before the request is read.
        let (answer, most) = (bytes(MIB), MIB - 1);
        peer.send(self::head(MIB));
        peer.send(&answer[..most]);
        if peer.body(&head).is_some_and(|upload| upload == bytes(UPLOAD)) {
            peer.send(&answer[most..]);
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    client.send(format!("POST /{MIB} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {UPLOAD}\r\n\r\n"));
    let mut sender = client.stream.try_clone().expect("cloned");
    let sending = thread::spawn(move || sender.write_all(&bytes(UPLOAD)).expect("sent"));
    assert!(client.response().body == bytes(MIB));
    sending.join().expect("sent");
}

#[test]
fn a_drain_finishes_a_spliced_response() {
    let origin = origin();
    let options = Options { drain_idle: Duration::from_millis(50), ..Options::default() };
    let mut proxy = Proxy::start_with(&table(&origin), &options, None);
    let mut client = proxy.client();
    client.send(request(HUGE)).head();
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    let mut body = client.at_least(0);
    client.stream.read_to_end(&mut body).expect("an end in order");
    assert!(body == bytes(HUGE));
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn the_access_log_has_every_byte() {
    let origin = origin();
    let settings = Settings { access_log: Some(Arc::new(AccessLog::default())), ..Settings::default() };
    let mut proxy = Proxy::start(&table(&origin).settings(settings));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let guard = proxy.log_to(file.reopen().expect("a file"));
    check(&mut proxy.client(), MIB + 1);
    wait_until("the request is over", || proxy.count(1).active == 0);
    proxy.stop();
    drop(guard);
    let text = fs::read_to_string(file.path()).expect("text");
    let line: serde_json::Value = serde_json::from_str(&text).expect("a line of JSON");
    assert_eq!(line["sent"].as_u64(), Some(MIB as u64 + 1));
}

#[tokio::test]
async fn responses_over_tls_arrive_unchanged() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut stream = tls::connect(&proxy, &tls::config(&["http/1.1"]), "a.test").await;
    let request = format!("GET /{MIB} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("a clean end");
    assert!(response.ends_with(&bytes(MIB)));
    let request = Request::get(format!("https://a.test/{MIB}")).body(Full::default()).expect("a request");
    let mut client = tls::http2(&proxy).await;
    let response = client.send_request(request).await.expect("a response");
    assert!(response.into_body().collect().await.expect("a body").to_bytes() == bytes(MIB));
}
