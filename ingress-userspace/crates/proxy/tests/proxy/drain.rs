//! Draining ends connections without losing a request.

use std::{sync::mpsc, thread, time::Duration};

use ingress_proxy::{Drained, Options};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table, until, wait_until};

/// Drains in a thread of its own; the result comes when the workers have ended.
pub(crate) fn drain(proxy: &mut Proxy, timeout: Duration) -> thread::JoinHandle<Drained> {
    let mut server = proxy.server.take().expect("running");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(server.drain(timeout))
    })
}

pub(crate) fn refuses(proxy: &Proxy) -> bool {
    std::net::TcpStream::connect(proxy.http).is_err()
}

#[test]
fn requests_in_flight_are_finished_and_the_connection_closed() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.request();
        wait.lock().expect("unpoisoned").recv().expect("told to go on");
        peer.answer("late");
    });
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || origin.heads().len() == 1);
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    go.send(()).expect("sent");
    let response = client.response();
    assert_eq!((response.text(), response.header("connection")), ("late", Some("close")));
    assert!(client.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn an_idle_client_may_send_one_more_request() {
    let origin = Origin::answering("pod");
    let options = Options { drain_idle: DEADLINE, ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut client = proxy.client();
    client.get("a.test", "/");
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    let response = client.get("a.test", "/");
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn idle_connections_end_after_their_time_and_busy_ones_at_the_deadline() {
    let origin = Origin::start(|peer| {
        if peer.head().is_some_and(|head| head.contains("/hang")) {
            peer.until_closed();
        }
        peer.answer("pod");
    });
    let options = Options { drain_idle: Duration::from_millis(50), ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut idle = proxy.client();
    idle.get("a.test", "/");
    let mut busy = proxy.client();
    busy.send("GET /hang HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || origin.heads().len() == 2);
    let drained = drain(&mut proxy, Duration::from_secs(2));
    assert!(idle.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 1 });
    assert!(busy.is_closed());
    wait_until("the request cut off is counted", || proxy.count(1).requests.aborted == 1);
}

#[test]
fn a_cancelled_drain_still_counts_aborted_requests() {
    let origin = Origin::start(|peer| peer.until_closed());
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || proxy.count(1).active == 1);
    let mut server = proxy.server.take().expect("running");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let drained = runtime.block_on(async {
        tokio::time::timeout(Duration::from_millis(50), server.drain(DEADLINE)).await.expect_err("one is in flight");
        server.stop().await
    });
    assert_eq!(drained, Drained { cut: 1 });
    assert_eq!((proxy.count(1).requests.aborted, proxy.count(1).active), (1, 0));
}

#[test]
fn connections_in_the_backlog_are_served() {
    let origin = Origin::answering("pod");
    for _ in 0..20 {
        let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
        let clients: Vec<_> = (0..20).map(|_| Client::connect(proxy.http)).collect();
        let drained = drain(&mut proxy, DEADLINE);
        for mut client in clients {
            assert_eq!(client.get("a.test", "/").text(), "pod");
        }
        assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
    }
}

#[test]
fn a_websocket_is_kept_until_the_deadline() {
    let origin = Origin::start(ingress_proxy_testing::ws::echo);
    let options = Options { drain_idle: Duration::from_millis(10), ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut client = proxy.client();
    client.send(ingress_proxy_testing::ws::handshake()).head();
    assert_eq!(client.at_least(5), b"hello");
    let drained = drain(&mut proxy, Duration::from_secs(2));
    wait_until("new connections are refused", || refuses(&proxy));
    assert_eq!(client.send("ping").at_least(4), b"ping");
    assert_eq!(proxy.shared.stats().connections, 1);
    assert_eq!(drained.join().expect("drained"), Drained { cut: 1 });
    assert!(client.is_closed());
    assert_eq!((proxy.count(1).active, proxy.count(1).requests.aborted), (0, 1));
}

#[test]
fn a_drain_ends_with_the_last_websocket() {
    let origin = Origin::start(ingress_proxy_testing::ws::echo);
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send(ingress_proxy_testing::ws::handshake()).head();
    let drained = drain(&mut proxy, Duration::from_secs(3600));
    wait_until("new connections are refused", || refuses(&proxy));
    client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert!(client.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
    assert_eq!(proxy.count(1).requests.success, 1);
}

#[test]
fn a_handshake_during_a_drain_still_becomes_a_websocket() {
    let origin = Origin::start(ingress_proxy_testing::ws::echo);
    let options = Options { drain_idle: DEADLINE, ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut client = proxy.client();
    client.get("none.test", "/");
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    let head = client.send(ingress_proxy_testing::ws::handshake()).head().expect("a head");
    assert!(head.contains("\r\nconnection: upgrade\r\n") && !head.contains("close"), "{head}");
    drop(client);
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Reads HTTP/2 frames until one of type `kind`. Returns its payload.
async fn frame(stream: &mut (impl AsyncRead + Unpin), kind: u8) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.expect("a payload");
        if head[3] == kind {
            return payload;
        }
    }
}

#[tokio::test]
async fn http2_clients_get_two_goaway_frames() {
    let mut proxy = Proxy::start(&Table::default());
    let mut stream =
        ingress_proxy_testing::tls::connect(&proxy, &ingress_proxy_testing::tls::config(&["h2"]), "a.test").await;
    // Preface, empty SETTINGS, and a request: GET https a.test / by static table and literal.
    let request =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x0b\x01\x05\0\0\0\x01\x82\x84\x87\x01\x06a.test";
    stream.write_all(request).await.expect("sent");
    frame(&mut stream, 1).await;
    let drained = drain(&mut proxy, DEADLINE);
    // The first GOAWAY has no limit, so that requests on their way are still served; the one after a round trip has the
    // last.
    assert_eq!(frame(&mut stream, GOAWAY).await[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let ping = frame(&mut stream, PING).await;
    stream.write_all(&[&[0, 0, 8, PING, 1, 0, 0, 0, 0], &ping[..]].concat()).await.expect("sent");
    assert_eq!(frame(&mut stream, GOAWAY).await[..8], [0, 0, 0, 1, 0, 0, 0, 0]);
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest).await);
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[tokio::test]
async fn an_idle_http2_client_may_send_one_more_request() {
    let mut proxy = Proxy::start(&Table::default());
    let mut client = ingress_proxy_testing::tls::http2(&proxy).await;
    let drained = drain(&mut proxy, DEADLINE);
    until("the listeners are closed", || refuses(&proxy)).await;
    let request = http::Request::get("https://a.test/").body(http_body_util::Full::default()).expect("valid request");
    assert_eq!(client.send_request(request).await.expect("a response").status(), 404);
    client.ready().await.ok();
    drop(client);
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}
