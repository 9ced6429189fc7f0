//! WebSockets of HTTP/2 clients: a stream each, and a connection of HTTP/1.1 to the pod.

use std::time::Duration;

use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::{Builder, SendRequest},
    ext::Protocol,
};
use http::{Method, Request, Response, StatusCode};
use ingress_common::HostL7;
use ingress_model::{self, Settings};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{DEADLINE, Origin, Peer, Proxy, Table, until};

/// The answer for the key in `head`.
pub(crate) fn switch(head: &str) -> String {
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).expect("a key");
    let hash = digest::digest(
        &digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes(),
    );
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\
         Sec-WebSocket-Protocol: chat\r\n\r\n",
        STANDARD.encode(hash)
    )
}

/// Accepts a handshake, greets and sends everything back, until the client ends its side.
pub(crate) fn echo(peer: &mut Peer) {
    let Some(head) = peer.raw_head() else { return };
    let switch = switch(&head);
    peer.send(format!("{switch}hello"));
    while peer.more() {
        let received = peer.take();
        peer.send(received);
    }
    peer.send("bye");
}

fn proxy(origin: &Origin) -> Proxy {
    Proxy::start(&Table::default().host("a.test", &[origin.address]))
}

async fn client(proxy: &Proxy) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    over(&Builder::new(), stream).await
}

pub(crate) async fn over(
    builder: &Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Bytes> {
    let (client, connection) = builder.handshake(stream).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    let mut client = client.ready().await.expect("ready");
    // The permission is part of the first SETTINGS.
    while !client.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
        client = client.ready().await.expect("ready");
    }
    client
}

pub(crate) fn handshake(protocol: &'static str) -> http::request::Builder {
    Request::builder()
        .method(Method::CONNECT)
        .uri("https://a.test/chat?x")
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        // The field has no meaning in HTTP/2.
        .header("sec-websocket-key", "ignored")
}

pub(crate) async fn send(
    client: &mut SendRequest<Bytes>,
    request: http::request::Builder,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    let (response, stream) = client.send_request(request.body(()).expect("valid request"), false).expect("sent");
    (timeout(DEADLINE, response).await.expect("in time").expect("a response"), stream)
}

/// Reads the next bytes, at least `count`, or all of them if that is `None`.
pub(crate) async fn read(body: &mut RecvStream, count: Option<usize>) -> Result<Vec<u8>, h2::Error> {
    let mut bytes = Vec::new();
    while count.is_none_or(|count| bytes.len() < count) {
        let Some(data) = timeout(DEADLINE, body.data()).await.expect("in time").transpose()? else { break };
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

#[tokio::test]
async fn a_websocket_works_over_an_http2_stream() {
    let origin = Origin::start(echo);
    let proxy = proxy(&origin);
    let plain = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let mut clients = vec![over(&Builder::new(), plain).await];
    clients.push(over(&Builder::new(), connect(&proxy, &config(&["h2"]), "a.test").await).await);
    for (number, client) in (0..).zip(&mut clients) {
        let (response, mut stream) = send(client, handshake("websocket")).await;
        assert_eq!(
            (response.status(), &response.headers()["sec-websocket-protocol"]),
            (StatusCode::OK, &"chat".parse().expect("a value"))
        );
        assert!(
            ["sec-websocket-accept", "upgrade", "connection"]
                .iter()
                .all(|name| !response.headers().contains_key(*name))
        );
        let head = origin.heads()[number].clone();
        assert!(head.starts_with("get /chat?x http/1.1\r\nhost: a.test\r\n"), "{head}");
        for field in
            ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-protocol: chat"]
        {
            assert_eq!(head.matches(&format!("\r\n{field}\r\n")).count(), 1, "{field}: {head}");
        }
        assert!(head.matches("sec-websocket-key: ").count() == 1 && head.contains("via: 2.0 "), "{head}");
        let mut body = response.into_body();
        assert_eq!(read(&mut body, Some(5)).await.expect("more"), b"hello");
        // Other requests run beside it.
        assert_eq!(proxy.count(1).active, 1);
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
        stream.send_data(Bytes::from(sent.clone()), false).expect("sent");
        assert!(read(&mut body, Some(sent.len())).await.expect("more") == sent);
        stream.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(read(&mut body, None).await.expect("an end in order"), b"bye");
        until("the request is over", || proxy.count(1).active == 0).await;
    }
    let (bytes_in, bytes_out) = (2_000_000, 2_000_016);
    proxy.wait_count(1, HostL7 { requests: [2, 0, 0, 0, 0].into(), bytes_in, bytes_out, active: 0 });
}

#[tokio::test]
async fn other_extended_connects_open_no_websocket() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            let status = if head.contains("/forbidden") { "403 Forbidden" } else { "200 OK" };
            peer.send(format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\npod"));
        }
    });
    let proxy = proxy(&origin);
    let mut client = client(&proxy).await;
    let connect = Request::builder().method(Method::CONNECT).uri("a.test:443");
    let version = |version| {
        let mut request = handshake("websocket");
        request.headers_mut().expect("valid").insert("sec-websocket-version", version);
        request
    };
    for (what, request, status, reached) in [
        ("declined", handshake("websocket").uri("https://a.test/forbidden"), 403, 1),
        ("a success that is no switch", handshake("websocket"), 502, 2),
        ("another protocol", handshake("connect-udp"), 501, 2),
        ("another version", version("8".parse().expect("a value")), 400, 2),
        ("no tunnel at all", connect, 400, 2),
        ("an ordinary request", Request::get("https://a.test/"), 200, 3),
    ] {
        let (response, stream) = send(&mut client, request).await;
        assert_eq!((response.status().as_u16(), origin.heads().len()), (status, reached), "{what}");
        drop(stream);
        read(&mut response.into_body(), None).await.expect("a body");
    }
    proxy.publish(&Table::default().host("a.test", &[Origin::refusing()]));
    assert_eq!(send(&mut client, handshake("websocket")).await.0.status(), 502);
    proxy.publish(&Table::default().host("a.test", &[origin.address]).speaking(ingress_model::Protocol::H2c));
    assert_eq!(send(&mut client, handshake("websocket")).await.0.status(), 502);
}

#[tokio::test]
async fn an_aborting_side_resets_only_its_stream() {
    let origin = Origin::start(|peer| {
        let head = peer.raw_head().expect("a head");
        let switch = switch(&head);
        peer.send(format!("{switch}hello"));
        if head.contains("/breaks") {
            peer.more();
            SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).expect("set");
        } else {
            peer.until_closed();
        }
    });
    let proxy = proxy(&origin);
    let mut client = client(&proxy).await;
    let (response, mut stream) = send(&mut client, handshake("websocket").uri("https://a.test/breaks")).await;
    let mut body = response.into_body();
    assert_eq!(read(&mut body, Some(5)).await.expect("more"), b"hello");
    stream.send_data(Bytes::from_static(b"go"), false).expect("sent");
    assert!(read(&mut body, None).await.expect_err("reset").is_reset());
    until("the request is over", || proxy.count(1).requests.aborted == 1).await;
    let (response, mut stream) = send(&mut client, handshake("websocket")).await;
    let mut body = response.into_body();
    assert_eq!(read(&mut body, Some(5)).await.expect("more"), b"hello");
    stream.send_reset(Reason::CANCEL);
    until("the request is over", || proxy.count(1).active == 0).await;
    let (response, _stream) = send(&mut client, handshake("websocket")).await;
    assert_eq!(response.status(), StatusCode::OK, "the connection goes on");
}

#[tokio::test]
async fn a_websocket_client_that_reads_nothing_times_out() {
    let origin = Origin::start(|peer| {
        let head = peer.raw_head().expect("a head");
        let switch = switch(&head);
        peer.send(switch);
        if head.contains("/large") {
            peer.send(vec![b'x'; 4_000_000]);
        }
        peer.until_closed();
    });
    let settings = Settings { stall_timeout: Duration::from_millis(500), ..Settings::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let mut client = over(Builder::new().initial_window_size(1000), stream).await;
    let (silent, _silent) = send(&mut client, handshake("websocket")).await;
    let (stuck, _stuck) = send(&mut client, handshake("websocket").uri("https://a.test/large")).await;
    let mut body = stuck.into_body();
    let error = loop {
        // Read without granting more.
        match timeout(DEADLINE, body.data()).await.expect("in time").expect("no end") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.is_reset(), "{error}");
    until("it is counted", || proxy.shared.stats().timed_out == 1).await;
    // A client with no bytes pending may be silent.
    assert_eq!((proxy.count(1).active, proxy.count(1).requests.aborted), (1, 1));
    drop(silent);
}

#[tokio::test]
async fn an_idle_websocket_loses_only_its_stream() {
    let origin = Origin::start(echo);
    let forwarding =
        ingress_model::Forwarding { read_timeout: Duration::from_millis(500), ..ingress_model::Forwarding::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).forwarding("a.test", forwarding));
    let mut client = client(&proxy).await;
    let (silent, _silent) = send(&mut client, handshake("websocket")).await;
    let mut silent = silent.into_body();
    assert_eq!(read(&mut silent, Some(5)).await.expect("a greeting"), b"hello");
    assert!(read(&mut silent, None).await.expect_err("no end in order").is_reset());
    assert_eq!(proxy.shared.stats().timed_out, 1);
    // The connection goes on.
    let (other, _other) = send(&mut client, handshake("websocket")).await;
    assert_eq!(read(&mut other.into_body(), Some(5)).await.expect("a greeting"), b"hello");
}
