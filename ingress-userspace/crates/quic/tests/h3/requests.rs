//! Requests and responses that are as they should be.

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, Method, StatusCode};
use ingress_quic::Limits;

use crate::support::{connect, exchange, get, pattern, post, request, run, start, until};

#[test]
fn responses_have_their_head_and_body() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        for length in [0, 1, 1_000, 100_000] {
            let path = format!("/size/{length}");
            let got = get(&client, &path).await.expect("a response");
            assert_eq!(got.head.status(), StatusCode::OK);
            assert_eq!(got.head.headers()["x-path"], path.as_str());
            assert!(!got.head.headers().contains_key("connection"));
            assert_eq!(got.body, pattern(length));
        }
        let got = get(&client, "/404/").await.expect("a response");
        assert_eq!((got.head.status(), got.body.len()), (StatusCode::NOT_FOUND, 0));
        let peers = server.seen.peers.borrow();
        let local = client.endpoint.local_addr().expect("an address");
        assert_eq!(peers[0], (local, local, Some("localhost".to_owned())));
        assert_eq!(server.handle.counters().requests.get(), 5);
        assert_eq!(server.handle.counters().connected.get(), 1);
        assert_eq!(server.handle.counters().half_open.get(), 0);
    });
}

#[test]
fn bodies_of_any_size_pass_both_ways() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        for length in [0, 1, 5, 1_200, 65_536, 10 * 1024 * 1024] {
            let got = post(&client, "/echo/", pattern(length)).await.expect("a response");
            assert_eq!(got.head.status(), StatusCode::OK);
            assert!(got.body == pattern(length), "{length}");
        }
        assert_eq!(server.handle.counters().cancelled.get(), 0);
    });
}

#[test]
fn trailers_pass_both_ways() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        for body in [Bytes::new(), pattern(3_000)] {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "42".parse().expect("a value"));
            let mut asked = request(Method::POST, "/echo/", body.clone());
            asked.extensions_mut().insert(trailers.clone());
            let got = exchange(&client, asked).await.expect("a response");
            assert_eq!(got.body, body);
            assert_eq!(got.trailers, Some(trailers));
        }
    });
}

#[test]
fn many_requests_share_a_connection() {
    run(async {
        // Fewer streams at a time than requests.
        let server = start(Limits { streams_max: 16, ..Limits::default() });
        let client = connect(&server).await;
        let asked = (0..300).map(|number| {
            let client = &client;
            async move {
                let got = match number % 2 {
                    0 => get(client, &format!("/size/{number}")).await,
                    _ => post(client, "/echo/", pattern(number)).await,
                };
                assert_eq!(got.expect("a response").body, pattern(number), "{number}");
            }
        });
        futures_of(asked).await;
        assert_eq!(server.handle.counters().requests.get(), 300);
    });
}

/// Waits for all futures, which take turns.
async fn futures_of<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[test]
fn a_client_that_reads_slowly_bounds_the_response() {
    const LENGTH: usize = 4 * 1024 * 1024;
    /// Bytes that the client takes without reading them, and that wait for their acknowledgement here.
    const CLIENT: u32 = 128 * 1024;
    /// The part of the body that waits to be written.
    const CHUNK: usize = 16 * 1024;
    run(async {
        let server = start(Limits::default());
        let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
        let mut config = crate::support::client_config(&server.certificate);
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(CLIENT.into());
        config.transport_config(std::sync::Arc::new(transport));
        let quic = endpoint.connect_with(config, server.address, "localhost").expect("an address");
        let quic = quic.await.expect("a connection");
        let (_driver, mut requests) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("HTTP/3");
        let asked = request(Method::GET, &format!("/size/{LENGTH}"), Bytes::new()).map(|_| ());
        let mut slow = requests.send_request(asked).await.expect("a stream");
        slow.finish().await.expect("an end");
        slow.recv_response().await.expect("a head");
        until(|| server.seen.given.get() + CHUNK >= CLIENT as usize).await;
        let mut read = 0;
        while let Some(data) = slow.recv_data().await.expect("data") {
            assert!(server.seen.given.get() <= read + 2 * CLIENT as usize + 2 * CHUNK, "{read}");
            read += data.remaining();
        }
        assert_eq!(read, LENGTH);
    });
}

#[test]
fn an_answer_without_the_body_stops_the_client_without_an_error() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        let mut requests = client.requests.clone();
        let asked = request(Method::POST, "/early/", Bytes::new()).map(|_| ());
        let (mut sender, mut receiver) = requests.send_request(asked).await.expect("a stream").split();
        // The body is never finished.
        let send = async {
            loop {
                if let Err(error) = sender.send_data(pattern(64 * 1024)).await {
                    break error;
                }
            }
        };
        let (stopped, got) = tokio::join!(send, receiver.recv_response());
        assert_eq!(got.expect("a response").status(), StatusCode::OK);
        let h3::error::StreamError::RemoteTerminate { code, .. } = stopped else { panic!("{stopped:?}") };
        assert_eq!(code, h3::error::Code::H3_NO_ERROR);
        // The connection has all of its window again.
        let got = post(&client, "/echo/", pattern(2 * 1024 * 1024)).await.expect("a response");
        assert_eq!(got.body.len(), 2 * 1024 * 1024);
    });
}

#[test]
fn a_task_that_reads_a_body_aside_ends_with_the_response() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        // The client hears that its body is not needed, before or after the response.
        let _answer = post(&client, "/aside/", pattern(10 * 1024 * 1024)).await;
        until(|| server.seen.ended.get() == 1).await;
    });
}

#[test]
fn a_cancelled_request_drops_the_future_of_the_service() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        let mut requests = client.requests.clone();
        for cancelled in 1..=4 {
            let asked = request(Method::POST, "/hang/", Bytes::new()).map(|_| ());
            let mut stream = requests.send_request(asked).await.expect("a stream");
            until(|| server.seen.begun.get() == cancelled).await;
            // Half of them reset the request, the others stop the response.
            match cancelled % 2 {
                0 => stream.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED),
                _ => stream.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED),
            }
            until(|| server.seen.ended.get() == cancelled).await;
            if cancelled % 2 == 0 {
                let answered = stream.recv_response().await;
                let Err(h3::error::StreamError::RemoteTerminate { code, .. }) = answered else {
                    panic!("{answered:?}")
                };
                assert_eq!(code, h3::error::Code::H3_REQUEST_CANCELLED);
            }
        }
        assert_eq!(server.handle.counters().cancelled.get(), 4);
        assert_eq!(get(&client, "/size/7").await.expect("a response").body, pattern(7));
    });
}

#[test]
fn a_pod_that_fails_is_an_internal_error_of_the_stream() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        let failed = get(&client, "/fails/").await.expect_err("no response");
        let h3::error::StreamError::RemoteTerminate { code, .. } = failed else { panic!("{failed:?}") };
        assert_eq!(code, h3::error::Code::H3_INTERNAL_ERROR);
        assert_eq!(get(&client, "/size/7").await.expect("a response").body, pattern(7));
    });
}

#[test]
fn a_panic_of_the_service_costs_one_request() {
    run(async {
        let server = start(Limits::default());
        let (client, other) = (connect(&server).await, connect(&server).await);
        let failed = get(&client, "/panic/").await.expect_err("no response");
        let h3::error::StreamError::RemoteTerminate { code, .. } = failed else { panic!("{failed:?}") };
        assert_eq!(code, h3::error::Code::H3_INTERNAL_ERROR);
        assert_eq!(server.handle.counters().panics.get(), 1);
        for client in [&client, &other] {
            assert_eq!(get(client, "/size/7").await.expect("a response").body, pattern(7));
        }
    });
}

#[test]
fn a_connection_is_gone_for_its_requests_after_a_panic_in_it() {
    run(async {
        let server = start(Limits::default());
        let (client, other) = (connect(&server).await, connect(&server).await);
        let mut requests = client.requests.clone();
        let asked = request(Method::POST, "/replace/", Bytes::new()).map(|_| ());
        let _stream = requests.send_request(asked).await.expect("a stream");
        until(|| server.seen.begun.get() == 1).await;
        assert!(server.seen.is_gone.get());
        until(|| server.handle.counters().open.get() == 1).await;
        assert_eq!(get(&other, "/size/7").await.expect("a response").body, pattern(7));
    });
}

#[test]
fn a_panic_within_a_connection_costs_that_connection() {
    run(async {
        let server = start(Limits::default());
        let (client, other) = (connect(&server).await, connect(&server).await);
        let mut requests = client.requests.clone();
        let asked = request(Method::POST, "/wake/", Bytes::new()).map(|_| ());
        let mut stream = requests.send_request(asked).await.expect("a stream");
        until(|| server.seen.begun.get() == 1).await;
        stream.send_data(pattern(10)).await.expect("sent");
        assert_eq!(client.quic.closed().await, quinn::ConnectionError::Reset);
        until(|| server.handle.counters().open.get() == 1).await;
        assert_eq!(server.handle.counters().panics.get(), 1);
        for client in [&other, &connect(&server).await] {
            assert_eq!(get(client, "/size/7").await.expect("a response").body, pattern(7));
        }
    });
}
