//! Requests that are retried, and requests that never are.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use ingress_model::{Forwarding, Retry};
use ingress_proxy_testing::{Origin, Peer, Proxy, Table};

fn request(method: &str) -> String {
    let body = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    format!("{method} / HTTP/1.1\r\nHost: a.test\r\n{body}\r\n")
}

/// Serves one request per connection, then closes without notice.
fn one_shot(peer: &mut Peer) {
    if peer.request().is_some() {
        peer.answer("pod");
    }
}

#[test]
fn an_endpoint_that_refuses_is_skipped() {
    let up = Origin::answering("up");
    let proxy = Proxy::start(&Table::default().host("a.test", &[Origin::refusing(), up.address, Origin::refusing()]));
    let mut client = proxy.client();
    for method in ["GET", "POST", "GET", "POST", "GET"] {
        assert_eq!(client.send(request(method)).response().text(), "up", "{method}");
    }
}

#[test]
fn a_body_reaches_the_accepting_endpoint_completely() {
    let up = Origin::start(|peer| {
        while let Some((_, body)) = peer.request() {
            peer.answer(std::str::from_utf8(&body).expect("text"));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[Origin::refusing(), Origin::refusing(), up.address]));
    let mut client = proxy.client();
    for _ in 0..4 {
        let response = client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello").response();
        assert_eq!(response.text(), "hello");
    }
}

#[test]
fn a_stale_connection_fails_no_idempotent_request() {
    let origin = Origin::start(one_shot);
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    for _ in 0..50 {
        let response = client.send(request("GET")).response();
        assert_eq!((response.status, response.text()), (200, "pod"));
    }
}

#[test]
fn a_new_connection_that_closes_at_once_is_retried_once() {
    let closing = || Origin::start(|peer| drop(peer.head()));
    let (a, b, c) = (closing(), closing(), closing());
    let proxy = Proxy::start(&Table::default().host("a.test", &[a.address, b.address, c.address]));
    assert_eq!(proxy.client().send(request("GET")).response().status, 502);
    assert_eq!(a.heads().len() + b.heads().len() + c.heads().len(), 2);
}

#[test]
fn non_idempotent_requests_are_sent_once() {
    let closing = Origin::start(|peer| drop(peer.head()));
    let other = Origin::answering("other");
    let proxy = Proxy::start(&Table::default().host("a.test", &[closing.address, other.address]));
    let mut client = proxy.client();
    let statuses: Vec<_> = (0..2).map(|_| client.send(request("POST")).response().status).collect();
    assert!(statuses.contains(&502) || closing.heads().is_empty(), "{statuses:?}");
    assert_eq!(closing.heads().len() + other.heads().len(), 2, "each request was sent once");
}

#[test]
fn a_malformed_response_is_not_retried() {
    for response in [
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        let origin = Origin::start(move |peer| {
            if peer.head().is_some() {
                peer.send(response);
                peer.until_closed();
            }
        });
        let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
        assert_eq!(proxy.client().send(request("GET")).response().status, 502, "{response:?}");
        assert_eq!(origin.heads().len(), 1, "{response:?}");
    }
}

#[test]
fn a_failed_endpoint_is_ejected() {
    let closing = Origin::start(|peer| drop(peer.head()));
    let up = Origin::answering("up");
    let proxy = Proxy::start(&Table::default().host("a.test", &[closing.address, up.address]));
    let mut client = proxy.client();
    for _ in 0..20 {
        assert_eq!(client.send(request("GET")).response().text(), "up");
    }
    assert!(closing.heads().len() <= 2, "{}", closing.heads().len());
}

/// Answers with `status` until it has done so `failures` times, and with 200 from then on.
fn failing(status: u16, failures: usize) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |peer| {
        while peer.request().is_some() {
            if count.fetch_add(1, SeqCst) < failures {
                peer.send(format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n"));
            } else {
                peer.answer("pod");
            }
        }
    })
}

/// Retries at any endpoint after these statuses.
fn after(statuses: &[u16], tries: usize) -> Retry {
    Retry { statuses: statuses.to_vec(), tries, same_endpoint: true, ..Retry::DEFAULT }
}

fn retrying(origins: &[std::net::SocketAddr], retry: Retry) -> Proxy {
    let forwarding = Forwarding { retry, ..Forwarding::default() };
    Proxy::start(&Table::default().host("a.test", origins).forwarding("a.test", forwarding))
}

#[test]
fn a_request_comes_back_to_the_same_endpoint_where_the_rule_says_so() {
    for (status, failures, retry, expect, tries) in [
        (500, 2, after(&[500], 4), 200, 3),
        (500, 4, after(&[500], 4), 500, 4),
        (503, 2, after(&[500], 4), 503, 1),
        (504, 1, after(&[500, 502, 503, 504], 3), 200, 2),
        (500, 1, after(&[500], 1), 500, 1),
        // More tries than a request remembers endpoints.
        (502, 14, after(&[502], 15), 200, 15),
        (502, 15, after(&[502], 15), 502, 15),
        // Without it, each endpoint is tried once.
        (500, 1, Retry { same_endpoint: false, ..after(&[500], 4) }, 500, 1),
    ] {
        let origin = failing(status, failures);
        let proxy = retrying(&[origin.address], retry.clone());
        assert_eq!(proxy.client().send(request("GET")).response().status, expect, "{status} {failures} {retry:?}");
        assert_eq!(origin.heads().len(), tries, "{status} {failures} {retry:?}");
    }
}

#[test]
fn other_endpoints_come_before_the_same_one() {
    let (a, b) = (failing(503, 1), failing(503, 1));
    let proxy = retrying(&[a.address, b.address], after(&[503], 5));
    assert_eq!(proxy.client().send(request("GET")).response().text(), "pod");
    let mut counts = [a.heads().len(), b.heads().len()];
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn a_request_with_an_effect_does_not_come_back() {
    let origin = failing(500, 1);
    let proxy = retrying(&[origin.address], after(&[500], 4));
    assert_eq!(proxy.client().send(request("POST")).response().status, 500);
    assert_eq!(origin.heads().len(), 1);
}

#[test]
fn connection_errors_are_retried_at_any_endpoint() {
    let up = Origin::answering("up");
    let proxy = retrying(&[Origin::refusing(), up.address], after(&[], 101));
    let mut client = proxy.client();
    for _ in 0..10 {
        assert_eq!(client.send(request("GET")).response().text(), "up");
    }
    let proxy = retrying(&[Origin::refusing()], after(&[], 101));
    assert_eq!(proxy.client().send(request("GET")).response().status, 502);
}

#[test]
fn retries_pause_longer_each_time() {
    let origin = failing(500, 3);
    let backoff = Duration::from_millis(100);
    let proxy = retrying(&[origin.address], Retry { backoff: Some(backoff), ..after(&[500], 4) });
    let begun = Instant::now();
    assert_eq!(proxy.client().send(request("GET")).response().text(), "pod");
    // 100, 200 and 400 ms, each up to a quarter longer.
    let took = begun.elapsed();
    assert!(took >= 7 * backoff, "{took:?}");
    assert!(took < 30 * backoff, "{took:?}");
    // A request without a retry does not pause.
    let begun = Instant::now();
    assert_eq!(proxy.client().send(request("GET")).response().text(), "pod");
    assert!(begun.elapsed() < backoff, "{:?}", begun.elapsed());
}

#[test]
fn a_pause_ends_with_the_time_of_the_request() {
    let origin = failing(500, usize::MAX);
    let retry = Retry { backoff: Some(Duration::from_secs(60)), ..after(&[500], 10) };
    let request_timeout = Some(Duration::from_millis(500));
    let forwarding = Forwarding { retry, request_timeout, ..Forwarding::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).forwarding("a.test", forwarding));
    assert_eq!(proxy.client().send(request("GET")).response().status, 504);
    assert_eq!(origin.heads().len(), 1);
}
