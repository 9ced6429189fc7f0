//! Draining ends connections without losing a request.

use std::{sync::mpsc, thread, time::Duration};

use ingress_userspace::proxy::{Drained, Options};

use crate::support::{Client, DEADLINE, Origin, Proxy, Table, wait_until};

/// Drains in a thread of its own; the result comes when the workers have ended.
fn drain(proxy: &mut Proxy, timeout: Duration) -> thread::JoinHandle<Drained> {
    let mut server = proxy.server.take().expect("running");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(server.drain(timeout))
    })
}

fn refuses(proxy: &Proxy) -> bool {
    std::net::TcpStream::connect(proxy.http).is_err()
}

#[test]
fn requests_in_flight_are_finished_and_the_connection_closed() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.request();
        wait.lock().expect("unpoisoned").recv().expect("told to go on");
        peer.answer("late");
    });
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || origin.heads().len() == 1);
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    go.send(()).expect("sent");
    let response = client.response();
    assert_eq!((response.text(), response.header("connection")), ("late", Some("close")));
    assert!(client.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn an_idle_client_may_send_one_more_request() {
    let origin = Origin::answering("pod");
    let options = Options { drain_idle: DEADLINE, ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut client = proxy.client();
    client.get("a.test", "/");
    let drained = drain(&mut proxy, DEADLINE);
    wait_until("new connections are refused", || refuses(&proxy));
    let response = client.get("a.test", "/");
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[test]
fn idle_connections_end_after_their_time_and_busy_ones_at_the_deadline() {
    let origin = Origin::start(|peer| {
        if peer.head().is_some_and(|head| head.contains("/hang")) {
            peer.until_closed();
        }
        peer.answer("pod");
    });
    let options = Options { drain_idle: Duration::from_millis(50), ..Options::default() };
    let mut proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    let mut idle = proxy.client();
    idle.get("a.test", "/");
    let mut busy = proxy.client();
    busy.send("GET /hang HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || origin.heads().len() == 2);
    let drained = drain(&mut proxy, Duration::from_millis(500));
    assert!(idle.is_closed());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 1 });
    assert!(busy.is_closed());
    wait_until("the request cut off is counted", || proxy.count(1).requests.aborted == 1);
}

#[test]
fn a_drain_that_is_given_up_still_counts_what_it_cuts() {
    let origin = Origin::start(|peer| peer.until_closed());
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || proxy.count(1).active == 1);
    let mut server = proxy.server.take().expect("running");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let drained = runtime.block_on(async {
        tokio::time::timeout(Duration::from_millis(50), server.drain(DEADLINE)).await.expect_err("one is in flight");
        server.stop().await
    });
    assert_eq!(drained, Drained { cut: 1 });
    assert_eq!((proxy.count(1).requests.aborted, proxy.count(1).active), (1, 0));
}

#[test]
fn connections_in_the_backlog_are_served() {
    let origin = Origin::answering("pod");
    for _ in 0..20 {
        let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
        let clients: Vec<_> = (0..20).map(|_| Client::connect(proxy.http)).collect();
        let drained = drain(&mut proxy, DEADLINE);
        for mut client in clients {
            assert_eq!(client.get("a.test", "/").text(), "pod");
        }
        assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
    }
}
