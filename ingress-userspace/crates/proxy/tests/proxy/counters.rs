//! Requests, bytes and flows are counted exactly, however a request ends.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use ingress_common::HostL7;
use ingress_model::{ClientLimitSettings, HostId, PacketLimit, Settings, Transport};
use ingress_proxy::{FlowTable, Options};

use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

#[test]
fn requests_and_body_bytes_of_clients_are_counted() {
    let a = Origin::start(|peer| {
        while let Some((_, body)) = peer.request() {
            peer.answer(&"x".repeat(body.len() * 2));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[a.address]).host("b.test", &[]));
    let mut client = proxy.client();
    for _ in 0..10 {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 7\r\n\r\nabcdefg").response();
        client
            .send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
            .response();
    }
    let unavailable = client.get("b.test", "/").body.len() as u64;
    let unknown = client.get("other.test", "/").body.len() as u64;
    proxy.wait_count(1, HostL7 { requests: [20, 0, 0, 0, 0].into(), bytes_in: 100, bytes_out: 200, active: 0 });
    proxy.wait_count(2, HostL7 { requests: [0, 0, 0, 1, 0].into(), bytes_out: unavailable, ..HostL7::default() });
    proxy.wait_count(0, HostL7 { requests: [0, 0, 1, 0, 0].into(), bytes_out: unknown, ..HostL7::default() });
}

#[test]
fn the_time_to_the_head_of_a_response_is_counted_by_upstream_if_asked_for() {
    let pod = Origin::start(|peer| {
        while peer.request().is_some() {
            std::thread::sleep(Duration::from_millis(30));
            peer.answer("slow");
        }
    });
    let table = Table::default().host("a.test", &[pod.address]);
    for times_upstreams in [false, true] {
        let options = Options { times_upstreams, ..Options::default() };
        let proxy = Proxy::start_with(&table, &options, None);
        let mut client = proxy.client();
        for _ in 0..3 {
            assert_eq!(client.get("a.test", "/").text(), "slow");
        }
        let views = proxy.shared.upstreams();
        let Some(latency) = views.first().and_then(|view| view.latency) else {
            assert!(!times_upstreams && views.is_empty(), "{views:?}");
            continue;
        };
        assert!(times_upstreams);
        assert_eq!(latency.buckets.iter().sum::<u64>(), 3);
        assert_eq!(latency.buckets[..3], [0; 3], "none took 25 ms or less");
        assert!(latency.sum >= Duration::from_millis(90));
    }
}

#[test]
fn open_connections_are_known_by_worker() {
    let pod = Origin::answering("pod");
    let (proxy, _) = Proxy::start_workers(&Table::default().host("a.test", &[pod.address]), 2);
    wait_until("both workers run", || proxy.shared.worker_connections() == [(0, 0), (1, 0)]);
    let mut clients = [proxy.client(), proxy.client()];
    clients.iter_mut().for_each(|client| assert_eq!(client.get("a.test", "/").text(), "pod"));
    assert_eq!(proxy.shared.worker_connections(), [(0, 2), (1, 0)], "the client connects to the first");
    drop(clients);
    wait_until("they end", || proxy.shared.worker_connections() == [(0, 0), (1, 0)]);
}

#[test]
fn a_request_is_active_until_its_response_has_ended() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na");
        peer.until_closed();
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").head();
    client.at_least(1);
    assert_eq!(proxy.count(1).active, 1);
    assert_eq!(proxy.count(1).requests, [0; 5].into());
    drop(client);
    proxy.wait_count(1, HostL7 { requests: [0, 0, 0, 0, 1].into(), bytes_out: 1, ..HostL7::default() });
}

#[test]
fn a_disconnect_before_the_response_counts_as_aborted() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.until_closed();
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("the pod has the request", || origin.heads().len() == 1);
    drop(client);
    proxy.wait_count(1, HostL7 { requests: [0, 0, 0, 0, 1].into(), ..HostL7::default() });
}

#[test]
fn a_truncated_response_counts_as_aborted() {
    let origin = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    assert!(client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").try_response().is_none());
    proxy.wait_count(1, HostL7 { requests: [0, 0, 0, 0, 1].into(), bytes_out: 3, ..HostL7::default() });
}

#[test]
fn responses_without_a_body_count_their_class() {
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let status = if head.starts_with("head") { "200 OK\r\nContent-Length: 9" } else { "304 Not Modified" };
            peer.send(format!("HTTP/1.1 {status}\r\n\r\n"));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n").head();
    client.get("a.test", "/");
    client.send("HEAD / HTTP/1.1\r\nHost: none.test\r\n\r\n").head();
    proxy.wait_count(1, HostL7 { requests: [1, 1, 0, 0, 0].into(), ..HostL7::default() });
    proxy.wait_count(0, HostL7 { requests: [0, 0, 1, 0, 0].into(), ..HostL7::default() });
}

type Events = Arc<Mutex<Vec<(SocketAddr, SocketAddr, Option<HostId>)>>>;

struct Recorder(Events);

impl FlowTable for Recorder {
    fn insert(&self, _: Transport, remote: SocketAddr, local: SocketAddr, host: HostId) {
        self.0.lock().expect("unpoisoned").push((remote, local, Some(host)));
    }

    fn remove(&self, _: Transport, remote: SocketAddr, local: SocketAddr) {
        self.0.lock().expect("unpoisoned").push((remote, local, None));
    }
}

#[test]
fn a_flow_is_entered_when_its_host_is_known_and_removed_at_the_end() {
    let origin = Origin::answering("pod");
    let events = Events::default();
    let table = Table::default().host("a.test", &[origin.address]).host("b.test", &[origin.address]);
    let proxy = Proxy::start_with(&table, &Options::default(), Some(Box::new(Recorder(Arc::clone(&events)))));
    let mut client = proxy.client();
    let silent = proxy.client();
    let remote = client.local();
    for host in ["a.test", "a.test", "b.test", "other.test"] {
        client.get(host, "/");
    }
    drop((client, silent));
    wait_until("the connections are gone", || proxy.shared.stats().connections == 0);
    let expect = [Some(HostId(1)), Some(HostId(2)), Some(HostId(0)), None].map(|host| (remote, proxy.http, host));
    assert_eq!(*events.lock().expect("unpoisoned"), expect);
}

#[test]
fn packet_limits_enter_a_flow_before_its_first_byte() {
    let limited = PacketLimit { per_second: NonZeroU32::new(1000), burst: None };
    for (packets, expect) in [(limited, &[Some(HostId(0)), None][..]), (PacketLimit::default(), &[])] {
        let client_limits = ClientLimitSettings { packets, ..ClientLimitSettings::default() };
        let table = Table::default().settings(Settings { client_limits, ..Settings::default() });
        let events = Events::default();
        let proxy = Proxy::start_with(&table, &Options::default(), Some(Box::new(Recorder(Arc::clone(&events)))));
        let silent = proxy.client();
        let remote = silent.local();
        wait_until("the connection is accepted", || proxy.shared.stats().connections == 1);
        drop(silent);
        wait_until("the connection is gone", || proxy.shared.stats().connections == 0);
        let expect: Vec<_> = expect.iter().map(|host| (remote, proxy.http, *host)).collect();
        assert_eq!(*events.lock().expect("unpoisoned"), expect, "{packets:?}");
    }
}

#[test]
fn durations_of_complete_responses_are_counted_by_host() {
    let slow = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            if head.starts_with("get /slow") {
                let begun = std::time::Instant::now();
                while begun.elapsed().as_millis() < 30 {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
            peer.answer("pod");
        }
    });
    let silent = Origin::start(ingress_proxy_testing::Peer::until_closed);
    let proxy = Proxy::start(&Table::default().host("a.test", &[slow.address]).host("b.test", &[silent.address]));
    let mut client = proxy.client();
    for path in ["/", "/", "/slow"] {
        assert_eq!(client.get("a.test", path).status, 200);
    }
    let of = |host| proxy.shared.durations(HostId(host));
    wait_until("all are counted", || of(1).buckets.iter().sum::<u64>() == 3);
    let view = of(1);
    // The slow one is in a bucket from 25 ms on.
    assert!(view.buckets[3..].iter().sum::<u64>() >= 1 && view.sum.as_millis() >= 30, "{view:?}");
    assert_eq!(of(2).buckets.iter().sum::<u64>(), 0);
    // An aborted request has no duration.
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: b.test\r\n\r\n");
    wait_until("it has begun", || silent.connections() == 1);
    drop(client);
    wait_until("it is over", || proxy.count(2).requests.to_array()[4] == 1);
    assert_eq!(of(2).buckets.iter().sum::<u64>(), 0);
}
