//! Peers that keep the proxy waiting, on either side.

use std::time::Duration;

use ingress_userspace::proxy::Options;

use crate::support::{Origin, Proxy, Table};

const SHORT: Duration = Duration::from_millis(100);

fn proxy(origin: &Origin, options: &Options) -> Proxy {
    Proxy::start_with(&Table::default().host("a.test", &[origin.address]), options, None)
}

#[test]
fn a_silent_pod_is_a_504() {
    let origin = Origin::start(|peer| peer.until_closed());
    let proxy = proxy(&origin, &Options { upstream_read_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").status, 504);
    assert_eq!(origin.connections(), 1, "a time-out is not tried again");
}

#[test]
fn a_pod_that_stops_within_its_response_breaks_it_off() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        peer.until_closed();
    });
    let proxy = proxy(&origin, &Options { upstream_read_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    assert!(client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").try_response().is_none());
}

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, &Options { head_timeout: SHORT, ..Options::default() });
    for start in ["", "GET / HTTP/1.1\r\nHo"] {
        let mut client = proxy.client();
        assert!(client.send(start).is_closed(), "{start:?}");
    }
    let mut client = proxy.client();
    client.get("a.test", "/");
    assert!(client.send("GET / HT").is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 3);
}

#[test]
fn an_idle_connection_is_closed() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, &Options { idle_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    client.get("a.test", "/");
    assert!(client.is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 0);
}

#[test]
fn a_body_that_stops_ends_the_connection() {
    let origin = Origin::start(|peer| peer.until_closed());
    let proxy = proxy(&origin, &Options { stall_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    assert!(client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc").is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 1);
}

#[test]
fn a_pod_is_not_blamed_for_a_body_that_stops() {
    let origin = Origin::start(|peer| {
        if peer.request().is_some() {
            peer.answer("pod");
        }
    });
    let proxy = proxy(&origin, &Options { stall_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc");
    // Either the exchange or the connection runs out first.
    assert!(client.try_response().is_none_or(|response| response.status == 408));
    assert!(client.is_closed());
    assert_eq!(proxy.client().get("a.test", "/").text(), "pod");
}

#[test]
fn a_client_that_takes_nothing_is_cut_off() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 30));
        let block = vec![0; 1 << 20];
        (0..1 << 10).for_each(|_| peer.send(&block));
    });
    let proxy = proxy(&origin, &Options { stall_timeout: SHORT, ..Options::default() });
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    crate::support::wait_until("the client is cut off", || proxy.shared.stats().timed_out == 1);
    crate::support::wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
}
