//! HTTP/2 from clients, by its frames: with and without TLS, invalid prefaces, and floods.

use std::{
    io::{Read, Write},
    num::NonZeroU64,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress_model::{Forwarding, ResponseRate, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, GOAWAY, HEADERS, NONE, PING, POST, PREFACE, PRIORITY, RST_STREAM,
    Raw, SETTINGS, WINDOW_UPDATE, fields, frame, get,
};
use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, wait_until};

/// Long enough that a slow machine is not taken for a slow client.
const SHORT: Duration = Duration::from_millis(500);

fn proxy_with(settings: Settings) -> (Proxy, Origin) {
    let origin = Origin::mirror();
    (Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings)), origin)
}

#[tokio::test]
async fn cleartext_http2_works_by_prior_knowledge() {
    let (proxy, _origin) = proxy_with(Settings::default());
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    for number in 0..20 {
        let request = Request::post(format!("http://a.test/{number}")).body(Full::new(Bytes::from(vec![b'x'; 50_000])));
        let response = client.send_request(request.expect("valid request")).await.expect("a response");
        assert_eq!(
            (response.status(), &response.headers()["server"]),
            (StatusCode::OK, &"xdp-ingress".parse().expect("a value"))
        );
        let head =
            String::from_utf8(response.into_body().collect().await.expect("a body").to_bytes().into()).expect("text");
        for part in
            [&format!("post /{number} http/1.1\r\nhost: a.test\r\n"), "x-forwarded-proto: http\r\n", "via: 2.0 "]
        {
            assert!(head.contains(part), "{part}: {head}");
        }
    }
    assert_eq!((proxy.count(1).requests.success, proxy.count(1).bytes_in), (20, 1_000_000));
}

#[tokio::test]
async fn slow_responses_by_rule_leave_the_connection_to_others() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.answer(&"x".repeat(1 << 20));
        }
    });
    let rate = ResponseRate { bytes_per_second: NonZeroU64::MIN.saturating_add(1023), after: 0 };
    let table = Table::default().host("slow.test", &[origin.address]).host("fast.test", &[origin.address]);
    let table = table.forwarding("slow.test", Forwarding { response_rate: Some(rate), ..Forwarding::default() });
    let proxy = Proxy::start(&table);
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    // The client takes all that comes.
    builder.initial_connection_window_size(1 << 28).initial_stream_window_size(1 << 26);
    let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    let get =
        |host: &str| Request::get(format!("http://{host}/")).body(Full::new(Bytes::new())).expect("valid request");
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut body = client.send_request(get("slow.test")).await.expect("a response").into_body();
        // Its first bytes have come, so the rest waits for the rate.
        body.frame().await.expect("a frame").expect("bytes");
        slow.push(body);
    }
    let fast = client.send_request(get("fast.test")).await.expect("a response").into_body();
    let fast = tokio::time::timeout(DEADLINE, fast.collect()).await.expect("no other stream is in the way");
    assert_eq!(fast.expect("a body").to_bytes().len(), 1 << 20);
}

#[tokio::test]
async fn trace_is_not_allowed() {
    let (proxy, origin) = proxy_with(Settings::default());
    let response = proxy.client().send("TRACE / HTTP/1.1\r\nHost: a.test\r\nCookie: a=b\r\n\r\n").response();
    assert_eq!(response.status, 405);
    assert!(response.header("allow").is_some_and(|allow| !allow.contains("trace")) && !response.text().contains("a=b"));
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::builder().method("TRACE").uri("http://a.test/").body(Full::new(Bytes::new()));
    let response = client.send_request(request.expect("valid request")).await.expect("a response");
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn local_replies_to_head_have_no_content() {
    let (proxy, _origin) = proxy_with(Settings::default());
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    let mut lengths = Vec::new();
    for method in ["GET", "HEAD"] {
        let request = Request::builder().method(method).uri("http://none.test/").body(Full::new(Bytes::new()));
        let response = client.send_request(request.expect("valid request")).await.expect("a response");
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method}");
        let announced = response.headers()["content-length"].to_str().expect("text").to_owned();
        // The client would take content for an error of the protocol.
        lengths.push((announced, response.into_body().collect().await.expect("a body").to_bytes().len()));
    }
    assert_eq!(lengths[0].0, lengths[1].0);
    assert!(lengths[0].1 > 0 && lengths[1].1 == 0, "{lengths:?}");
}

#[test]
fn the_first_bytes_may_arrive_one_by_one() {
    let (proxy, _origin) = proxy_with(Settings::default());
    let mut client = Raw::connect(&proxy);
    for byte in [PREFACE, &frame(SETTINGS, NONE, 0, &[]), &get(1)].concat() {
        client.send(&[byte]);
        std::thread::yield_now();
    }
    let response = client.until(HEADERS);
    assert_eq!((response.stream, response.payload[0]), (1, 0x88), ":status 200");
    for method in ["PUT", "PATCH", "PRI", "P", "PROPFIND", "PRI*", "GET"] {
        let mut client = proxy.client();
        client.stream.set_nodelay(true).expect("set");
        for byte in format!("{method} / HTTP/1.1\r\nHost: a.test\r\n\r\n").bytes() {
            client.send([byte]);
            std::thread::yield_now();
        }
        let text = client.response().text().to_owned();
        assert!(text.starts_with(&format!("{} / http/1.1\r\n", method.to_lowercase())), "{method}: {text}");
    }
    // An end amid the preface ends the connection.
    let mut client = Raw::connect(&proxy);
    client.send(b"PRI * HT");
    client.0.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert_eq!(client.next(), None);
}

#[test]
fn cleartext_http2_can_be_disabled() {
    let (proxy, origin) = proxy_with(Settings { http2: false, ..Settings::default() });
    let mut client = Raw::begun(&proxy, &[]);
    client.send(&get(1));
    let mut answer = Vec::new();
    drop(client.0.read_to_end(&mut answer));
    assert!(!answer.starts_with(&[0, 0]), "no frame: {}", answer.escape_ascii());
    assert_eq!((origin.heads().len(), proxy.client().get("a.test", "/").status), (0, 200));
}

#[tokio::test]
async fn a_connection_with_an_invalid_preface_is_refused() {
    let (proxy, origin) = proxy_with(Settings::default());
    let config = config(&["h2"]);
    let beginnings = [
        b"INVALID CONNECTION PREFACE\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(),
        [PREFACE, &get(1)].concat(),
        [PREFACE, &frame(SETTINGS, 1, 0, &[])].concat(),
    ];
    for (number, bytes) in (1..).zip(&beginnings) {
        let mut client = connect(&proxy, &config, "a.test").await;
        client.write_all(bytes).await.expect("sent");
        client.flush().await.expect("sent");
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, client.read_to_end(&mut answer)).await;
        drop(ended.expect("the connection ends"));
        // The answer is at most the proxy's SETTINGS and TLS's close_notify.
        assert!(answer.len() < 100 && !answer.starts_with(b"HTTP"), "{}", answer.escape_ascii());
        wait_until("it is counted", || proxy.shared.stats().refused_framing == number);
    }
    let mut client = Raw::connect(&proxy);
    client.send(&[PREFACE, &get(1)].concat());
    while client.next().is_some() {}
    wait_until("it is counted", || proxy.shared.stats().refused_framing == 6);
    assert_eq!(origin.heads().len(), 0);
}

#[tokio::test]
async fn a_slow_preface_times_out() {
    let (proxy, _origin) = proxy_with(Settings { head_timeout: SHORT, ..Settings::default() });
    let mut timed_out = 0;
    for bytes in [&PREFACE[..10], PREFACE, b""] {
        let mut plain = Raw::connect(&proxy);
        plain.send(bytes);
        let mut tls = connect(&proxy, &config(&["h2"]), "a.test").await;
        tls.write_all(bytes).await.expect("sent");
        tls.flush().await.expect("sent");
        drop(tokio::time::timeout(DEADLINE, tls.read_to_end(&mut Vec::new())).await.expect("the connection ends"));
        while plain.next().is_some() {}
        timed_out += 2;
        wait_until("both are counted", || proxy.shared.stats().timed_out == timed_out);
    }
    assert_eq!(proxy.shared.stats().refused_framing, 0);
}

/// Frames sent at one time, to spare system calls.
const BATCH: u32 = 100;
/// Frames sent in all.
const FLOOD: u32 = 400_000;

/// The pod takes its time, so that requests stay open.
fn flooded() -> (Proxy, Origin) {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if head.starts_with("get /quick") {
                peer.answer("pod");
            }
        }
    });
    (Proxy::start(&Table::default().host("a.test", &[origin.address])), origin)
}

#[test]
fn floods_of_frames_without_data_end_the_connection() {
    let (proxy, origin) = flooded();
    let mut other = proxy.client();
    for (number, what, frame) in [
        (1, "PING", frame(PING, NONE, 0, &[0; 8])),
        (2, "SETTINGS", frame(SETTINGS, NONE, 0, &[])),
        (3, "WINDOW_UPDATE", frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 0, 1])),
        (4, "PRIORITY", frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 16])),
        (5, "PING of answers", frame(PING, 1, 0, &[0; 8])),
        (6, "unknown", frame(0xf0, NONE, 0, &[0; 8])),
    ] {
        let batch = frame.repeat(BATCH as usize);
        assert!(Raw::begun(&proxy, &[]).ended_by(FLOOD / BATCH, |_| batch.clone()), "{what}");
        wait_until(what, || proxy.shared.stats().flooded == number);
        assert_eq!(other.get("a.test", "/quick").text(), "pod");
    }
    assert_eq!(origin.heads().len(), 6);
}

#[test]
fn floods_of_request_frames_end_the_connection() {
    let (proxy, _origin) = flooded();
    let mut other = proxy.client();
    let rapid_reset = |number: u32| {
        let stream = |index| 1 + 2 * (number * BATCH + index);
        let each = |index| [get(stream(index)), frame(RST_STREAM, NONE, stream(index), &[0, 0, 0, 8])].concat();
        (0..BATCH).flat_map(each).collect::<Vec<_>>()
    };
    assert!(Raw::begun(&proxy, &[]).ended_by(FLOOD / BATCH, rapid_reset), "rapid reset");
    assert_eq!(other.get("a.test", "/quick").text(), "pod");
    // Each is read before the next is sent, so that none is reset before it was begun.
    let mut slow = Raw::begun(&proxy, &[]);
    let slow_reset = (0..FLOOD).find(|number| {
        let reset = frame(RST_STREAM, NONE, 1 + 2 * number, &[0, 0, 0, 8]);
        slow.0.write_all(&[get(1 + 2 * number), frame(PING, NONE, 0, &[0; 8])].concat()).is_err()
            || !std::iter::from_fn(|| slow.next()).any(|frame| frame.kind == PING)
            || slow.0.write_all(&reset).is_err()
    });
    assert!(slow_reset.is_some_and(|number| number < 20_000), "slow reset: {slow_reset:?}");
    assert_eq!(other.get("a.test", "/quick").text(), "pod");
    let continuation = |number: u32| match number {
        0 => frame(HEADERS, END_STREAM, 1, &fields(GET)),
        _ => frame(CONTINUATION, NONE, 1, &[]).repeat(BATCH as usize),
    };
    assert!(Raw::begun(&proxy, &[]).ended_by(FLOOD / BATCH, continuation), "CONTINUATION");
    let long_continuation = |number: u32| match number {
        0 => frame(HEADERS, END_STREAM, 1, &fields(GET)),
        // A literal field without indexing, of some length.
        _ => frame(CONTINUATION, NONE, 1, &[&[0, 3, b'x', b'-', b'y', 100][..], &[b'z'; 100]].concat().repeat(100)),
    };
    assert!(Raw::begun(&proxy, &[]).ended_by(FLOOD / BATCH, long_continuation), "long CONTINUATION");
    let empty_data = |number: u32| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &fields(POST)),
        _ => frame(DATA, NONE, 1, &[]).repeat(BATCH as usize),
    };
    assert!(Raw::begun(&proxy, &[]).ended_by(FLOOD / BATCH, empty_data), "empty DATA");
    assert_eq!(other.get("a.test", "/quick").text(), "pod");
}

#[test]
fn an_hpack_bomb_reaches_no_pod() {
    let (proxy, origin) = flooded();
    let mut client = Raw::begun(&proxy, &[]);
    // A field of 4000 bytes that is indexed, as entry 62, and then referenced again and again.
    let bomb = [&fields(GET), &[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000], &[0xbe; 12_000]].concat();
    client.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb));
    let answer = std::iter::from_fn(|| client.next()).find(|frame| matches!(frame.kind, HEADERS | RST_STREAM | GOAWAY));
    // `:status: 431`, with a name from the static table.
    assert!(answer.is_none_or(|frame| frame.kind != HEADERS || frame.payload.starts_with(b"\x08\x03431")));
    let bombs = |number: u32| {
        frame(HEADERS, END_STREAM | END_HEADERS, 3 + 2 * number, &[fields(GET), vec![0xbe; 16_000]].concat())
    };
    assert!(client.ended_by(FLOOD, bombs));
    assert_eq!((origin.heads().len(), proxy.client().get("a.test", "/quick").text()), (0, "pod"));
}

#[test]
fn window_updates_for_a_large_response_are_no_flood() {
    const SIZE: usize = 30_000_000;
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            peer.send(vec![b'x'; SIZE]);
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = Raw::begun(&proxy, &[]);
    client.send(&get(1));
    let (mut received, mut updates) = (0, 0);
    while received < SIZE {
        let frame_read = client.next().expect("more");
        if frame_read.kind != DATA {
            continue;
        }
        received += frame_read.payload.len();
        // Eager clients do this: both windows, for every 2 KiB.
        for part in frame_read.payload.chunks(2048).filter(|part| !part.is_empty()) {
            let increment = u32::try_from(part.len()).expect("short").to_be_bytes();
            client
                .send(&[frame(WINDOW_UPDATE, NONE, 0, &increment), frame(WINDOW_UPDATE, NONE, 1, &increment)].concat());
            updates += 2;
        }
    }
    assert!(updates > 29_000, "{updates}");
    assert_eq!(proxy.shared.stats().flooded, 0);
}

#[test]
fn streams_without_window_time_out() {
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            // More than one frame, so that the response is not handed over whole.
            peer.answer(&"x".repeat(40_000));
        }
    });
    let settings = Settings { stall_timeout: 2 * SHORT, ..Settings::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    let mut client = Raw::begun(&proxy, &[0, 4, 0, 0, 0, 0]);
    client.send(&(0..100).flat_map(|number| get(1 + 2 * number)).collect::<Vec<_>>());
    let (mut answered, mut reset) = (0, 0);
    while reset < 100 {
        match client.next().expect("more").kind {
            HEADERS => answered += 1,
            RST_STREAM => reset += 1,
            kind => assert_ne!(kind, DATA),
        }
    }
    assert_eq!((answered, proxy.shared.stats().timed_out), (100, 100));
    wait_until("all are over", || proxy.count(1).active == 0);
    assert_eq!(proxy.count(1).requests.aborted, 100);
    // The connection goes on.
    client.send(&frame(PING, NONE, 0, &[7; 8]));
    assert_eq!(client.until(PING).payload, [7; 8]);
}
