//! Requests and responses.

use std::{
    fs,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use h3::error::{Code, StreamError};
use http::{HeaderMap, Method, Response};
use ingress_common::HostL7;
use ingress_model::{AccessLog, Protocol, Settings};
use ingress_proxy_testing::{DEADLINE, Origin, Table, serve_connections, until};

use super::{Client, pattern, request, start};
use crate::early::{When, keeping};

const MIB: usize = 1024 * 1024;

fn host(origin: &Origin) -> Table {
    Table::default().host("a.test", &[origin.address])
}

/// A pod that returns each body.
fn echo() -> Origin {
    Origin::start(|peer| {
        while let Some((_, body)) = peer.request() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
            peer.send(body);
        }
    })
}

#[tokio::test]
async fn a_request_is_forwarded_like_those_of_other_versions() {
    let origin = Origin::mirror();
    let settings = Settings { access_log: Some(Arc::new(AccessLog::default())), ..Settings::default() };
    let mut proxy = start(&host(&origin).settings(settings));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let guard = proxy.log_to(file.reopen().expect("a file"));
    let client = Client::connect(&proxy, "a.test").await;
    let got = client.get("a.test", "/x?y").await;
    assert_eq!(got.status(), 200);
    let seen = got.text();
    for line in [
        "get /x?y http/1.1\r\n",
        "\r\nhost: a.test\r\n",
        "\r\nvia: 3.0 xdp-ingress-",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nx-forwarded-proto: https\r\n",
    ] {
        assert!(seen.contains(line), "{line:?} is not in {seen}");
    }
    let port = proxy.http3.expect("an address").port();
    assert!(seen.contains(&format!("\r\nx-forwarded-port: {port}\r\n")), "{seen}");
    for name in ["date", "server", "content-length"] {
        assert!(got.header(name).is_some(), "{name}");
    }
    for name in ["connection", "alt-svc"] {
        assert_eq!(got.header(name), None, "{name}");
    }
    let out = got.body.len() as u64;
    proxy.wait_count(1, HostL7 { requests: [1, 0, 0, 0, 0].into(), bytes_out: out, ..HostL7::default() });
    let stats = proxy.shared.stats();
    assert_eq!((stats.connections, stats.accepted), (1, 1));
    drop(client);
    tokio::task::spawn_blocking(move || proxy.stop()).await.expect("stopped");
    drop(guard);
    let log = fs::read_to_string(file.path()).expect("a log");
    assert!(log.contains("HTTP/3.0"), "{log}");
}

#[tokio::test]
async fn bodies_of_any_size_pass_both_ways() {
    let origin = echo();
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let (mut bytes, mut count) = (0, 0);
    for length in [0, 1, 5, 1_200, 16 * 1024, 100_000, MIB, 5 * MIB] {
        let got = client.post("a.test", "/", pattern(length)).await;
        assert_eq!(got.status(), 200);
        assert!(got.body == pattern(length), "{length}");
        (bytes, count) = (bytes + length as u64, count + 1);
    }
    let expect = HostL7 { requests: [count, 0, 0, 0, 0].into(), bytes_in: bytes, bytes_out: bytes, active: 0 };
    proxy.wait_count(1, expect);
}

#[tokio::test]
async fn a_response_to_head_has_a_length_and_no_body() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        }
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    for host in ["a.test", "other.test"] {
        let got = client.send(request(Method::HEAD, host, "/", Bytes::new())).await.expect("a response");
        assert!(got.header("content-length").is_some_and(|length| length != "0"), "{host}: {got:?}");
        assert_eq!(got.body, b"", "{host}");
    }
}

#[tokio::test]
async fn the_proxy_answers_itself_where_no_rule_does() {
    let proxy = start(&Table::default().host("a.test", &[]));
    let client = Client::connect(&proxy, "a.test").await;
    for (host, status) in [("other.test", 404), ("a.test", 503)] {
        let got = client.get(host, "/").await;
        assert_eq!(got.status(), status, "{host}");
        assert_eq!(got.header("content-length"), Some(&*got.body.len().to_string()), "{host}");
        assert!(got.header("date").is_some(), "{host}");
    }
    let got = client.send(request(Method::TRACE, "a.test", "/", Bytes::new())).await.expect("a response");
    assert_eq!(got.status(), 405);
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            // To the end of the trailers.
            while !peer.received().ends_with(b"x-sum: 42\r\n\r\n") && peer.more() {}
            let received = String::from_utf8(peer.take()).expect("text");
            peer.note(&received);
            assert!(head.contains("transfer-encoding: chunked"), "{head}");
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 43\r\n\r\n");
        }
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let mut asked = request(Method::POST, "a.test", "/", Bytes::from_static(b"body"));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().expect("a value"));
    asked.extensions_mut().insert(trailers);
    let got = client.send(asked).await.expect("a response");
    assert_eq!(
        (got.text(), got.trailers.as_ref().and_then(|trailers| trailers["x-sum"].to_str().ok())),
        ("abc", Some("43"))
    );
    assert!(origin.heads()[1].starts_with("4\r\nbody\r\n"), "{:?}", origin.heads());
}

#[tokio::test]
async fn grpc_passes_with_its_trailers() {
    let pod = serve_connections(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.expect("a handshake");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let mut body = request.into_body();
                let head = Response::builder().header("content-type", "application/grpc").body(()).expect("a head");
                let mut sender = respond.send_response(head, false).expect("sent");
                while let Some(Ok(data)) = body.data().await {
                    body.flow_control().release_capacity(data.len()).expect("released");
                    sender.send_data(data, false).expect("sent");
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().expect("a value"));
                sender.send_trailers(trailers).expect("sent");
            });
        }
    });
    let proxy = start(&Table::default().host("a.test", &[pod]).speaking(Protocol::H2c));
    let client = Client::connect(&proxy, "a.test").await;
    let mut asked = request(Method::POST, "a.test", "/a.Service/Call", pattern(100_000));
    asked.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
    asked.headers_mut().insert("te", "trailers".parse().expect("a value"));
    let got = client.send(asked).await.expect("a response");
    assert!(got.body == pattern(100_000));
    assert_eq!(got.trailers.expect("trailers")["grpc-status"], "0");
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let origin = echo();
    let proxy = start(&host(&origin));
    let client = Arc::new(Client::connect(&proxy, "a.test").await);
    let asked: Vec<_> = (0..300)
        .map(|number| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let got = client.post("a.test", "/", pattern(number)).await;
                assert!(got.body == pattern(number), "{number}");
            })
        })
        .collect();
    for asked in asked {
        asked.await.expect("a response");
    }
    let bytes = (0..300).sum();
    proxy.wait_count(1, HostL7 { requests: [300, 0, 0, 0, 0].into(), bytes_in: bytes, bytes_out: bytes, active: 0 });
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_still_sends() {
    let origin = keeping(When::Before);
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    for _ in 0..3 {
        let mut asked = request(Method::POST, "a.test", "/", pattern(5 * MIB));
        asked.headers_mut().insert("content-length", (5 * MIB).into());
        // The client sends all of its body.
        let got = client.send(asked).await.expect("a response");
        assert_eq!(got.status(), 200, "{}", got.text());
    }
    until("every request is counted", || proxy.count(1).requests == [3, 0, 0, 0, 0].into()).await;
    assert_eq!(proxy.count(1).active, 0);
}

#[tokio::test]
async fn a_client_with_a_long_rest_after_an_early_answer_is_stopped() {
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.answer("early");
            peer.until_closed();
        }
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let mut asked = request(Method::POST, "a.test", "/", Bytes::new()).map(|_| ());
    asked.headers_mut().insert("content-length", (65 * MIB).into());
    let mut stream = client.requests.clone().send_request(asked).await.expect("sent");
    stream.send_data(pattern(100)).await.expect("sent");
    assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
    let stopped = async {
        while stream.send_data(pattern(100)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, stopped).await.expect("it is stopped");
}

#[tokio::test]
async fn a_client_that_cancels_ends_the_request_of_the_pod() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let origin = Origin::start(move |peer| {
        if peer.head().is_some_and(|head| head.contains("/body")) {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        }
        peer.until_closed();
        count.fetch_add(1, SeqCst);
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let mut requests = client.requests.clone();
    // Before the answer, amid the upload.
    let asked = request(Method::POST, "a.test", "/head", Bytes::new()).map(|_| ());
    let mut stream = requests.send_request(asked).await.expect("sent");
    stream.send_data(pattern(100)).await.expect("sent");
    until("the pod has the request", || origin.heads().len() == 1).await;
    stream.stop_stream(Code::H3_REQUEST_CANCELLED);
    until("the pod's connection ends", || ended.load(SeqCst) == 1).await;
    // Amid the answer.
    let asked = request(Method::GET, "a.test", "/body", Bytes::new()).map(|_| ());
    let mut stream = requests.send_request(asked).await.expect("sent");
    stream.finish().await.expect("sent");
    stream.recv_response().await.expect("a response");
    stream.stop_sending(Code::H3_REQUEST_CANCELLED);
    until("the pod's connection ends", || ended.load(SeqCst) == 2).await;
    until("both are counted", || proxy.count(1).requests == [0, 0, 0, 0, 2].into()).await;
    assert_eq!(proxy.count(1).active, 0);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_reset() {
    let origin = Origin::start(|peer| {
        if peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        }
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let error = client.send(request(Method::GET, "a.test", "/", Bytes::new())).await.expect_err("it breaks off");
    assert!(
        matches!(&error, StreamError::RemoteTerminate { code, .. } if *code == Code::H3_INTERNAL_ERROR),
        "{error:?}"
    );
    assert_eq!(client.get("other.test", "/").await.status(), 404, "the connection goes on");
    until("it is counted", || proxy.count(1).requests == [0, 0, 0, 0, 1].into()).await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_stops_the_pod() {
    const LENGTH: usize = 64 * MIB;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let origin = Origin::start(move |peer| {
        if peer.request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"));
            let piece = [b'x'; 64 * 1024];
            while count.load(SeqCst) < LENGTH && peer.stream.write_all(&piece).is_ok() {
                count.fetch_add(piece.len(), SeqCst);
            }
        }
    });
    let proxy = start(&host(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    let mut requests = client.requests.clone();
    let asked = request(Method::GET, "a.test", "/", Bytes::new()).map(|_| ());
    let mut stream = requests.send_request(asked).await.expect("sent");
    stream.finish().await.expect("sent");
    stream.recv_response().await.expect("a response");
    let taken = Arc::clone(&sent);
    tokio::task::spawn_blocking(move || {
        ingress_proxy_testing::wait_settled("the pod waits", || taken.load(SeqCst) as u64);
    })
    .await
    .expect("waited");
    // Windows of the client, of the proxy's stream, and of the kernel's sockets.
    assert!(sent.load(SeqCst) < 24 * MIB, "{}", sent.load(SeqCst));
    let mut received = 0;
    while let Some(data) = stream.recv_data().await.expect("data") {
        received += bytes::Buf::remaining(&data);
    }
    assert_eq!(received, LENGTH);
}
