//! Large bodies of requests, which reach their pods through pipes where possible. Every byte arrives, on either path,
//! and the messages read before and after them are unchanged.

use std::{
    fs,
    io::Write as _,
    net::Shutdown,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use http::Request;
use http_body_util::{BodyExt, Full};
use ingress_common::HostL7;
use ingress_model::{AccessLog, Forwarding, Settings};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use ingress_proxy_testing::tls;
use ingress_proxy_testing::{Client, Origin, Peer, Proxy, Table, wait_settled, wait_until};

const MIB: usize = 1024 * 1024;
/// More than the buffers of sockets hold.
const HUGE: usize = 32 * MIB;

/// The bytes of a body, which are never zero. They repeat with a period that no buffer on their way has, and differ for
/// bodies of other lengths.
fn bytes(length: usize) -> Vec<u8> {
    let byte = |place: u64| (place ^ length as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0].max(1);
    let once: Vec<u8> = (0..65_521).map(byte).collect();
    let mut bytes = once.repeat(length.div_ceil(once.len()));
    bytes.truncate(length);
    bytes
}

/// Returns a pod's verdict on a body that it has read.
fn verdict(body: &[u8]) -> String {
    verdict_of(body, body.len())
}

/// Returns a pod's verdict on the beginning of a body of `length` bytes.
fn verdict_of(begin: &[u8], length: usize) -> String {
    match begin.iter().zip(&bytes(length)).position(|(is, should)| is != should) {
        None => format!("{} good", begin.len()),
        Some(place) => format!("{} with {} at {place}", begin.len(), begin[place]),
    }
}

/// Reads the body of a request as far as it arrives, and notes deviations from the bytes sent. Returns whether it
/// arrived whole.
fn look_at_body(peer: &mut Peer, head: &str) -> bool {
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    let length = length.expect("a length");
    let whole = peer.body(head);
    let came = whole.clone().unwrap_or_else(|| peer.take());
    let verdict = verdict_of(&came, length);
    if verdict != good(came.len()) {
        peer.note(&format!("bad: {verdict}"));
    }
    whole.is_some()
}

#[track_caller]
fn assert_nothing_bad(origin: &Origin) {
    let bad: Vec<_> = origin.heads().into_iter().filter(|head| head.starts_with("bad")).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

fn good(length: usize) -> String {
    format!("{length} good")
}

/// Reads a complete request and answers with the verdict.
fn answer(peer: &mut Peer) -> Option<()> {
    let (_, body) = peer.request()?;
    peer.answer(&verdict(&body));
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

fn head(method: &str, length: usize) -> String {
    format!("{method} / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n")
}

fn request(length: usize) -> Vec<u8> {
    [head("POST", length).as_bytes(), &bytes(length)].concat()
}

/// Sends `length` bytes and checks the pod's verdict.
#[track_caller]
fn check(client: &mut Client, length: usize) {
    assert_eq!(client.send(request(length)).response().text(), good(length));
}

#[test]
fn bodies_of_all_lengths_arrive_byte_for_byte_and_are_counted() {
    let lengths = [0, 1, 16_383, 16_384, 16_385, 32_767, 65_536, 81_920, 262_144, 262_145, 1_000_003, 10 * MIB];
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for length in lengths {
        check(&mut client, length);
        check(&mut client, 3);
    }
    assert_eq!((origin.connections(), proxy.shared.stats().accepted), (1, 1), "connections are kept, on either side");
    let requests = 2 * lengths.len() as u64;
    let bytes_in = lengths.iter().map(|length| (length + 3) as u64).sum();
    let bytes_out = lengths.iter().map(|&length| (good(length).len() + good(3).len()) as u64).sum();
    proxy.wait_count(1, HostL7 { requests: [requests, 0, 0, 0, 0].into(), bytes_in, bytes_out, ..HostL7::default() });
}

#[test]
fn pieces_of_bodies_are_forwarded_as_they_arrive() {
    const PIECES: [usize; 7] = [1, 20_000, 7, 100_000, 300_000, 17_000, 1];
    let (arrived, arrivals) = mpsc::channel();
    let arrived = Mutex::new(arrived);
    let origin = Origin::start(move |peer| {
        peer.head();
        let mut count = 0;
        for piece in PIECES {
            count += piece;
            while peer.received().len() < count && peer.more() {}
            arrived.lock().expect("unpoisoned").send(peer.received().len()).expect("awaited");
        }
        let body = peer.take();
        peer.answer(&verdict(&body));
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    let whole: usize = PIECES.iter().sum();
    client.send(head("POST", whole));
    let (body, mut sent) = (bytes(whole), 0);
    for piece in PIECES {
        client.send(&body[sent..sent + piece]);
        sent += piece;
        assert_eq!(arrivals.recv(), Ok(sent));
    }
    assert_eq!(client.response().text(), good(whole));
}

#[test]
fn pipelined_uploads_are_kept_apart() {
    let origin = origin();
    let proxy = proxy(&origin);
    let lengths = [100_000, 5, 20_000, 3 * MIB, 16_400, 0, 70_000, 200_000, 200_000, 1, 300_000, 0, 0, 90_000];
    for _ in 0..5 {
        let mut client = proxy.client();
        let mut sender = client.stream.try_clone().expect("cloned");
        let all = lengths.map(request).concat();
        let sending = thread::spawn(move || sender.write_all(&all).expect("sent"));
        for length in lengths {
            assert_eq!(client.response().text(), good(length));
        }
        sending.join().expect("sent");
        check(&mut client, MIB);
    }
}

#[test]
fn an_early_response_belongs_to_its_own_request() {
    // The pod keeps reading, so that the answer is over before the body is, at all stages of the body.
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            peer.answer("early");
            if !look_at_body(peer, &head) {
                return;
            }
        }
    });
    let proxy = proxy(&origin);
    for length in [20_000, 50_000, 100_000, 400_000, 3 * MIB] {
        for _ in 0..20 {
            let mut client = proxy.client();
            let mut sender = client.stream.try_clone().expect("cloned");
            let all = [request(length), request(length)].concat();
            // The unwanted rest may be refused.
            let sending =
                thread::spawn(move || drop(sender.write_all(&all).and_then(|()| sender.shutdown(Shutdown::Write))));
            while let Some(response) = client.try_response() {
                assert_eq!(response.text(), "early", "{length}");
            }
            drop(client);
            sending.join().expect("ended");
        }
    }
    assert_nothing_bad(&origin);
}

#[test]
fn a_slow_pod_gets_the_whole_body_and_delays_no_other() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(Some(wait));
    let origin = Origin::start(move |peer| {
        let waits = wait.lock().expect("unpoisoned").take();
        if let Some(wait) = waits {
            wait.recv().expect("told to go on");
        }
        while answer(peer).is_some() {}
    });
    let proxy = proxy(&origin);
    let mut slow = proxy.client();
    let mut sender = slow.stream.try_clone().expect("cloned");
    let sending = thread::spawn(move || sender.write_all(&request(HUGE)).expect("sent"));
    wait_settled("sockets and pipes are full", || proxy.count(1).bytes_in);
    assert!(proxy.count(1).bytes_in < HUGE as u64, "more is read than the pod takes");
    check(&mut proxy.client(), MIB);
    go.send(()).expect("it waits");
    assert_eq!(slow.response().text(), good(HUGE));
    sending.join().expect("sent");
    check(&mut slow, MIB);
}

#[test]
fn a_disconnecting_client_ends_only_its_request() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if !look_at_body(peer, &head) {
                return peer.note("cut");
            }
            peer.answer(&good(MIB));
        }
    });
    let proxy = proxy(&origin);
    for sent in [0, 10_000, 100_000, 700_000] {
        let (mut client, seen) = (proxy.client(), origin.heads().len());
        client.send(head("POST", MIB)).send(&bytes(MIB)[..sent]);
        wait_until("the pod has the request", || origin.heads().len() > seen);
        drop(client);
        wait_until("the request is over", || proxy.count(1).active == 0);
        check(&mut proxy.client(), MIB);
    }
    wait_until("all are cut", || origin.heads().iter().filter(|&head| head == "cut").count() == 4);
    assert_eq!(proxy.count(1).requests.success, 4, "{:?}", proxy.count(1));
    assert_nothing_bad(&origin);
}

#[test]
fn a_client_that_stops_sending_is_disconnected() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.until_closed();
    });
    let settings = Settings { stall_timeout: Duration::from_millis(500), ..Settings::default() };
    let proxy = Proxy::start(&table(&origin).settings(settings));
    let mut client = proxy.client();
    client.send(head("POST", MIB)).send(&bytes(MIB)[..500_000]);
    assert!(client.is_closed());
    wait_until("the client is cut off", || proxy.shared.stats().timed_out == 1);
}

#[test]
fn a_pod_that_reads_nothing_times_out() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::start(move |_peer| {
        let _ended = wait.lock().expect("unpoisoned").recv();
    });
    let forwarding = Forwarding { send_timeout: Duration::from_millis(500), ..Forwarding::default() };
    let proxy = Proxy::start(&table(&origin).forwarding("a.test", forwarding));
    let mut client = proxy.client();
    let mut sender = client.stream.try_clone().expect("cloned");
    // The client may be cut off while it sends.
    let sending = thread::spawn(move || drop(sender.write_all(&request(HUGE))));
    assert_eq!(client.response().status, 504);
    drop(client);
    sending.join().expect("ended");
    drop(go);
}

#[test]
fn a_refusal_before_the_body_is_read_is_forwarded() {
    for read in [0, 100, 20_000, 500_000] {
        let origin = Origin::start(move |peer| {
            peer.head();
            while peer.received().len() < read && peer.more() {}
            peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
            peer.until_closed();
        });
        let proxy = proxy(&origin);
        let mut client = proxy.client();
        let mut sender = client.stream.try_clone().expect("cloned");
        let sending = thread::spawn(move || drop(sender.write_all(&request(HUGE))));
        let response = client.response();
        assert_eq!((response.status, response.text()), (413, "big"), "{read}");
        drop(client);
        sending.join().expect("ended");
    }
}

#[test]
fn an_unsent_body_is_sent_on_another_connection() {
    // The first of two connections is closed with only the head read.
    let is_first = Arc::new(AtomicBool::new(true));
    let pod = || {
        let is_first = Arc::clone(&is_first);
        Origin::start(move |peer| {
            if is_first.fetch_not(SeqCst) {
                peer.head();
            } else {
                answer(peer);
            }
        })
    };
    let pods = [pod(), pod()];
    for number in 1..=10 {
        // A new proxy, without failures counted for either pod.
        let proxy = Proxy::start(&Table::default().host("a.test", &[pods[0].address, pods[1].address]));
        let mut client = proxy.client();
        client.send(head("PUT", MIB));
        wait_until("it has gone to another", || pods[0].heads().len() + pods[1].heads().len() == 2 * number);
        assert_eq!(client.send(bytes(MIB)).response().text(), good(MIB));
    }
}

#[test]
fn a_spliced_upload_gets_100_continue() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for version in ["1.1", "1.1", "1.0"] {
        let expect = if version == "1.1" { "Expect: 100-continue\r\n" } else { "Connection: close\r\n" };
        client.send(format!("POST / HTTP/{version}\r\nHost: a.test\r\n{expect}Content-Length: {MIB}\r\n\r\n"));
        if version == "1.1" {
            let head = client.head().expect("a head");
            assert!(head.starts_with("http/1.1 100"), "{head}");
        }
        assert_eq!(client.send(bytes(MIB)).response().text(), good(MIB), "{version}");
    }
}

#[test]
fn bodies_flow_both_ways_at_once() {
    // The pod echoes the body while more arrives.
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n"));
            let mut left = HUGE;
            while left > 0 {
                let piece = peer.take();
                left -= piece.len();
                peer.send(piece);
                if left > 0 && !peer.more() {
                    return;
                }
            }
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for _ in 0..3 {
        let mut sender = client.stream.try_clone().expect("cloned");
        let sending = thread::spawn(move || sender.write_all(&request(HUGE)).expect("sent"));
        assert!(client.response().body == bytes(HUGE));
        sending.join().expect("sent");
    }
}

#[test]
fn a_reset_by_the_client_ends_the_request() {
    let origin = Origin::start(|peer| {
        let head = peer.head().expect("a request");
        assert!(!look_at_body(peer, &head));
        peer.note("cut");
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    client.send(head("POST", MIB)).send(&bytes(MIB)[..300_000]);
    wait_until("all of it has gone on", || proxy.count(1).active == 1);
    SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).expect("set");
    drop(client);
    wait_until("the request is over", || proxy.count(1).active == 0);
    wait_until("the pod knows", || origin.heads().contains(&"cut".to_owned()));
    assert_nothing_bad(&origin);
}

#[test]
fn only_the_urgent_byte_is_omitted() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    let body = bytes(MIB);
    client.send(head("POST", MIB)).send(&body[..500_000]);
    // TCP marks a place in the stream; the byte there is not part of the stream for normal readers.
    assert_eq!(SockRef::from(&client.stream).send_out_of_band(b"!").expect("sent"), 1);
    assert_eq!(client.send(&body[500_000..]).response().text(), good(MIB));
    check(&mut client, MIB);
}

#[test]
fn chunked_uploads_arrive_unchanged() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for _ in 0..3 {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
        for chunk in bytes(MIB).chunks(70_000) {
            client.send(format!("{:x}\r\n", chunk.len())).send(chunk).send("\r\n");
        }
        assert_eq!(client.send("0\r\n\r\n").response().text(), good(MIB));
        check(&mut client, MIB);
    }
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
    assert_eq!(line["received"].as_u64(), Some(MIB as u64 + 1), "{text}");
}

#[tokio::test]
async fn uploads_over_tls_arrive_unchanged() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut stream = tls::connect(&proxy, &tls::config(&["http/1.1"]), "a.test").await;
    stream.write_all(&request(MIB)).await.expect("sent");
    let mut response = vec![0; 1024];
    let length = stream.read(&mut response).await.expect("a response");
    assert!(response[..length].ends_with(good(MIB).as_bytes()));
    let request = Request::post("https://a.test/").body(Full::from(bytes(MIB))).expect("a request");
    let mut client = tls::http2(&proxy).await;
    let response = client.send_request(request).await.expect("a response");
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), good(MIB));
}
