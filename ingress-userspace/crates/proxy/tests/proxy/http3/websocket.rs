//! WebSockets of HTTP/3 clients (RFC 9220): a stream each, and a connection of HTTP/1.1 to the pod.

use std::time::Duration;

use ingress_common::HostL7;
use ingress_proxy_testing::{DEADLINE, Origin, Peer, Proxy, Table, until};
use tokio::time::timeout;

use super::{
    connect_raw,
    corpus::raw::{self, Raw},
    start,
};
use crate::ws_http2::echo;

const HANDSHAKE: &[(&str, &str)] = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a.test"),
    (":path", "/chat"),
    ("sec-websocket-version", "13"),
];

fn proxy(script: fn(&mut Peer)) -> (Origin, Proxy) {
    let origin = Origin::start(script);
    let proxy = start(&Table::default().host("a.test", &[origin.address]));
    (origin, proxy)
}

#[tokio::test]
async fn a_websocket_works_over_a_stream() {
    let (_origin, proxy) = proxy(echo);
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let mut stream = client.open().await;
    stream.send(&raw::headers(HANDSHAKE)).await;
    assert_eq!(stream.head().await, 200);
    assert_eq!(stream.data(5).await, b"hello");
    for text in ["one", "three"] {
        stream.send(&raw::data(text.as_bytes())).await;
        assert_eq!(stream.data(text.len()).await, text.as_bytes());
    }
    stream.finish();
    assert_eq!(stream.data(3).await, b"bye");
    stream.until_finished().await.expect("an end in order");
    until("it is counted", || proxy.count(1).requests.success == 1).await;
    let HostL7 { bytes_in, bytes_out, active, .. } = proxy.count(1);
    assert_eq!((bytes_in, bytes_out, active), (8, 16, 0));
}

#[tokio::test]
async fn a_pod_that_closes_first_gets_the_last_bytes_of_the_client() {
    let (origin, proxy) = proxy(|peer| {
        let head = peer.raw_head().expect("a head");
        let switch = crate::ws_http2::switch(&head);
        peer.send(format!("{switch}bye"));
        peer.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
        while peer.more() {}
        let received = String::from_utf8(peer.take()).expect("text");
        peer.note(&received);
    });
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let mut stream = client.open().await;
    stream.send(&raw::headers(HANDSHAKE)).await;
    assert_eq!(stream.head().await, 200);
    assert_eq!(stream.data(3).await, b"bye");
    stream.until_finished().await.expect("an end in order");
    stream.send(&raw::data(b"last")).await;
    stream.finish();
    until("the pod has the last bytes", || origin.heads().iter().any(|head| head == "last")).await;
    until("it is counted", || proxy.count(1).requests.success == 1).await;
    let HostL7 { bytes_in, bytes_out, active, .. } = proxy.count(1);
    assert_eq!((bytes_in, bytes_out, active), (4, 3, 0));
}

#[tokio::test]
async fn a_client_may_leave_after_a_pod_that_closes_first() {
    let (_origin, proxy) = proxy(|peer| {
        let head = peer.raw_head().expect("a head");
        let switch = crate::ws_http2::switch(&head);
        peer.send(format!("{switch}bye"));
        peer.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
        peer.until_closed();
    });
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let mut stream = client.open().await;
    stream.send(&raw::headers(HANDSHAKE)).await;
    assert_eq!(stream.head().await, 200);
    stream.until_finished().await.expect("an end in order");
    quic.close(0_u32.into(), b"");
    until("it is counted", || proxy.count(1).requests.success == 1).await;
    assert_eq!(proxy.count(1).active, 0);
}

#[tokio::test]
async fn a_tunnel_that_breaks_off_is_reset() {
    let (_origin, proxy) = proxy(|peer| {
        let head = peer.raw_head().expect("a head");
        let switch = crate::ws_http2::switch(&head);
        peer.send(format!("{switch}half"));
        while peer.received().is_empty() && peer.more() {}
        socket2::SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).expect("set");
    });
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let mut stream = client.open().await;
    stream.send(&raw::headers(HANDSHAKE)).await;
    assert_eq!(stream.head().await, 200);
    assert_eq!(stream.data(4).await, b"half");
    stream.send(&raw::data(b"go")).await;
    assert!(stream.until_finished().await.is_err());
    until("it is counted", || proxy.count(1).requests.aborted == 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_pods_connection() {
    let (origin, proxy) = proxy(|peer| {
        echo(peer);
        peer.note("gone");
    });
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let mut stream = client.open().await;
    stream.send(&raw::headers(HANDSHAKE)).await;
    assert_eq!(stream.head().await, 200);
    quic.close(0_u32.into(), b"");
    until("the pod's connection ends", || origin.heads().iter().any(|head| head == "gone")).await;
    until("it is counted", || proxy.count(1).active == 0).await;
}

#[tokio::test]
async fn other_protocols_and_plain_connect_are_refused() {
    let (origin, proxy) = proxy(|peer| peer.until_closed());
    let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
    let client = Raw::new(&quic).await;
    let other: Vec<_> = HANDSHAKE
        .iter()
        .map(|&(name, value)| if name == ":protocol" { (name, "connect-udp") } else { (name, value) })
        .collect();
    let plain = [(":method", "CONNECT"), (":authority", "a.test:443")];
    for (fields, expect) in [(&other[..], 501), (&plain, 400)] {
        let mut stream = client.open().await;
        stream.send(&raw::headers(fields)).await;
        let status = timeout(DEADLINE, stream.head()).await.expect("in time");
        assert_eq!(status, expect, "{fields:?}");
    }
    assert_eq!(origin.connections(), 0);
}
