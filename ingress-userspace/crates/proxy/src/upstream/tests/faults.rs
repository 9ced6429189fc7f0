//! Tests of upstreams that are slow, close, reset or answer early, and of the facts reported for a retry.

use super::*;

fn run_paused<F: Future>(future: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(3600), future).await.expect("the test ends in time")
    })
}

/// A body that never returns a frame.
struct Silent;

impl http_body::Body for Silent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

impl Outgoing for Silent {}

#[test]
fn a_silent_upstream_fails_after_the_read_timeout() {
    run_paused(async {
        let origin = Origin::new(Peer::linger).await;
        let begin = tokio::time::Instant::now();
        let failure = get(&pool(), &origin).await.expect_err("no answer");
        assert!(matches!(failure.error, ExchangeError::Timeout { what: TimeoutPhase::Head }), "{failure:?}");
        assert!(failure.written && !failure.reused && failure.unsent.is_some());
        let waited = begin.elapsed();
        assert!((60..62).contains(&waited.as_secs()), "{waited:?}");
    });
}

#[test]
fn a_stalled_body_is_an_error() {
    run_paused(async {
        let origin = Origin::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello").await;
        let pool = pool();
        let mut body = get(&pool, &origin).await.expect("response").into_body();
        body.frame().await.expect("frame").expect("sound");
        let error = body.frame().await.expect("not the end").expect_err("stalled");
        assert!(matches!(error, BodyError::Timeout { what: TimeoutPhase::Body }), "{error:?}");
        assert!(body.frame().await.is_none() && !http_body::Body::is_end_stream(&body));
        assert_eq!(pool.idle_total(), 0);
    });
}

#[test]
fn an_upstream_that_reads_nothing_fails_after_the_send_timeout() {
    run_paused(async {
        let origin = Origin::new(|peer| async move {
            let _open = peer;
            std::future::pending::<()>().await;
        })
        .await;
        let body = Full::new(Bytes::from(vec![0; 64 << 20]));
        let failure = send(&pool(), &origin, Method::POST, body).await.expect_err("never taken");
        assert!(matches!(failure.error, ExchangeError::Timeout { what: TimeoutPhase::Send }), "{:?}", failure.error);
        assert!(failure.written && failure.unsent.is_none());
    });
}

#[test]
fn waiting_for_the_client_is_not_blamed_on_the_upstream() {
    run_paused(async {
        let origin = Origin::new(Peer::linger).await;
        let limits = ExchangeLimits { client_timeout: Duration::from_secs(90), ..ExchangeLimits::default() };
        let begin = tokio::time::Instant::now();
        let connection =
            pool().connect(plain(origin.address), ExchangeLimits::default().connect_timeout).await.expect("connect");
        let sent = exchange(connection, limits, &Method::POST, line(&Method::POST), Silent).await;
        let failure = sent.expect_err("the body never comes");
        assert!(matches!(failure.error, ExchangeError::Starved), "{:?}", failure.error);
        let waited = begin.elapsed();
        assert!((90..92).contains(&waited.as_secs()), "{waited:?}");
    });
}

#[test]
fn a_stalled_client_ends_the_response() {
    run_paused(async {
        let origin = Origin::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello").await;
        let pool = pool();
        let mut body = send(&pool, &origin, Method::POST, Silent).await.expect("response").into_body();
        body.frame().await.expect("frame").expect("sound");
        let error = body.frame().await.expect("not the end").expect_err("starved");
        assert!(matches!(error, BodyError::Starved), "{error:?}");
        assert_eq!(pool.idle_total(), 0);
    });
}

/// Returns the failure of a second request on a kept connection that the server closes, or resets if `reset` is set.
async fn second(reset: bool) -> ExchangeFailure<Empty<Bytes>> {
    let origin = Origin::new(move |mut peer| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        peer.request().await;
        if reset {
            peer.stream.set_zero_linger().expect("linger");
        }
    })
    .await;
    let pool = pool();
    get(&pool, &origin).await.expect("response");
    get(&pool, &origin).await.expect_err("closed")
}

#[test]
fn failures_report_whether_a_retry_is_safe() {
    run(async {
        let closed = second(false).await;
        assert!(matches!(closed.error, ExchangeError::Closed), "{closed:?}");
        assert!(closed.reused && closed.written && closed.unsent.is_some());
        let reset = second(true).await;
        assert!(matches!(reset.error, ExchangeError::Reset), "{reset:?}");
        assert!(reset.reused && reset.written && reset.unsent.is_some());

        let origin = Origin::new(|mut peer| async move {
            peer.request().await;
            peer.send(b"HT").await;
        })
        .await;
        let begun = get(&pool(), &origin).await.expect_err("broken off");
        assert!(begun.unsent.is_none() && !begun.reused && begun.written, "{begun:?}");

        let origin = Origin::new(|mut peer| async move { drop(peer.request().await) }).await;
        let body = Full::new(Bytes::from_static(b"once"));
        let taken = send(&pool(), &origin, Method::PUT, body).await.expect_err("closed");
        assert!(taken.unsent.is_none() && taken.written, "{taken:?}");
        assert!(taken.to_string().contains("its body begun"), "{taken}");
    });
}

#[test]
fn a_connection_reset_within_the_body_is_an_error() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.request().await;
            peer.send(b"HTTP/1.1 200 OK\r\n\r\nunframed").await;
            peer.request().await;
            peer.stream.set_zero_linger().expect("linger");
        })
        .await;
        let body = Full::new(Bytes::from_static(b"\r\n\r\n"));
        let response = send(&pool(), &origin, Method::POST, body).await.expect("response");
        let error = response.into_body().collect().await.expect_err("not an end");
        assert!(matches!(error, BodyError::Reset), "{error:?}");
    });
}
