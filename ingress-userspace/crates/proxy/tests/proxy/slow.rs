//! Deliberately slow peers, a hundred at a time: each kind ends in time, and a client beside them is served as usual.
//! docs/hardening.md has them in a table.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use ingress_model::{Networks, Settings, Trust};
use ingress_proxy::{Options, Refusal};

use crate::frames::{NONE, Raw, WINDOW_UPDATE, frame, get};
use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table, wait_settled, wait_until};

const SHORT: Duration = Duration::from_millis(200);
const PEERS: usize = 100;

/// Starts a proxy with all time-outs at [`SHORT`], except for one client that it knows from before and that begins with
/// `header`. The pod has a large response, too.
fn proxy(trust: Trust, header: &str) -> (Proxy, Client, Origin) {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if head.starts_with("get /large") {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 50_000_000));
                peer.send(vec![0; 50_000_000]);
            } else if head.starts_with("get ") {
                peer.answer("pod");
            } else {
                return peer.until_closed();
            }
        }
    });
    let table = Table::default().host("a.test", &[origin.address]);
    let patient = Settings { trust: trust.clone(), ..Settings::default() };
    let options = Options { handshake_timeout: SHORT, ..Options::default() };
    let proxy = Proxy::start_with(&table.clone().settings(patient), &options, None);
    let mut client = proxy.client();
    assert_eq!(client.send(header).get("a.test", "/").text(), "pod");
    let trust = Trust { proxy_protocol_timeout: SHORT, ..trust };
    let settings = Settings { head_timeout: SHORT, stall_timeout: SHORT, trust, ..Settings::default() };
    proxy.publish(&table.settings(settings));
    (proxy, client, origin)
}

/// Opens connections to `address` that send `bytes` and then, if `more` is not empty, one byte of it now and then,
/// until the proxy has ended all of them. Meanwhile `good` must succeed.
fn outlast(address: SocketAddr, bytes: &[u8], more: &[u8], mut good: impl FnMut()) {
    let mut peers: Vec<TcpStream> = (0..PEERS)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.write_all(bytes).expect("sent");
            stream.set_nonblocking(true).expect("set");
            stream
        })
        .collect();
    let began = Instant::now();
    let mut more = more.iter().cycle();
    while !peers.is_empty() {
        let next = more.next();
        assert!(began.elapsed() < DEADLINE, "{} of {PEERS} are still there", peers.len());
        good();
        peers.retain_mut(|peer| {
            let sent = next.is_none_or(|byte| peer.write_all(&[*byte]).is_ok());
            sent && is_open(peer)
        });
        std::thread::sleep(SHORT / 10);
    }
}

fn is_open(mut peer: &TcpStream) -> bool {
    match peer.read(&mut [0; 1024]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

#[test]
fn slow_peers_time_out_and_do_not_affect_others() {
    let (proxy, mut client, _origin) = proxy(Trust::default(), "");
    let mut good = || assert_eq!(client.get("a.test", "/").text(), "pod");
    let timed_out = || proxy.shared.stats().timed_out;
    // A head that comes byte by byte.
    outlast(proxy.http, b"GET / HTTP/1.1\r\nHost: a.test\r\n", b"X: y\r\n", &mut good);
    assert!(timed_out() >= PEERS as u64);
    // A head that never begins.
    outlast(proxy.http, b"", b"", &mut good);
    assert!(timed_out() >= 2 * PEERS as u64);
    // A body that stops.
    let head = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\nabc";
    outlast(proxy.http, head, b"", &mut good);
    assert!(timed_out() >= 3 * PEERS as u64);
    // A TLS handshake that never begins, and one that stops.
    let before = proxy.shared.stats().handshake_errors;
    outlast(proxy.https, b"", b"", &mut good);
    outlast(proxy.https, b"\x16\x03\x01\x02\0\x01\0\x01\xfc", b"", &mut good);
    let errors = || proxy.shared.stats().handshake_errors;
    wait_until("all are counted", || errors() == before + 2 * PEERS as u64);
    wait_until("only the good client's is left", || proxy.shared.stats().connections == 1);
}

#[test]
fn clients_that_read_nothing_time_out() {
    let (proxy, mut client, _origin) = proxy(Trust::default(), "");
    let began = Instant::now();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let mut peer = proxy.client();
            peer.send("GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n");
            peer
        })
        .collect();
    while proxy.shared.stats().timed_out < PEERS as u64 {
        assert!(began.elapsed() < 3 * DEADLINE, "{} have ended", proxy.shared.stats().timed_out);
        assert_eq!(client.get("a.test", "/").text(), "pod");
        std::thread::sleep(SHORT / 10);
    }
    drop(peers);
}

#[test]
fn proxy_protocol_headers_must_arrive_in_time() {
    let trusted_proxies = Networks::parse("127.0.0.0/8").expect("a network");
    let trust = Trust { proxy_protocol: true, trusted_proxies, ..Trust::default() };
    let (proxy, mut client, _origin) = proxy(trust, "PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n");
    let mut good = || assert_eq!(client.get("a.test", "/").text(), "pod");
    outlast(proxy.http, b"", b"", &mut good);
    outlast(proxy.http, b"PROXY TCP4 192.0.2.1 ", b"", &mut good);
    outlast(proxy.https, b"\r\n\r\n\0\r\nQUIT\n", b"", &mut good);
    let at = Refusal::ALL.iter().position(|why| *why == Refusal::ProxyProtocol).expect("known");
    assert_eq!(proxy.shared.stats().refused[at], 3 * PEERS as u64);
}

/// Grants the largest windows, sends requests on `streams` streams, and reads nothing.
fn greedy(proxy: &Proxy, streams: u32) -> Raw {
    // SETTINGS_INITIAL_WINDOW_SIZE: 2^31 - 1.
    let mut client = Raw::begun(proxy, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    client.send(&frame(WINDOW_UPDATE, NONE, 0, &0x7fff_0000_u32.to_be_bytes()));
    client.send(&(0..streams).flat_map(|number| get(1 + 2 * number)).collect::<Vec<_>>());
    client
}

/// Bytes that may be queued for a client that reads nothing: the connection's, one read of each stream, and the content
/// of the sockets. Its requests ask for four times as much.
const QUEUED_MAX: u64 = (256 + 128 + 120 * 20 + 10 * 1024) * 1024;

#[test]
fn little_is_buffered_for_an_http2_client_that_reads_nothing() {
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.answer(&"x".repeat(400_000));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = greedy(&proxy, 120);
    let count = || proxy.count(1);
    let come = || count().active + count().requests.success + proxy.shared.stats().waiting as u64;
    wait_until("all are here", || come() == 120);
    wait_settled("no more is taken of the pod", || proxy.count(1).bytes_out);
    let queued = proxy.count(1).bytes_out;
    assert!(queued <= QUEUED_MAX, "{queued}");
    assert_eq!(proxy.client().get("a.test", "/").status, 200);
    // Once it reads, the queued bytes arrive, whole.
    let (mut ended, mut bytes) = (0, 0);
    while ended < 120 {
        let frame = client.next().expect("more");
        if frame.kind == crate::frames::DATA {
            bytes += frame.payload.len();
            ended += u32::from(frame.flags & crate::frames::END_STREAM);
        }
    }
    assert_eq!(bytes, 120 * 400_000);
}
