//! Deadlines of whole requests and of single tries.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use http_body_util::BodyExt as _;
use ingress_model::{Forwarding, Protocol, Retry, Uploads};
use ingress_proxy_testing::{Client, Origin, Peer, Proxy, Table, tls, ws};

/// Long enough that a slow machine is not taken for a slow pod.
const SHORT: Duration = Duration::from_millis(500);
/// Well above [`SHORT`], and well below the other time-outs.
const LONG: Duration = Duration::from_secs(5);

fn proxy(origins: &[&Origin], forwarding: Forwarding) -> Proxy {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    Proxy::start(&Table::default().host("a.test", &addresses).forwarding("a.test", forwarding))
}

fn request_timeout() -> Forwarding {
    Forwarding { request_timeout: Some(SHORT), ..Forwarding::default() }
}

fn try_timeout() -> Forwarding {
    Forwarding { backend_request_timeout: Some(SHORT), ..Forwarding::default() }
}

/// Runs `work` and asserts that a time-out of [`SHORT`] ended it.
fn within_short<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    let took = begun.elapsed();
    assert!((SHORT - Duration::from_millis(50)..LONG).contains(&took), "{took:?}");
    result
}

/// Sends a piece of a long response now and then, so that it is never silent for long.
fn drip(peer: &mut Peer) {
    if peer.request().is_none() {
        return;
    }
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    for _ in 0..1000 {
        peer.send("x");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_request_without_a_response_in_time_is_a_504() {
    let silent = Origin::start(|peer| peer.until_closed());
    for forwarding in [request_timeout(), try_timeout()] {
        let proxy = proxy(&[&silent], forwarding);
        let mut client = proxy.client();
        assert_eq!(within_short(|| client.get("a.test", "/")).status, 504);
        // The client's connection goes on.
        assert_eq!(within_short(|| client.get("a.test", "/")).status, 504);
    }
}

#[test]
fn a_response_in_time_is_passed_on() {
    let origin = Origin::answering("pod");
    for forwarding in [request_timeout(), try_timeout()] {
        let proxy = proxy(&[&origin], forwarding);
        let mut client = proxy.client();
        for _ in 0..3 {
            assert_eq!(client.get("a.test", "/").text(), "pod");
        }
        // A deadline is that of one request.
        thread::sleep(SHORT);
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
}

#[test]
fn a_response_that_does_not_end_in_time_is_cut_off() {
    let origin = Origin::start(drip);
    for forwarding in [request_timeout(), try_timeout()] {
        let proxy = proxy(&[&origin], forwarding);
        let mut client = proxy.client();
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let begun = Instant::now();
        assert!(client.try_response().is_none(), "the response is incomplete");
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_stream_that_does_not_end_in_time_is_reset() {
    let origin = Origin::start(drip);
    let proxy = proxy(&[&origin], request_timeout());
    let mut client = tls::http2(&proxy).await;
    let request = http::Request::get("https://a.test/").body(http_body_util::Full::default()).expect("a request");
    let response = client.send_request(request).await.expect("a head");
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err(), "the stream is reset");
    let request = http::Request::get("https://b.test/").body(http_body_util::Full::default()).expect("a request");
    assert_eq!(client.send_request(request).await.expect("a head").status(), 404, "the connection goes on");
}

#[test]
fn time_for_the_request_body_counts() {
    let origin = Origin::answering("pod");
    for uploads in [Uploads::Streamed, Uploads::Buffered] {
        let proxy = proxy(&[&origin], Forwarding { uploads, ..request_timeout() });
        let mut client = proxy.client();
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc");
        assert_eq!(within_short(|| client.response()).status, 504, "{uploads:?}");
    }
}

#[test]
fn a_try_that_waits_for_the_client_does_not_count_against_the_pod() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.answer("pod");
        }
    });
    let other = Origin::start(|peer| peer.until_closed());
    let proxy = proxy(&[&origin, &other], try_timeout());
    for _ in 0..2 {
        let mut client = proxy.client();
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc");
        assert_eq!(within_short(|| client.response()).status, 504);
    }
    // Neither is ejected, so both get their turn.
    let mut statuses = [0, 1].map(|_| proxy.client().get("a.test", "/").status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 504]);
}

#[test]
fn deadlines_hold_for_pods_with_http2() {
    // It accepts connections, and never says anything.
    let silent = Origin::start(|peer| peer.until_closed());
    for forwarding in [request_timeout(), try_timeout()] {
        let table = Table::default().host("a.test", &[silent.address]).forwarding("a.test", forwarding);
        let proxy = Proxy::start(&table.speaking(Protocol::H2c));
        assert_eq!(within_short(|| proxy.client().get("a.test", "/")).status, 504);
    }
}

#[test]
fn a_websocket_has_no_deadline() {
    let origin = Origin::start(|peer| {
        if peer.head().is_some() {
            peer.send(ws::SWITCH);
            while peer.more() {
                let bytes = peer.take();
                peer.send(bytes);
            }
        }
    });
    for forwarding in [request_timeout(), try_timeout()] {
        let proxy = proxy(&[&origin], forwarding);
        let mut client: Client = proxy.client();
        client.send(ws::handshake());
        assert!(client.head().expect("a head").starts_with("http/1.1 101 "));
        thread::sleep(2 * SHORT);
        assert_eq!(client.send("hello").at_least(5), b"hello");
    }
}

#[test]
fn a_try_in_vain_leads_to_another_endpoint_where_the_rule_says_so() {
    let (silent, up) = (Origin::start(|peer| peer.until_closed()), Origin::answering("up"));
    let retry = Retry { timeout: true, ..Retry::DEFAULT };
    let proxy = proxy(&[&silent, &up], Forwarding { retry, ..try_timeout() });
    let mut client = proxy.client();
    // Round robin reaches the silent one within two requests.
    for _ in 0..2 {
        assert_eq!(client.get("a.test", "/").text(), "up");
    }
    assert_eq!(silent.connections(), 1);
}

#[test]
fn all_tries_share_the_deadline_of_the_request() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    let slow = || {
        Origin::start(|peer| {
            while peer.request().is_some() {
                TRIES.fetch_add(1, SeqCst);
                thread::sleep(Duration::from_millis(300));
                peer.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
            }
        })
    };
    let (a, b, c) = (slow(), slow(), slow());
    let retry = Retry { statuses: vec![500], ..Retry::DEFAULT };
    let proxy = proxy(&[&a, &b, &c], Forwarding { retry, ..request_timeout() });
    assert_eq!(within_short(|| proxy.client().get("a.test", "/")).status, 504);
    assert_eq!(TRIES.load(SeqCst), 2);
}
