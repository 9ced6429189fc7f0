//! Requests that are retried, and requests that never are.

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
