//! Request bodies that are buffered until they are complete, so that slow clients do not hold a pod.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ingress_model::{Forwarding, Settings, Uploads};
use ingress_proxy::{Memory, Pressure};

use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, NONE, POST, Raw, fields, frame};
use ingress_proxy_testing::{Client, Origin, Proxy, Table, wait_until};

const KIB: usize = 1024;
/// Long enough for a pod to be asked, if it were.
const PAUSE: Duration = Duration::from_millis(200);

/// A pod that echoes a summary of each request.
fn origin() -> Origin {
    Origin::start(|peer| {
        while let Some((head, body)) = peer.request() {
            let framing = if head.contains("transfer-encoding: chunked\r\n") { "chunked" } else { "length" };
            let good = body.iter().enumerate().all(|(at, byte)| *byte == byte_at(at));
            peer.answer(&format!("{framing} {} {good}", body.len()));
        }
    })
}

fn byte_at(at: usize) -> u8 {
    b'a' + u8::try_from(at % 23).expect("small")
}

fn bytes(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// A proxy that buffers up to 64 KiB of each body.
fn proxy(origin: &Origin) -> Proxy {
    proxy_with(origin, Settings::default())
}

fn proxy_with(origin: &Origin, settings: Settings) -> Proxy {
    let forwarding = Forwarding { uploads: Uploads::Buffered, body_buffer: 64 * KIB, ..Forwarding::default() };
    let table = Table::default().host("a.test", &[origin.address]).settings(settings);
    Proxy::start(&table.forwarding("a.test", forwarding))
}

/// Begins a request with a body of `length` bytes, without sending any of it.
fn begin(proxy: &Proxy, length: usize, more: &str) -> Client {
    begin_for(proxy, "a.test", length, more)
}

fn begin_for(proxy: &Proxy, host: &str, length: usize, more: &str) -> Client {
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: {length}\r\n\r\n"));
    client
}

/// Pressure of a process that has this much memory and uses this much of it.
fn weigh(proxy: &Proxy, limit: usize, used: usize) -> Pressure {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("memory.max"), limit.to_string()).expect("written");
    fs::write(directory.path().join("memory.current"), used.to_string()).expect("written");
    proxy.shared.weigh(Memory::at(directory.path()).expect("a cgroup").read().expect("usage"))
}

#[test]
fn the_request_is_sent_once_its_body_is_complete() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = begin(&proxy, 60_000, "");
    for part in [0..1, 1..30_000, 30_000..59_999] {
        let end = part.end;
        client.send(bytes(part));
        wait_until("it is kept", || proxy.shared.stats().kept == end);
    }
    thread::sleep(PAUSE);
    assert_eq!(origin.connections(), 0);
    client.send(bytes(59_999..60_000));
    assert_eq!(client.response().text(), "length 60000 true");
    wait_until("it is given back", || proxy.shared.stats().kept == 0);
    // The connection goes on, and a request without a body is not held up.
    assert_eq!(client.get("a.test", "/").text(), "length 0 true");
}

#[test]
fn buffered_chunked_bodies_keep_their_trailers() {
    let origin = origin();
    let proxy = proxy(&origin);
    for (end, framing) in [("0\r\n\r\n", "length"), ("0\r\nX-Sum: 1\r\n\r\n", "chunked")] {
        let mut client = proxy.client();
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        thread::sleep(PAUSE);
        assert!(!origin.heads().iter().any(|head| head.starts_with("post") && head.contains(framing)));
        client.send("4\r\ndefg\r\n").send(end);
        assert_eq!(client.response().text(), format!("{framing} 7 true"));
    }
}

#[test]
fn a_body_beyond_the_buffer_is_streamed() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = begin(&proxy, 1000 * KIB, "");
    client.send(bytes(0..60 * KIB));
    wait_until("it is kept", || proxy.shared.stats().kept == 60 * KIB);
    assert_eq!(origin.connections(), 0);
    client.send(bytes(60 * KIB..100 * KIB));
    wait_until("the pod is asked", || origin.heads().len() == 1);
    // Although the rest is still to come.
    wait_until("what the pod has got is given back", || proxy.shared.stats().kept == 0);
    client.send(bytes(100 * KIB..1000 * KIB));
    assert_eq!(client.response().text(), format!("length {} true", 1000 * KIB));
}

#[test]
fn a_buffered_request_gets_100_continue() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = begin(&proxy, 1000, "Expect: 100-continue\r\n");
    assert!(client.head().expect("a head").starts_with("http/1.1 100 "));
    assert_eq!(origin.connections(), 0);
    client.send(bytes(0..1000));
    assert_eq!(client.response().text(), "length 1000 true");
}

#[test]
fn http2_bodies_are_buffered_too() {
    let origin = origin();
    let proxy = proxy(&origin);
    let mut client = Raw::begun(&proxy, &[]);
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields(POST)));
    client.send(&frame(DATA, NONE, 1, &bytes(0..500)));
    wait_until("it is kept", || proxy.shared.stats().kept == 500);
    assert_eq!(origin.connections(), 0);
    client.send(&frame(DATA, END_STREAM, 1, &bytes(500..700)));
    assert_eq!(client.until(DATA).payload, b"length 700 true");
}

#[test]
fn a_stalled_body_reaches_no_pod() {
    let origin = origin();
    let settings = Settings { stall_timeout: Duration::from_millis(300), ..Settings::default() };
    let proxy = proxy_with(&origin, settings);
    let mut client = begin(&proxy, 1000, "");
    client.send(bytes(0..10));
    let began = Instant::now();
    // By a 408, or by the time-out of the connection, whichever is first: no other end counts as timed out.
    assert!(client.try_response().is_none_or(|response| response.status == 408));
    assert!(client.is_closed());
    assert!(began.elapsed() < Duration::from_secs(3), "long before the client gives up");
    wait_until("it counts", || proxy.shared.stats().timed_out == 1);
    wait_until("it is given back", || proxy.shared.stats().kept == 0);
    assert_eq!((origin.connections(), proxy.count(1).active), (0, 0));
}

#[test]
fn bodies_are_streamed_while_buffer_space_is_scarce() {
    let origin = origin();
    let proxy = proxy(&origin);
    // All bodies together have an eighth of the limit, and those of one namespace half of that.
    assert_eq!(weigh(&proxy, 8 * 20 * KIB, 0), Pressure::None);
    let mut first = begin(&proxy, 20 * KIB, "");
    first.send(bytes(0..9 * KIB));
    wait_until("it is kept", || proxy.shared.stats().kept == 9 * KIB);
    assert_eq!(origin.connections(), 0);
    let mut second = begin(&proxy, 20 * KIB, "");
    second.send(bytes(0..2 * KIB));
    wait_until("its pod is asked", || origin.heads().len() == 1);
    first.send(bytes(9 * KIB..20 * KIB));
    second.send(bytes(2 * KIB..20 * KIB));
    for client in [&mut first, &mut second] {
        assert_eq!(client.response().text(), format!("length {} true", 20 * KIB));
    }
    // And where memory is tight, none.
    assert_eq!(weigh(&proxy, 1 << 30, 850 << 20), Pressure::Tight);
    let asked = origin.heads().len();
    let mut client = begin(&proxy, 1000, "");
    client.send(bytes(0..10));
    wait_until("its pod is asked", || origin.heads().len() == asked + 1);
    client.send(bytes(10..1000));
    assert_eq!(client.response().text(), "length 1000 true");
}

#[test]
fn one_namespace_cannot_exhaust_the_buffer_space() {
    let origin = origin();
    let buffered = || Forwarding { uploads: Uploads::Buffered, body_buffer: 64 * KIB, ..Forwarding::default() };
    let table = Table::default().host_of("greedy", "a.test", &[origin.address]);
    let table = table.host_of("other", "b.test", &[origin.address]);
    let proxy = Proxy::start(&table.forwarding("a.test", buffered()).forwarding("b.test", buffered()));
    assert_eq!(weigh(&proxy, 8 * 20 * KIB, 0), Pressure::None);
    let asked = |host: &str| origin.heads().iter().filter(|head| head.contains(&format!("host: {host}"))).count();
    let mut greedy: Vec<_> = (0..4).map(|_| begin(&proxy, 20 * KIB, "")).collect();
    greedy[0].send(bytes(0..9 * KIB));
    wait_until("it is kept", || proxy.shared.stats().kept == 9 * KIB);
    for (number, client) in greedy.iter_mut().enumerate().skip(1) {
        client.send(bytes(0..9 * KIB));
        wait_until("its pod is asked", || asked("a.test") == number);
    }
    wait_until("the others' are on their way", || proxy.shared.stats().kept == 9 * KIB);
    let mut other = begin_for(&proxy, "b.test", 20 * KIB, "");
    other.send(bytes(0..5 * KIB));
    wait_until("it is kept, too", || proxy.shared.stats().kept == 14 * KIB);
    thread::sleep(PAUSE);
    assert_eq!(asked("b.test"), 0);
    other.send(bytes(5 * KIB..20 * KIB));
    for client in &mut greedy {
        client.send(bytes(9 * KIB..20 * KIB));
    }
    for client in greedy.iter_mut().chain([&mut other]) {
        assert_eq!(client.response().text(), format!("length {} true", 20 * KIB));
    }
    wait_until("all is given back", || proxy.shared.stats().kept == 0);
}
