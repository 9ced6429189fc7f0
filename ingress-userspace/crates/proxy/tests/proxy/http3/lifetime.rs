//! Connections: their number, the workers they belong to, and their end.

use std::{num::NonZeroU32, sync::mpsc, time::Duration};

use bytes::Bytes;
use http::Method;
use ingress_model::Settings;
use ingress_proxy::{Drained, Options, Pressure, Refusal};
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, until};
use tokio::time::timeout;

use super::{Client, connect_raw, options, pattern, request, start, until_counted};
use crate::{
    drain::drain,
    overload::{Cgroup, refused},
};

#[tokio::test]
async fn a_drain_finishes_requests_in_flight_and_tells_idle_clients() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        while let Some((head, _)) = peer.request() {
            if head.contains("/wait") {
                wait.lock().expect("unpoisoned").recv().expect("told to go on");
            }
            peer.answer("late");
        }
    });
    // A living client must answer within it, too.
    let options = Options { drain_idle: Duration::from_millis(300), ..options() };
    let mut proxy = Proxy::start_http3(&Table::default().host("a.test", &[origin.address]), &options, 1);
    let (idle, busy) = (Client::connect(&proxy, "a.test").await, Client::connect(&proxy, "a.test").await);
    assert_eq!(idle.get("a.test", "/").await.text(), "late");
    let asked = busy.send(request(Method::GET, "a.test", "/wait", Bytes::new()));
    let draining = async {
        until("the pod has the request", || origin.heads().len() == 2).await;
        let drained = drain(&mut proxy, DEADLINE);
        idle.quic.closed().await;
        assert!(connect_raw(&proxy, "a.test").await.is_err(), "no new connections");
        go.send(()).expect("sent");
        drained
    };
    let (got, drained) = tokio::join!(asked, draining);
    assert_eq!(got.expect("a response").text(), "late");
    busy.quic.closed().await;
    assert_eq!(drained.join().expect("drained"), Drained { cut: 0 });
}

#[tokio::test]
async fn a_drain_cuts_off_at_its_deadline() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.until_closed();
    });
    let mut proxy = start(&Table::default().host("a.test", &[origin.address]));
    let client = Client::connect(&proxy, "a.test").await;
    let asked = client.send(request(Method::GET, "a.test", "/", Bytes::new()));
    let draining = async {
        until("the pod has the request", || origin.heads().len() == 1).await;
        let drained = drain(&mut proxy, Duration::from_millis(300));
        // The client is told, long before its own time-out.
        client.quic.closed().await;
        drained
    };
    let (got, drained) = tokio::join!(asked, draining);
    assert!(got.is_err());
    assert_eq!(drained.join().expect("drained"), Drained { cut: 1 });
    until("the request is counted", || proxy.count(1).requests.aborted == 1).await;
    assert_eq!(proxy.count(1).active, 0);
}

#[tokio::test]
async fn packets_reach_the_worker_of_their_connection() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start_http3(&Table::default().host("a.test", &[origin.address]), &options(), 2);
    let client = Client::connect(&proxy, "a.test").await;
    // Without kernel programs, each new port of the client reaches either worker.
    for _ in 0..20 {
        client.move_to("127.0.0.1");
        assert_eq!(client.post("a.test", "/", pattern(5_000)).await.text(), "pod");
    }
    let expect = |counted: ingress_proxy::Http3StatsView| {
        counted.foreign > 0 && (counted.accepted, counted.connected, counted.requests) == (1, 1, 20)
    };
    until_counted(&proxy, "packets were passed on", expect).await;
    assert_eq!(proxy.shared.stats().http3.panics, 0);
    until("every request is counted", || proxy.count(1).requests.success == 20).await;
}

#[tokio::test]
async fn connections_of_a_client_are_limited() {
    let origin = Origin::answering("pod");
    let settings = Settings { connections_per_client: NonZeroU32::new(2), ..Settings::default() };
    let proxy = start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let clients = [Client::connect(&proxy, "a.test").await, Client::connect(&proxy, "a.test").await];
    for client in &clients {
        assert_eq!(client.get("a.test", "/").await.status(), 200);
    }
    let (_endpoint, third) = connect_raw(&proxy, "a.test").await.expect("a handshake");
    third.closed().await;
    assert_eq!(refused(&proxy, Refusal::ClientConnections), 1);
    let [first, _second] = clients;
    first.quic.close(0_u32.into(), b"");
    until("its connection ends", || proxy.shared.stats().connections == 1).await;
    let fourth = Client::connect(&proxy, "a.test").await;
    assert_eq!(fourth.get("a.test", "/").await.status(), 200);
}

#[tokio::test]
async fn connections_are_limited_although_their_handshakes_begin_at_once() {
    const CLIENTS: u64 = 8;
    let origin = Origin::answering("pod");
    let settings = Settings { connections_max: NonZeroU32::new(1), ..Settings::default() };
    let proxy = start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let asked: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let address = proxy.http3.expect("it serves HTTP/3");
            tokio::spawn(super::connect_at(address, "a.test", super::client_config()))
        })
        .collect();
    let mut connected = Vec::new();
    for asked in asked {
        connected.extend(asked.await.expect("no panic").ok());
    }
    until("all but one are refused", || refused(&proxy, Refusal::Connections) == CLIENTS - 1).await;
    until("the others are closed", || connected.iter().filter(|(_, quic)| quic.close_reason().is_none()).count() == 1)
        .await;
    assert_eq!(proxy.shared.stats().connections, 1);
}

#[tokio::test]
async fn without_memory_clients_that_read_nothing_are_evicted_and_new_ones_refused() {
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let length = if head.contains("/long") { 64 << 20 } else { 3 };
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
            peer.send(vec![b'x'; length]);
        }
    });
    let options = Options { drain_idle: Duration::from_millis(50), ..options() };
    let proxy = Proxy::start_http3(&Table::default().host("a.test", &[origin.address]), &options, 1);
    let cgroup = Cgroup::new();
    let (idle, stuck) = (Client::connect(&proxy, "a.test").await, Client::connect(&proxy, "a.test").await);
    assert_eq!(idle.get("a.test", "/").await.text(), "xxx");
    let mut requests = stuck.requests.clone();
    let asked = request(Method::GET, "a.test", "/long", Bytes::new()).map(|_| ());
    let mut stream = requests.send_request(asked).await.expect("sent");
    stream.finish().await.expect("sent");
    stream.recv_response().await.expect("a response");
    assert_eq!(cgroup.uses(990, &proxy), Pressure::Critical);
    assert!(connect_raw(&proxy, "a.test").await.is_err(), "no new connections");
    assert_eq!(refused(&proxy, Refusal::Memory), 1);
    for client in [&idle, &stuck] {
        timeout(DEADLINE, client.quic.closed()).await.expect("closed");
    }
    assert_eq!(proxy.shared.stats().evicted, 1, "the idle one was told to go away");
    until("the request is counted", || proxy.count(1).requests.aborted == 1).await;
    assert_eq!(cgroup.uses(100, &proxy), Pressure::None);
    let client = Client::connect(&proxy, "a.test").await;
    assert_eq!(client.get("a.test", "/").await.text(), "xxx");
}

#[tokio::test]
async fn connections_are_counted_until_they_end() {
    let origin = Origin::answering("pod");
    let proxy = start(&Table::default().host("a.test", &[origin.address]));
    let client = Client::connect(&proxy, "a.test").await;
    assert_eq!(client.get("a.test", "/").await.status(), 200);
    assert_eq!(proxy.shared.worker_connections(), [(0, 1)]);
    assert_eq!(proxy.load().connections(), Some(1));
    client.quic.close(0_u32.into(), b"");
    until("it has ended", || proxy.shared.worker_connections() == [(0, 0)]).await;
    until_counted(&proxy, "nothing is open", |counted| counted.open == 0 && counted.requests == 1).await;
}

#[tokio::test]
async fn new_settings_are_for_new_connections() {
    let origin = Origin::answering("pod");
    let table = || Table::default().host("a.test", &[origin.address]);
    let proxy = start(&table());
    let client = Client::connect(&proxy, "a.test").await;
    assert_eq!(client.get("a.test", "/").await.status(), 200);
    let settings = Settings { idle_timeout: Duration::from_millis(200), ..Settings::default() };
    proxy.publish(&table().settings(settings));
    // Workers take it up at their tick.
    let start = std::time::Instant::now();
    loop {
        let (_endpoint, quic) = connect_raw(&proxy, "a.test").await.expect("a connection");
        if timeout(Duration::from_millis(600), quic.closed()).await.is_ok() {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "the new time-out is not applied");
    }
    assert_eq!(client.get("a.test", "/").await.status(), 200, "the old connection keeps its own");
}
