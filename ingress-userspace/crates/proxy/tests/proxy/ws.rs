//! WebSockets: recognition of handshakes, and that the bytes after them pass untouched.

use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use ingress_common::HostL7;
use ingress_model::{Forwarding, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::ws::{FIELDS, SWITCH, echo, handshake};
use ingress_proxy_testing::{Client, Origin, Proxy, Table, wait_until};

fn open(proxy: &Proxy, early: &[u8]) -> (Client, String) {
    let mut client = proxy.client();
    client.send([handshake().as_bytes(), early].concat());
    let head = client.head().expect("a head");
    (client, head)
}

#[test]
fn a_websocket_passes_untouched_both_ways() {
    let origin = Origin::start(echo);
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let (mut client, head) = open(&proxy, b"\x81\n\r\nearly");
    assert!(head.starts_with("http/1.1 101 switching protocols\r\n"), "{head}");
    for field in ["connection: upgrade", "upgrade: websocket", "sec-websocket-protocol: chat", "server: xdp-ingress"] {
        assert!(head.contains(&format!("\r\n{field}\r\n")), "{field}: {head}");
    }
    let request = &origin.heads()[0];
    assert!(request.starts_with("get /chat http/1.1\r\nhost: a.test\r\n"), "{request}");
    for field in ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "x-real-ip: 127.0.0.1"] {
        assert_eq!(request.matches(&format!("\r\n{field}\r\n")).count(), 1, "{field}: {request}");
    }
    assert_eq!(client.at_least(14), b"hello\x81\n\r\nearly");
    assert_eq!((proxy.count(1).active, proxy.count(1).requests), (1, [0; 5].into()));
    let sent: Vec<u8> = (0..2_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut writer = client.stream.try_clone().expect("cloned");
    let all = sent.clone();
    let writing = std::thread::spawn(move || writer.write_all(&all).expect("sent"));
    assert!(client.at_least(sent.len()) == sent);
    writing.join().expect("joined");
    client.stream.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(client.at_least(3), b"bye");
    assert!(client.is_closed());
    let (bytes_in, bytes_out) = (2_000_009, 2_000_017);
    proxy.wait_count(1, HostL7 { requests: [1, 0, 0, 0, 0].into(), bytes_in, bytes_out, active: 0 });
}

#[test]
fn the_end_of_the_pod_ends_the_client() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.send(format!("{SWITCH}last words"));
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let (mut client, _) = open(&proxy, b"");
    let mut rest = client.at_least(10);
    client.stream.read_to_end(&mut rest).expect("a clean end");
    assert_eq!(rest, b"last words");
    drop(client);
    wait_until("the request is over", || proxy.count(1).active == 0);
}

#[test]
fn an_invalid_handshake_reaches_no_pod() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    for (method, from, to) in [
        ("POST", "", ""),
        ("GET", "Version: 13", "Version: 8"),
        ("GET", "Sec-WebSocket-Version: 13\r\n", ""),
        ("GET", "ub25jZQ==", "ub25jZQ"),
        ("GET", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
    ] {
        let request = format!("{method} / HTTP/1.1\r\n{}\r\n", FIELDS.replace(from, to));
        let mut client = proxy.client();
        let response = client.send(request).response();
        assert_eq!((response.status, response.header("sec-websocket-version")), (400, Some("13")), "{from}");
        // The next request is an ordinary one.
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
    assert!(origin.heads().iter().all(|head| !head.contains("websocket")));
}

#[test]
fn incomplete_handshakes_are_ordinary_requests() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    for (version, from, to) in [
        ("1.1", "Connection: keep-alive, Upgrade", "Connection: keep-alive"),
        ("1.1", "Upgrade: websocket", "Upgrade: h2c"),
        ("1.1", "Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: h2c"),
        ("1.0", "", ""),
    ] {
        let mut client = proxy.client();
        let request = format!("GET / HTTP/{version}\r\n{}\r\n", FIELDS.replace(from, to));
        assert_eq!(client.send(request).response().text(), "pod", "{version} {to}");
    }
    assert!(origin.heads().iter().all(|head| !head.contains("\r\nupgrade:") && !head.contains("\r\nconnection:")));
}

#[test]
fn a_declined_handshake_is_answered_like_any_request() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if head.contains("upgrade") {
                peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
            } else {
                peer.answer("pod");
            }
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    // The request behind it was sent too early, but waits.
    let (next, again) = ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", handshake());
    client.send(format!("{next}{again}{next}{again}{next}"));
    for (status, text) in [(200, "pod"), (403, "no"), (200, "pod"), (403, "no"), (200, "pod")] {
        let response = client.response();
        assert_eq!((response.status, response.text()), (status, text));
    }
    assert_eq!(client.send(&again).response().status, 403);
    assert_eq!(client.get("a.test", "/").text(), "pod");
    assert_eq!(client.get("none.test", "/").status, 404);
}

#[test]
fn an_invalid_protocol_switch_is_refused() {
    for (from, to) in [
        ("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "S3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ("Upgrade: WebSocket\r\n", ""),
        ("Upgrade: WebSocket", "Upgrade: h2c"),
        ("Connection: Upgrade\r\n", ""),
        ("HTTP/1.1 101", "HTTP/1.0 101"),
    ] {
        let switch = SWITCH.replace(from, to);
        let origin = Origin::start(move |peer| {
            peer.head();
            peer.send(&switch);
            peer.until_closed();
        });
        let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
        let mut client = proxy.client();
        assert_eq!(client.send(handshake()).response().status, 502, "{to}");
        assert_eq!(origin.heads().len(), 1, "{to}");
    }
}

#[test]
fn a_disconnect_during_the_handshake_is_detected() {
    let (left, wait) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let origin = Origin::start(move |peer| {
        peer.head();
        peer.until_closed();
        left.lock().expect("unpoisoned").send(()).expect("awaited");
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send(handshake());
    wait_until("the pod has the handshake", || origin.heads().len() == 1);
    drop(client);
    wait.recv_timeout(ingress_proxy_testing::DEADLINE).expect("the pod's connection ends");
    proxy.wait_count(1, HostL7 { requests: [0, 0, 0, 0, 1].into(), ..HostL7::default() });
}

#[test]
fn a_websocket_survives_new_snapshots() {
    let origin = Origin::start(echo);
    let table = Table::default().host("a.test", &[origin.address]);
    let proxy = Proxy::start(&table);
    let (mut client, _) = open(&proxy, b"");
    assert_eq!(client.at_least(5), b"hello");
    for change in 0..100 {
        proxy.publish(&if change % 2 == 0 { table.clone() } else { Table::default() });
        assert_eq!(client.send("ping").at_least(4), b"ping", "{change}");
    }
}

#[tokio::test]
async fn a_connection_ends_cleanly_after_a_declined_upgrade() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let fields = handshake();
    for upgrade in [&fields, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"] {
        let mut client = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
        let last = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        client.write_all(format!("{upgrade}{last}").as_bytes()).await.expect("sent");
        let mut text = String::new();
        // Reading fails if TLS does not end by `close_notify`.
        client.read_to_string(&mut text).await.expect("an end in order");
        assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{text}");
    }
}

#[test]
fn a_client_still_sending_after_a_declined_upgrade_gets_its_response() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send(handshake());
    assert_eq!(client.response().text(), "pod");
    client.send("POST / HTTP/1.1\r\nHost: none.test\r\nContent-Length: 10000000\r\n\r\n");
    // The response and the end are there before the body is sent; a reset would destroy the response.
    client.send(vec![b'x'; 5_000_000]);
    assert_eq!(client.response().status, 404);
}

#[test]
fn a_websocket_client_that_reads_nothing_times_out() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.send(SWITCH);
        // More than sockets hold.
        peer.send(vec![b'x'; 50_000_000]);
        peer.until_closed();
    });
    let settings = Settings { stall_timeout: Duration::from_millis(500), ..Settings::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let (client, _) = open(&proxy, b"");
    wait_until("it is counted", || proxy.shared.stats().timed_out == 1);
    wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
    drop(client);
}

#[test]
fn an_idle_websocket_times_out() {
    const SHORT: Duration = Duration::from_millis(500);
    let origin = Origin::start(echo);
    let forwarding = Forwarding { read_timeout: SHORT, ..Forwarding::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).forwarding("a.test", forwarding));
    let (mut client, _) = open(&proxy, b"");
    assert_eq!(client.at_least(5), b"hello");
    let begun = Instant::now();
    while begun.elapsed() < 3 * SHORT {
        assert_eq!(client.send("ping").at_least(4), b"ping");
        std::thread::sleep(SHORT / 5);
    }
    assert!(client.is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 1);
    wait_until("the request is over", || {
        let HostL7 { requests, active, .. } = proxy.count(1);
        (requests, active) == ([0, 0, 0, 0, 1].into(), 0)
    });
}

#[test]
fn a_websocket_pod_that_reads_nothing_times_out() {
    let (over, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.head();
        peer.send(SWITCH);
        // It reads nothing more, and the connection stays open.
        wait.lock().expect("unpoisoned").recv().unwrap_or_default();
    });
    // The read time-out, which silence on both sides has, would end it only much later.
    let forwarding = Forwarding {
        send_timeout: Duration::from_millis(500),
        read_timeout: Duration::from_secs(3600),
        ..Forwarding::default()
    };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).forwarding("a.test", forwarding));
    let (client, head) = open(&proxy, b"");
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    let mut stream = client.stream.try_clone().expect("cloned");
    // More than sockets hold; the proxy resets the connection meanwhile.
    let writing = std::thread::spawn(move || stream.write_all(&vec![b'x'; 50_000_000]).is_err());
    wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
    assert!(writing.join().expect("joined"), "the client is cut off, too");
    assert_eq!(proxy.count(1).active, 0);
    drop(over);
}
