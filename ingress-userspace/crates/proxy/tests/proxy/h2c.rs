//! Pods that speak HTTP/2 in the clear.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http2::Builder, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress_model::{Forwarding, Protocol, Settings};

use ingress_proxy_testing::tls::http2;
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, serve_connections, wait_settled, wait_until};

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An endpoint that speaks HTTP/2 alone.
struct Http2 {
    address: SocketAddr,
    opened: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Http2 {
    /// Starts an endpoint with `streams` concurrent streams per connection. `service` answers; its first argument is
    /// the number of the connection, from 1.
    fn start<F>(streams: u32, service: impl Fn(usize, Request<Incoming>) -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = Option<Reply>> + Send + 'static,
    {
        let (opened, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (all, now) = (Arc::clone(&opened), Arc::clone(&open));
        let address = serve_connections(move |stream| {
            let number = all.fetch_add(1, SeqCst) + 1;
            now.fetch_add(1, SeqCst);
            let (open, service) = (Arc::clone(&now), service.clone());
            async move {
                let service = service_fn(move |request| {
                    let answer = service(number, request);
                    async move { answer.await.ok_or("no answer") }
                });
                let mut builder = Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(streams);
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
                open.fetch_sub(1, SeqCst);
            }
        });
        Self { address, opened, open }
    }

    /// Answers with the request.
    fn mirror(streams: u32) -> Self {
        Self::start(streams, |_, request| async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
            for (name, value) in &parts.headers {
                text += &format!("{name}: {}\n", value.to_str().expect("text"));
            }
            Some(reply(text + &format!("{} bytes", body.len())))
        })
    }

    fn proxy(&self, settings: Settings) -> Proxy {
        let table = Table::default().host("a.test", &[self.address]).speaking(Protocol::H2c);
        Proxy::start(&table.settings(settings))
    }
}

fn reply(body: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(body.into()).boxed_unsync())
}

#[test]
fn an_http1_request_becomes_an_http2_stream() {
    let origin = Http2::mirror(100);
    let proxy = origin.proxy(Settings::default());
    let mut client = proxy.client();
    client.send("POST //x/../y?z HTTP/1.1\r\nHost: A.test:81\r\nConnection: x-drop\r\nX-Drop: 1\r\nContent-Length: 3\r\nCookie: a=1\r\n\r\nabc");
    let response = client.response();
    let text = response.text();
    assert!(text.starts_with("POST http://a.test:81/y?z HTTP/2.0\n"), "{text}");
    assert!(text.ends_with("\n3 bytes"), "{text}");
    for field in ["x-forwarded-for: 127.0.0.1", "x-forwarded-host: a.test:81", "content-length: 3", "cookie: a=1"] {
        assert!(text.contains(&format!("\n{field}\n")), "{field}: {text}");
    }
    for absent in ["\nhost:", "\nconnection:", "x-drop", "\nte:"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    assert_eq!(response.header("server"), Some("xdp-ingress"));
    assert!(response.header("content-length").is_some() && response.header("date").is_some());
    let text = client.send("GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n\r\n").response().text().to_owned();
    assert!(text.contains("\nte: trailers\n") && !text.contains("content-length"), "{text}");
    let chunked = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert!(client.send(chunked).response().text().ends_with("\n3 bytes"));
    assert_eq!(origin.opened.load(SeqCst), 1);
    assert_eq!((proxy.count(1).requests.success, proxy.count(1).bytes_in), (3, 6));
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let origin = Http2::start(100, |_, request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let body = request.into_body().collect().await.ok()?;
        let sent = body.trailers().and_then(|trailers| trailers.get("x-sum")).cloned()?;
        let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), sent)]);
        let body = Full::new(body.to_bytes()).with_trailers(async { Some(Ok(trailers)) });
        Some(Response::new(body.boxed_unsync()))
    });
    let proxy = origin.proxy(Settings::default());
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let mut client = ingress_proxy_testing::tls::http2_with(&proxy, builder).await;
    let trailers = HeaderMap::from_iter([("x-sum".parse().expect("a name"), "7".parse().expect("a value"))]);
    let body = Full::new(Bytes::from_static(b"ping")).with_trailers(async { Some(Ok::<_, Infallible>(trailers)) });
    let request = Request::post("https://a.test/s/m").header("te", "trailers").body(body.boxed_unsync());
    let response = client.send_request(request.expect("valid request")).await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.trailers().and_then(|trailers| trailers.get("grpc-status")).map(|v| v.as_bytes()), Some(&b"7"[..]));
    assert_eq!(body.to_bytes(), "ping");
}

#[tokio::test]
async fn requests_beyond_the_stream_limit_are_all_served() {
    for (streams, connections) in [(100, 1), (5, 18)] {
        let origin = Http2::mirror(streams);
        let proxy = origin.proxy(Settings::default());
        let client = http2(&proxy).await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..90 {
            let mut client = client.clone();
            tasks.spawn(async move {
                let request = Request::get(format!("https://a.test/{number}")).body(Full::default());
                let response = client.send_request(request.expect("valid request")).await.expect("a response");
                assert_eq!(response.status(), StatusCode::OK, "{number}");
                response.into_body().collect().await.expect("a body");
            });
        }
        assert_eq!(tasks.join_all().await.len(), 90);
        assert!((1..=connections).contains(&origin.opened.load(SeqCst)), "{}", origin.opened.load(SeqCst));
    }
}

#[test]
fn large_bodies_pass_whole() {
    let origin =
        Http2::start(
            100,
            |_, request| async move { Some(reply(request.into_body().collect().await.ok()?.to_bytes())) },
        );
    let proxy = origin.proxy(Settings::default());
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", body.len())).send(&body);
    assert!(client.response().body == body);
    assert_eq!((proxy.count(1).bytes_in, proxy.count(1).bytes_out), (3_000_000, 3_000_000));
}

#[test]
fn an_endpoint_without_http2_is_a_502() {
    let origin = Origin::start(|peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        peer.until_closed();
    });
    let table = Table::default().host("a.test", &[origin.address]).host("b.test", &[Origin::refusing()]);
    let proxy = Proxy::start(&table.speaking(Protocol::H2c));
    assert_eq!(proxy.client().get("a.test", "/").status, 502);
    assert_eq!(proxy.client().get("b.test", "/").status, 502);
}

#[test]
fn occupied_streams_delay_no_other_request() {
    const OCCUPIED: usize = 40;
    let served = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&served);
    let origin = Http2::start(2, move |_, request| {
        let served = Arc::clone(&count);
        async move {
            if request.uri().path() == "/occupied" {
                served.fetch_add(1, SeqCst);
                std::future::pending::<()>().await;
            }
            Some(reply("pod"))
        }
    });
    let proxy = origin.proxy(Settings::default());
    let mut clients: Vec<_> = (0..OCCUPIED).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.send("GET /occupied HTTP/1.1\r\nHost: a.test\r\n\r\n");
    }
    wait_until("all streams are occupied", || served.load(SeqCst) == OCCUPIED);
    for _ in 0..3 {
        assert_eq!(proxy.client().get("a.test", "/").text(), "pod");
    }
    assert!(origin.opened.load(SeqCst) <= OCCUPIED + 1, "{}", origin.opened.load(SeqCst));
}

#[test]
fn a_silent_stream_is_a_504_and_affects_no_other() {
    let origin = Http2::start(100, |_, request| async move {
        if request.uri().path() == "/silent" {
            std::future::pending::<()>().await;
        }
        Some(reply("pod"))
    });
    // Long enough that a slow machine is not taken for a slow pod.
    let short = Duration::from_secs(1);
    let table = Table::default().host("a.test", &[origin.address]).speaking(Protocol::H2c);
    let proxy = Proxy::start(&table.forwarding("a.test", Forwarding { read_timeout: short, ..Forwarding::default() }));
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").text(), "pod");
    assert_eq!(client.get("a.test", "/silent").status, 504);
    assert_eq!(client.get("a.test", "/").status, 200);
    assert_eq!(origin.opened.load(SeqCst), 1);
}

#[test]
fn a_reset_stream_is_not_retried() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let origin = Http2::start(100, move |_, _| {
        count.fetch_add(1, SeqCst);
        async { None }
    });
    let proxy = origin.proxy(Settings::default());
    assert_eq!(proxy.client().get("a.test", "/").status, 502);
    assert_eq!(asked.load(SeqCst), 1);
}

#[test]
fn idle_connections_are_closed() {
    let origin = Http2::mirror(100);
    let settings = Settings { upstream_idle_timeout: Duration::from_millis(100), ..Settings::default() };
    let proxy = origin.proxy(settings);
    let mut client = proxy.client();
    for connections in 1..=2 {
        assert_eq!(client.get("a.test", "/").status, 200);
        assert_eq!(origin.opened.load(SeqCst), connections);
        wait_until("the connection is closed", || origin.open.load(SeqCst) == 0);
    }
}

#[test]
fn clients_that_read_nothing_delay_no_other() {
    let origin = Http2::start(100, |_, request| async move {
        let length = if request.uri().path() == "/large" { 20_000_000 } else { 3 };
        Some(reply(vec![b'x'; length]))
    });
    let proxy = origin.proxy(Settings::default());
    // The unread rest is more than sockets and windows hold.
    let idle: Vec<_> = (0..8)
        .map(|_| {
            let mut client = proxy.client();
            client.send("GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n");
            client
        })
        .collect();
    wait_until("the large responses have begun", || proxy.count(1).active == 8);
    wait_settled("what sockets and windows hold is under way", || proxy.count(1).bytes_out);
    let mut client = proxy.client();
    for _ in 0..20 {
        assert_eq!(client.get("a.test", "/small").text(), "xxx");
    }
    assert_eq!(origin.opened.load(SeqCst), 1, "they share a connection");
    drop(idle);
}

#[test]
fn a_blocked_upload_ends_with_its_client() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bound");
    let address = listener.local_addr().expect("address");
    let (tell, told) = mpsc::channel();
    // Grants ten bytes and no more, answers before the end of the request, and keeps answering.
    thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accepted");
        stream.set_nonblocking(true).expect("non-blocking");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            let mut builder = h2::server::Builder::new();
            let mut connection =
                builder.initial_window_size(10).handshake::<_, Bytes>(stream).await.expect("a handshake");
            let (request, mut respond) = connection.accept().await.expect("a request").expect("a request");
            tokio::spawn(async move { while connection.accept().await.is_some() {} });
            let mut response = respond.send_response(Response::new(()), false).expect("sent");
            let mut body = request.into_body();
            let first = body.data().await.expect("data").expect("data");
            tell.send(Ok(first.len())).expect("awaited");
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            loop {
                tokio::select! {
                    next = body.data() => {
                        let reason = next.expect("no end").map(|data| data.len()).map_err(|error| error.reason());
                        return tell.send(reason).expect("awaited");
                    }
                    _ = ticks.tick() => drop(response.send_data(Bytes::from_static(b"x"), false)),
                }
            }
        });
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[address]).speaking(Protocol::H2c));
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000\r\n\r\n0123456789");
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Ok(10)));
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).expect("timeout set");
    while std::io::Write::write(&mut client.stream, &[b'x'; 64 * 1024]).is_ok() {}
    drop(client);
    assert_eq!(told.recv_timeout(DEADLINE), Ok(Err(Some(h2::Reason::CANCEL))));
    wait_until("the request is over", || proxy.count(1).active == 0);
}
