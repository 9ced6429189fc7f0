//! Tests of the pool (which connections it keeps, returns and drops) and of the reuse of buffers.

use std::{future::poll_fn, task::Poll};

use super::{buffer::ReadBuffer, *};
use crate::l4::pipe::Pipes;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

async fn get_whole(pool: &Pool, origin: &Origin) {
    let (status, content) = outcome(pool, origin, Method::GET).await.expect("response");
    assert_eq!((status, content.as_str()), (200, "hello"));
}

#[test]
fn a_connection_is_reused_after_the_end_of_its_body() {
    run(async {
        let origin = Origin::answering(RESPONSE).await;
        let pool = pool();
        let first =
            pool.connect(plain(origin.address), ExchangeLimits::default().connect_timeout).await.expect("connect");
        assert!(!first.is_reused());
        drop(first);
        for _ in 0..5 {
            get_whole(&pool, &origin).await;
            assert_eq!(pool.idle_total(), 1);
        }
        assert!(pool.idle(plain(origin.address)).expect("kept").is_reused());
    });
}

#[test]
fn the_last_frame_of_a_known_length_releases_the_connection() {
    run(async {
        let origin = Origin::answering(RESPONSE).await;
        let pool = pool();
        let mut body = get(&pool, &origin).await.expect("response").into_body();
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5));
        assert_eq!(pool.idle_total(), 0);
        body.frame().await.expect("frame").expect("sound");
        assert_eq!(pool.idle_total(), 1);
        assert!(http_body::Body::is_end_stream(&body));
        assert!(body.frame().await.is_none());
    });
}

#[test]
fn a_body_dropped_before_its_end_closes_the_connection() {
    run(async {
        let origin = Origin::answering(RESPONSE).await;
        let pool = pool();
        drop(get(&pool, &origin).await.expect("response"));
        assert_eq!(pool.idle_total(), 0);
    });
}

#[test]
fn a_response_without_a_body_releases_its_connection_once_taken() {
    run(async {
        let origin = Origin::answering(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-a: 1\r\n\r\n").await;
        let (pool, method, limits) = (pool(), Method::GET, ExchangeLimits::default());
        for (is_taken, kept) in [(false, 0), (true, 1)] {
            let connection = pool.connect(plain(origin.address), limits.connect_timeout).await.expect("connect");
            let begun =
                begin(connection, limits, &method, line(&method), Empty::<Bytes>::new()).await.expect("response");
            assert_eq!(begun.status().as_u16(), 404);
            if is_taken {
                let response = begun.into_response();
                assert_eq!(response.status().as_u16(), 404);
                assert_eq!(response.headers()["x-a"], "1");
            } else {
                drop(begun);
            }
            assert_eq!(pool.idle_total(), kept, "{is_taken}");
        }
    });
}

#[test]
fn a_spliced_body_releases_its_buffer() {
    run(async {
        let origin = Origin::new(|mut peer| async move {
            peer.request().await;
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
            peer.linger().await;
        })
        .await;
        let (pool, pipes) = (pool(), Pipes::default());
        let mut body = get(&pool, &origin).await.expect("response").into_body();
        let data = body.frame().await.expect("frame").expect("sound").into_data().expect("data");
        let address = data.as_ptr();
        drop(data);
        let is_pending = poll_fn(|cx| Poll::Ready(body.poll_pipe(cx, &pipes).is_pending())).await;
        assert!(is_pending, "the rest is still to come");
        let mut other = ReadBuffer::default();
        other.prepare(false);
        let begin = other.as_ptr();
        assert!((begin..begin.wrapping_add(other.capacity())).contains(&address));
    });
}

#[test]
fn closed_or_readable_idle_connections_are_not_reused() {
    for late in [None, Some(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")] {
        run(async move {
            let gate = Rc::new(tokio::sync::Notify::new());
            let opened = Rc::clone(&gate);
            let origin = Origin::new(move |mut peer| {
                let opened = Rc::clone(&opened);
                async move {
                    peer.request().await;
                    peer.send(RESPONSE).await;
                    opened.notified().await;
                    if let Some(late) = late {
                        peer.send(late).await;
                        peer.linger().await;
                    }
                }
            })
            .await;
            let pool = pool();
            get_whole(&pool, &origin).await;
            assert_eq!(pool.idle_total(), 1);
            gate.notify_one();
            until("the connection is found unfit", || {
                pool.prune(std::time::Instant::now());
                pool.idle_total() == 0
            })
            .await;
            assert!(pool.idle(plain(origin.address)).is_none());
        });
    }
}

#[test]
fn the_pool_enforces_its_limits_and_idle_timeout() {
    run(async {
        let (a, b) = (Origin::answering(RESPONSE).await, Origin::answering(RESPONSE).await);
        let options = PoolOptions { idle_per_endpoint: 2, idle_total: 3, ..PoolOptions::default() };
        let pool = Pool::new(options);
        for (origin, expect) in [(&a, 2), (&b, 3)] {
            let mut bodies = Vec::new();
            for _ in 0..4 {
                bodies.push(get(&pool, origin).await.expect("response").into_body());
            }
            for body in bodies {
                body.collect().await.expect("body");
            }
            assert_eq!(pool.idle_total(), expect);
        }
        let now = std::time::Instant::now();
        pool.prune(now + Duration::from_secs(59));
        assert_eq!(pool.idle_total(), 3);
        pool.prune(now + Duration::from_secs(61));
        assert_eq!(pool.idle_total(), 0);
    });
}

#[test]
fn refusal_names_the_address() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        drop(listener);
        let error = pool()
            .connect(plain(address), ExchangeLimits::default().connect_timeout)
            .await
            .expect_err("nobody listens");
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("`{address}` refused the connection"));
    });
}

#[test]
fn idle_connections_are_closed_when_descriptors_run_out() {
    run(async {
        let origin = Origin::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        for (code, kept) in [(libc::EMFILE, 0), (libc::ENFILE, 0), (libc::EADDRNOTAVAIL, 1), (libc::ECONNREFUSED, 1)] {
            let pool = pool();
            get(&pool, &origin).await.expect("response");
            drop(pool.unconnected(origin.address, std::io::Error::from_raw_os_error(code)));
            assert_eq!(pool.idle_total(), kept, "{code}");
        }
    });
}
