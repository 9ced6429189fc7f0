//! Parking of idle connections is invisible to clients. In most tests connections are parked as soon as they are idle,
//! so that each request meets a parked one.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    num::NonZeroU32,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use ingress_model::Settings;
use ingress_proxy::{Drained, Options, Pressure, Refusal, Usage};
use rustls::{
    ClientConnection,
    version::{TLS12, TLS13},
};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    drain::{drain, refuses},
    frames::{DATA, END_HEADERS, END_STREAM, HEADERS, NONE, POST, PREFACE, Raw, SETTINGS, fields, frame, get},
};
use ingress_proxy_testing::tls::{config, config_of, connect};
use ingress_proxy_testing::ws;
use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table, wait_until};

const SHORT: Duration = Duration::from_millis(100);
/// For clients that have work to do first, lest a slow machine is taken for a slow client.
const LONGER: Duration = Duration::from_secs(1);
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// No connection stays warm.
fn at_once() -> Options {
    Options { warm_max: 0, ..Options::default() }
}

/// Makes the worker tick every 10 ms.
fn brisk() -> Settings {
    Settings { stall_timeout: Duration::from_millis(40), ..Settings::default() }
}

fn proxy(origin: &Origin, settings: Settings) -> Proxy {
    Proxy::start_with(&Table::default().host("a.test", &[origin.address]).settings(settings), &at_once(), None)
}

/// A pod that answers each request on command.
fn patient() -> (Origin, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        while peer.request().is_some() {
            wait.lock().expect("unpoisoned").recv().expect("told to go on");
            peer.answer("pod");
        }
    });
    (origin, go)
}

fn wait_parked(proxy: &Proxy, count: usize) {
    wait_until(&format!("{count} are parked"), || proxy.shared.stats().parked == count);
}

fn wait_open(proxy: &Proxy, count: usize) {
    wait_until(&format!("{count} are open"), || proxy.shared.stats().connections == count);
}

/// A client with a connection that is parked after a request.
fn parked(proxy: &Proxy) -> Client {
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").text(), "pod");
    wait_parked(proxy, 1);
    client
}

#[test]
fn a_parked_connection_serves_its_next_request() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut client = proxy.client();
    for _ in 0..5 {
        // Before its first request, too.
        wait_parked(&proxy, 1);
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
    let stats = proxy.shared.stats();
    assert_eq!((stats.accepted, stats.connections), (1, 1));
    assert_eq!(proxy.count(1).requests.success, 5);
}

#[test]
fn no_request_is_lost_while_parking() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut client = proxy.client();
    for _ in 0..300 {
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
    assert_eq!(proxy.shared.stats().accepted, 1);
}

#[tokio::test]
async fn a_parked_tls_connection_serves_its_next_request() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    for version in [&TLS12, &TLS13] {
        let mut stream = connect(&proxy, &Arc::new(config_of(&[version], None)), "a.test").await;
        for _ in 0..3 {
            // Before its first request, too.
            wait_parked(&proxy, 1);
            stream.write_all(REQUEST.as_bytes()).await.expect("sent");
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\npod") {
                let count = stream.read_buf(&mut answer).await.expect("read");
                assert!(count > 0, "{}", answer.escape_ascii());
            }
        }
        wait_parked(&proxy, 1);
        // close_notify of TLS is sent in both directions.
        stream.shutdown().await.expect("shut down");
        assert_eq!(stream.read(&mut [0]).await.expect("an end in order"), 0);
        wait_open(&proxy, 0);
        assert_eq!(proxy.shared.stats().parked, 0);
    }
}

#[test]
fn a_request_may_arrive_with_the_end_of_the_handshake() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut tcp = TcpStream::connect(proxy.https).expect("connected");
    tcp.set_read_timeout(Some(DEADLINE)).expect("timeout set");
    let name = "a.test".try_into().expect("valid name");
    let mut tls = ClientConnection::new(Arc::new(config_of(&[&TLS13], None)), name).expect("a session");
    while tls.is_handshaking() {
        while tls.wants_write() {
            tls.write_tls(&mut tcp).expect("sent");
        }
        let count = tls.read_tls(&mut tcp).expect("read");
        assert!(count > 0, "the handshake ended early");
        tls.process_new_packets().expect("in order");
    }
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    tls.writer().write_all(request.as_bytes()).expect("taken");
    let mut last = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut last).expect("taken");
    }
    // The client's part of the handshake ends in the same segment.
    tcp.write_all(&last).expect("sent");
    let mut answer = String::new();
    rustls::Stream::new(&mut tls, &mut tcp).read_to_string(&mut answer).expect("an end in order");
    assert!(answer.ends_with("\r\n\r\npod"), "{answer}");
}

#[tokio::test]
async fn http2_over_tls_begins_with_settings_of_the_server() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut stream = connect(&proxy, &config(&["h2"]), "a.test").await;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[3], SETTINGS);
    assert_eq!(proxy.shared.stats().parked, 0);
}

#[test]
fn requests_may_arrive_pipelined_or_in_pieces() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut client = parked(&proxy);
    client.send(REQUEST.repeat(20));
    assert!((0..20).all(|_| client.response().text() == "pod"));
    wait_parked(&proxy, 1);

    client.send("GET / HTTP/1.1\r\nHo");
    wait_parked(&proxy, 0);
    // The worker turns to others meanwhile.
    parked(&proxy);
    wait_open(&proxy, 1);
    assert_eq!(client.send("st: a.test\r\n\r\n").response().text(), "pod");
    wait_parked(&proxy, 1);

    // The beginning of one request arrives with the end of another.
    client.send(format!("{REQUEST}GET / HT"));
    assert_eq!(client.response().text(), "pod");
    assert_eq!(client.send("TP/1.1\r\nHost: a.test\r\n\r\n").response().text(), "pod");
    wait_parked(&proxy, 1);

    client.send("\r\n\r\n");
    assert_eq!(client.send(REQUEST).response().text(), "pod");
    let body = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\r\n";
    assert_eq!(client.send(body).response().text(), "pod");
    wait_parked(&proxy, 1);
    assert_eq!(client.send(REQUEST).response().text(), "pod");
    assert_eq!(proxy.shared.stats().refused_framing, 0);
}

#[test]
fn pipelined_requests_may_exceed_one_read() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut client = parked(&proxy);
    client.send(REQUEST.repeat(400));
    assert!((0..400).all(|_| client.response().text() == "pod"));
    wait_parked(&proxy, 1);

    let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-Long: {}\r\n\r\n", "x".repeat(12_000));
    assert_eq!(client.send(long).response().text(), "pod");
    wait_parked(&proxy, 1);

    // The body is discarded, and the connection goes on.
    let body = "x".repeat(16_000);
    client.send(format!("POST / HTTP/1.1\r\nHost: none.test\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(client.response().status, 404);
    assert_eq!(client.get("a.test", "/").text(), "pod");
    assert_eq!(proxy.shared.stats().refused_framing, 0);
}

/// A close with unread bytes is a reset; a client with pipelined requests sees the end before that.
#[test]
fn a_connection_ends_without_reset_despite_unread_requests() {
    let (origin, go) = patient();
    let proxy = proxy(&origin, Settings::default());
    let mut client = proxy.client();
    client.send(REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    wait_until("the pod has the request", || origin.heads().len() == 1);
    for _ in 0..3 {
        // The first is read to detect a client that is gone; the others are not.
        client.send(REQUEST);
        std::thread::sleep(SHORT);
    }
    go.send(()).expect("sent");
    assert_eq!(client.response().text(), "pod");
    assert_eq!(client.stream.read(&mut [0]).expect("an end and no reset"), 0);
}

#[test]
fn requests_in_flight_are_not_parked() {
    let (origin, go) = patient();
    let proxy = proxy(&origin, Settings::default());
    let mut client = proxy.client();
    client.send(REQUEST);
    wait_until("the pod has the request", || origin.heads().len() == 1);
    let mut other = proxy.client();
    assert_eq!(other.get("none.test", "/").status, 404);
    wait_parked(&proxy, 1);
    drop(other);
    wait_open(&proxy, 1);
    assert_eq!(proxy.shared.stats().parked, 0);
    go.send(()).expect("sent");
    assert_eq!(client.response().text(), "pod");
    wait_parked(&proxy, 1);
}

#[test]
fn the_longest_idle_connections_are_parked_first() {
    let origin = Origin::answering("pod");
    let table = Table::default().host("a.test", &[origin.address]);
    let options = Options { warm_max: 2, park_after: DEADLINE, ..Options::default() };
    let proxy = Proxy::start_with(&table, &options, None);
    let mut clients: Vec<_> = (0..6).map(|_| proxy.client()).collect();
    wait_parked(&proxy, 6);
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.get("a.test", "/").text(), "pod");
        // The others are still to come, and two stay warm.
        wait_parked(&proxy, if number < 2 { 5 - number } else { 4 });
    }
    // The last ones are the warm ones: their requests park and wake no connection.
    for client in &mut clients[4..] {
        assert_eq!(client.get("a.test", "/").text(), "pod");
        assert_eq!(proxy.shared.stats().parked, 4);
    }
}

#[test]
fn warm_connections_are_parked_after_a_timeout() {
    let origin = Origin::answering("pod");
    let table = Table::default().host("a.test", &[origin.address]).settings(brisk());
    let options = Options { park_after: SHORT, ..Options::default() };
    let proxy = Proxy::start_with(&table, &options, None);
    let mut client = parked(&proxy);
    assert_eq!(client.get("a.test", "/").text(), "pod");
    wait_parked(&proxy, 1);
}

#[test]
fn timeouts_apply_to_parked_connections() {
    let origin = Origin::answering("pod");
    let idle = proxy(&origin, Settings { idle_timeout: SHORT, ..Settings::default() });
    let mut client = idle.client();
    assert_eq!(client.get("a.test", "/").text(), "pod");
    assert!(client.is_closed());
    wait_open(&idle, 0);
    assert_eq!((idle.shared.stats().timed_out, idle.shared.stats().parked), (0, 0));

    let head = proxy(&origin, Settings { head_timeout: SHORT, ..Settings::default() });
    assert!(head.client().is_closed());
    let mut client = head.client();
    assert_eq!(client.get("a.test", "/").text(), "pod");
    wait_parked(&head, 1);
    // Its time begins with the first byte of the next head, which comes later than a head may take.
    std::thread::sleep(2 * SHORT);
    assert_eq!(client.get("a.test", "/").text(), "pod");
    wait_parked(&head, 1);
    assert!(client.send("GET / HT").is_closed());
    wait_open(&head, 0);
    assert_eq!(head.shared.stats().timed_out, 2);
}

#[tokio::test]
async fn a_tls_connection_has_a_timeout_for_its_first_head() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings { head_timeout: LONGER, ..Settings::default() });
    let mut stream = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    assert!(stream.read(&mut [0]).await.is_err(), "no farewell");
    wait_open(&proxy, 0);
    let stats = proxy.shared.stats();
    assert_eq!((stats.timed_out, stats.parked), (1, 0));
}

#[test]
fn a_drain_ends_parked_connections() {
    let origin = Origin::answering("pod");
    let table = Table::default().host("a.test", &[origin.address]);
    let options = Options { drain_idle: Duration::from_millis(50), ..at_once() };
    let mut proxy = Proxy::start_with(&table, &options, None);
    let mut client = parked(&proxy);
    let drained = drain(&mut proxy, DEADLINE);
    assert!(client.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });

    // Until then each client may send one more request.
    let options = Options { drain_idle: DEADLINE, ..at_once() };
    let mut proxy = Proxy::start_with(&table, &options, None);
    let mut client = parked(&proxy);
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    let last = client.get("a.test", "/");
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert!(client.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn disconnected_clients_are_detected() {
    type Leave = fn(Client);
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let leave: [Leave; 3] = [
        drop,
        |client| SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).expect("set"),
        |mut client| {
            client.stream.shutdown(Shutdown::Write).expect("shut down");
            assert!(client.is_closed());
        },
    ];
    for leave in leave {
        leave(parked(&proxy));
        wait_open(&proxy, 0);
        let fresh = proxy.client();
        wait_parked(&proxy, 1);
        leave(fresh);
        wait_open(&proxy, 0);
        assert_eq!(proxy.shared.stats().parked, 0);
    }
}

#[test]
fn critical_memory_closes_parked_connections() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, brisk());
    let mut client = parked(&proxy);
    assert_eq!(proxy.shared.weigh(Usage { used: 95, limit: Some(100) }), Pressure::Critical);
    assert!(client.is_closed());
    wait_open(&proxy, 0);
}

#[test]
fn a_parked_connection_counts_for_its_client() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings { connections_per_client: NonZeroU32::new(1), ..Settings::default() });
    let mut client = parked(&proxy);
    let at = Refusal::ALL.iter().position(|why| *why == Refusal::ClientConnections).expect("known");
    for refused in 1..=2 {
        assert!(proxy.client().is_closed());
        wait_until("it is counted", || proxy.shared.stats().refused[at] == refused);
        assert_eq!(client.get("a.test", "/").text(), "pod");
        wait_parked(&proxy, 1);
    }
    drop(client);
    wait_open(&proxy, 0);
    parked(&proxy);
}

#[test]
fn http2_may_start_on_a_parked_connection() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings::default());
    let mut client = Raw::connect(&proxy);
    wait_parked(&proxy, 1);
    client.send(&[PREFACE, &frame(SETTINGS, NONE, 0, &[]), &get(1)].concat());
    assert_eq!(client.until(HEADERS).payload[0], 0x88, ":status 200");
    wait_until("the request is over", || proxy.count(1).active == 0);
    assert_eq!(proxy.shared.stats().parked, 0);

    // The bytes exceed one read.
    let mut client = Raw::connect(&proxy);
    wait_parked(&proxy, 1);
    let request = frame(HEADERS, END_HEADERS, 1, &fields(POST));
    let body = frame(DATA, END_STREAM, 1, &[b'x'; 12_000]);
    client.send(&[PREFACE, &frame(SETTINGS, NONE, 0, &[]), &request, &body].concat());
    assert_eq!(client.until(HEADERS).payload[0], 0x88, ":status 200");
}

#[test]
fn a_parked_connection_may_become_a_websocket() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if head.contains("upgrade: websocket") {
                peer.send(format!("{}hello", ws::SWITCH));
                while peer.more() {
                    let received = peer.take();
                    peer.send(received);
                }
                return;
            }
            peer.answer("pod");
        }
    });
    let proxy = proxy(&origin, Settings::default());
    let mut client = parked(&proxy);
    // The host is unknown, and the connection goes on.
    let declined = ws::handshake().replace("a.test", "none.test");
    for more in [0, 400] {
        client.send(format!("{declined}{}", REQUEST.repeat(more)));
        assert_eq!(client.response().status, 404);
        assert!((0..more).all(|_| client.response().text() == "pod"));
        wait_parked(&proxy, 1);
    }
    assert_eq!(client.get("a.test", "/").text(), "pod");
    wait_parked(&proxy, 1);
    // The client's early data exceeds one read.
    let early = "early".repeat(2_400);
    client.send(format!("{}{early}", ws::handshake())).head();
    assert_eq!(client.at_least(5 + early.len()), format!("hello{early}").as_bytes());
    assert_eq!(client.send("ping").at_least(4), b"ping");
    assert_eq!(proxy.shared.stats().parked, 0);
    drop(client);
    wait_open(&proxy, 0);
}
