//! HTTPS and HTTP/2: the certificate for a name, tickets, streams.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ingress_model::{Certificate, HostPattern, Settings};
use ingress_proxy::Options;
use rustls::HandshakeKind;
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use crate::drain::refuses;
use ingress_proxy_testing::tls::{config, connect, http2, http2_with};
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, until, wait_until};

/// For silent clients. [`LONGER`] is for active ones, lest a slow machine is taken for a slow client.
const SHORT: Duration = Duration::from_millis(100);
const LONGER: Duration = Duration::from_millis(500);

fn with_certificate(mut table: Table, host: &str) -> (Table, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec![host.replace('*', "any")]).expect("certificate");
    let origin = format!("default/{host}");
    let certificate =
        Certificate::from_pem(&origin, made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes());
    let certificate = Arc::new(certificate.expect("valid pem"));
    let pattern = HostPattern::parse(host).expect("valid host");
    table.0.server_names.insert(pattern, Some(Arc::clone(&certificate.origin)));
    table.0.certificates.insert(Arc::clone(&certificate.origin), certificate);
    (table, made.cert.der().clone())
}

fn leaf(stream: &TlsStream<TcpStream>) -> &CertificateDer<'static> {
    &stream.get_ref().1.peer_certificates().expect("a chain")[0]
}

#[tokio::test]
async fn the_server_name_chooses_the_certificate() {
    let origin = Origin::answering("pod");
    let table = Table::default().host("a.test", &[origin.address]);
    let (table, exact) = with_certificate(table, "a.test");
    let (table, wildcard) = with_certificate(table, "*.a.test");
    let proxy = Proxy::start(&table);
    let config = config(&[]);
    assert_eq!(leaf(&connect(&proxy, &config, "a.test").await), &exact);
    assert_eq!(leaf(&connect(&proxy, &config, "A.test").await), &exact);
    assert_eq!(leaf(&connect(&proxy, &config, "x.a.test").await), &wildcard);
    for unknown in ["y.x.a.test", "b.test", "127.0.0.1"] {
        let stream = connect(&proxy, &config, unknown).await;
        let text = String::from_utf8_lossy(leaf(&stream)).into_owned();
        assert!(text.contains("xdp-ingress fallback"), "{unknown}");
    }
    let (renewed, new) = with_certificate(table, "a.test");
    proxy.publish(&renewed);
    assert_eq!(leaf(&connect(&proxy, &config, "a.test").await), &new);
}

#[tokio::test]
async fn the_fallback_certificate_is_that_of_the_table() {
    let (table, _) = with_certificate(Table::default(), "a.test");
    let (mut table, fallback) = with_certificate(table, "b.test");
    table.0.fallback_certificate =
        table.0.server_names.remove(&HostPattern::parse("b.test").expect("valid host")).flatten();
    table.0.server_names.insert(HostPattern::parse("c.test").expect("valid host"), None);
    let proxy = Proxy::start(&table);
    let config = config(&[]);
    assert_ne!(leaf(&connect(&proxy, &config, "a.test").await), &fallback);
    for name in ["b.test", "c.test", "127.0.0.1"] {
        assert_eq!(leaf(&connect(&proxy, &config, name).await), &fallback, "{name}");
    }
    proxy.publish(&Table::default());
    let stream = connect(&proxy, &config, "b.test").await;
    assert!(String::from_utf8_lossy(leaf(&stream)).contains("xdp-ingress fallback"));
}

#[tokio::test]
async fn alpn_follows_the_settings() {
    let table = Table::default();
    let proxy = Proxy::start(&table);
    let config = config(&["h2", "http/1.1"]);
    for (http2, expect) in [(true, b"h2".as_slice()), (false, b"http/1.1"), (true, b"h2")] {
        proxy.publish(&table.clone().settings(Settings { http2, ..Settings::default() }));
        let stream = connect(&proxy, &config, "a.test").await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(expect), "{http2}");
    }
}

#[tokio::test]
async fn x_forwarded_proto_is_https_and_sessions_are_resumed() {
    let origin = Origin::mirror();
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let config = config(&["http/1.1"]);
    for expect in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut stream = connect(&proxy, &config, "a.test").await;
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(expect));
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").await.expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a clean end");
        assert!(response.contains("x-forwarded-proto: https\r\n"), "{response}");
        let port = format!("x-forwarded-port: {}\r\n", proxy.https.port());
        assert!(response.contains(&port), "{response}");
    }
}

#[tokio::test]
async fn http2_streams_become_http1_requests() {
    let origin = Origin::mirror();
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let client = http2(&proxy).await;
    let requests = (0..50).map(|number| {
        let mut client = client.clone();
        async move {
            let request = Request::get(format!("https://A.test/{number}"))
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .body(Full::default())
                .expect("valid request");
            let response = client.send_request(request).await.expect("a response");
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()["server"], "xdp-ingress");
            String::from_utf8(response.into_body().collect().await.expect("a body").to_bytes().into()).expect("text")
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    requests.for_each(|request| drop(tasks.spawn(request)));
    let heads = tasks.join_all().await;
    assert_eq!(heads.len(), 50);
    for head in heads {
        assert!(head.contains(" http/1.1\r\nhost: a.test\r\n"), "{head}");
        assert!(head.contains("\r\ncookie: a=1; b=2\r\n"), "{head}");
    }
    assert_eq!(proxy.count(1).requests.success, 50);
}

#[tokio::test]
async fn http2_requests_with_conflicting_authorities_are_refused() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).host("evil.test", &[origin.address]));
    let mut client = http2(&proxy).await;
    for (uri, host, status) in [
        ("https://a.test/", Some("evil.test"), 400),
        ("https://a.test/", Some("a.test"), 200),
        ("https://a.test/", None, 200),
        ("https://user@a.test/", None, 400),
        ("https://a.test/%2e%2e/", None, 400),
    ] {
        let mut request = Request::get(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let response = client.send_request(request.body(Full::default()).expect("valid request")).await;
        assert_eq!(response.expect("a response").status(), status, "{uri} {host:?}");
    }
    assert_eq!(origin.heads().len(), 2);
}

#[tokio::test]
async fn an_http2_upload_arrives_whole() {
    let origin = Origin::start(|peer| {
        while let Some((_, body)) = peer.request() {
            peer.answer(&format!("{} bytes", body.len()));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = http2(&proxy).await;
    let request = Request::post("https://a.test/").body(Full::from(vec![7; 1_000_000])).expect("valid request");
    let response = client.send_request(request).await.expect("a response");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "1000000 bytes");
    assert_eq!(proxy.count(1).bytes_in, 1_000_000);
}

#[tokio::test]
async fn missing_and_invalid_handshakes_end_in_time() {
    let options = Options { handshake_timeout: SHORT, ..Options::default() };
    let proxy = Proxy::start_with(&Table::default(), &options, None);
    let mut silent = TcpStream::connect(proxy.https).await.expect("connected");
    let mut buffer = Vec::new();
    silent.read_to_end(&mut buffer).await.expect("closed");
    let mut plain = TcpStream::connect(proxy.https).await.expect("connected");
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    drop(plain.read_to_end(&mut buffer).await);
    wait_until("both are counted", || proxy.shared.stats().handshake_errors == 2);
}

#[tokio::test]
async fn a_late_handshake_times_out_once() {
    // The worker ticks every 10 ms, and so finds the client late many times.
    let settings = Settings { head_timeout: SHORT, stall_timeout: Duration::from_millis(40), ..Settings::default() };
    let options = Options { handshake_timeout: SHORT * 3, ..Options::default() };
    let proxy = Proxy::start_with(&Table::default().settings(settings), &options, None);
    let mut silent = TcpStream::connect(proxy.https).await.expect("connected");
    silent.read_to_end(&mut Vec::new()).await.expect("closed");
    wait_until("it is over", || proxy.shared.stats().connections == 0);
    let stats = proxy.shared.stats();
    assert_eq!((stats.timed_out, stats.handshake_errors), (1, 1));
}

#[tokio::test]
async fn draining_finishes_http2_streams_and_ends_the_connection() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.request();
        wait.lock().expect("unpoisoned").recv().expect("told to go on");
        peer.answer("late");
    });
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = http2(&proxy).await;
    let request = Request::get("https://a.test/").body(Full::default()).expect("valid request");
    let response = tokio::spawn(client.send_request(request));
    until("the pod is asked", || !origin.heads().is_empty()).await;
    let mut server = proxy.server.take().expect("running");
    let drained = tokio::spawn(async move { server.drain(DEADLINE).await });
    until("the listeners are closed", || refuses(&proxy)).await;
    go.send(()).expect("sent");
    let response = response.await.expect("joined").expect("a response");
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "late");
    assert_eq!(drained.await.expect("joined").cut, 0);
    client.ready().await.expect_err("the connection has ended");
}

/// A body that begins and then neither goes on nor ends.
struct Stuck(Option<Bytes>);

impl Body for Stuck {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(Frame::data(data)))))
    }
}

#[tokio::test]
async fn a_stalled_http2_upload_times_out() {
    // The pod of the first host waits for the whole request, that of the second begins its response before.
    let waiting = Origin::start(|peer| drop(peer.request()));
    let begun = Origin::start(|peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        peer.until_closed();
    });
    let table = Table::default().host("a.test", &[waiting.address]).host("b.test", &[begun.address]);
    let proxy = Proxy::start(&table.settings(Settings { stall_timeout: LONGER, ..Settings::default() }));
    let mut client = http2_with(&proxy, Builder::new(TokioExecutor::new())).await;
    for (host, status, whole, timed_out) in
        [("a.test", 408, true, 1), ("b.test", 200, false, 2), ("a.test", 408, true, 3)]
    {
        let stuck = Stuck(Some(Bytes::from_static(b"abc")));
        let request = Request::post(format!("https://{host}/")).body(stuck).expect("valid request");
        let response = timeout(DEADLINE, client.send_request(request)).await.expect("in time").expect("a response");
        assert_eq!(response.status(), status, "{host}");
        let body = timeout(DEADLINE, response.into_body().collect()).await.expect("in time");
        assert_eq!(body.is_ok(), whole, "{host}");
        assert_eq!(proxy.shared.stats().timed_out, timed_out, "{host}");
    }
}

#[tokio::test]
async fn an_unread_http2_response_ends_alone() {
    const SIZE: usize = 1 << 20;
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let size = if head.contains("/large") { SIZE } else { 10 };
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"));
            peer.send(vec![b'x'; size]);
        }
    });
    let table = Table::default().host("a.test", &[origin.address]);
    let proxy = Proxy::start(&table.settings(Settings { stall_timeout: 2 * LONGER, ..Settings::default() }));
    // Unread bodies close their stream's window; that of the connection stays open.
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1024).initial_connection_window_size(1 << 20);
    let mut client = http2_with(&proxy, builder).await;
    let request = |path: &str| Request::get(format!("https://a.test{path}")).body(Full::<Bytes>::default());
    let stuck = client.send_request(request("/large").expect("valid request")).await.expect("a response");
    let deadline = std::time::Instant::now() + DEADLINE;
    while proxy.shared.stats().timed_out == 0 {
        assert!(std::time::Instant::now() < deadline, "the stream was not ended");
        let response = client.send_request(request("/small").expect("valid request")).await.expect("a response");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes().len(), 10);
    }
    let response = client.send_request(request("/large").expect("valid request")).await.expect("a response");
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes().len(), SIZE);
    stuck.into_body().collect().await.expect_err("the stream was reset");
    assert_eq!((proxy.count(1).requests.aborted, proxy.shared.stats().timed_out), (1, 1));
}

#[tokio::test]
async fn pings_do_not_keep_an_idle_http2_connection() {
    let proxy = Proxy::start(&Table::default().settings(Settings { idle_timeout: LONGER, ..Settings::default() }));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(LONGER / 10).keep_alive_while_idle(true);
    let mut client: SendRequest<Full<Bytes>> = http2_with(&proxy, builder).await;
    let request = Request::get("https://a.test/").body(Full::default()).expect("valid request");
    assert_eq!(client.send_request(request).await.expect("a response").status(), StatusCode::NOT_FOUND);
    let closed = async {
        while client.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, closed).await.expect("the connection ends");
    assert_eq!(proxy.shared.stats().timed_out, 0);
}
