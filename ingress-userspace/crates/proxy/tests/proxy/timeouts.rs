//! Peers that keep the proxy waiting, on either side.

use std::time::Duration;

use ingress_model::{Forwarding, Settings};

use ingress_proxy_testing::{Origin, Proxy, Table};

/// Long enough that a slow machine is not taken for a slow peer.
const SHORT: Duration = Duration::from_millis(500);

fn proxy(origin: &Origin, settings: Settings) -> Proxy {
    Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings))
}

/// A proxy that waits for pods no longer than [`SHORT`].
fn impatient(origin: &Origin) -> Proxy {
    let forwarding = Forwarding { read_timeout: SHORT, ..Forwarding::default() };
    Proxy::start(&Table::default().host("a.test", &[origin.address]).forwarding("a.test", forwarding))
}

#[test]
fn a_silent_pod_is_a_504() {
    let origin = Origin::start(|peer| peer.until_closed());
    let proxy = impatient(&origin);
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").status, 504);
    assert_eq!(origin.connections(), 1, "a time-out is not tried again");
}

#[test]
fn a_pod_that_stalls_mid_response_aborts_it() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        peer.until_closed();
    });
    let proxy = impatient(&origin);
    let mut client = proxy.client();
    assert!(client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").try_response().is_none());
}

#[test]
fn a_missing_head_ends_the_connection() {
    let origin = Origin::answering("pod");
    let proxy = proxy(&origin, Settings { head_timeout: SHORT, ..Settings::default() });
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
    let proxy = proxy(&origin, Settings { idle_timeout: SHORT, ..Settings::default() });
    let mut client = proxy.client();
    client.get("a.test", "/");
    assert!(client.is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 0);
}

#[test]
fn a_stalled_body_ends_the_connection() {
    let origin = Origin::start(|peer| peer.until_closed());
    let proxy = proxy(&origin, Settings { stall_timeout: SHORT, ..Settings::default() });
    let mut client = proxy.client();
    assert!(client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc").is_closed());
    assert_eq!(proxy.shared.stats().timed_out, 1);
}

#[test]
fn a_pod_is_not_blamed_for_a_stalled_client() {
    let origin = Origin::start(|peer| {
        if peer.request().is_some() {
            peer.answer("pod");
        }
    });
    let proxy = proxy(&origin, Settings { stall_timeout: SHORT, ..Settings::default() });
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nabc");
    // Either the exchange or the connection times out first.
    assert!(client.try_response().is_none_or(|response| response.status == 408));
    assert!(client.is_closed());
    assert_eq!(proxy.client().get("a.test", "/").text(), "pod");
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1 << 30));
        let block = vec![0; 1 << 20];
        (0..1 << 10).for_each(|_| peer.send(&block));
    });
    let proxy = proxy(&origin, Settings { stall_timeout: SHORT, ..Settings::default() });
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    ingress_proxy_testing::wait_until("the client is cut off", || proxy.shared.stats().timed_out == 1);
    ingress_proxy_testing::wait_until("the request is over", || proxy.count(1).requests.aborted == 1);
}

#[test]
fn new_settings_apply_without_a_restart() {
    let silent = Origin::start(|peer| peer.until_closed());
    let table = Table::default().host("a.test", &[silent.address]);
    let proxy = Proxy::start(&table);
    // An open connection keeps its settings, but its requests use the current ones.
    let mut old = proxy.client();
    assert_eq!(old.get("b.test", "/").status, 404);
    let table = table.settings(Settings { idle_timeout: SHORT, ..Settings::default() });
    proxy.publish(&table.forwarding("a.test", Forwarding { read_timeout: SHORT, ..Forwarding::default() }));
    assert_eq!(old.get("a.test", "/").status, 504);
    let mut new = proxy.client();
    assert_eq!(new.get("b.test", "/").status, 404);
    assert!(new.is_closed());
    assert_eq!(old.get("b.test", "/").status, 404);
}
