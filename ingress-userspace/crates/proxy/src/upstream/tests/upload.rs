//! Tests of request bodies: their framing, their timing, and the effect of an early response.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::sync::mpsc;

use super::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A body of unknown length, fed by the test.
struct Fed(mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>);

impl Body for Fed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx)
    }
}

impl Outgoing for Fed {}

fn fed() -> (mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>, Fed) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Fed(receiver))
}

fn data(bytes: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(bytes.as_bytes())))
}

#[test]
fn framing_follows_from_method_and_body() {
    for (method, body, expect) in [
        (Method::GET, "", "\r\n"),
        (Method::HEAD, "", "\r\n"),
        (Method::DELETE, "", "\r\n"),
        (Method::POST, "", "content-length: 0\r\n\r\n"),
        (Method::PUT, "", "content-length: 0\r\n\r\n"),
        (Method::PATCH, "", "content-length: 0\r\n\r\n"),
        (Method::GET, "body", "content-length: 4\r\n\r\nbody"),
        (Method::POST, "body", "content-length: 4\r\n\r\nbody"),
    ] {
        run(async move {
            let origin = Origin::answering(OK).await;
            let pool = pool();
            send(&pool, &origin, method.clone(), Full::new(Bytes::from(body))).await.expect("response");
            let expect = format!("{method} /path?query HTTP/1.1\r\nhost: a.test\r\n{expect}");
            until("the request arrives", || origin.received() == expect).await;
            assert_eq!(pool.idle_total(), 1);
        });
    }
}

#[test]
fn bodies_of_unknown_length_are_chunked_with_their_trailers() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.until(b"x-sum: 7\r\n\r\n").await;
            peer.send(OK).await;
            peer.linger().await;
        })
        .await;
        let (sender, body) = fed();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        trailers.insert("content-length", HeaderValue::from_static("7"));
        for frame in [data("hello"), data(""), data(" world, in hex"), Ok(Frame::trailers(trailers))] {
            sender.send(frame).expect("open");
        }
        let pool = pool();
        send(&pool, &origin, Method::POST, body).await.expect("response");
        let received = origin.received();
        let (_, body) = received.split_once("transfer-encoding: chunked\r\n\r\n").expect("chunked");
        assert_eq!(body, "5\r\nhello\r\ne\r\n world, in hex\r\n0\r\nx-sum: 7\r\n\r\n");
        assert_eq!(pool.idle_total(), 1);
    });
}

#[test]
fn a_slow_upload_arrives_piece_by_piece() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.until(b"\r\n0\r\n\r\n").await;
            peer.send(OK).await;
            peer.linger().await;
        })
        .await;
        let (sender, body) = fed();
        let pool = pool();
        let feeding = async {
            for piece in ["one", "two", "three"] {
                sender.send(data(piece)).expect("open");
                until(piece, || origin.received().contains(piece)).await;
            }
            drop(sender);
        };
        let (response, ()) = tokio::join!(send(&pool, &origin, Method::POST, body), feeding);
        assert_eq!(response.expect("response").status(), 200);
        assert_eq!(pool.idle_total(), 1);
    });
}

#[test]
fn an_early_response_is_delivered_during_the_upload() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.request().await;
            peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n").await;
            peer.until(b"\r\n0\r\n\r\n").await;
            peer.send(b"4\r\nlate\r\n0\r\nx-t: 1\r\n\r\n").await;
            peer.linger().await;
        })
        .await;
        let (sender, body) = fed();
        let pool = pool();
        let mut body = send(&pool, &origin, Method::POST, body).await.expect("early").into_body();
        let early = body.frame().await.expect("frame").expect("sound").into_data().expect("data");
        assert_eq!(early, "early");
        sender.send(data("the rest")).expect("open");
        drop(sender);
        let rest = body.collect().await.expect("whole");
        assert_eq!(rest.trailers().expect("trailers").get("x-t"), Some(&HeaderValue::from_static("1")));
        assert_eq!(rest.to_bytes(), "late");
        assert_eq!(pool.idle_total(), 1);
    });
}

#[test]
fn a_response_that_ends_before_the_upload_closes_the_connection() {
    run(async {
        let origin = Origin::answering(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno").await;
        let (sender, body) = fed();
        sender.send(data("begin")).expect("open");
        let pool = pool();
        let response = send(&pool, &origin, Method::POST, body).await.expect("response");
        assert_eq!(response.status(), 413);
        assert_eq!(response.into_body().collect().await.expect("whole").to_bytes(), "no");
        assert_eq!(pool.idle_total(), 0);
    });
}

#[test]
fn a_response_is_read_after_the_upstream_stops_reading() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.request().await;
            peer.send(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await;
            peer.stream.shutdown().await.ok();
        })
        .await;
        let body = Full::new(Bytes::from(vec![b'x'; 8 << 20]));
        let pool = pool();
        // Depending on the kernel, the response or the reset after it is seen first; no other error may be reported.
        match send(&pool, &origin, Method::POST, body).await {
            Ok(response) => assert_eq!(response.status(), 403),
            Err(failure) => assert!(matches!(failure.error, ExchangeError::Reset), "{:?}", failure.error),
        }
        assert_eq!(pool.idle_total(), 0);
    });
}

#[test]
fn truncated_and_mismatched_request_bodies_fail_the_exchange() {
    run(async {
        let origin = Origin::answering(OK).await;
        let (sender, body) = fed();
        sender.send(data("begin")).expect("open");
        sender.send(Err("client gone".into())).expect("open");
        let pool = pool();
        let failure = send(&pool, &origin, Method::POST, body).await.map(drop);
        // The server responds after the head, so the error may also show up in the response body.
        if let Err(failure) = failure {
            assert!(matches!(failure.error, ExchangeError::RequestBody(_)), "{:?}", failure.error);
            assert!(failure.unsent.is_none());
        }
        assert_eq!(pool.idle_total(), 0);
        for (announced, given) in [(4, "short"), (6, "short")] {
            let body = Announced { announced, given: Some(given) };
            let failure = send(&pool, &origin, Method::POST, body).await.map(drop).expect_err("wrong length");
            assert!(matches!(failure.error, ExchangeError::RequestBody(_)), "{:?}", failure.error);
        }
        assert!(!origin.received().contains("shortx") && pool.idle_total() == 0);
    });
}

struct Announced {
    announced: u64,
    given: Option<&'static str>,
}

impl Body for Announced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.given.take().map(data))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.announced)
    }
}

impl Outgoing for Announced {}

#[test]
fn ten_megabytes_are_transferred_both_ways() {
    const SIZE: usize = 10 << 20;
    for chunked in [false, true] {
        run(async move {
            let origin = Origin::new(move |mut peer| async move {
                peer.request().await;
                while peer.unread.len() < SIZE {
                    assert_ne!(peer.more().await, 0);
                }
                let echo = std::mem::take(&mut peer.unread);
                let head: &[u8] = if chunked { b"transfer-encoding: chunked" } else { b"content-length: 10485760" };
                peer.send(&[b"HTTP/1.1 200 OK\r\n", head, b"\r\n\r\n"].concat()).await;
                for part in echo.chunks(70_001) {
                    if chunked {
                        peer.send(format!("{:x}\r\n", part.len()).as_bytes()).await;
                    }
                    peer.send(part).await;
                    if chunked {
                        peer.send(b"\r\n").await;
                    }
                }
                if chunked {
                    peer.send(b"0\r\n\r\n").await;
                }
                peer.linger().await;
            })
            .await;
            let content: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
            let body = Full::new(Bytes::from(content.clone()));
            let pool = pool();
            let response = send(&pool, &origin, Method::POST, body).await.expect("response");
            let echoed = response.into_body().collect().await.expect("whole").to_bytes();
            assert!(echoed == content, "{} bytes came back", echoed.len());
            assert_eq!(pool.idle_total(), 1);
        });
    }
}
